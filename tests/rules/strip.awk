# Prints FILE:LINE:TEXT with comments removed and the contents of string and character literals blanked.
FNR == 1 { state = "code" }
{
  out = ""; n = length($0); i = 1
  while (i <= n) {
    c = substr($0, i, 1); two = substr($0, i, 2)
    if (state == "comment") { if (two == "*/") { state = "code"; i++ } i++; continue }
    if (state == "raw") {
      if (substr($0, i, length(closing)) == closing) { state = "code"; out = out "\""; i += length(closing) } else i++
      continue
    }
    if (two == "//") break
    if (two == "/*") { state = "comment"; i += 2; continue }
    if (two == "R\"" && out !~ /[A-Za-z0-9_]$/) {
      rest = substr($0, i + 2); open = index(rest, "(")
      closing = ")" substr(rest, 1, open - 1) "\""; state = "raw"; out = out "\""; i += 2 + open; continue
    }
    if (c == "\"" || (c == "'" && out !~ /[0-9A-Fa-f]$/)) {  # 1'000 is a number
      out = out c; i++
      while (i <= n && substr($0, i, 1) != c) i += (substr($0, i, 1) == "\\") ? 2 : 1
      out = out c; i++; continue
    }
    out = out c; i++
  }
  print FILENAME ":" FNR ":" out
}
