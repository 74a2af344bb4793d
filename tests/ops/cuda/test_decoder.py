"""Whole models by the kernels for GPUs, all their operations by the same seam, have Transformers' logits."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from textgen.models.spec import ExpertsSpec
from textgen.ops.cuda.ops import CudaOps

from ...models import test_decoder
from ...models.families import TINY
from ...models.test_decoder import BLOCK, BLOCKS, Sequence
from ...models.tiny import make_model, random_prompt, reference_logits
from .host_device import HostDevice


def counted_sums(ops: CudaOps, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each sum that is made together with its norm."""
    rows: list[int] = []
    add_rms_norm = ops.add_rms_norm

    def counted(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        rows.append(len(x))
        return add_rms_norm(x, residual, weight, eps)

    monkeypatch.setattr(ops, "add_rms_norm", counted)
    return rows


@pytest.mark.parametrize(
    "architecture",
    [
        "LlamaForCausalLM",
        "Gemma2ForCausalLM",
        "Qwen3ForCausalLM",
        "MptForCausalLM",
        "MixtralForCausalLM",
        "GptOssForCausalLM",
    ],
)
@torch.inference_mode()
def test_logits_equal_transformers(
    rng: random.Random,
    device: HostDevice,
    ops: CudaOps,
    architecture: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = TINY[architecture].draw(rng)
    print(changes)
    theirs = make_model(tmp_path, architecture, rng.getrandbits(32), **changes)
    sums = counted_sums(ops, monkeypatch)
    monkeypatch.setattr(test_decoder, "select_ops", lambda: ops)
    model = test_decoder.load(tmp_path)
    cache = test_decoder.poisoned_cache(model)
    free = rng.sample(range(BLOCKS), BLOCKS)
    sequences = []
    for length in (1, 19, 34):
        blocks, free = free[: -(-length // BLOCK)], free[-(-length // BLOCK) :]
        sequences.append(Sequence(random_prompt(rng, length), blocks))
    steps = 0
    while waiting := [sequence for sequence in sequences if sequence.done < len(sequence.tokens)]:
        chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
        limits = [min(rng.choice([1, 12, 20]), len(s.tokens) - s.done) for s in chosen]
        test_decoder.run_step(model, cache, list(zip(chosen, limits, strict=True)))
        steps += 1
    for sequence in sequences:
        expected = reference_logits(theirs, sequence.tokens)
        torch.testing.assert_close(torch.cat(sequence.logits), expected, rtol=2e-4, atol=2e-4)
    kernels = {"attention_decode", "activate", "rotary"}
    if model.spec.layers[0].mlp.__class__ is ExpertsSpec:
        kernels |= {"route", "group_rows", "grouped_linear", "weighted_sum"}
    assert kernels <= set(device.launches)
    if architecture == "LlamaForCausalLM":  # all sums but the last wait for the norm that follows
        assert len(sums) == steps * (2 * model.spec.num_layers - 1)
