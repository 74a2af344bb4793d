"""What configs say of checkpoints with integers of 4 and 8 bits: in GPTQ's and AWQ's form, and compressed-tensors'.
Without torch: the launcher reads them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textgen.models.compressed_config import METHOD, weights_of_groups
from textgen.models.config import Config
from textgen.models.errors import ModelError

GROUPS = (32, 64, 128)
ALL = -1  # inputs that share a scale, as configs say it
FORMATS = ("pack-quantized", "int-quantized")  # of compressed-tensors: several in an integer of 32 bits, or one by one
AUTO_ROUND = "auto_round:"  # before the names of other forms that it stores
# How the weights were found, which changes nothing of how they are multiplied.
_UNUSED = """backend batch_size block_name_to_quantize cache_block_outputs damp_percent dataset desc_act disable_exllama
dynamic exllama_config hyb_act is_marlin_format lm_head max_input_length meta model_file_base_name model_name_or_path
model_seqlen module_name_preceding_first_block modules_in_block_to_quantize pack_dtype pad_token_id quantizer
static_groups sym tokenizer true_sequential use_cuda_fp16 use_exllama""".split()


@dataclass(frozen=True, slots=True)
class Packed:
    """group: inputs that share a scale, 0: all of them. whole: so do all outputs. more: what is added to a stored zero
    point."""

    method: Literal["gptq", "awq", "compressed-tensors"]
    bits: int
    group: int
    more: int = 0
    whole: bool = False


def read_packed(section: Config) -> Packed | None:
    """From a config's `quantization_config`; None for another method. Raises `ModelError`."""
    method = section.text("quant_method", "unknown")
    if method == METHOD and section.text("format", "") in FORMATS:
        return _compressed(section)
    if method == "auto-round":
        method = _auto_round(section)
    if method not in ("gptq", "awq"):
        return None
    if not section.has("bits"):
        raise ModelError(
            f"{section.where}: weights are quantized by {method}, and 'bits' is missing; download it again"
        )
    bits, group = _bits(section, "bits"), _group(section, 128)
    if method == "awq":
        section.require("bits", 4)
        section.ignore("zero_point", "modules_to_not_convert", "do_fuse", "exllama_config")
        if section.text("version", "gemm").lower() != "gemm":
            raise ModelError(f"{section.where}: 'version' must be gemm; use another checkpoint")
        return Packed("awq", bits, group)
    # Whether inputs were put in an order of their own, the tensors say.
    section.ignore(*_UNUSED)
    newer = section.text("checkpoint_format", "gptq") == "gptq_v2"
    return Packed("gptq", bits, group, 0 if newer else 1)


def _auto_round(section: Config) -> str:
    """Whose form AutoRound stored its integers in. How it found them, and what it left alone, the tensors say."""
    section.require("data_type", "int")
    packing = section.text("packing_format", f"{AUTO_ROUND}auto_gptq").removeprefix(AUTO_ROUND)
    section.items()
    return {"auto_gptq": "gptq", "auto_awq": "awq"}.get(packing, "unknown")


def _compressed(section: Config) -> Packed:
    found = set[Packed]()
    for weights in weights_of_groups(section):
        weights.require("type", "int")
        strategy = weights.text("strategy", "tensor")
        if strategy not in ("tensor", "channel", "group"):
            raise ModelError(f"{weights.where}: 'strategy' must be tensor, channel or group")
        if section.text("format") == "int-quantized":  # tensors with zero points would say so
            weights.require("num_bits", 8)
        weights.ignore("symmetric", "block_structure")
        group = _group(weights) if strategy == "group" else 0
        if strategy != "group":
            weights.ignore("group_size")
        found.add(Packed("compressed-tensors", _bits(weights, "num_bits"), group, whole=strategy == "tensor"))
    if len(found) != 1:
        raise ModelError(f"{section.where}: its groups have {len(found)} forms of weights; only one is supported")
    return found.pop()


def _bits(section: Config, name: str) -> int:
    bits = section.integer(name)
    if bits not in (4, 8):
        raise ModelError(f"{section.where}: '{name}' must be 4 or 8, not {bits}; use another checkpoint")
    return bits


def _group(section: Config, default: int | None = None) -> int:
    """0 for all inputs."""
    group = section.at_least("group_size", ALL, default)
    if group != ALL and group not in GROUPS:
        raise ModelError(
            f"{section.where}: 'group_size' must be 32, 64, 128 or {ALL}, not {group}; use another checkpoint"
        )
    return max(group, 0)
