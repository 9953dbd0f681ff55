#!/usr/bin/env bash
# Kernels stay C++ that g++ compiles over the emulator, too: inline PTX and shared memory are in kernels/ptx.cuh only, and kernels
# are started by launch(), not by <<< >>>.
. "$(dirname "$0")/common.sh"
mapfile -t files < <(sources | grep -E '\.(cu|cuh)$' | grep -v '^kernels/ptx\.cuh$')
code "${files[@]}" |
  awk '{ text = $0; sub(/^[^:]*:[0-9]+:/, "", text) }
       text ~ /(^|[^A-Za-z0-9_])(asm|__asm__|__shared__)([^A-Za-z0-9_]|$)|<<<|>>>[ ]*\(/' |
  verdict instructions
