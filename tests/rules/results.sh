#!/usr/bin/env bash
# results.sh: docs/results.md is what launch/results prints from the result files.
. "$(dirname "$0")/common.sh"
{ diff -q <(launch/results) docs/results.md > /dev/null || echo "docs/results.md:1: is not what launch/results prints; write it again"; } | verdict results
