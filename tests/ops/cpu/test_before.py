"""Products of rows that go through a norm or an activation before: bit for bit those of two operations in a row."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from .guarded import guarded
from .native import ACTIVATE, ACTIVATE_GATED, ADD, DTYPES, LAYER_NORM, NORM, Native, Step
from .test_rows import KINDS
from .weights import BF16, COMPACT, F32, INT4_GROUPS, INT8, Q4_K, kernels_of, packed, random_matrix

LINEAR, NORMED, ACTIVATED, GATED = 0, 1, 2, 3
FORMS = [(F32, 0), (BF16, 0), (COMPACT, 0), (INT8, 0), (INT4_GROUPS, 32), (Q4_K, 0)]
ROWS = (1, 2, 3, 7, 9, 40, 259)  # one, fewer than four for a worker, those that share tiles, those that workers keep


class Case:
    """A product on one set of kernels; `before` and the operation that stands for it are compared."""

    def __init__(
        self, native: Native, rng: random.Random, dtype: torch.dtype, wide: int, form: tuple[int, int]
    ) -> None:
        """wide: how much wider than the product's inputs x is."""
        kernels = kernels_of(native.isa)
        assert kernels is not None
        self.native, self.add = native, rng.choice((0, ADD))
        self.rows, outs = rng.choice(ROWS), rng.randint(1, 80)
        self.ins = 256 * rng.randint(1, 3) if form[0] == Q4_K else 32 * rng.randint(1, 20)
        self.weight = packed(kernels, random_matrix(rng, form[0], outs, self.ins, form[1]), rng)
        self.x = guarded(torch.randn(self.rows, wide * self.ins).mul(3).to(dtype))
        self.given = torch.randn(self.rows, outs).to(dtype)

    def product(self, x: Tensor, args: dict[int, int], numbers: dict[int, float], flags: int = 0) -> Tensor:
        y = guarded(self.given.clone())
        args = {0: self.weight.address, 2: 0, 3: 1} | args
        self.native.run((LINEAR, args, numbers, self.add | flags), [x, y], Step(self.rows))
        return y

    def check(self, alone: Any, args: dict[int, int], numbers: dict[int, float], flags: int = 0) -> None:
        between = torch.empty(self.rows, self.ins, dtype=self.x.dtype)
        kept = self.x.clone()
        self.native.run(alone, [self.x, between], Step(self.rows))
        expected = self.product(between, {}, {})
        together = self.product(self.x, args, numbers, flags)
        assert torch.equal(together, expected), (self.rows, self.ins, (together - expected).abs().max())
        assert torch.equal(self.x, kept)
        assert not torch.equal(expected, self.given)


@KINDS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layer", [False, True])
def test_norms(native: Native, rng: random.Random, dtype: torch.dtype, form: tuple[int, int], layer: bool) -> None:
    case = Case(native, rng, dtype, 1, form)
    kind = rng.choice((torch.float32, torch.bfloat16))
    weight, bias = (torch.randn(case.ins).to(kind) for _ in range(2))
    where = [0 if rng.random() < 0.2 else weight.data_ptr(), DTYPES[kind], bias.data_ptr() * layer, DTYPES[kind]]
    flags, eps = LAYER_NORM * layer, 1e-5
    alone = (NORM, {0: 0, 1: 1} | dict(enumerate(where, 2)), {0: eps}, flags)
    case.check(alone, {4: NORMED} | dict(enumerate(where, 5)), {0: eps}, flags)


@KINDS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gated", [False, True])
def test_activations(
    native: Native, rng: random.Random, dtype: torch.dtype, form: tuple[int, int], gated: bool
) -> None:
    case = Case(native, rng, dtype, 1 + gated, form)
    kind = rng.randrange(6 if gated else 5)  # the last is clamped
    limits = {0: 3.0, 1: 1.7} if kind == 5 else {}
    alone = (ACTIVATE_GATED if gated else ACTIVATE, {0: 0, 1: 1, 2: kind}, limits, 0)
    moved = {place + 1: number for place, number in limits.items()}
    case.check(alone, {4: GATED if gated else ACTIVATED, 9: kind}, moved)


def test_what_no_row_can_go_through_is_refused(native: Native, rng: random.Random) -> None:
    case = Case(native, rng, torch.float32, 1, (F32, 0))
    x, y, args = case.x, case.given, {0: case.weight.address, 2: 0, 3: 1}

    def refused(sentence: str, more: dict[int, int], buffers: list[Tensor]) -> None:
        with pytest.raises(ValueError, match=sentence):
            native.plan((LINEAR, args | more, {}, 0), buffers)

    refused("rows cannot go through that", {4: 4}, [x, y])
    refused("the widths of x and y", {4: GATED}, [x, y])
    refused("no such activation", {4: ACTIVATED, 9: 5}, [x, y])
    refused("neither float32 nor bfloat16", {4: NORMED, 5: x.data_ptr(), 6: 3}, [x, y])
    both = torch.zeros(case.rows, 800)
    refused("y lies on x", {4: NORMED}, [both[:, : case.ins], both[:, : y.shape[1]]])
