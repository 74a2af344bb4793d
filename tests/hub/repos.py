"""Repositories as the hub has them: what a server needs, and much that it does not."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.launcher.folders import CONFIG

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
NEEDED = {"config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json", WEIGHTS}
USELESS = {
    "README.md", ".gitattributes", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx",
    "model.gguf", "consolidated.safetensors", "modeling_tiny.py",
}  # fmt: skip


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def text_files(**config: Any) -> dict[str, bytes]:
    return {
        "config.json": json.dumps(CONFIG | config).encode(),
        "tokenizer.json": b"{}",
        "generation_config.json": b'{"eos_token_id": 2}',
        "tokenizer_config.json": b"{ }",
    }


def model_files(size: int = 300_000, seed: int = 0, **config: Any) -> dict[str, bytes]:
    """A repository with one file of weights, which only look like some."""
    return {name: name.encode() for name in USELESS} | text_files(**config) | {WEIGHTS: noise(size, seed)}


def sharded_files() -> dict[str, bytes]:
    """A repository whose weights are in two files, with a third that the index does not name."""
    index = {"metadata": {}, "weight_map": {"a": PARTS[0], "b": PARTS[1], "c": PARTS[0]}}
    parts = {name: noise(100_000 + number, number) for number, name in enumerate(PARTS)}
    return text_files() | parts | {INDEX: json.dumps(index).encode(), "model-extra.safetensors": b"x"}
