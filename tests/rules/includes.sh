#!/usr/bin/env bash
# Who may include whom: every #include against the table in includes.txt.
. "$(dirname "$0")/common.sh"

declare -A may        # folder -> folders it may include
patterns=() owners=()  # header pattern -> files that may include it
while read -r kind name rest; do
  case $kind in
    folder) may[$name]=$rest ;;
    header) patterns+=("$name"); owners+=("$rest") ;;
    '' | '#'*) ;;
    *) echo "includes.txt: unknown line: $kind $name $rest"; exit 1 ;;
  esac
done < "$rules/includes.txt"

check() {  # check FILE LINE HEADER FORM
  local file=$1 line=$2 header=$3 form=$4 folder=${1%%/*} target=${3%%/*} i owner
  if [ "$form" = quoted ]; then
    [ "$target" != "$header" ] || { echo "$file:$line: \"$header\": write the path from the top of the tree"; return; }
    [[ " ${may[$folder]} " == *" $target "* ]] || echo "$file:$line: $folder may not include $header (may: ${may[$folder]})"
    return
  fi
  [ -z "${may[$target]:-}" ] || { echo "$file:$line: <$header>: our own headers stand in quotes"; return; }
  for i in "${!patterns[@]}"; do
    # shellcheck disable=SC2053  # patterns on purpose
    [[ $header == ${patterns[$i]} ]] || continue
    set -f
    for owner in ${owners[$i]}; do
      # shellcheck disable=SC2053
      [[ $file == $owner ]] && { set +f; return; }
    done
    set +f
    echo "$file:$line: <$header> may be included by ${owners[$i]} only"
    return
  done
}

mapfile -t files < <(sources)
[ ${#files[@]} -eq 0 ] || awk 'match($0, /^[ \t]*#[ \t]*include[ \t]*["<][^">]+/) {
    text = substr($0, RSTART, RLENGTH); form = (text ~ /"/) ? "quoted" : "angled"; sub(/^.*["<]/, "", text)
    print FILENAME, FNR, text, form }' "${files[@]}" |
  while read -r file line header form; do check "$file" "$line" "$header" "$form"; done | verdict includes
