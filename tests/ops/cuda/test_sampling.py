"""Draws by the kernel for GPUs are the reference's, but for those that fall where two tokens meet."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from textgen.ops import sampling
from textgen.ops.cuda.sampling import choose
from textgen.ops.sampling import SamplingRows

from ..cpu.guarded import guarded
from .host_device import HostDevice

CHOICES: dict[str, list[float]] = {
    "temperature": [1e-30, 0.7, 1.5, 50.0],
    "top_k": [1, 5, 40, 10**6],
    "top_p": [1e-6, 0.3, 0.9, 0.999],
    "min_p": [0.02, 0.5, 1.0],
}
OFF: dict[str, float] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def rows_of(rng: random.Random, count: int, **given: list[float]) -> SamplingRows:
    def column(name: str, dtype: Any) -> Any:
        return np.array([rng.choice(given.get(name, [OFF.get(name, 1.0)])) for _ in range(count)], dtype)

    return SamplingRows(
        temperature=column("temperature", np.float32),
        top_k=column("top_k", np.int64),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        typical_p=column("typical_p", np.float32),
        repetition=np.ones(count, np.float32),
        frequency=np.zeros(count, np.float32),
        presence=np.zeros(count, np.float32),
        window=np.zeros(count, np.int64),
        seed=np.array([rng.getrandbits(64) for _ in range(count)], np.uint64),
        position=np.array([rng.randrange(10**6) for _ in range(count)]),
        prompt_len=np.zeros(count, np.int64),
    )


def is_a_neighbour(logits: Tensor, rows: SamplingRows, at: int, token: int) -> bool:
    """Whether a draw a little smaller or greater gives the token by the reference."""
    columns: dict[str, Any] = {field.name: getattr(rows, field.name)[at : at + 1] for field in fields(rows)}
    row = SamplingRows(**columns)
    x = (logits[at : at + 1] - logits[at].max()) / float(row.temperature[0])
    filtered = sampling._filter(x, row, np.ones(1, np.bool_)).softmax(dim=-1)
    u = float(sampling.uniform(row.seed, row.position)[0])
    near = [min(max(u + step, 0.0), 1 - 1e-9) for step in (-2e-6, 2e-6)]
    return token in [int(sampling.draw(filtered, torch.tensor([value], dtype=torch.float64))[0]) for value in near]


def check(device: HostDevice, logits: Tensor, rows: SamplingRows) -> None:
    logits = guarded(logits)
    tokens, normaliser = choose(device, logits, rows)
    assert device.launches == ["sample"]
    torch.testing.assert_close(normaliser, logits.logsumexp(dim=-1), rtol=1e-5, atol=1e-5)
    expected = sampling.choose(logits, rows)
    others = [at for at in range(len(tokens)) if tokens[at] != expected[at]]
    assert all(is_a_neighbour(logits, rows, at, int(tokens[at])) for at in others)
    assert len(others) <= max(len(tokens) // 8, 1), "draws that fall where two tokens meet are rare"


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
