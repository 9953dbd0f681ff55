#!/usr/bin/env bash
# No feature #if: what is missing from a build is another source file (x_absent.cpp), never an #if in a caller.
. "$(dirname "$0")/common.sh"
mapfile -t files < <(sources | grep -v -e '_absent\.' -e 'build_info')
code "${files[@]}" |
  awk '{ text = $0; sub(/^[^:]*:[0-9]+:/, "", text) }
       text ~ /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)/ && text ~ /CUDA|MPI|NCCL|HDF5|H5_|BOOST|DNNL|CAPSTAN_|__has_include/' |
  verdict features
