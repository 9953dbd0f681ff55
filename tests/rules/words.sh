#!/usr/bin/env bash
# What a committed file must not hold: paths of one machine, and words that mark unfinished work.
. "$(dirname "$0")/common.sh"
files() {  # committed and to be committed; without a repository, everything that is not built
  git ls-files -co --exclude-standard 2>/dev/null || find . -type f -not -path './build/*' -not -path './runs/*' -printf '%P\n'
}
mapfile -t files < <(files | grep -v -e '^tests/rules/' -e '^LICENSE' -e '^recipes/data/' -e '^recipes/models/' -e '^tests/golden/' |
  while read -r file; do [ -f "$file" ] && printf '%s\n' "$file"; done)
{
  [ ${#files[@]} -eq 0 ] || grep -nIE '(^|[^A-Za-z0-9_.$}])/(work|root|home)/' "${files[@]}" || true
  [ ${#files[@]} -eq 0 ] || grep -nIwE 'TODO|FIXME|XXX|HACK|[Ss]tubs?' "${files[@]}" || true
} | verdict words
