#!/usr/bin/env bash
# results.sh: docs/results.md is what launch/results prints from the result files, and the README's table of results has its lines.
. "$(dirname "$0")/common.sh"
{
  diff -q <(launch/results) docs/results.md > /dev/null || echo "docs/results.md:1: is not what launch/results prints; write it again"
  rows=$(sed -n '/^## Results/,/^## /p' README.md | grep '^| ')
  [ -n "$rows" ] || echo "README.md:1: has no table under Results"
  while read -r line; do
    grep -qxF "$line" docs/results.md || echo "README.md:1: docs/results.md has no line \"$line\""
  done <<< "$rows"
} | verdict results
