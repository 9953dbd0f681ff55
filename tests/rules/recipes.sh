#!/usr/bin/env bash
# recipes.sh CAPSTAN: every recipe passes `capstan plan`.
. "$(dirname "$0")/common.sh"
capstan=${1:?the program}
for recipe in recipes/*.cfg; do
  [ -f "$recipe" ] || continue
  answer=$("$capstan" plan "$recipe" --ranks 1 2>&1 < /dev/null) || echo "$recipe:1: plan fails: $(tail -1 <<< "$answer")"
done | verdict recipes
