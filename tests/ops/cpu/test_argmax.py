"""The likeliest token of a row, its log-probability and the normaliser equal torch's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from .native import ARGMAX, Native, Step
from .test_rows import KINDS, wider


def best(native: Native, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, (normaliser, logprobs) = torch.empty(len(logits), dtype=torch.int64), torch.empty(2, len(logits))
    args = {0: 0, 1: tokens.data_ptr(), 2: normaliser.data_ptr(), 4: logprobs.data_ptr()}
    native.run((ARGMAX, args, {}, 0), [logits], Step(len(logits), outputs=len(logits)), outputs=[0])
    return tokens, normaliser, logprobs


@KINDS
@pytest.mark.parametrize("vocab", [1, 17, 4096, 4097, 49152])
def test_random_rows(native: Native, rng: random.Random, dtype: torch.dtype, vocab: int) -> None:
    logits = wider((torch.randn(rng.randint(1, 4), vocab) * 10).to(dtype))  # bfloat16 has many equal largest ones
    tokens, normaliser, logprobs = best(native, logits)
    assert torch.equal(tokens, logits.float().argmax(-1))
    torch.testing.assert_close(normaliser, logits.float().logsumexp(-1), rtol=2e-6, atol=2e-6)
    assert torch.equal(logprobs, logits.float().max(-1).values - normaliser)


@KINDS
def test_the_first_of_equal_ones(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    logits = wider(torch.zeros(8, 9000, dtype=dtype))
    for row in logits:
        row[rng.sample(range(9000), rng.randint(2, 40))] = 5
    assert best(native, logits)[0].tolist() == logits.float().numpy().argmax(-1).tolist()


def test_forbidden_and_broken_rows(native: Native) -> None:
    logits = torch.full((4, 9000), -torch.inf)
    logits[0, 8500] = -3.0
    logits[1, 5] = 4.0
    logits[2, 6000], logits[2, 7000] = torch.nan, 8.0
    tokens, normaliser, logprobs = best(native, logits)
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert normaliser[:2].tolist() == pytest.approx([-3.0, 4.0])
    assert logprobs[:2].tolist() == pytest.approx([0.0, 0.0])
    assert not normaliser[2:].isfinite().any()
    assert not logprobs[2:].isfinite().any()


@KINDS
@pytest.mark.parametrize("vocab", [1, 31, 4096, 4097, 49155])
def test_of_what_masks_allow(native: Native, rng: random.Random, dtype: torch.dtype, vocab: int) -> None:
    count = rng.randint(1, 9)
    logits = wider((torch.randn(count, vocab) * 10).to(dtype))
    may = torch.rand(count, vocab) < torch.tensor([[rng.choice((0.5, 0.01, 0.0))] for _ in range(count)])
    tokens, expected, scores = torch.full((count,), 7), [], []
    normaliser, logprobs = logits.float().logsumexp(-1), torch.full((count,), 7.0)
    masks = np.zeros(count, np.int64)
    held = np.packbits(np.pad(may.numpy(), ((0, 0), (0, -vocab % 32)), constant_values=True), axis=1, bitorder="little")
    for row in range(count):
        allowed = logits[row].float().masked_fill(~may[row], -torch.inf)
        if rng.random() < 0.3:
            expected.append(7)
            scores.append(7.0)
            continue
        expected.append(int(allowed.argmax()) if may[row].any() else -1)
        scores.append(float(allowed.max() - normaliser[row]))
        masks[row] = held[row].ctypes.data
    args = {0: 0, 1: tokens.data_ptr(), 2: normaliser.data_ptr(), 3: masks.ctypes.data, 4: logprobs.data_ptr()}
    native.run((ARGMAX, args, {}, 0), [logits], Step(count, outputs=count), outputs=[0])
    assert tokens.tolist() == expected
    assert logprobs.tolist() == scores
    assert torch.equal(normaliser, logits.float().logsumexp(-1))
