#!/usr/bin/env python3
"""Exported models in Hugging Face transformers (4.44 or later): equal logits over all of the new range.

usage: transformers_test.py CAPSTAN RECIPES_FOLDER
Extends stories260K from 512 to 1,024 tokens by each scaling that transformers' Llama can say, and by adapters that are merged on export;
trains models with biases and GEGLU from scratch; exports, loads the folder there, and compares every logit of 1,024 tokens; then the 4K base
at 8,192 tokens with YaRN. Each folder is loaded without its scaling, too, and must then differ. Encodings and blocks that Llama does not know
must be refused there; the exported tokenizers must give the same tokens. Exit code 77: a package is not here (pip install torch transformers
h5py sentencepiece protobuf).
"""
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import google.protobuf  # with sentencepiece: transformers reads tokenizer.model by them
    import h5py
    import sentencepiece
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as missing:
    print(f"not run: {missing}")
    sys.exit(77)

capstan, recipes = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
version = tuple(int(part) for part in transformers.__version__.split(".")[:2])

LINEAR = ["--position.scaling", "linear", "--position.factor", "2"]
LORA = ["--model.lora_rank", "4", "--train.trainable", "*.lora_*,model.embed_tokens.weight,*norm.weight"]
YARN = ["--position.scaling", "yarn", "--position.factor"]
# Method: options of the training, the rope type that the export must say (None: only another rope_theta; transformers has neither a
# static NTK nor a declared length for dynamic scaling), and the lengths to compare, shortest first: dynamic scaling there only grows.
METHODS = {
    "pi": (LINEAR, "linear", [1024]),
    "theta": (["--position.theta", "40000"], None, [1024]),
    "ntk": (["--position.scaling", "ntk", "--position.factor", "2"], None, [1024]),
    "dynamic": (["--position.scaling", "dynamic", "--position.factor", "2"], "dynamic", [512, 768, 1024]),
    "dynamic-declared": (["--position.scaling", "dynamic", "--position.factor", "2", "--position.length", "2048"], None, [512, 1024]),
    "yarn": ([*YARN, "2"], "yarn", [1024]),
    # Stretched further than it was trained, and every field of YaRN.
    "yarn-4": ([*YARN, "4", "--position.beta_fast", "16", "--position.beta_slow", "2", "--position.attention_factor", "1.25"], "yarn",
               [1024]),
    # With 16, one of the four wavelengths is blended.
    "llama3": (["--position.scaling", "llama3", "--position.factor", "4", "--position.high_freq_factor", "16"], "llama3", [1024]),
    "lora": ([*LINEAR, *LORA], "linear", [1024]),
    "longlora": ([*LINEAR, *LORA, "--train.shifted_groups", "4"], "linear", [1024]),  # trained shifted, evaluated in full
}
# Blocks, from scratch, with weights whose attention is not so sharp that it magnifies rounding.
BLOCKS = {
    "geglu": ["--model.mlp", "geglu", "--model.bias", "true", "--model.init_std", "0.1"],
    "attention_bias": ["--model.bias", "attention", "--model.init_std", "0.1"],
}
TEXTS = ["Once upon a time, there was a fox.", "a\ttab\nand a line", "naïve café – 東京 🙂", "1234567890 + x_i = {y}"]

if version >= (5, 0):
    TEXTS.append("two  spaces")  # before 5, a tokenizer.model that removes extra white space is read as if it did not

failures = 0


def check(good, line):
    global failures
    failures += not good
    print(line if good else f"FAILED: {line}", flush=True)


def run(*words):
    subprocess.run([capstan, *words], check=True, stdout=subprocess.DEVNULL)


def train(name, base, data, length, steps, options):
    start = ["--model.from", base] if base else []
    run("train", "empty.cfg", "--run", name, *start, "--data.train", data, "--data.context", str(length), "--data.documents",
        "joined", "--train.steps", str(steps), "--train.sequences", "1", "--optimizer.lr", "1e-3", *options)


def read_config(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def write_config(folder, config):
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder).float().eval()


def without_scaling(folder):
    """The same weights under plain RoPE."""
    config = read_config(folder)
    config["rope_scaling"], config["rope_theta"] = None, 10000.0
    plain = folder + "-plain"
    shutil.copytree(folder, plain)
    write_config(plain, config)
    return plain


def worst_difference(loaded, ids, ours):
    with torch.no_grad():
        return (loaded(ids[None]).logits[0] - ours).abs().max().item()


def compare_lengths(name, loaded, model, data, lengths):
    """Ours against theirs at each length; the last one's tokens, our logits, and what was allowed."""
    for length in lengths:
        run("logits", "--model", model, "--data", data, "--tokens", str(length), "--output", "logits.h5")
        with h5py.File("logits.h5") as file:
            ids, ours = torch.tensor(file["tokens"][:]), torch.tensor(file["logits"][:])
        # transformers takes angles in f32. The last one is up to `length` rad, rounded by up to length 2^-24, and an angle that is
        # off by so much moves a logit by about that share of it.
        allowed = length * 2.0**-24 * ours.abs().max().item()
        worst = worst_difference(loaded, ids, ours)
        check(worst <= allowed, f"{name}: {length} tokens, largest difference of a logit {worst:.2e}, allowed {allowed:.2e}")
    return ids, ours, allowed


def compare(name, model, folder, data, lengths):
    ids, ours, allowed = compare_lengths(name, load(folder), model, data, lengths)
    plain = worst_difference(load(without_scaling(folder)), ids, ours)
    check(plain > allowed, f"{name}: without its scaling {plain:.2e}, must be over {allowed:.2e}")
    gc.collect()


def compare_method(name, options, rope_type, lengths, base="base"):
    train(name, base, "train.h5", 1024, 2, options)
    run("export", name, "--output", f"{name}-hf")
    config = read_config(f"{name}-hf")
    stated = (config.get("rope_scaling") or {}).get("rope_type")
    check(stated == rope_type, f"{name}: exported with rope type {stated} (must be {rope_type}), rope_theta {config['rope_theta']}")
    if rope_type == "yarn" and version < (4, 51):
        print(f"{name}: not compared: transformers {transformers.__version__} takes the original length from max_position_embeddings")
        return
    compare(name, name, f"{name}-hf", "heldout.h5", lengths)


def import_new_style(model):
    """Rotations as transformers 5 writes them, which 4 does not read."""
    shutil.copytree(model, "new-style-model")
    config = read_config(model)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    write_config("new-style-model", config)
    run("import", "new-style-model", "--output", "base-5", "--tokenizer", "new-style-model/tokenizer.model", "--end-token", "1")


def compare_bf16():
    """Weights rounded on export: against a model that was imported from that export."""
    run("export", "pi", "--output", "bf16-hf", "--type", "bf16")
    run("import", "bf16-hf", "--output", "bf16")
    compare("bf16", "bf16", "bf16-hf", "heldout.h5", [1024])


def compare_base():
    model = os.path.join(recipes, "models/base-4k")
    run("import", model, "--output", "base-4k")
    run("prepare", os.path.join(recipes, "data/stories-train.jsonl"), "--tokenizer", "base-4k", "--output", "long.h5")
    train("base-8k", "base-4k", "long.h5", 8192, 1, [*YARN, "2"])
    run("export", "base-8k", "--output", "base-8k-hf")
    if version >= (4, 51):
        compare("base-4k with yarn", "base-8k", "base-8k-hf", "long.h5", [8192])


def check_refused(name, base, options):
    train(name, base, "train.h5", 256, 1, options)
    run("export", name, "--output", f"{name}-hf")
    try:
        load(f"{name}-hf")
        check(False, f"{name}: transformers loads it as a Llama")
    except (KeyError, ValueError) as error:
        check("capstan-llama" in str(error), f"{name}: refused: {str(error).splitlines()[0][:80]}")


def make_tokenizer_json():
    """A folder with a tokenizer.json instead of a tokenizer.model."""
    golden = os.path.join(os.path.dirname(recipes), "tests/golden/tokenizers/neox_kind.json")
    run("prepare", os.path.join(recipes, "data/stories-heldout.jsonl"), "--tokenizer", golden, "--output", "json.h5")
    run("train", "empty.cfg", "--run", "json", "--data.train", "json.h5", "--data.tokenizer", golden, "--data.context", "64",
        "--data.documents", "joined", "--train.steps", "1", "--train.sequences", "1", "--model.layers", "1")
    run("export", "json", "--output", "json-hf")


def compare_tokenizer(folder):
    with open("texts.jsonl", "w", encoding="utf-8") as file:
        for text in TEXTS:
            file.write(json.dumps({"text": text}) + "\n")
    run("prepare", "texts.jsonl", "--tokenizer", folder, "--output", "texts.h5")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with h5py.File("texts.h5") as file:
        tokens, ends, bos = file["tokens"][:].tolist(), file["documents"][:].tolist(), int(file.attrs["bos"] >= 0)
    for text, begin, end in zip(TEXTS, ends, ends[1:]):
        theirs = tokenizer(text, add_special_tokens=False).input_ids
        check(theirs == tokens[begin + bos:end], f"{folder}: the tokens of {text!r}")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    model = os.path.join(recipes, "models/stories260K")
    run("import", model, "--output", "base", "--tokenizer", os.path.join(model, "tokenizer.model"), "--end-token", "1")
    for name in ("train", "heldout"):
        run("prepare", os.path.join(recipes, f"data/stories-{name}.jsonl"), "--tokenizer", "base", "--output", f"{name}.h5")
    with open("empty.cfg", "w", encoding="utf-8") as recipe:
        recipe.write("[position]\nkind = rope\n")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for method, settings in METHODS.items():
        compare_method(method, *settings)
    import_new_style(model)
    compare_method("new-style", LINEAR, "linear", [1024], "base-5")
    compare_bf16()
    compare_base()
    for block, options in BLOCKS.items():
        train(block, None, "train.h5", 1024, 2, options)
        run("export", block, "--output", f"{block}-hf")
        compare_lengths(block, load(f"{block}-hf"), block, "heldout.h5", [1024])
    for kind in ("none", "cope", "rope+cope", "tape"):
        check_refused(kind, "base", ["--position.kind", kind])
    check_refused("post-norm", None, ["--model.norm", "post", "--model.mlp", "gelu"])
    make_tokenizer_json()
    for exported in ("pi-hf", "base-8k-hf", "json-hf"):
        compare_tokenizer(exported)
sys.exit(1 if failures else 0)
