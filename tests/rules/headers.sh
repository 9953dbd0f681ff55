#!/usr/bin/env bash
# headers.sh [COMPILER [FOLDER]]: each header compiles alone, and twice in one file. FOLDER keeps the files, for ccache.
. "$(dirname "$0")/common.sh"
compiler=${1:-c++}
folder=${2:-$(mktemp -d)}
[ $# -ge 2 ] || trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"
if command -v ccache > /dev/null; then compiler="ccache $compiler"; fi
export compiler folder

check() {
  local unit="$folder/${1//\//_}.cpp"
  printf '#include "%s"\n#include "%s"\n' "$1" "$1" > "$unit"
  $compiler -std=c++20 -Wall -Wextra -Werror -I. -c "$unit" -o "$unit.o" > "$unit.log" 2>&1 ||
    echo "$1:1: does not compile alone: $(grep -m 1 error "$unit.log" || head -n 1 "$unit.log")"
}
export -f check

sources | grep '\.h$' | grep -v '^kernels/check_cuda\.h$' | xargs -r -P 2 -I{} bash -c 'check {}' | verdict headers
