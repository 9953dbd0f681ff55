#!/usr/bin/env bash
# recipes.sh CAPSTAN: every recipe passes `capstan plan`, with the data that it names in place. Token files of whole libraries take
# minutes to make: one book stands for each of them, a task's tiny files for its other sizes, and the shipped base for the runs that come
# before and after it.
. "$(dirname "$0")/common.sh"
capstan=$(realpath "${1:?the program}")
. launch/setup.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit
ln -s "$root/recipes" recipes
mapfile -t tasks < <(cd recipes && printf '%s\n' task-*.cfg | sed 's/\.cfg$//' | grep -v -e '-small$' -e '-paper$')
prepared() {
  recipe_data "$capstan" stories260K stories-train stories-heldout smoke base-4k "${tasks[@]}" && recipe_text pg19/test &&
    "$capstan" prepare runs/data/text/pg19/test/9931.txt --tokenizer $base_tokenizer --output book.h5
}
prepared > log 2>&1 || { cat log; exit 1; }
for name in $(sed -nE 's/^(train|validation) = //p' recipes/*.cfg | tr , '\n' | sort -u); do
  tiny=$(sed 's/-small//; s/-paper//' <<< "$name")  # a task's sizes differ in their examples alone
  [ -f "$name" ] || cp "$(if [ -f "$tiny" ]; then echo "$tiny"; else echo book.h5; fi)" "$name"
done
for run in $(sed -n 's/^from = //p' recipes/*.cfg | sort -u); do
  [ -e "$run" ] || { mkdir -p "${run%/*}" && ln -s "$PWD/runs/base-4k" "$run"; }
done

for recipe in recipes/*.cfg; do
  shape=()
  if [[ $recipe == */llama2-7b-* ]]; then shape=(--config recipes/models/llama2-7b-shape/config.json); fi
  answer=$("$capstan" plan "$recipe" --ranks 1 ${shape[@]+"${shape[@]}"} 2>&1 < /dev/null) ||
    echo "$recipe:1: plan fails: $(tail -n 1 <<< "$answer")"
done | verdict recipes
