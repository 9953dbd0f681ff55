#!/usr/bin/env python3
"""Makes neox_kind.json and llama3_kind.json, and bpe_golden.jsonl with the ids that Hugging Face's library (tokenizers
0.23.3) gives for them.

    make_reduced.py GPT_NEOX_TOKENIZER_JSON

neox_kind.json: GPT-NeoX-20B's tokenizer.json with its rules and added tokens, cut to its first 3,000 merges.
llama3_kind.json: the rules of Llama 3's tokenizer.json (its split pattern, merges as pairs, ignore_merges, BOS by a
template) on GPT-2's first 3,000 merges, beside this script; none of Llama 3's vocabulary is in it.
"""
import json, os, random, sys
from tokenizers import Tokenizer

here = os.path.dirname(os.path.abspath(__file__))
merges_kept = 3000


def write(name, data):
    with open(os.path.join(here, name), "w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


def vocabulary(alphabet, merges, first):
    tokens = list(alphabet) + [left + right for left, right in merges]
    return {token: first + i for i, token in enumerate(dict.fromkeys(tokens))}


def neox_kind(path):
    data = json.load(open(path, encoding="utf-8"))
    old = data["model"]["vocab"]
    alphabet = [token for token in sorted(old, key=old.get) if len(token) == 1]
    merges = [tuple(merge.split(" ")) for merge in data["model"]["merges"][:merges_kept]]
    vocab = {token: old[token] for token in ("<|endoftext|>", "<|padding|>")}
    vocab.update(vocabulary(alphabet, merges, 2))
    data["model"]["vocab"] = vocab
    data["model"]["merges"] = [" ".join(merge) for merge in merges]
    extra = len(vocab)
    for token in data["added_tokens"]:
        if token["content"] in vocab:
            token["id"] = vocab[token["content"]]
        else:
            token["id"], extra = extra, extra + 1
    write("neox_kind.json", data)


def llama3_kind():
    encoder = json.load(open(os.path.join(here, "gpt2/encoder.json"), encoding="utf-8"))
    lines = open(os.path.join(here, "gpt2/vocab.bpe"), encoding="utf-8").read().split("\n")[1 : 1 + merges_kept]
    merges = [tuple(line.split(" ")) for line in lines]
    alphabet = [token for token in sorted(encoder, key=encoder.get) if len(token) == 1]
    vocab = vocabulary(alphabet, merges, 0)
    for word in ("Ġsupercalifragilisticexpialidocious", "Ġuniversally", "Camel"):  # no merges lead to these
        assert word not in vocab
        vocab[word] = len(vocab)
    first = len(vocab)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    added = [
        {"id": first + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, text in enumerate(special)]
    added.append(dict(added[0], id=first + 5, content="<mask>", lstrip=True))
    added.append(dict(added[0], id=first + 6, content="<tail>", rstrip=True, special=False))
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    begin = {"SpecialToken": {"id": special[0], "type_id": 0}}
    a, b = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    template = {"type": "TemplateProcessing", "single": [begin, a], "pair": [begin, a, begin, b],
                "special_tokens": {special[0]: {"id": special[0], "ids": [first], "tokens": [special[0]]}}}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    write("llama3_kind.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, dict(byte_level, use_regex=False)]},
        "post_processor": {"type": "Sequence", "processors": [byte_level, template]}, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": vocab, "merges": merges}})


def golden():
    path = os.path.join(here, "tokenizer_golden.jsonl")
    texts = [json.loads(line)["text"] for line in open(path, encoding="utf-8")]
    texts += [
        "I'M, you'Re, it'S; WE'LL 'tis ’s", "12 345 6789 ½ Ⅻ ٣٤٥", "e\u0301 \u1e9b\u0323 \u212b \ufb01 \uac00\u1100\u1161",
        "a<|endoftext|>b <|padding|>", "<|begin_of_text|>x<|eot_id|><|eot_id", "a  <mask>  b\n\t<tail> \n c<mask><tail>",
        "x" + " " * 30 + "y" + " " * 3 + "z", "|||EMAIL_ADDRESS||||||IP_ADDRESS|||", "\u180e a\u180eb\u0085c\u2028 d\u3000e\ufeff",
        "\x00\x01\x7f\x1b[0m", "\r\n\r\n  \n\t x\r", "supercalifragilisticexpialidocious universally CamelCase"]
    source = random.Random(1)
    letters = "aab eé\u0301 \n\t\r'sSTld019½.,!?<|>_-中한🙂\u200d\u00a0\u3000ſß"
    texts += ["".join(source.choice(letters) for _ in range(source.randrange(1, 60))) for _ in range(200)]
    made = {name: Tokenizer.from_file(os.path.join(here, name + ".json")) for name in ("neox_kind", "llama3_kind")}
    with open(os.path.join(here, "bpe_golden.jsonl"), "w", encoding="utf-8") as file:
        for text in texts:
            line = {"text": text}
            line.update({name: t.encode(text, add_special_tokens=False).ids for name, t in made.items()})
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


neox_kind(sys.argv[1])
llama3_kind()
golden()
