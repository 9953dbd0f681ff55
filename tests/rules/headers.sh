#!/usr/bin/env bash
# headers.sh COMPILER: each header compiles alone, and twice in one file.
. "$(dirname "$0")/common.sh"
compiler=${1:-c++}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export compiler folder

check() {
  local unit="$folder/${1//\//_}.cpp"
  printf '#include "%s"\n#include "%s"\n' "$1" "$1" > "$unit"
  "$compiler" -std=c++20 -Wall -Wextra -Wno-unused-const-variable -Werror -fsyntax-only -I. "$unit" > "$unit.log" 2>&1 ||
    { echo "$1:1: does not compile alone: $(grep -m1 -E 'error' "$unit.log" || head -1 "$unit.log")"; }
}
export -f check

sources | grep '\.h$' | grep -v '^kernels/check_cuda\.h$' | xargs -r -P 2 -I{} bash -c 'check {}' | verdict headers
