"""What configs say of checkpoints in GPTQ's and AWQ's form. Without torch: the launcher reads them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textgen.models.config import Config
from textgen.models.errors import ModelError

GROUPS = (32, 64, 128)
# How the weights were found, which changes nothing of how they are multiplied.
_UNUSED = """backend batch_size block_name_to_quantize cache_block_outputs damp_percent dataset desc_act disable_exllama
dynamic exllama_config hyb_act is_marlin_format lm_head max_input_length meta model_file_base_name model_name_or_path
model_seqlen module_name_preceding_first_block modules_in_block_to_quantize pack_dtype pad_token_id quantizer
static_groups sym tokenizer true_sequential use_cuda_fp16 use_exllama""".split()


@dataclass(frozen=True, slots=True)
class Packed4:
    """What a config says. more: what is added to a stored zero point."""

    method: Literal["gptq", "awq"]
    group: int
    more: int


def read_packed4(section: Config) -> Packed4 | None:
    """From a config's `quantization_config`; None for another method. Raises `ModelError`."""
    method = section.text("quant_method", "unknown")
    if method not in ("gptq", "awq"):
        return None
    if not section.has("bits"):
        raise ModelError(
            f"{section.where}: weights are quantized by {method}, and 'bits' is missing; download it again"
        )
    section.require("bits", 4)
    group = section.integer("group_size", 128)
    if group not in GROUPS:
        raise ModelError(f"{section.where}: 'group_size' must be 32, 64 or 128, not {group}; use another checkpoint")
    if method == "awq":
        section.ignore("zero_point", "modules_to_not_convert", "do_fuse", "exllama_config")
        if section.text("version", "gemm").lower() != "gemm":
            raise ModelError(f"{section.where}: 'version' must be gemm; use another checkpoint")
        return Packed4("awq", group, 0)
    # Whether inputs were put in an order of their own, the tensors say.
    section.ignore(*_UNUSED)
    newer = section.text("checkpoint_format", "gptq") == "gptq_v2"
    return Packed4("gptq", group, 0 if newer else 1)
