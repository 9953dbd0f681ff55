#!/usr/bin/env bash
# Plants one offence per rule in a small tree of its own: each rule must pass without it, and name it once it is there.
set -euo pipefail
rules=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GIT_CEILING_DIRECTORIES=$folder/..
failures=0

expect() {  # expect RULE FILE TEXT: an offence of RULE, in FILE
  local rule=$1 file=$2 text=$3 answer
  rm -rf kernels parallel framework launch
  mkdir kernels parallel framework launch
  printf '#pragma once\n// #include <mpi.h>, malloc(1) and MPI_Send( are fine in comments\nconst char* const a = "MPI_Send(";\n' > kernels/good.h
  printf '#include "kernels/good.h"\n#include <vector>\nconst int status = MPI_Send(1);\nint x = check(\n  MPI_Recv(2));\nint y = CHECK(MPI_Recv(2));\n' > framework/good.cpp
  answer=$(bash "$rules/$rule.sh" 2>&1) || { echo "$rule: refuses a good tree: $answer"; failures=$((failures + 1)); return; }
  printf '%b' "$text" > "$file"
  if answer=$(bash "$rules/$rule.sh" 2>&1) || ! grep -q "^$file:" <<< "$answer"; then
    echo "$rule: does not find: $text: $answer"
    failures=$((failures + 1))
  fi
}

expect includes kernels/bad.cpp '#include "parallel/communicator.h"\n'
expect includes kernels/bad.h '#include <mpi.h>\n'
expect includes framework/bad.cpp '#  include <boost/program_options.hpp>\n'
expect includes framework/bad.cpp '#include "config.h"\n'
expect includes launch/bad.cpp '#include "tests/support/oracle.h"\n'
expect includes kernels/bad.cpp '#include <cuda_runtime.h>\n'
expect includes parallel/bad.cpp '#include <nccl.h>\n'
expect includes kernels/bad.cuh '#include "parallel/communicator.h"\n'
expect instructions kernels/bad.cu 'void f() { asm volatile("exit;"); }\n'
expect instructions kernels/bad.cu 'extern __shared__ float memory[];\n'
expect instructions kernels/bad.cu 'void f() { g<<<1, 2>>>(); }\n'
expect features framework/bad.cpp '#ifdef CAPSTAN_MPI\n#endif\n'
expect calls parallel/bad.cpp 'void f() {\n  MPI_Send(1);\n}\n'
expect calls parallel/bad.cpp 'void f() { int x = 3; if (x > (1)) H5Fopen(1); }\n'
expect memory framework/bad.cpp 'void* p = malloc(3);\n'
expect memory framework/bad.cpp 'int* p = new int[3];\n'
expect length framework/bad.cpp "$(yes 'int a;\n' | head -601 | tr -d '\n')"
expect words launch/bad.sh 'cd /''work/main\n'
expect words framework/bad.cpp '// TO''DO later\n'
expect headers kernels/bad.h '#pragma once\ninline std::string f();\n'
expect headers kernels/bad.cuh '#pragma once\ninline std::string f();\n'
expect headers kernels/bad.h 'inline int f() { return 1; }\n'

[ "$failures" -eq 0 ] || { echo "self_test: $failures rule(s) do not hold what they promise" >&2; exit 1; }
echo "self_test: every rule finds its offence"
