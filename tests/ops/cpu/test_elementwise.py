"""Activations, clamps and scalings equal the reference; what the reference rounds twice is rounded once here."""

from __future__ import annotations

import random

import pytest
import torch

from textgen.models.spec import Activation, ClampedSilu
from textgen.ops import reference

from .native import ACTIVATE, ACTIVATE_GATED, CLAMP, SCALE, Native, Step
from .test_rows import KINDS, assert_near, wider

ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
WIDTHS = (1, 13, 16, 100, 255, 600)


@KINDS
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(native: Native, rng: random.Random, dtype: torch.dtype, kind: Activation) -> None:
    rows, width = rng.randint(1, 5), rng.choice(WIDTHS)
    x, y = wider((torch.randn(rows, width) * 4).to(dtype)), wider(torch.empty(rows, width, dtype=dtype))
    native.run((ACTIVATE, {0: 0, 1: 1, 2: ACTIVATIONS.index(kind)}, {}, 0), [x, y], Step(rows))
    assert_near(y, reference.activate(x.double(), kind).to(dtype), 4)


@KINDS
@pytest.mark.parametrize("kind", [*ACTIVATIONS, ClampedSilu(alpha=1.702, limit=3.0)], ids=str)
def test_gated_activations(
    native: Native, rng: random.Random, dtype: torch.dtype, kind: Activation | ClampedSilu
) -> None:
    rows, width = rng.randint(1, 5), rng.choice(WIDTHS)
    x, y = wider((torch.randn(rows, 2 * width) * 4).to(dtype)), wider(torch.empty(rows, width, dtype=dtype))
    numbers = {0: kind.limit, 1: kind.alpha} if isinstance(kind, ClampedSilu) else {}
    args = {0: 0, 1: 1, 2: 5 if isinstance(kind, ClampedSilu) else ACTIVATIONS.index(kind)}
    native.run((ACTIVATE_GATED, args, numbers, 0), [x, y], Step(rows))
    assert_near(y, reference.activate_gated(x.double(), kind).to(dtype), 4)
    in_steps = reference.activate_gated(x.clone(), kind)  # as the model runs it: rounded after each step
    bound = 2**-5 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(y, in_steps, rtol=bound, atol=bound)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_of_extreme_numbers(native: Native, kind: Activation) -> None:
    x = torch.tensor([[0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1e4, -1e4, torch.nan]])
    y = torch.empty_like(x)
    native.run((ACTIVATE, {0: 0, 1: 1, 2: ACTIVATIONS.index(kind)}, {}, 0), [x, y], Step(1))
    torch.testing.assert_close(y, reference.activate(x.double(), kind).float(), rtol=1e-5, atol=1e-30, equal_nan=True)


@KINDS
def test_clamps_and_scalings(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    rows, width = rng.randint(1, 5), rng.choice(WIDTHS)
    x = wider((torch.randn(rows, width) * 40).to(dtype))
    before = x.clone()
    native.run((CLAMP, {0: 0}, {0: -8.0, 1: 8.0}, 0), [x], Step(rows))
    assert torch.equal(x, before.clamp(-8, 8))
    native.run((SCALE, {0: 0}, {0: 0.125}, 0), [x], Step(rows))
    assert torch.equal(x, before.clamp(-8, 8) * 0.125)
    x.copy_(before)
    native.run((SCALE, {0: 0}, {0: 0.5, 1: 30.0}, 0), [x], Step(rows))
    assert_near(x, (30.0 * torch.tanh(before.float() * 0.5 / 30.0)).to(dtype), 2)


def test_widths_that_do_not_fit_are_refused(native: Native) -> None:
    with pytest.raises(ValueError, match="widths of x and y"):
        native.plan((ACTIVATE_GATED, {0: 0, 1: 1}, {}, 0), [torch.zeros(1, 8), torch.zeros(1, 5)])
    with pytest.raises(ValueError, match="no such activation"):
        native.plan((ACTIVATE, {0: 0, 1: 0, 2: 5}, {}, 0), [torch.zeros(1, 8)])
