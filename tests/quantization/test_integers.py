"""Weights of 8 and 4 bits: how near they are, that products are those of the integers, and what they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.launcher.folders import make_folder
from tests.models.tiny import make_model
from tests.seeds import fresh_seed
from textgen.launcher.checkpoint import read_checkpoint
from textgen.launcher.model import resolve
from textgen.layers.weight import DenseWeight
from textgen.models.config import read_config
from textgen.models.registry import describe
from textgen.quantization.formats import gpu_weight_bytes, weight_bytes
from textgen.quantization.integers import Int4Format, Int4Weight, Int8Format, Int8Weight
from textgen.quantization.rows import quantize_rows


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(fresh_seed()))


def test_int8_is_within_half_a_step_and_multiplies_integers_exactly() -> None:
    w, x = drawn(37, 96), drawn(5, 96)
    made = Int8Format().of(w)
    assert isinstance(made, Int8Weight)
    values = made.values.double() * made.scales.double()[:, None]
    assert ((values - w).abs() <= made.scales[:, None] / 2 * 1.001).all()
    bias = drawn(37)
    integers, scales = quantize_rows(x)
    exact = (integers.double() * scales) @ values.t() + bias
    torch.testing.assert_close(made.multiply(x, bias).double(), exact, rtol=1e-6, atol=1e-5)
    assert ((integers * scales - x).abs() <= scales / 2 * 1.001).all()


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_is_near_and_multiplies_integers(group: int) -> None:
    w, x = drawn(19, 2 * group), drawn(4, 2 * group)
    made = Int4Format(group).of(w)
    assert isinstance(made, Int4Weight)
    assert (made.group, made.inputs, made.outputs) == (group, 2 * group, 19)
    integers = made.unpacked(slice(None))
    assert (int(integers.min()), int(integers.max())) >= (-8, -8)
    values = integers.double().view(19, -1, group) * made.scales.double()[..., None]
    plain = w.view(19, -1, group)
    extreme = plain.gather(-1, plain.abs().argmax(-1, keepdim=True))
    step = (extreme / -8).half()
    rounded = ((plain / step).round().clamp(-8, 7) * step - plain).square().sum()
    assert (values - plain).square().sum() <= rounded * 1.001, "a searched scale is no worse than the plain one"
    quantized, scales = quantize_rows(x.view(4, -1, group))
    exact = (quantized.double() * scales).flatten(1) @ values.flatten(1).t()
    torch.testing.assert_close(made.multiply(x, None).double(), exact, rtol=1e-5, atol=1e-5)


def test_inputs_that_no_group_divides_become_8_bit() -> None:
    assert isinstance(Int4Format(64).of(drawn(8, 40)), Int8Weight)
    made = Int4Format(128).of(drawn(8, 96))
    assert isinstance(made, Int4Weight)
    assert made.group == 32


@pytest.mark.parametrize("made", [Int8Format().of(torch.zeros(3, 32)), Int4Format(32).of(torch.zeros(3, 32))])
def test_zeros_stay_zeros(made: Int8Weight | Int4Weight) -> None:
    assert not made.multiply(torch.zeros(2, 32), None).any()
    assert not made.multiply(torch.ones(2, 32), None).any()


@pytest.mark.parametrize("form", [Int8Format(), Int4Format(32)])
def test_outputs_in_another_order(form: Int8Format | Int4Format) -> None:
    w, x, order = drawn(16, 64), drawn(3, 64), torch.randperm(16)
    made = form.of(w)
    assert torch.equal(made.reordered(order).multiply(x, None), made.multiply(x, None)[:, order])
    assert torch.equal(DenseWeight(w).reordered(order).values, w[order])


def test_bytes_of_a_model_are_those_of_its_weights(tmp_path: Path) -> None:
    """What the launcher plans with, against what is made of matrices of the same sizes."""
    model = resolve(str(make_folder(tmp_path / "m")))
    spec, parameters = model.spec, model.checkpoint.parameters
    assert weight_bytes(spec, parameters, 2, None) == 2 * parameters
    int8, int4 = (weight_bytes(spec, parameters, 2, name) for name in ("int8", "int4"))
    assert int4 < int8 < 2 * parameters + spec.vocab_size * spec.hidden_size
    tied = replace(spec, tied_head=True)
    apart = gpu_weight_bytes(tied, parameters, 2, "int8", 0, kernels=True)
    assert apart - weight_bytes(tied, parameters, 2, "int8") == 2 * spec.vocab_size * spec.hidden_size
    make_model(tmp_path / "e", "Qwen3MoeForCausalLM", hidden_size=64, moe_intermediate_size=512)
    mixture, _ = describe(read_config(tmp_path / "e"))
    numbers = read_checkpoint(tmp_path / "e").parameters
    sizes = [weight_bytes(mixture, numbers, 2, form) for form in (None, "int8", "int4")]
    assert sizes[0] > 1.7 * sizes[1] > 2.5 * sizes[2], "most of its numbers are experts'"
    by_kernels, by_torch = (gpu_weight_bytes(mixture, numbers, 2, "int4", 0, kernels) for kernels in (True, False))
    assert by_torch > 2.5 * by_kernels, "torch multiplies experts as numbers"
    matrix = drawn(256, 512)
    assert Int8Format().of(matrix).nbytes <= matrix.numel() * (1 + 4 / 256)  # type: ignore[attr-defined]
    assert Int4Format(32).of(matrix).nbytes == matrix.numel() * (0.5 + 2 / 32)  # type: ignore[attr-defined]
