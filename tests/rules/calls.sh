#!/usr/bin/env bash
# No unchecked call: the result of an MPI, NCCL, CUDA or HDF5 call is used (by a check macro, a condition, a variable), never
# dropped: such a call may not be a statement by itself. Exempt: calls that cannot fail, or that end the program.
. "$(dirname "$0")/common.sh"
mapfile -t files < <(sources)
code "${files[@]}" | awk '
  BEGIN {
    call = "(^|[^A-Za-z0-9_])(MPI_[A-Z][a-z]|nccl[A-Z]|cuda[A-Z]|cublas[A-Z]|H5[A-Z][A-Z]?[a-z])[A-Za-z0-9_]*[ ]*\\("
    exempt = "^(MPI_Abort|H5Eset_auto2)[ ]*\\("
  }
  {
    match($0, /^[^:]*:[0-9]+:/); place = substr($0, 1, RLENGTH); rest = substr($0, RLENGTH + 1)
    if (place ~ /:1:$/) statement = ""
    if (rest ~ /^[ \t]*#/) next
    while (match(rest, call)) {
      name = substr(rest, RSTART, RLENGTH); skipped = (name ~ /^[A-Za-z0-9_]/) ? 0 : 1
      name = substr(name, 1 + skipped)
      statement = statement substr(rest, 1, RSTART - 1 + skipped); sub(/^.*[;{}]/, "", statement)
      if (name !~ exempt && statement ~ /(^|\)|else|do|<void>\()[ \t]*$/) print place " result of " name ") is dropped"
      statement = statement name; rest = substr(rest, RSTART + RLENGTH)
    }
    statement = statement rest; sub(/^.*[;{}]/, "", statement)
  }' | verdict calls
