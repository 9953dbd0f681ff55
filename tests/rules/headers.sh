#!/usr/bin/env bash
# headers.sh [COMPILER [FOLDER]]: each header compiles alone, and may be included twice. FOLDER keeps the files, for ccache.
# Builds would not tell: they have precompiled what most headers need. What includes CUDA's headers is compiled over the emulator's
# stand-ins of them. CAPSTAN_SOURCE_DIR is what CMake gives to tests.
. "$(dirname "$0")/common.sh"
compiler=${1:-c++}
folder=${2:-$(mktemp -d)}
[ $# -ge 2 ] || trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"
if command -v ccache > /dev/null; then compiler="ccache $compiler"; fi
export compiler folder

check() {
  local cuda=''
  case $1 in *.cuh | kernels/check_cuda.h | kernels/stream_cuda.h | tests/simt/* | tests/support/simt/*) cuda='-Itests/support/simt/include -Wno-unknown-pragmas' ;; esac
  if ! grep -qx '#pragma once' "$1"; then echo "$1:1: has no #pragma once"; fi
  local unit="$folder/${1//\//_}.cpp"
  printf '#include "%s"\n#include "%s"\n' "$1" "$1" > "$unit"
  $compiler -std=c++20 -Wall -Wextra -Werror $cuda -I. '-DCAPSTAN_SOURCE_DIR="."' -c "$unit" -o "$unit.o" > "$unit.log" 2>&1 ||
    echo "$1:1: does not compile alone: $(grep -m 1 error "$unit.log" || head -n 1 "$unit.log")"
}
export -f check

sources | grep -E '\.(h|cuh)$' | xargs -r -P 2 -I{} bash -c 'check {}' | verdict headers
