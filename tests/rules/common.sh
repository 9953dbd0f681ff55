# shellcheck shell=bash
# Sourced by the rules. They look at the tree below the current folder and print one line "file:line: what is wrong" each.
set -euo pipefail
rules=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

sources() {  # C++ and CUDA files, sorted
  find kernels parallel framework launch tests -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | LC_ALL=C sort || true
}

code() {  # file:line:text of the given files, without comments and string contents
  [ $# -eq 0 ] || awk -f "$rules/strip.awk" "$@"
}

verdict() {  # verdict RULE: reads offending lines; fails if there are any
  local offences
  offences=$(cat)
  [ -z "$offences" ] && { echo "$1: holds"; return 0; }
  printf '%s\n' "$offences"
  echo "$1: broken by $(printf '%s\n' "$offences" | wc -l) line(s)" >&2
  return 1
}
