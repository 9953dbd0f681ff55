#!/usr/bin/env bash
# What bad input gets, as docs/errors.md promises: its exit code, one line that names place, value, what is allowed and
# what to do, and nothing half-written. Every case starts the real program.
# usage: bad_input_test.sh CAPSTAN
# shellcheck disable=SC2016,SC2046,SC2154  # $ of sed; words of $(ranks N) that are to split; common.sh sets root, folder, capstan
set -euo pipefail
. "$(dirname "$0")/common.sh"
work=$folder
mkdir "$work/here"
full=$work/here/full  # a file system without space, where we may mount one
cleanup() {
  if mountpoint -q "$full"; then umount "$full"; fi
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work/here"
cases=0 wrong=0

complain() {  # complain WHAT: and show what the command printed
  echo "BAD  $*"
  sed 's/^/     /' "$work/out" "$work/err"
  wrong=$((wrong + 1))
}
# What stays for good. A run folder may begin before its first step fails: those files are whole.
files() { find . -type f ! -name lock ! -name config.cfg ! -name metrics.jsonl -exec cksum {} + | sort; }
# refuse CODE PATTERN COMMAND...: it ends with CODE and one line of ours that fits the glob *PATTERN*; no file changes
refuse() {
  local code=$1 pattern=$2 status=0 before after
  shift 2
  cases=$((cases + 1))
  before=$(files)
  timeout 60 "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
  after=$(files)
  [ "$status" -eq "$code" ] || { complain "exit code $status, not $code: $*"; return; }
  [ "$(grep -c '^capstan: ' "$work/err")" -eq 1 ] || { complain "not one line of ours: $*"; return; }
  [ "$1" = mpirun ] || [ "$(wc -l < "$work/err")" -eq 1 ] || { complain "more than a line: $*"; return; }
  grep '^capstan: ' "$work/err"
  # shellcheck disable=SC2053  # a glob
  [[ $(grep '^capstan: ' "$work/err") == *$pattern* ]] || { complain "the line does not say *$pattern*: $*"; return; }
  if [ "$before" != "$after" ]; then
    complain "files changed: $*"
    diff <(echo "$before") <(echo "$after") | sed 's/^/     /' || true
  fi
}
accept() {  # accept PATTERN COMMAND...: it works, and its output fits
  local pattern=$1 status=0
  shift
  cases=$((cases + 1))
  timeout 60 "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
  [ "$status" -eq 0 ] || { complain "exit code $status: $*"; return; }
  # shellcheck disable=SC2053
  [[ $(cat "$work/out") == *$pattern* ]] || complain "the output does not say *$pattern*: $*"
}
recipe() {  # recipe FILE CHANGE...: the small recipe, changed by sed
  local file=$1
  shift
  cat > "$file" << TEXT
[model]
hidden_size = 16
mlp_size = 32
layers = 1
heads = 2
[data]
train = bytes.h5
context = 32
[train]
steps = 2
sequences = 2
tile = 16
[checkpoint]
every = 1
TEXT
  local change
  for change in "$@"; do sed -i "$change" "$file"; done
}
ranks() { echo mpirun --timeout 50 -n "$1" "$capstan"; }  # for commands whose words hold no space

stories=$root/recipes/models/stories260K
heldout=$root/recipes/data/stories-heldout.jsonl
golden=$root/tests/golden/tokenizers
"$capstan" prepare "$heldout" --output bytes.h5 > "$work/log"
"$capstan" prepare "$heldout" --tokenizer "$stories/tokenizer.model" --output pieces.h5 > "$work/log"
"$capstan" import "$stories" --output model --end-token 1 > "$work/log"
recipe r.cfg
recipe on-model.cfg '/^hidden_size/,/^heads/d' 's/^.model.$/&\nfrom = model/'
"$capstan" train r.cfg --run run > "$work/log"

echo "options"
refuse 2 "unknown subcommand trian of capstan; did you mean capstan train?" "$capstan" trian r.cfg
refuse 2 "unknown option --optimizer.rl of capstan train; did you mean --optimizer.lr?" \
  "$capstan" train r.cfg --optimizer.rl 1
refuse 2 "unknown option --windw of capstan eval perplexity; did you mean --window?" \
  "$capstan" eval perplexity --windw 3
refuse 2 "--train.steps has no meaning for capstan generate; of a recipe's options it takes --position.*" \
  "$capstan" generate --train.steps 3
refuse 2 "--window = 0 is not allowed; give 1 to" "$capstan" eval perplexity --model model --data pieces.h5 --window 0
refuse 2 "--stride 9 is longer than --window 8" \
  "$capstan" eval perplexity --model model --data pieces.h5 --window 8 --stride 9
refuse 2 "--document-tokens 64 cuts each document, and here all are one stream" \
  "$capstan" eval perplexity --model model --data pieces.h5 --window 8 --document-tokens 64 --documents joined
refuse 2 "needs --output FILE" "$capstan" prepare bytes.h5
refuse 2 "capstan import: --output is empty; give DIR" "$capstan" import "$stories" --output=
refuse 2 "--run is empty; name a folder" "$capstan" train r.cfg --run=
refuse 2 "did you mean --train.steps?" $(ranks 2) train r.cfg --train.step 3
refuse 2 "capstan sweep needs --over KEY=V" "$capstan" sweep r.cfg
refuse 2 "--over rope is not KEY=V" "$capstan" sweep r.cfg --over rope
refuse 2 "unknown key positon.kind; did you mean position.kind?" $(ranks 2) sweep r.cfg --over positon.kind=rope
refuse 2 "--over position.kind is given twice" "$capstan" sweep r.cfg --over position.kind=rope --over position.kind=cope
refuse 2 "--seeds = 0 is not allowed; give 1 to 1000" "$capstan" sweep r.cfg --over position.kind=rope --seeds 0
refuse 78 "--over: position.kind = coop is not allowed; give none" $(ranks 2) sweep r.cfg --over position.kind=rope,coop
refuse 78 "r.cfg names no data.validation: give --eval" $(ranks 2) sweep r.cfg --over position.kind=rope,cope

echo "recipes"
recipe key.cfg 's/^steps/stepz/'
refuse 78 "key.cfg:10: unknown key train.stepz; did you mean train.steps?" "$capstan" train key.cfg
recipe section.cfg 's/^.train.$/[trian]/'
refuse 78 "section.cfg:9: unknown section \[trian\]; did you mean \[train\]?" "$capstan" train section.cfg
recipe range.cfg 's/^sequences.*/sequences = 0/'
refuse 78 "range.cfg:11: train.sequences = 0 is not allowed; give 1 to 16777216 sequences" "$capstan" train range.cfg
recipe number.cfg 's/^steps.*/steps = many/'
refuse 78 "number.cfg:10: train.steps = many is not allowed; give 0 to" "$capstan" plan number.cfg
recipe twice.cfg 's/^mlp_size.*/layers = 2/'
refuse 78 "twice.cfg:4: model.layers is given a second time (first in line 3)" "$capstan" train twice.cfg
refuse 78 "command line: model.layers = 0 is not allowed; give 1 to 4096 layers" "$capstan" train r.cfg --model.layers 0
refuse 78 "r.cfg: model.hidden_size = 16 is not a multiple of model.heads = 3" "$capstan" train r.cfg --model.heads 3
refuse 78 "r.cfg: model.heads = 4 is not a multiple of model.kv_heads = 3" \
  "$capstan" train r.cfg --model.heads 4 --model.kv_heads 3
refuse 78 "position.kind = rope+cpoe is not allowed; give none, sinusoidal" "$capstan" plan r.cfg --position.kind rope+cpoe
refuse 78 "two of its parts have what only one may: a rotation of queries and keys" "$capstan" plan r.cfg --position.kind rope+tape
refuse 78 "grid.schedule = zigzag brings key chunks out of order" "$capstan" plan r.cfg --position.kind cope --grid.schedule zigzag
refuse 78 "grid.schedule = ulysses splits the heads over 4 ranks, but the model has 2 kv heads" \
  "$capstan" plan r.cfg --grid.schedule ulysses --ranks 4
refuse 78 "the head size is 1, but position.kind = rope turns pairs" "$capstan" plan r.cfg --model.heads 16
refuse 78 "a ring of 3 ranks does not divide the 2 ranks of this run; allowed ring sizes: 1, 2" \
  $(ranks 2) train r.cfg --grid.ring 3
refuse 78 "train.frozen = \* leave nothing to train" "$capstan" train r.cfg --train.frozen '*' --run frozen
refuse 74 "none.cfg: cannot open: No such file" "$capstan" train none.cfg

echo "text"
printf ' \n\t\n' > blank.txt
: > empty.txt
printf '{"text": ""}\n{"text": "  "}\n{"other": "x"}\n' > blank.jsonl
printf '{"text": "a"}\n{"text": \n' > broken.jsonl
echo text > text.csv
refuse 65 "blank.txt*empty text" "$capstan" prepare blank.txt --output new.h5
refuse 65 "empty.txt*empty" "$capstan" prepare empty.txt --output new.h5
refuse 65 "blank.jsonl*empty text" "$capstan" prepare blank.jsonl --output new.h5
refuse 65 "broken.jsonl:2" "$capstan" prepare broken.jsonl --output new.h5
refuse 65 "text.csv: only .txt and .jsonl files are read" "$capstan" prepare text.csv --output new.h5
refuse 74 "none.txt: cannot open: No such file" "$capstan" prepare none.txt --output new.h5
refuse 74 "rank 0 of 2 (*): none.txt: cannot open: No such file" $(ranks 2) prepare none.txt --output new.h5
echo "Once upon a time there was a QZQZ." > short.txt
refuse 74 "none.model: cannot open: No such file" "$capstan" prepare short.txt --tokenizer none.model --output new.h5
head -c 3000 "$stories/tokenizer.model" > cut.model
refuse 65 "cut.model: not a SentencePiece model, or damaged" \
  "$capstan" prepare short.txt --tokenizer cut.model --output new.h5
refuse 65 "text.csv: not a SentencePiece model" "$capstan" prepare short.txt --tokenizer text.csv --output new.h5
echo '{"model": {"type": "Unigram"}}' > unigram.json
refuse 65 'unigram.json: model.type is "Unigram", allowed is BPE' \
  "$capstan" prepare short.txt --tokenizer unigram.json --output new.h5
head -c 3000 "$golden/neox_kind.json" > cut.json
refuse 65 "cut.json: malformed JSON" "$capstan" prepare short.txt --tokenizer cut.json --output new.h5

echo "token files"
refuse 74 "none.h5: cannot open: No such file" "$capstan" train r.cfg --data.train none.h5 --run none
head -c 5000 bytes.h5 > cut.h5
refuse 65 "cut.h5: not an HDF5 file, or truncated" "$capstan" train r.cfg --data.train cut.h5 --run none
refuse 65 "text.csv: not an HDF5 file" "$capstan" plan r.cfg --data.train text.csv
refuse 65 "empty.txt: empty; an HDF5 file was expected" \
  "$capstan" eval perplexity --model model --data empty.txt --window 8
refuse 65 "weights-0000.h5: format ''" "$capstan" train r.cfg --data.train model/weights-0000.h5 --run none
"$capstan" prepare short.txt --output short.h5 > "$work/log"
refuse 65 "short.h5: holds 36 tokens, a sequence of data.context 64 needs 65" \
  "$capstan" train r.cfg --data.train short.h5 --data.context 64 --run none
refuse 65 "short.h5 holds 36 tokens = 1 sequences of 32, one step needs train.sequences = 2" \
  "$capstan" train r.cfg --data.train short.h5 --run none
refuse 65 "short.h5 holds 36 tokens = 1 sequences of 32, one step needs train.sequences = 2" \
  "$capstan" plan r.cfg --data.train short.h5
refuse 65 "short.h5: 36 tokens; a window of 64 needs 65" \
  "$capstan" eval perplexity --model run --data short.h5 --window 64 --documents joined
refuse 65 "bytes.h5: its vocabulary of 258 is larger than the model's 100" \
  "$capstan" train r.cfg --model.vocabulary 100 --run none
offset=$(LC_ALL=C grep -aobP 'Q\0Z\0Q\0Z\0' short.h5 | cut -d : -f 1)
cp short.h5 id.h5
printf '\377\377' | dd of=id.h5 bs=1 seek="$offset" conv=notrunc status=none
refuse 65 "id.h5: token 30 has id 65535, the vocabulary has 258" \
  "$capstan" train r.cfg --data.train id.h5 --train.sequences 1 --run id
refuse 65 "id.h5: token 30 has id 65535, the vocabulary has 258" \
  $(ranks 2) train r.cfg --data.train id.h5 --train.sequences 1 --run id

echo "tokenizers"
refuse 65 "pieces.h5: made with tokenizer tokenizer.model *, but that of bytes.h5 is bytes" \
  "$capstan" train r.cfg --data.train bytes.h5,pieces.h5 --run none
refuse 65 "pieces.h5: made with tokenizer tokenizer.model *, but data.tokenizer = bytes is bytes" \
  "$capstan" train r.cfg --data.train pieces.h5 --data.tokenizer bytes --run none
refuse 65 "bytes.h5: made with tokenizer bytes *, but that of the model model is tokenizer.model" \
  "$capstan" train on-model.cfg --run none
refuse 65 "bytes.h5: made with tokenizer bytes *, but that of the model model is tokenizer.model" \
  "$capstan" plan on-model.cfg
refuse 78 "command line over model: position.factor = 2 has no effect with position.scaling = none" \
  "$capstan" eval perplexity --model model --data pieces.h5 --window 8 --position.factor 2
refuse 65 "bytes.h5: made with tokenizer bytes" "$capstan" eval perplexity --model model --data bytes.h5 --window 8
refuse 74 "none.model: cannot open" "$capstan" train r.cfg --data.tokenizer none.model --run none
refuse 74 "task:flip: no such tokenizer; there are bytes, task:flipflop, " \
  "$capstan" train r.cfg --data.tokenizer task:flip --run none
refuse 65 "run/checkpoints/step-000002: names no end token" \
  "$capstan" generate --model run --documents 1 --output new.jsonl
accept "Once" "$capstan" generate --model run --prompt Once --tokens 4
accept "one BOS" "$capstan" eval passkey --model run --lengths 400 --depths 1 --trials 1
accept "step 2/2" "$capstan" train r.cfg --data.train pieces.h5 --run ids
refuse 65 "ids/checkpoints/step-000002: the model has no tokenizer" \
  "$capstan" generate --model ids --prompt Once --tokens 4
accept "step 2/2" "$capstan" train r.cfg --data.train pieces.h5 --data.tokenizer "$stories/tokenizer.model" --run text
accept "Once" "$capstan" generate --model text --prompt Once --tokens 4
accept "one BOS" "$capstan" eval passkey --model text --lengths 400 --depths 1 --trials 1
refuse 2 "--lengths 50: the prompt without any garbage has" "$capstan" eval passkey --model run --lengths 50
needle() { echo "$capstan" eval needle --model run "$@"; }
accept "ruler-single" $(needle --lengths 700 --depths 1 --trials 1)
accept "ruler-multikey, haystack noise, needles 3" \
  $(needle --lengths 900 --depths 1 --trials 1 --task multikey --keys 3)
refuse 2 "--lengths 50: the prompt with 1 needle(s) and no haystack has * tokens with bytes; ask for more" \
  $(needle --lengths 700,50)
refuse 2 "--keys = 0 is not allowed; give 1 to 1024 needles" $(needle --lengths 700 --task multikey --keys 0)
refuse 2 "--keys = 1025 is not allowed; give 1 to 1024 needles" $(needle --lengths 700 --task multikey --keys 1025)
refuse 2 "--keys 2 needs --task multikey" $(needle --lengths 700 --keys 2)
refuse 2 "needs --lengths L" $(needle --task single)
refuse 74 "none.txt: cannot open: No such file" $(needle --lengths 700 --haystack none.txt)
refuse 65 "blank.txt: holds no sentence" $(needle --lengths 700 --haystack blank.txt)
refuse 65 "short.txt: all of its 1 sentence(s) make a prompt of * tokens, --lengths 700 needs more" \
  $(needle --lengths 700 --haystack short.txt)
refuse 65 "run has tokenizer bytes, text has tokenizer *: losses of different tokens do not compare" \
  "$capstan" report run text --output page.html
refuse 2 "2 runs: name the page with --output" "$capstan" report run text
refuse 74 "nowhere: no such run folder" "$capstan" report nowhere
accept "saved to run/report.html" "$capstan" report run
rm run/report.html

echo "tasks"
"$capstan" task flipflop --shortest 4 --longest 8 --examples 9 --context 32 --output flips.h5 > "$work/log"
"$capstan" train r.cfg --data.train flips.h5 --run flips > "$work/log"
refuse 2 "flip: no such task; there are passkey, repeat, flipflop, " "$capstan" task flip --output new.h5
refuse 2 "--set grid: flipflop has the sets train, test, sparse, dense" \
  "$capstan" task flipflop --set grid --output new.h5
refuse 2 "--group s5: counting has no such setting; its own are variables" \
  "$capstan" task counting --group s5 --output new.h5
refuse 2 "--context 512: example 0 has 513 tokens" "$capstan" task flipflop --context 512 --output new.h5
refuse 65 "bytes.h5: has no loss mask, so nothing in it is an answer; make it with" \
  "$capstan" eval task --model run --data bytes.h5
refuse 65 "flips.h5: made with tokenizer task:flipflop *, the model run/* has bytes" \
  "$capstan" eval task --model run --data flips.h5
refuse 65 "flips.h5: made with tokenizer task:flipflop *, but data.tokenizer = task:counting is task:counting" \
  "$capstan" train r.cfg --data.train flips.h5 --data.tokenizer task:counting --run none
accept "flipflop, train" $(ranks 2) eval task --model flips --data flips.h5 --ring 2

echo "models"
refuse 74 "none: no such folder" "$capstan" generate --model none --prompt a
refuse 65 "stories260K: holds no manifest.json; turn this Hugging Face folder into a model with capstan import" \
  "$capstan" generate --model "$stories" --prompt a
cp -r model cut-model
truncate -s -100 cut-model/weights-0000.h5
refuse 65 "cut-model/weights-0000.h5: damaged: * bytes, the manifest says" \
  "$capstan" generate --model cut-model --prompt a
refuse 65 "cut-model/weights-0000.h5: damaged" \
  "$capstan" train on-model.cfg --model.from cut-model --data.train pieces.h5 --run none
rm cut-model/weights-0000.h5
refuse 65 "cut-model/weights-0000.h5: missing, but the manifest lists it" "$capstan" inspect cut-model
refuse 65 "tensor 'model.embed_tokens.weight' is \[512, 64\], this model's is \[600, 64\]; * of another model" \
  "$capstan" train on-model.cfg --model.vocabulary 600 --data.train pieces.h5 --run none
refuse 78 "on-model.cfg: model.mlp = gelu, but the model of model.from = model has swiglu; take it out" \
  "$capstan" train on-model.cfg --model.mlp gelu --data.train pieces.h5 --run none
refuse 78 "r.cfg: model.hidden_size = 16, but the model of model.from = model has 64; take it out" "$capstan" plan r.cfg --model.from model
refuse 78 "run was started with model.layers = 1, this command says 2" "$capstan" train r.cfg --model.layers 2 --run run
refuse 78 "run was started with optimizer.lr" "$capstan" train r.cfg --optimizer.lr 0.5 --run run

echo "hugging face folders"
hf() {  # hf SED...: a copy whose configuration is changed
  rm -rf hf
  cp -r "$stories" hf
  [ $# -eq 0 ] || sed -i "$@" hf/config.json
}
import() { echo "$capstan" import hf --output new; }
refuse 74 "none/config.json: cannot open" "$capstan" import none --output new
hf 's/"rope_theta"/"sliding_window": 4096, "rope_theta"/'
refuse 65 "hf/config.json: *sliding_window*4096" $(import)
hf 's/"rope_theta"/"rope_scaling": {"rope_type": "spiral", "factor": 2.0}, "rope_theta"/'
refuse 65 "hf/config.json: *spiral" $(import)
hf 's/"num_attention_heads": 8/"num_attention_heads": 7/'
refuse 65 "hf/config.json: *7" $(import)
hf 's/"llama"/"gpt2"/'
refuse 65 "hf/config.json: *gpt2" $(import)
hf 's/"hidden_size": 64/"hidden_size": 32/'
refuse 65 "hf*model.embed_tokens.weight" $(import)
hf '$d'
refuse 65 "hf/config.json" $(import)
hf
truncate -s -1000 hf/model.safetensors
refuse 65 "hf/model.safetensors: " $(import)
truncate -s 5 hf/model.safetensors
refuse 65 "hf/model.safetensors: " $(import)
echo '{"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}' \
  > hf/model.safetensors.index.json
rm hf/model.safetensors
refuse 74 "hf/model-00001-of-00001.safetensors: cannot open" $(import)
rm hf/model.safetensors.index.json
refuse 74 "hf" $(import)
hf
refuse 74 "none.model: cannot open" $(import) --tokenizer none.model
refuse 65 "cut.model: not a SentencePiece model, or damaged" $(import) --tokenizer cut.model
refuse 65 "neox_kind.json: the tokenizer has 3271 tokens, the model 512" $(import) --tokenizer "$golden/neox_kind.json"
refuse 2 "--end-token 512: '512' is no token; allowed are 0 to 511" $(import) --end-token 512
refuse 74 "run: exists and is no earlier import" "$capstan" import hf --output run
mkdir mine
echo mine > mine/notes.txt
refuse 74 "mine: holds notes.txt, which no export writes" "$capstan" export model --output mine
refuse 74 "blank.txt: is not a folder" "$capstan" export model --output blank.txt
refuse 74 "hf: holds LICENSE.txt" "$capstan" export model --output hf
rm hf/*.txt hf/README.md
refuse 74 "hf: holds a model that no export wrote" "$capstan" export model --output hf
accept "exported" "$capstan" export model --output mine-too
accept "exported" "$capstan" export run --output mine-too

echo "places to write"
refuse 74 "blank.txt/checkpoints: cannot be made" "$capstan" train r.cfg --run blank.txt
refuse 74 "--json none/a.json: there is no folder none" \
  "$capstan" eval perplexity --model model --data pieces.h5 --window 8 --json none/a.json
refuse 74 "--output mine: is a folder" "$capstan" generate --model model --prompt a --output mine
"$capstan" train r.cfg --train.steps 1000000000 --checkpoint.every 0 --run busy > "$work/busy" 2>&1 &
busy=$!
while [ ! -s busy/metrics.jsonl ] && kill -0 $busy; do sleep 0.05; done
refuse 78 "busy: another run is writing here" "$capstan" train r.cfg --run busy
touch busy/stop
status=0
wait $busy || status=$?
[ $status -eq 75 ] || { cp "$work/busy" "$work/out"; complain "the stopped run ends with exit code $status, not 75"; }
mkdir "$full"
if mount -t tmpfs -o size=128k none "$full" 2> "$work/log"; then
  refuse 74 "full/run: a checkpoint takes * bytes, * are free" "$capstan" train r.cfg --run full/run
  refuse 74 "full/run: a checkpoint takes * bytes, * are free" $(ranks 2) train r.cfg --run full/run
  refuse 74 "bytes, * are free" "$capstan" import hf --output full/model
  refuse 74 "bytes, * are free" "$capstan" export model --output full/hf
  head -c 200000 /dev/zero | tr '\0' x > long.txt
  refuse 74 "full/new.h5: *No space left on device" "$capstan" prepare long.txt --output full/new.h5
  mount -o remount,size=1700k "$full"  # room for one checkpoint with its reserve, and then not for a second one
  head -c 400000 /dev/zero > full/ballast
  refuse 74 "bytes, * are free" "$capstan" train r.cfg --run full/run --model.mlp_size 1200
else
  echo "NOT RUN: no disk space (mounting a small tmpfs needs root: $(cat "$work/log"))"
fi

echo "ranks"
refuse 78 "the launcher started 3 ranks (PMI_SIZE is set) but MPI sees only one" \
  env PMI_SIZE=3 "$capstan" train r.cfg --run none
refuse 78 "the launcher started 2 ranks (OMPI_COMM_WORLD_SIZE is set) but MPI sees only one" \
  env OMPI_COMM_WORLD_SIZE=2 "$capstan" train r.cfg --run none
two() { echo mpirun --timeout 50 -n 1 "$capstan" train "$1" --run two : -n 1 "$capstan" train "$2" --run two; }
in_two_folders() { echo mpirun --timeout 50 -n 1 "$capstan" "$*" : -n 1 --wdir "$work/here/other" "$capstan" "$*"; }
SECONDS=0
refuse 74 "rank 1 of 2 (*): none.cfg: cannot open: No such file" $(two r.cfg none.cfg)
refuse 78 "rank 1 of 2 (*): range.cfg:11: train.sequences = 0 is not allowed" $(two r.cfg range.cfg)
recipe short.cfg 's/bytes/short/'
refuse 65 "rank 0 of 2 (*): *short.h5 holds 36 tokens" $(two short.cfg r.cfg)
[ $SECONDS -le 30 ] || { wrong=$((wrong + 1)); echo "BAD  3 failures of one rank took $SECONDS s, not 10 s each"; }
recipe lr.cfg '$a[optimizer]\nlr = 0.5'
refuse 78 "the ranks do not agree on optimizer.lr: rank 0 (*) has '0.001', rank 1 (*) has '0.5'; give all" \
  $(two r.cfg lr.cfg)
mkdir other
(cd other && cp ../r.cfg . && cp ../short.h5 bytes.h5)
sed -i 's/sequences = 2/sequences = 1/' r.cfg other/r.cfg
refuse 78 "the ranks do not agree on data file bytes.h5: rank 0 (*) has '*', rank 1 (*) has '*'" \
  $(in_two_folders train r.cfg --run two)
cp -r text/checkpoints/step-000002 other/model
refuse 78 "the ranks do not agree on model" \
  $(in_two_folders generate --model model --prompt a)

echo "a loss that is not finite"
recipe wild.cfg 's/^steps.*/steps = 50/' \
  '$a[optimizer]\nlr = 1000\nweight_decay = 100\n[schedule]\nkind = constant'
status=0
timeout 60 $(ranks 2) train wild.cfg --run wild > "$work/out" 2> "$work/err" || status=$?
cases=$((cases + 1))
[ $status -eq 1 ] || complain "a diverging run ends with exit code $status, not 1"
[ "$(grep -c '^capstan: step .*is not finite.*nothing was updated.*the last checkpoint is kept' "$work/err")" -eq 1 ] ||
  complain "not one line about it"
steps=$(wc -l < wild/metrics.jsonl)
[ -d "wild/checkpoints/$(printf 'step-%06d' "$steps")" ] || complain "the checkpoint of step $steps is not there"
accept "step" "$capstan" inspect wild

left=$(find . -name '*tmp*')
[ -z "$left" ] || { wrong=$((wrong + 1)); echo "BAD  left behind: $left"; }
echo "$cases cases, $wrong wrong"
[ "$wrong" -eq 0 ]
