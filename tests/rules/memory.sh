#!/usr/bin/env bash
# Memory is allocated in one place: no malloc family, new T[] or cudaMalloc outside kernels/memory.cpp and kernels/device_*.
. "$(dirname "$0")/common.sh"
mapfile -t files < <(sources | grep -v -e '^kernels/memory\.cpp$' -e '^kernels/device_' -e '^tests/')
call='(malloc|calloc|realloc|aligned_alloc|posix_memalign|cudaMalloc[A-Za-z]*) *\('
code "${files[@]}" | { grep -E "(^|[^A-Za-z0-9_])($call|new +[A-Za-z_:<>0-9]+ *\[)" || true; } | verdict memory
