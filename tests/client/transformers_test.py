#!/usr/bin/env python3
"""Exported models in Hugging Face transformers: equal logits over all of the new range.

usage: transformers_test.py CAPSTAN RECIPES_FOLDER
Extends stories260K from 512 to 1,024 tokens by each scaling that transformers knows, and by adapters that are merged on export; trains
models with biases and GEGLU from scratch; exports, loads the folder there, and compares every logit of 1,024 tokens. One that its Llama
does not know must be refused there. Exit code 77: transformers, torch or h5py is not here.
"""
import os
import subprocess
import sys
import tempfile

try:
    import h5py
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print(f"not run: {missing}")
    sys.exit(77)

capstan, recipes = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
LENGTH = 1024
METHODS = {
    "pi": ["--position.scaling", "linear", "--position.factor", "2"],
    "ntk": ["--position.scaling", "ntk", "--position.factor", "2"],
    "dynamic": ["--position.scaling", "dynamic", "--position.factor", "2"],
    "yarn": ["--position.scaling", "yarn", "--position.factor", "2"],
    "lora": ["--position.scaling", "linear", "--position.factor", "2", "--model.lora_rank", "4",
             "--train.trainable", "*.lora_*"],
}
SCRATCH = {  # in place of --model.from; with weights whose attention is not so sharp that it magnifies rounding
    "geglu": ["--model.mlp", "geglu", "--model.bias", "true", "--model.init_std", "0.1"],
    "attention_bias": ["--model.bias", "attention", "--model.init_std", "0.1"],
    "post": ["--model.norm", "post", "--model.mlp", "gelu"],
}
REFUSED = {"post"}
# f32 sums of up to 172 products in another order, through 5 layers: roundings of the largest logit.
ROUNDINGS = 64


def run(*words):
    subprocess.run([capstan, *words], check=True, stdout=subprocess.DEVNULL)


failures = 0
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    model = os.path.join(recipes, "models/stories260K")
    run("import", model, "--output", "base", "--tokenizer", os.path.join(model, "tokenizer.model"), "--end-token", "1")
    for name in ("train", "heldout"):
        run("prepare", os.path.join(recipes, f"data/stories-{name}.jsonl"), "--tokenizer", "base", "--output", f"{name}.h5")
    with open("empty.cfg", "w", encoding="utf-8") as recipe:
        recipe.write("[position]\nkind = rope\n")
    for method, options in (METHODS | SCRATCH).items():
        start = [] if method in SCRATCH else ["--model.from", "base"]
        run("train", "empty.cfg", "--run", method, "--data.train", "train.h5", "--data.context", str(LENGTH), "--data.documents", "joined",
            "--train.steps", "2", "--train.sequences", "1", "--optimizer.lr", "1e-3", *start, *options)
        run("logits", "--model", method, "--data", "heldout.h5", "--tokens", str(LENGTH), "--output", f"{method}.h5")
        run("export", method, "--output", f"{method}-hf")
        if method in REFUSED:
            try:
                AutoModelForCausalLM.from_pretrained(f"{method}-hf")
                print(f"{method}: loaded, but must be refused")
                failures += 1
            except ValueError as refusal:
                print(f"{method}: refused: {str(refusal).splitlines()[0]}")
            continue
        with h5py.File(f"{method}.h5") as file:
            ids, ours = torch.tensor(file["tokens"][:]), torch.tensor(file["logits"][:])
        theirs_model = AutoModelForCausalLM.from_pretrained(f"{method}-hf", torch_dtype=torch.float32).eval()
        with torch.no_grad():
            theirs = theirs_model(ids[None]).logits[0]
        worst = (ours - theirs).abs().max().item()
        allowed = ROUNDINGS * 2.0**-23 * ours.abs().max().item()
        print(f"{method}: {LENGTH} tokens, largest difference of a logit {worst:.2e}, allowed {allowed:.2e}")
        failures += not worst <= allowed  # a NaN fails
sys.exit(1 if failures else 0)
