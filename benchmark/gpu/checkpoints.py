"""Models of random numbers on disk: a shard starts from them as from any other, and so do the peers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmark.gpu.shapes import SHAPES, tensors_of
from benchmark.startup.model import BUILT_IN, TEXTS
from benchmark.structured.masks import large

STD, PEAK = 0.02, 448.0  # of the numbers; the largest of E4M3
BLOCK = 128  # rows and columns that share a scale
FP8 = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
MARGIN = 1 << 30  # bytes of the disk that stay free
INDEX = "model.safetensors.index.json"


class NoRoom(Exception):
    """The disk has no room for a model; the message says for how much."""


def folder_of(shape: str, form: str, models: Path) -> Path:
    """The model, written unless it is there: in fp8, or in bfloat16, of which shards make the other forms as they load.
    Raises `NoRoom`."""
    stored = "fp8" if form == "fp8" else "bf16"
    made = models / f"{shape}-{stored}"
    if (made / "config.json").exists():
        return made
    config = dict(SHAPES[shape]) | ({"quantization_config": FP8} if stored == "fp8" else {})
    models.mkdir(parents=True, exist_ok=True)
    _check_room(config, stored, models)
    part = made.with_name(f"{made.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    _write_tokenizer(part, config["vocab_size"])
    where: dict[str, str] = {}
    for number, tensors in enumerate(_files(config, stored)):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, part / name, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, name)
    (part / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (part / "config.json").write_text(json.dumps(config))
    part.rename(made)
    return made


def _check_room(config: dict[str, Any], stored: str, models: Path) -> None:
    matrices = sum(torch.Size(shape).numel() for name, shape in tensors_of(config).items() if _is_matrix(name))
    rest = sum(torch.Size(shape).numel() for name, shape in tensors_of(config).items() if not _is_matrix(name))
    needed = 2 * rest + (1 if stored == "fp8" else 2) * matrices
    free = shutil.disk_usage(models).free
    if free < needed + MARGIN:
        raise NoRoom(
            f"{models} has room for {free / 1e9:.1f} GB, and the model takes {needed / 1e9:.1f} GB; "
            "give --models a folder of another disk"
        )


def _is_matrix(name: str) -> bool:
    return name.endswith("_proj.weight")


def _files(config: dict[str, Any], stored: str) -> Iterator[dict[str, Tensor]]:
    """A layer in each, and what is no layer's in one. The same random numbers over and over."""
    noise = torch.randn(2**20 + 1, generator=torch.Generator().manual_seed(0))
    plain = noise.mul(STD).bfloat16()
    scaled = noise.mul(PEAK / 8).clamp(-PEAK, PEAK).to(torch.float8_e4m3fn)

    def tensor(numbers: Tensor, shape: tuple[int, ...]) -> Tensor:
        count = torch.Size(shape).numel()
        # Bytes, because torch repeats no numbers of 8 bits.
        flat = numbers.view(torch.uint8).view(len(numbers), -1)
        whole = flat.repeat(-(-count // len(flat)), 1)[:count]
        return whole.view(numbers.dtype).view(shape)

    names: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape in tensors_of(config).items():
        layer = name.split(".")[2] if name.startswith("model.layers.") else ""
        names.setdefault(layer, []).append((name, shape))
    for of_file in names.values():
        tensors: dict[str, Tensor] = {}
        for name, shape in of_file:
            if stored == "fp8" and _is_matrix(name):
                tensors[name] = tensor(scaled, shape)
                blocks = tuple(-(-size // BLOCK) for size in shape)
                tensors[f"{name}_scale_inv"] = torch.full(blocks, STD / (PEAK / 8))
            else:
                tensors[name] = tensor(plain, shape)
        yield tensors


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """With a word for each token that a model may say."""
    for name in TEXTS:
        shutil.copy(BUILT_IN / name, folder / name)
    words = folder / "words"
    words.mkdir()
    large(words, vocabulary)
    (words / "tokenizer.json").replace(folder / "tokenizer.json")
    shutil.rmtree(words)
