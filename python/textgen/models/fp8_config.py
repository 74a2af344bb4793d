"""What configs say of checkpoints with 8-bit floating point numbers and scales.

DeepSeek's and Hugging Face's form (`fp8`) has a scale for each block of a matrix or for all of it; `compressed-tensors`
has one for all of it, for each row, or for each block; FBGEMM's (`fbgemm_fp8`) for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

from textgen.models.compressed_config import METHOD, weights_of_groups
from textgen.models.config import Config
from textgen.models.errors import ModelError

FORMATS = ("float-quantized", "naive-quantized")  # of compressed-tensors: stored as they are multiplied


@dataclass(frozen=True, slots=True)
class Fp8:
    """How weights are scaled: in blocks of [rows, columns], or by row or whole, as the scale's shape says."""

    block: tuple[int, int] | None = None


def read_fp8(section: Config) -> Fp8 | None:
    """From a config's `quantization_config`; None for another method. Raises `ModelError`."""
    method = section.text("quant_method", "unknown")
    if method == "fp8":
        section.ignore("activation_scheme", "modules_to_not_convert", "ignored_layers", "dequantize", "scale_fmt")
        section.require("fmt", "e4m3")
        return Fp8(_block(section, "weight_block_size"))
    if method == "fbgemm_fp8":
        section.ignore("activation_scale_ub", "modules_to_not_convert")
        return Fp8()
    if method != METHOD or section.text("format", "") not in FORMATS:
        return None
    blocks = set()
    for weights in weights_of_groups(section):
        weights.ignore("group_size")
        for key, expected in (("num_bits", 8), ("type", "float"), ("symmetric", True)):
            weights.require(key, expected)
        if weights.text("strategy", "tensor") not in ("tensor", "channel", "block"):
            raise ModelError(f"{weights.where}: 'strategy' must be tensor, channel or block")
        blocks.add(_block(weights, "block_structure"))
    if len(blocks) != 1:
        raise ModelError(f"{section.where}: its groups have {len(blocks)} kinds of blocks; only one is supported")
    return Fp8(blocks.pop())


def _block(section: Config, name: str) -> tuple[int, int] | None:
    if not section.has(name):
        return None
    sizes = section.integers(name)
    if len(sizes) != 2 or min(sizes) < 1:
        raise ModelError(f"{section.where}: '{name}' must be two positive integers, not {sizes!r}")
    return sizes[0], sizes[1]
