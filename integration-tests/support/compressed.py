"""The built-in model as compressed-tensors writes models of integers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.models import BUILT_IN

GROUP = 32


def write_compressed(folder: Path, bits: int) -> Path:
    """4 bits in groups of 32 inputs, packed; or 8 bits with a scale for each output, one by one."""
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    tensors = {}
    for name, weight in load_file(BUILT_IN / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = weight
            continue
        groups = weight.float().unflatten(1, (-1, GROUP if bits == 4 else weight.shape[1]))
        scales = groups.abs().amax(-1) / ((most - least) / 2)
        values = (groups / scales[..., None]).round().clamp(least, most).flatten(1).to(torch.int8)
        tensors[f"{name}_scale"] = scales.bfloat16()
        if bits == 8:
            tensors[name] = values
            continue
        words = (values.long() - least).unflatten(1, (-1, 8)) << torch.arange(0, 32, 4)
        tensors[f"{name}_packed"] = words.sum(-1).view(torch.int32)[:, ::2].contiguous()
        tensors[f"{name}_shape"] = torch.tensor(weight.shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for path in BUILT_IN.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != "config.json":
            shutil.copy(path, folder)
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False, "observer": "minmax"}
    strategy = {"strategy": "group", "group_size": GROUP} if bits == 4 else {"strategy": "channel"}
    group = {"targets": ["Linear"], "input_activations": activations if bits == 8 else None}
    said: dict[str, Any] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized" if bits == 4 else "int-quantized",
        "config_groups": {"group_0": {**group, "weights": weights | strategy}}, "ignore": ["lm_head"],
        "quantization_status": "compressed", "kv_cache_scheme": None,
    }  # fmt: skip
    config = json.loads((BUILT_IN / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    return folder
