"""MXFP4 against the conversion that Transformers uses, alone and in a whole gpt-oss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from textgen.launcher.checkpoint import read_checkpoint
from textgen.layers.weight import DenseWeight, WeightFormat
from textgen.models.decoder import Decoder
from textgen.models.errors import ModelError
from textgen.models.load import load_model
from textgen.models.weights import WeightFiles
from textgen.ops import select_ops
from textgen.ops.cpu.record import record
from textgen.parallel import Parallel
from textgen.quantization.cache import CachedFormat, KeptWeight, MappedWeight, WeightsCache
from textgen.quantization.formats import Blocks
from textgen.quantization.integers import Int8Format, Int8Weight
from textgen.quantization.mxfp4 import Mxfp4Weight, read_mxfp4
from textgen.quantization.stored import DeferredFormat, StoredFormat
from textgen.shard.cache import allocate_cache

from ..ops.cpu.test_plan import logits, planned
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
            exact = theirs(blocks, scales)[index].t()
            torch.testing.assert_close(ours.numbers(), exact, rtol=0, atol=0)
            half = ours.columns(slice(32, 64))
            assert half is not None and ours.columns(slice(16, 48)) is None
            torch.testing.assert_close(half.numbers(), exact[:, 32:], rtol=0, atol=0)
        with pytest.raises(ModelError, match="'w_blocks' has shape"):
            read_mxfp4(source, "w", (3, 10, 96), 0)


def packed_model(folder: Path, seed: int) -> tuple[Any, int]:
    """Transformers' gpt-oss with the numbers of the folder's, whose experts are packed; and how many numbers."""
    reference = make_model(folder, "GptOssForCausalLM", seed, num_local_experts=4, intermediate_size=32)
    tensors, rng = load_file(folder / WEIGHTS), torch.Generator().manual_seed(seed)
    whole = sum(tensor.numel() for tensor in tensors.values())
    for index, layer in enumerate(reference.model.layers):
        for name, shape in (("gate_up_proj", (4, 64, 64)), ("down_proj", (4, 64, 32))):
            blocks, scales = random_packed(rng, *shape)
            getattr(layer.mlp.experts, name).copy_(theirs(blocks, scales))
            full = f"model.layers.{index}.mlp.experts.{name}"
            tensors.pop(full)
            tensors |= {f"{full}_blocks": blocks, f"{full}_scales": scales}
    save_file(tensors, folder / WEIGHTS)
    edit_config(folder, {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})
    return reference, whole


@torch.inference_mode()
def test_gpt_oss_with_packed_experts(seed: int, tmp_path: Path) -> None:
    reference, whole = packed_model(tmp_path, seed)
    found = read_checkpoint(tmp_path)
    assert (found.parameters, found.dtype) == (whole, "float32")
    experts = len(reference.model.layers) * 4 * (64 * 64 + 64 * 32)
    assert found.blocks == Blocks({"MXFP4": experts}, whole - experts)

    model = load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops())
    cache = allocate_cache(model.spec, BLOCKS, BLOCK, torch.float32, CPU, Parallel())
    sequence = Sequence(random_prompt(random.Random(seed), 40), list(np.random.default_rng(seed).permutation(10)))
    for length in (30, 9, 1):
        run_step(model, cache, [(sequence, length)])
    sure = well_chosen(reference, sequence.tokens)
    ours, expected = torch.cat(sequence.logits), reference_logits(reference, sequence.tokens)
    torch.testing.assert_close(ours[:sure], expected[:sure], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("cached", [False, True])
@torch.inference_mode()
def test_kernels_multiply_experts_as_they_are_packed(cached: bool, seed: int, tmp_path: Path) -> None:
    packed_model(tmp_path / "m", seed)
    form: WeightFormat = StoredFormat()
    made = []
    for _ in range(2 if cached else 1):
        cache = WeightsCache(tmp_path / "cache", "one")
        form = CachedFormat(StoredFormat(), cache) if cached else form
        model = load_model(tmp_path / "m", torch.bfloat16, CPU, Parallel(), select_ops(), format=form)
        assert isinstance(model, Decoder)
        kept = [each for layer in model.layers for each in cast(Any, layer.block).mlp.up.each]
        kind = MappedWeight if cache.mapped else KeptWeight if cached else Mxfp4Weight
        assert {type(each) for each in kept} == {kind}
        made.append(logits(planned(record(model), threads=2), 7))
        cache.commit()
    assert torch.equal(made[0], made[-1])
    exact = load_model(tmp_path / "m", torch.bfloat16, CPU, Parallel(), select_ops())
    expected = logits(exact, 7)
    missed = (made[0] - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(missed.median()) < 0.2  # some choose another expert; a product gone wrong misses by all of it


@torch.inference_mode()
def test_to_compare_with_and_for_other_integers_they_become_numbers(seed: int, tmp_path: Path) -> None:
    packed_model(tmp_path, seed)
    forms: list[tuple[torch.dtype, WeightFormat, type]] = [
        (torch.float32, StoredFormat(), DenseWeight), (torch.bfloat16, DeferredFormat(Int8Format()), Int8Weight),
    ]  # fmt: skip
    for dtype, form, kind in forms:
        model = load_model(tmp_path, dtype, CPU, Parallel(), select_ops(), format=form)
        assert isinstance(model, Decoder)
        assert all(isinstance(each, kind) for layer in model.layers for each in cast(Any, layer.block).mlp.down.each)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "GptOssForCausalLM")
    edit_config(tmp_path, {"quantization_config": {"quant_method": "exl2"}})
    with pytest.raises(ModelError, match="quantized weights are not supported"):
        load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops())
