#!/usr/bin/env bash
# recipes.sh CAPSTAN: every recipe passes `capstan plan`, with the data that it names in place.
. "$(dirname "$0")/common.sh"
capstan=$(realpath "${1:?the program}")
. launch/setup.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit
ln -s "$root/recipes" recipes
mapfile -t tasks < <(cd recipes && printf '%s\n' task-*.cfg | sed 's/\.cfg$//')
recipe_data "$capstan" stories260K stories-train stories-heldout smoke "${tasks[@]}" > "$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }

for recipe in recipes/*.cfg; do
  answer=$("$capstan" plan "$recipe" --ranks 1 2>&1 < /dev/null) || echo "$recipe:1: plan fails: $(tail -n 1 <<< "$answer")"
done | verdict recipes
