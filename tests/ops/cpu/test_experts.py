"""Choosing experts, and the sum of what they give, equal the reference."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from textgen.models.spec import ClampedSilu, RouterSpec
from textgen.ops import reference
from textgen.ops.cpu.library import Handle

from .native import EXPERTS, NORMALIZED, ROUTE, SWITCH, Native, Step
from .test_rows import FORMS, KINDS, assert_near, wider
from .weights import (
    BF16,
    BLOCKS,
    COMPACT,
    INT4_GROUPS,
    INT4_ZEROS,
    INT8,
    INT8_GROUPS,
    MXFP4,
    Q6_K,
    Matrix,
    kernels_of,
    packed,
    random_matrix,
    unpacks,
)

SCORES = ("softmax", "chosen", "sigmoid")
GROUPED = [(INT8_GROUPS, 32), (INT4_GROUPS, 64), (INT4_ZEROS, 32), (MXFP4, 32)]
FEW_BITS = [(INT8, 0), *GROUPED, *((form, 0) for form in BLOCKS)]


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("score", SCORES)
def test_the_choice_of_experts(native: Native, rng: random.Random, score: str, groups: int) -> None:
    experts, tokens, top = 4 * rng.choice([2, 3, 16]), rng.randint(1, 9), rng.randint(1, 4)
    spec = RouterSpec(
        top_k=top, score=score, normalize=rng.random() < 0.5, scale=rng.choice([1.0, 2.5]), groups=groups,  # type: ignore[arg-type]
        top_groups=rng.randint(2, 3) if groups > 1 else 1, group_score=rng.choice(["best", "best two"]),
    )  # fmt: skip
    correction = torch.randn(experts) * 0.1 if rng.random() < 0.5 else None
    # In another order for each token: no two experts, and no two pairs of them, are nearer than rounding reaches (a
    # Sidon set, by Erdos and Turan).
    x = torch.stack([torch.randperm(experts) for _ in range(tokens)])
    x = (2 * 67 * x + x * x % 67) / 8192.0
    shares, chosen = torch.empty(tokens, top), torch.empty(tokens, top, dtype=torch.int32)
    args = {0: 0, 1: 1, 2: 2, 3: 0 if correction is None else correction.data_ptr(), 4: SCORES.index(score)}
    args |= {5: groups, 6: spec.top_groups, 7: 1 if spec.group_score == "best" else 2}
    native.run((ROUTE, args, {0: spec.scale}, NORMALIZED * spec.normalize), [x, chosen, shares], Step(tokens))
    expected, ids = reference.route(x, spec, correction)
    assert torch.equal(chosen.long(), ids)
    torch.testing.assert_close(shares, expected)


def test_scores_that_are_not_numbers_choose_something(native: Native) -> None:
    x = torch.tensor([[torch.nan] * 8, [1.0, torch.nan, 3.0, 2.0, torch.nan, -torch.inf, 0.0, torch.nan]])
    shares, chosen = torch.empty(2, 3), torch.empty(2, 3, dtype=torch.int32)
    args = {0: 0, 1: 1, 2: 2, 4: SCORES.index("chosen"), 5: 1, 6: 1, 7: 1}
    native.run((ROUTE, args, {0: 1.0}, 0), [x, chosen, shares], Step(2))
    assert all(len(set(row)) == 3 and set(row) <= set(range(8)) for row in chosen.tolist())
    assert chosen[1].tolist() == [2, 3, 0]


def expected(x: Tensor, up: Tensor, down: Tensor, biases: list[Tensor | None], kind: object, chosen: Tensor) -> Tensor:
    """[tokens, top, outs] in float64: what each chosen expert gives."""
    out = []
    for row, ids in zip(x.double(), chosen.tolist(), strict=True):
        for expert in ids:
            inner = row @ up[expert].double().t() + (0 if biases[0] is None else biases[0][expert])
            inner = reference.activate_gated(inner.to(x.dtype)[None], kind).double()[0]  # type: ignore[arg-type]
            out.append(inner @ down[expert].double().t() + (0 if biases[1] is None else biases[1][expert]))
    return torch.stack(out).view(*chosen.shape, -1)


@KINDS
@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("kind", ["silu", "clamped"])
def test_the_sum_of_experts(native: Native, rng: random.Random, dtype: torch.dtype, tokens: int, kind: str) -> None:
    count, top, neurons = rng.choice([4, 8]), rng.randint(1, 4), rng.choice([8, 24, 40])
    ins, outs = rng.choice([16, 33, 80]), rng.choice([7, 48, 600])
    weight_dtype = rng.choice([dtype, torch.float16]) if dtype == torch.float32 else dtype
    up = (torch.randn(count, 2 * neurons, ins) / ins**0.5).to(weight_dtype)
    down = (torch.randn(count, outs, neurons) / neurons**0.5).to(weight_dtype)
    biased = rng.random() < 0.5
    biases: list[Tensor | None] = [torch.randn(count, 2 * neurons), torch.randn(count, outs)] if biased else [None] * 2
    x = wider(torch.randn(tokens, ins).to(dtype))
    used = rng.randint(top, count)  # experts that nobody chooses
    chosen = torch.stack([torch.randperm(used)[:top] for _ in range(tokens)]).int()
    shares = torch.rand(tokens, top)
    kernels = kernels_of(native.isa)
    assert kernels is not None
    forms = [BF16, COMPACT] if weight_dtype == torch.bfloat16 else [FORMS[weight_dtype]]  # one may not fit
    handles: list[list[Handle]] = [
        [packed(kernels, Matrix(rng.choice(forms), one), rng) for one in stack] for stack in (up, down)
    ]
    tables = [torch.tensor([handle.address for handle in column]) for column in handles]
    y = wider(torch.empty(tokens, outs, dtype=dtype))
    args = {0: 0, 1: 1, 2: 2, 3: 3, 4: count, 5: tables[0].data_ptr(), 6: tables[1].data_ptr()}
    args |= {at: 0 if bias is None else bias.data_ptr() for at, bias in zip((7, 8), biases, strict=True)}
    form, clamped = ("silu", 0) if kind == "silu" else (ClampedSilu(limit=1.5, alpha=1.7), 5)
    native.run((EXPERTS, args | {9: clamped}, {0: 1.5, 1: 1.7}, 0), [x, y, chosen, shares], Step(tokens))
    exact = (expected(x, up, down, biases, form, chosen) * shares[:, :, None]).sum(dim=1)
    # What each product and the activation lose in bfloat16 is some 2^-8 of numbers of about 1.
    bound = 2**-4 if dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(y.double(), exact, rtol=bound, atol=bound)


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize(("form", "group"), FEW_BITS)
def test_experts_of_few_bits(native: Native, rng: random.Random, form: int, group: int, tokens: int) -> None:
    """What goes down may be of another form than what goes up. Rows are quantized before each product."""
    count = rng.choice([4, 8])
    few_bits(native, rng, form, group, tokens, count, rng.randint(1, 4))


@pytest.mark.parametrize(("form", "group"), FEW_BITS)
def test_every_expert_pads_its_rows(native: Native, rng: random.Random, form: int, group: int) -> None:
    """As many rows as the plan may have, of each expert one more than what is whole: nothing has room to spare."""
    few_bits(native, rng, form, group, 33, 4, 4)


def few_bits(native: Native, rng: random.Random, form: int, group: int, tokens: int, count: int, top: int) -> None:
    form_down, group_down = rng.choice([(form, group), (Q6_K, 0), (INT8, 0)])
    unit = 256
    ins, neurons, outs = unit * rng.randint(1, 2), unit, rng.choice([7, 48, 300])
    up = [random_matrix(rng, form, 2 * neurons, ins, group) for _ in range(count)]
    down = [random_matrix(rng, form_down, outs, neurons, group_down) for _ in range(count)]
    x, shares = torch.randn(tokens, ins), torch.rand(tokens, top)
    chosen = torch.stack([torch.randperm(count)[:top] for _ in range(tokens)]).int()
    kernels = kernels_of(native.isa)
    assert kernels is not None
    handles = [[packed(kernels, one, rng) for one in matrices] for matrices in (up, down)]
    tables = [torch.tensor([handle.address for handle in column]) for column in handles]
    y = torch.empty(tokens, outs)
    args = {0: 0, 1: 1, 2: 2, 3: 3, 4: count, 5: tables[0].data_ptr(), 6: tables[1].data_ptr()}
    native.run((EXPERTS, args, {}, 0), [x, y, chosen, shares], Step(tokens))
    exact = torch.zeros(tokens, outs, dtype=torch.float64)
    for row in range(tokens):
        for share, expert in zip(shares[row].double(), chosen[row].tolist(), strict=True):
            unpacked = unpacks(native.isa, int((chosen == expert).sum()))
            inner = reference.activate_gated(up[expert].product(x[row : row + 1], unpacked)[0].float(), "silu")
            exact[row] += share * down[expert].product(inner, unpacked)[0][0]
    # A number between two integers may become the other one.
    missed = (y.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert float(missed.max()) < 5e-3


def test_experts_that_do_not_fit_are_refused(native: Native, rng: random.Random) -> None:
    kernels = kernels_of(native.isa)
    assert kernels is not None
    up, down = (packed(kernels, Matrix(FORMS[torch.float32], torch.zeros(*size)), rng) for size in ((16, 8), (8, 8)))
    tables = [torch.tensor([one.address]) for one in (up, down)]
    x, chosen, shares = torch.zeros(2, 8), torch.zeros(2, 1, dtype=torch.int32), torch.zeros(2, 1)
    args = {0: 0, 1: 1, 2: 2, 3: 3, 4: 1, 5: tables[0].data_ptr(), 6: tables[1].data_ptr()}
    with pytest.raises(ValueError, match="shape of a weight"):
        native.plan((EXPERTS, args, {}, 0), [x, torch.zeros(2, 9), chosen, shares])
    with pytest.raises(ValueError, match="there are none"):
        native.plan((EXPERTS, args | {4: 0}, {}, 0), [x, torch.zeros(2, 8), chosen, shares])
    with pytest.raises(ValueError, match="not one of TG_ROUTE"):
        native.plan((EXPERTS, args, {}, 0), [x, torch.zeros(2, 8), shares, shares])


@KINDS
def test_a_switch_weighs_rows(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    tokens, width = rng.randint(1, 9), rng.choice([1, 33, 600])
    x, s = wider(torch.randn(tokens, width).to(dtype)), torch.randn(tokens, 1)
    exact = (x.float() * torch.sigmoid(s)).to(dtype)
    native.run((SWITCH, {0: 0, 1: 1}, {}, 0), [x, s], Step(tokens))
    assert_near(x, exact, 4)
