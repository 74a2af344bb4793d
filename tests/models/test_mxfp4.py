"""MXFP4 against the conversion that Transformers uses, alone and in a whole gpt-oss."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from textgen.launcher.checkpoint import read_checkpoint
from textgen.layers.mxfp4 import read_mxfp4
from textgen.models.errors import ModelError
from textgen.models.load import load_model
from textgen.models.weights import WeightFiles
from textgen.ops import select_ops
from textgen.parallel import Parallel
from textgen.shard.cache import allocate_cache

from ..seeds import fresh_seed
from .test_decoder import BLOCK, BLOCKS, Sequence, run_step
from .tiny import edit_config, make_model, random_prompt, reference_logits, well_chosen

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


def random_packed(rng: torch.Generator, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks [count, out, in / 32, 16] and scales of random matrices [count, out, in], of size about 0.2."""
    count, rows, columns = shape
    blocks = torch.randint(0, 256, (count, rows, columns // 32, 16), dtype=torch.uint8, generator=rng)
    return blocks, torch.randint(121, 125, blocks.shape[:3], dtype=torch.uint8, generator=rng)


def theirs(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[count, in, out], as the model holds it."""
    matrices: torch.Tensor = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return matrices


@pytest.fixture
def seed() -> int:
    return fresh_seed()


def test_numbers_are_those_of_transformers(seed: int, tmp_path: Path) -> None:
    blocks, scales = random_packed(torch.Generator().manual_seed(seed), 3, 10, 64)
    scales[0, 0] = torch.tensor([1, 250])  # far from 1, still normal numbers of float32
    save_file({"w_blocks": blocks, "w_scales": scales}, tmp_path / WEIGHTS)
    with WeightFiles(tmp_path) as source:
        for index in range(3):
            ours = read_mxfp4(source, "w", (3, 10, 64), index)
            torch.testing.assert_close(ours, theirs(blocks, scales)[index].t(), rtol=0, atol=0)
        with pytest.raises(ModelError, match="'w_blocks' has shape"):
            read_mxfp4(source, "w", (3, 10, 96), 0)


@torch.inference_mode()
def test_gpt_oss_with_packed_experts(seed: int, tmp_path: Path) -> None:
    changes = {"num_local_experts": 4, "intermediate_size": 32}
    reference = make_model(tmp_path, "GptOssForCausalLM", seed, **changes)
    tensors, rng = load_file(tmp_path / WEIGHTS), torch.Generator().manual_seed(seed)
    whole = sum(tensor.numel() for tensor in tensors.values())
    for index, layer in enumerate(reference.model.layers):
        for name, shape in (("gate_up_proj", (4, 64, 64)), ("down_proj", (4, 64, 32))):
            blocks, scales = random_packed(rng, *shape)
            getattr(layer.mlp.experts, name).copy_(theirs(blocks, scales))
            full = f"model.layers.{index}.mlp.experts.{name}"
            tensors.pop(full)
            tensors |= {f"{full}_blocks": blocks, f"{full}_scales": scales}
    save_file(tensors, tmp_path / WEIGHTS)
    edit_config(tmp_path, {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})
    assert (read_checkpoint(tmp_path).parameters, read_checkpoint(tmp_path).dtype) == (whole, "float32")

    model = load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops())
    cache = allocate_cache(model.spec, BLOCKS, BLOCK, torch.float32, CPU, Parallel())
    sequence = Sequence(random_prompt(random.Random(seed), 40), list(np.random.default_rng(seed).permutation(10)))
    for length in (30, 9, 1):
        run_step(model, cache, [(sequence, length)])
    sure = well_chosen(reference, sequence.tokens)
    ours, expected = torch.cat(sequence.logits), reference_logits(reference, sequence.tokens)
    torch.testing.assert_close(ours[:sure], expected[:sure], rtol=2e-4, atol=2e-4)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "GptOssForCausalLM")
    edit_config(tmp_path, {"quantization_config": {"quant_method": "exl2"}})
    with pytest.raises(ModelError, match="quantized weights are not supported"):
        load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops())
