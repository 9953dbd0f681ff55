#!/usr/bin/env bash
# No source file over 600 lines.
. "$(dirname "$0")/common.sh"
sources | while read -r file; do
  lines=$(wc -l < "$file")
  [ "$lines" -le 600 ] || echo "$file:1: $lines lines, more than 600: split it"
done | verdict length
