"""What configs say of checkpoints in GPTQ's and AWQ's form. Without torch: the launcher reads them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textgen.models.config import Config
from textgen.models.errors import ModelError

GROUPS = (32, 64, 128)


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
    section.ignore("desc_act", "sym", "damp_percent", "true_sequential", "static_groups", "lm_head", "meta", "model_name_or_path",
                   "model_file_base_name", "is_marlin_format", "dataset", "tokenizer", "block_name_to_quantize", "use_exllama",
                   "module_name_preceding_first_block", "batch_size", "pad_token_id", "disable_exllama", "exllama_config",
                   "max_input_length", "cache_block_outputs", "modules_in_block_to_quantize", "use_cuda_fp16", "model_seqlen",
                   "backend", "quantizer", "dynamic", "pack_dtype", "hyb_act")  # fmt: skip
    newer = section.text("checkpoint_format", "gptq") == "gptq_v2"
    return Packed4("gptq", group, 0 if newer else 1)
