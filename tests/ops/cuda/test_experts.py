"""The choice of experts, rows sorted by them and sums of what they give, by kernels for GPUs, equal the reference."""

from __future__ import annotations

import random

import pytest
import torch

from textgen.models.spec import RouterSpec
from textgen.ops import reference
from textgen.ops.cuda.launches import DTYPES
from textgen.ops.cuda.ops import CudaOps

from ..cpu.guarded import guarded
from .host_device import HostDevice
from .test_grouped import assert_near


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("score", ["softmax", "chosen", "sigmoid"])
def test_the_choice_of_experts(rng: random.Random, device: HostDevice, ops: CudaOps, score: str, groups: int) -> None:
    """No two scores of a token, nor sums of two, are so near that rounding decides."""
    experts, tokens, top = 4 * rng.choice([2, 3, 16]), rng.randint(1, 9), rng.randint(1, 4)
    spec = RouterSpec(
        top_k=top, score=score, normalize=rng.random() < 0.5, scale=rng.choice([1.0, 2.5]), groups=groups,  # type: ignore[arg-type]
        top_groups=rng.randint(2, 3) if groups > 1 else 1, group_score=rng.choice(["best", "best two"]),
    )  # fmt: skip
    correction = guarded(torch.randn(experts) * 0.1) if rng.random() < 0.5 else None
    order = torch.stack([torch.randperm(experts) for _ in range(tokens)])
    scores = guarded((2 * 67 * order + order * order % 67) / 8192.0)  # a Sidon set, by Erdos and Turan
    shares, chosen = ops.route(scores, spec, correction)
    expected, ids = reference.route(scores, spec, correction)
    assert torch.equal(chosen, ids)
    torch.testing.assert_close(shares, expected, rtol=1e-5, atol=1e-6)
    assert device.launches == ["route"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_choice_in_other_dtypes_and_among_many(rng: random.Random, ops: CudaOps, dtype: torch.dtype) -> None:
    experts, top = rng.choice([200, 256, 1000]), rng.choice([1, 8, 32])
    spec = RouterSpec(top_k=top, score=rng.choice(["softmax", "sigmoid"]), normalize=True)
    scores = guarded(torch.randn(3, experts).to(dtype))
    shares, chosen = ops.route(scores, spec, None)
    expected, _ = reference.route(scores, spec, None)
    assert all(len(set(row)) == top for row in chosen.tolist())
    torch.testing.assert_close(shares, expected, rtol=1e-5, atol=1e-6)
    best = scores.float().sort(dim=-1, descending=True).values[:, :top]  # some are equal
    assert torch.equal(scores.float().gather(1, chosen), best)


def test_scores_that_are_not_numbers_choose_something(ops: CudaOps) -> None:
    nan, inf = torch.nan, torch.inf
    scores = torch.tensor([[nan] * 8, [1.0, nan, 3.0, 2.0, nan, -inf, 0.0, nan], [-inf] * 8])
    _, chosen = ops.route(scores, RouterSpec(top_k=3, score="chosen"), None)
    assert all(len(set(row)) == 3 and set(row) <= set(range(8)) for row in chosen.tolist())
    assert chosen[1].tolist() == [2, 3, 0]


@pytest.mark.parametrize("rows", [1, 5, 600])
def test_rows_are_sorted_by_group(rng: random.Random, device: HostDevice, ops: CudaOps, rows: int) -> None:
    """Stably, as the reference does, and as Python's own sort."""
    groups, share = rng.choice([1, 7, 33, 300]), rng.randint(1, 6)
    chosen = torch.randint(0, rng.randint(1, groups), (rows, share))
    for sorted_rows in (ops.group_rows(guarded(chosen), groups), reference.group_rows(chosen, groups)):
        entries = sorted(range(rows * share), key=lambda entry: chosen.flatten()[entry])
        assert sorted_rows.sources.tolist() == [entry // share for entry in entries]
        assert sorted_rows.places.flatten()[entries].tolist() == list(range(rows * share))
        counts = torch.bincount(chosen.flatten(), minlength=groups)
        assert torch.equal(sorted_rows.ends, counts.cumsum(0).to(torch.int32))
        assert {part.dtype for part in sorted_rows} == {torch.int32}
    assert device.launches == ["group_rows"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_rows(rng: random.Random, device: HostDevice, ops: CudaOps, dtype: torch.dtype) -> None:
    rows, share, size = rng.randint(1, 9), rng.randint(1, 9), rng.choice([7, 64, 1200])
    y, shares = guarded(torch.randn(20, size).to(dtype)), guarded(torch.rand(rows, share))
    places = guarded(torch.randint(0, 20, (rows, share), dtype=torch.int32))
    exact = (y.double()[places.long()] * shares.double()[:, :, None]).sum(dim=1)
    assert_near(ops.weighted_sum(y, places, shares), exact)
    assert_near(reference.weighted_sum(y, places, shares), exact)
    assert device.launches == ["weighted_sum"]
