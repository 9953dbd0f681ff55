#!/usr/bin/env bash
# An evaluation that is killed and run again, as a user does it: it goes on from FILE.part on any number of ranks, and its figures
# are those of the unbroken one, bit for bit.
# usage: eval_resume_test.sh CAPSTAN
# shellcheck disable=SC2154  # common.sh sets root, folder, capstan
set -euo pipefail
. "$(dirname "$0")/common.sh"
stories=$root/recipes/models/stories260K
"$capstan" prepare "$root/recipes/data/stories-heldout.jsonl" --tokenizer "$stories/tokenizer.model" --output pieces.h5 > log
"$capstan" import "$stories" --output model --end-token 1 > log

fail() { cat log; echo "$*"; exit 1; }
ranks() { mpirun --timeout 100 -n "$1" "$capstan" "${@:2}" < /dev/null > log 2>&1 || fail "exit code $?: $*"; }
lines() { if [ -f "$1" ]; then wc -l < "$1"; else echo 0; fi; }
figures() { sed '/"ranks"/,$d' "$1"; }  # everything but how many ranks made them
kill_at() {  # kill_at LINES FILE COMMAND...: -9, once FILE.part has as many lines
  local wanted=$1 file=$2 program
  shift 2
  "$capstan" "$@" --json "$file" > log 2>&1 &
  program=$!
  until [ "$(lines "$file.part")" -ge "$wanted" ]; do
    kill -0 $program 2> /dev/null || fail "ended before it could be killed: $*"
    sleep 0.01
  done
  kill -9 $program
  wait $program 2> /dev/null || true
  [ ! -e "$file" ] || fail "$file stands although its evaluation was killed"
}
goes_on() {  # goes_on NAME COMMAND...: killed twice, ended on 2 ranks
  local name=$1 known
  shift
  ranks 1 "$@" --json "$name.json"
  kill_at 5 "$name-killed.json" "$@"
  kill_at $(($(lines "$name-killed.json.part") + 5)) "$name-killed.json" "$@"
  known=$(($(lines "$name-killed.json.part") - 1))
  ranks 2 "$@" --json "$name-killed.json"
  [ "$(grep -c "^going on: $known of " log)" -eq 1 ] || fail "it does not say once that $known items are known"
  [ ! -e "$name-killed.json.part" ] || fail "the journal is left behind"
  [ -s "$name-killed.json" ] || fail "no result"
  diff <(figures "$name.json") <(figures "$name-killed.json") > differing || { head -n 5 differing; fail "$name: other figures"; }
  echo "$name: $known items were known; the same figures"
}

goes_on perplexity eval perplexity --model model --data pieces.h5 --window 96 --stride 16
goes_on passkey eval passkey --model model --lengths 400,500 --depths 3 --trials 12
goes_on needle eval needle --model model --lengths 400,500 --depths 3 --trials 12 --task multikey --keys 2

# another evaluation's journal, and one whose last line is cut off
kill_at 5 other.json eval perplexity --model model --data pieces.h5 --window 96 --stride 16
truncate -s -7 other.json.part
cp other.json.part cut.json.part
ranks 1 eval perplexity --model model --data pieces.h5 --window 96 --stride 16 --json cut.json
diff <(figures perplexity.json) <(figures cut.json) > differing || fail "cut: other figures"
ranks 1 eval perplexity --model model --data pieces.h5 --window 100 --max-windows 3 --json other.json
[ "$(grep -c "^other.json.part: of another evaluation; starting over" log)" -eq 1 ] || fail "no line about another evaluation"
[ ! -e other.json.part ] || fail "the journal of another evaluation is left behind"
echo "cut off, and of another evaluation: as promised"
