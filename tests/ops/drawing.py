"""Random ways to draw, and whether a draw is the reference's."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from textgen.ops import sampling
from textgen.ops.sampling import SamplingRows

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


def check_draws(logits: Tensor, rows: SamplingRows, tokens: Tensor) -> None:
    """That they are the reference's, but for a few that fall where two tokens meet."""
    expected = sampling.choose(logits, rows)
    others = [at for at in range(len(tokens)) if tokens[at] != expected[at]]
    assert all(is_a_neighbour(logits, rows, at, int(tokens[at])) for at in others)
    assert len(others) <= max(len(tokens) // 8, 1), "draws that fall where two tokens meet are rare"
