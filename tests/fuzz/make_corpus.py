#!/usr/bin/env python3
"""Writes the seeds of safetensors_fuzz: small legal files, and near misses that steer it to the interesting checks."""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def write(name, header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    size = len(text) if length is None else length
    (CORPUS / name).write_bytes(struct.pack("<Q", size) + text + data)


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


CORPUS.mkdir(exist_ok=True)
write("empty", {}, b"")
write("two", {"__metadata__": {"format": "pt"}, "a": tensor("F32", [1, 2], 0, 8), "b": tensor("BF16", [3], 8, 14)}, bytes(14))
write("scalar_and_none", {"s": tensor("F64", [], 0, 8), "none": tensor("I64", [0, 7], 8, 8)}, bytes(8))
write("gap", {"a": tensor("U8", [1], 0, 1), "b": tensor("U8", [1], 2, 3)}, bytes(3))
write("overflow", {"a": tensor("F64", [2305843009213693953], 0, 8)}, bytes(8))
write("escapes", b'{"a\\u00e9\\n\\ud83d\\ude42":{"dtype":"I8","shape":[-1],"data_offsets":[0,1e3]}}', b"x")
write("length", {}, b"", length=(1 << 63) + 5)
