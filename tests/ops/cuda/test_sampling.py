"""Draws by the kernel for GPUs are the reference's, but for those that fall where two tokens meet."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from textgen.ops import sampling
from textgen.ops.cuda.sampling import choose
from textgen.ops.sampling import SamplingRows

from ..cpu.guarded import guarded
from ..drawing import CHOICES, check_draws, rows_of
from .host_device import HostDevice


def check(device: HostDevice, logits: Tensor, rows: SamplingRows) -> None:
    logits = guarded(logits)
    tokens, normaliser = choose(device, logits, rows)
    assert device.launches == ["sample"]
    torch.testing.assert_close(normaliser, logits.logsumexp(dim=-1), rtol=1e-5, atol=1e-5)
    check_draws(logits, rows, tokens)


@pytest.mark.parametrize("filters", [(), ("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p", "min_p")], ids=str)
def test_draws(rng: random.Random, device: HostDevice, filters: tuple[str, ...]) -> None:
    vocab = rng.choice([40, 513, 3000, 12001])
    given = {name: CHOICES[name] for name in ("temperature", *filters)}
    check(device, torch.randn(24, vocab) * rng.choice([0.5, 3, 10]), rows_of(rng, 24, **given))


def test_the_likeliest_is_the_first_of_several(rng: random.Random, device: HostDevice) -> None:
    logits = torch.randint(0, 4, (6, 2000)).float()
    rows = rows_of(rng, 6, temperature=[0.0])
    tokens, _ = choose(device, logits, rows)
    assert tokens.tolist() == [int((row == row.max()).nonzero()[0]) for row in logits]


def test_ties_at_the_edge_of_a_filter_are_all_kept(rng: random.Random, device: HostDevice) -> None:
    logits = torch.randint(0, 30, (8, 700)).float() / 4
    check(device, logits, rows_of(rng, 8, top_k=[3, 50], top_p=[0.5, 1.0]))


def test_what_a_grammar_forbids_is_never_drawn(rng: random.Random, device: HostDevice) -> None:
    logits = torch.randn(8, 1500)
    allowed = torch.rand(8, 1500) < 0.01
    allowed[:, rng.randrange(1500)] = True
    logits[~allowed] = -torch.inf
    check(device, logits, rows_of(rng, 8, top_p=[0.9, 1.0], top_k=[0, 400]))
    device.launches.clear()
    tokens, _ = choose(device, logits, rows_of(rng, 8, temperature=[0.0, 1.0]))
    assert allowed[torch.arange(8), tokens].all()


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_draw(
    rng: random.Random, device: HostDevice, monkeypatch: pytest.MonkeyPatch, u: float
) -> None:
    """The first and the last token of those that may be drawn."""
    monkeypatch.setattr(sampling, "uniform", lambda seed, position: np.full(len(seed), u))
    logits = torch.full((2, 1000), -torch.inf)
    logits[:, [300, 500, 991]] = 0.0
    tokens, _ = choose(device, logits, rows_of(rng, 2))
    assert tokens.tolist() == [300 if u == 0 else 991] * 2


def test_rows_without_any_token_and_with_a_broken_one_end(rng: random.Random, device: HostDevice) -> None:
    logits = torch.randn(3, 600)
    logits[0] = -torch.inf
    logits[1, 5] = torch.nan
    tokens, normaliser = choose(device, logits, rows_of(rng, 3, top_p=[0.9], top_k=[0, 9]))
    assert ((tokens >= 0) & (tokens < 600)).all()
    assert not normaliser[:2].isfinite().any() and normaliser[2].isfinite()


def test_typical_rows_are_left_to_the_reference(rng: random.Random, device: HostDevice) -> None:
    logits, rows = torch.randn(3, 100), rows_of(rng, 3, typical_p=[0.5])
    tokens, _ = choose(device, logits, rows)
    assert torch.equal(tokens, sampling.choose(logits, rows))
    assert not device.launches
