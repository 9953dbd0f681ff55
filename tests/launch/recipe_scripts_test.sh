#!/usr/bin/env bash
# The scripts that train for hours, on a stand-in for the program that takes what the program's --help names, notes the command, and leaves
# results: they run through, name only what is there, and started again make nothing twice.
# usage: recipe_scripts_test.sh CAPSTAN
# shellcheck disable=SC2154  # common.sh sets root, folder, capstan
set -euo pipefail
. "$(dirname "$0")/common.sh"
cp -r "$root/launch" "$root/recipes" .
mkdir -p bin docs/results
cp "$root/docs/results/papers.tsv" docs/results/
printf '#!/usr/bin/env bash\nshift 2  # -n RANKS\nexec "$@"\n' > bin/mpirun
printf 'capstan=%s folder=%s\n' "$capstan" "$folder" > bin/places
cat > bin/program << 'PROGRAM'
#!/usr/bin/env bash
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/places"
echo "$*" >> "$folder/commands"
command=$1
if [ "$1" = eval ]; then command="eval $2"; fi
page=$folder/help-${command// /-}
# shellcheck disable=SC2086  # one or two words
[ -f "$page" ] || "$capstan" $command --help > "$page"
declare -A given=()
while [ $# -gt 0 ]; do
  case $1 in
    --*)
      grep -qE -- "$1( |,|\$)" "$page" || { echo "capstan $command has no option $1" >&2; exit 2; }
      given[$1]=${2:-} ;;
    recipes/*.cfg) [ -f "$1" ] || { echo "there is no $1" >&2; exit 2; } ;;
  esac
  shift
done
for model in ${given[--model]:-}; do [ -d "$model" ] || { echo "there is no model $model" >&2; exit 2; }; done
for data in $(tr , ' ' <<< "${given[--data]:-} ${given[--eval]:-}"); do [ -f "$data" ] || { echo "there is no $data" >&2; exit 2; }; done
case $command in
  import | export) mkdir -p "${given[--output]}" && touch "${given[--output]}/config.json" ;;
  prepare | task) touch "${given[--output]}" ;;
  train)
    mkdir -p "${given[--run]}"
    touch "${given[--run]}/config.cfg"
    echo '{"step": 1, "tokens": 8, "loss": 2.5, "seconds": 0.5}' > "${given[--run]}/metrics.jsonl" ;;
  sweep)
    mkdir -p "${given[--runs]}"
    for value in $(cut -d= -f2 <<< "${given[--over]}" | tr , ' '); do
      mkdir -p "${given[--runs]}/$value-s1"
      echo "{\"values\": {\"${given[--over]%%=*}\": \"$value\"}, \"figures\": [{\"of\": \"a-test.h5\", \"mean\": 0.5, \"sd\": null}]}"
    done | jq -s '{seeds: 1, recipe: "x", combinations: .}' > "${given[--runs]}/results.json" ;;
  plan) printf 'model       5 parameters\narithmetic  2.5 GFLOP\n' ;;
  eval*)
    echo '{"perplexity": 120.25, "counted_tokens": 7, "buckets": [{}, {}, {}, {}, {}, {}, {}, {}],
      "cells": [{"length": 1024, "depth": 0, "correct": 3, "trials": 4}, {"length": 8192, "depth": 0, "correct": 1, "trials": 4}]}' |
      sed 's/{}/{"mean_nll": 4.5}/g' > "${given[--json]}" ;;
esac
PROGRAM
chmod +x bin/mpirun bin/program
export PATH=$folder/bin:$PATH

fail() { echo "$*"; exit 1; }
started() {  # started SCRIPT OPTION...: it succeeds; prints the commands that it gave
  : > commands
  "launch/$1" --program bin/program "${@:2}" > log 2>&1 < /dev/null || { cat log; fail "launch/$* failed"; }
  cat commands
}
count() { grep -c "$1" || true; }

trained=$(started base_4k | count '^train')
[ "$trained" -eq 4 ] || fail "launch/base_4k trained $trained stages"
for script in 'extend_4k --seeds 1,2' 'extend_32k --methods yarn,theta --longlora theta --needles yarn'; do
  # shellcheck disable=SC2086  # words
  first=$(started $script) again=$(started $script)
  [ "$(count '^train' <<< "$first")" -gt 1 ] || fail "launch/$script trained nothing"
  [ -z "$again" ] || fail "launch/$script, started again: $again"
done
for size in tiny small; do
  first=$(started tasks --size $size) again=$(started tasks --size $size)
  [ "$(count '^sweep' <<< "$first")" -ge 5 ] || fail "launch/tasks --size $size swept nothing"
  again=$(grep -v '^sweep\|^plan' <<< "$again" || true)  # which themselves make nothing twice
  [ -z "$again" ] || fail "launch/tasks --size $size, started again: $again"
done
launch/results > page || fail "launch/results failed"
for line in '| theta | 31 | 2 | 120.25 ± 0.00 | 120.25 ± 0.00 | 0.500 ± 0.000 | 6/8, 2/8 |' '| 32k-theta | 120.25 | 120.25 |' '| rope | 50.0 (98.2) |' \
  '| rope | 5 | 2.5 | 1.000 | 1.00 |' '| both | 0.5000 | 1.6 |' '### Books'; do
  grep -qF "$line" page || { cat page; fail "launch/results prints no line \"$line\""; }
done
