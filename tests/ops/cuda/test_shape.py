"""Penalties and grammar masks by the kernel for GPUs are the reference's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from textgen.ops import sampling
from textgen.ops.cuda.sampling import Masks, Penalties, shape

from ..cpu.guarded import guarded
from ..drawing import rows_of
from .host_device import HostDevice

SLOTS, POSITIONS = 6, 60


def penalised(rng: random.Random, count: int, vocab: int) -> tuple[sampling.SamplingRows, Penalties]:
    """Rows of which some have penalties, of random sequences in random slots."""
    rows = rows_of(rng, count)
    for name, values in (("repetition", [1.0, 1.3, 0.7]), ("frequency", [0.0, 0.5]), ("presence", [0.0, -0.4])):
        getattr(rows, name)[:] = [rng.choice(values) for _ in range(count)]
    rows.position[:] = [rng.randint(1, POSITIONS) for _ in range(count)]
    rows.prompt_len[:] = [rng.randint(0, POSITIONS) for _ in range(count)]
    history = torch.randint(0, vocab, (SLOTS, POSITIONS), dtype=torch.int32)
    history[:, ::3] = rng.randrange(vocab)  # some tokens come often
    columns = (rows.position, rows.prompt_len, rows.repetition, rows.frequency, rows.presence)
    slots = torch.tensor(rng.sample(range(SLOTS), count))
    return rows, Penalties(guarded(history), slots, *(torch.from_numpy(column.copy()) for column in columns))


def expected(
    logits: torch.Tensor, rows: sampling.SamplingRows, penalties: Penalties, allowed: sampling.Allowed | None
) -> torch.Tensor:
    def history(mask: sampling.Mask) -> torch.Tensor:
        return penalties.history[penalties.slots[torch.from_numpy(mask)]].long()

    return sampling.shape(logits, rows, history, allowed)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("vocab", [40, 513, 3001])
def test_penalties_and_masks(rng: random.Random, device: HostDevice, vocab: int, masked: bool) -> None:
    count = rng.randint(1, SLOTS)
    rows, penalties = penalised(rng, count, vocab)
    logits = guarded(torch.randn(count, vocab) * 4)
    allowed = masks = None
    if masked:
        some = np.flatnonzero([rng.random() < 0.6 for _ in range(count)])
        words = -(-vocab // 32)
        bits = torch.randint(0, 256, (count, 4 * words), dtype=torch.uint8)
        has = torch.zeros(count, dtype=torch.int32)
        has[torch.from_numpy(some)] = 1
        allowed, masks = sampling.Allowed(some, bits.numpy()[some]), Masks(guarded(bits.view(torch.int32)), has)
    got = shape(device, logits, penalties, masks)
    torch.testing.assert_close(got, expected(logits, rows, penalties, allowed), rtol=1e-6, atol=1e-6)
    assert device.launches == ["shape"]


def test_masks_alone_touch_no_history(rng: random.Random, device: HostDevice) -> None:
    logits = guarded(torch.randn(3, 70))
    bits = guarded(torch.tensor([[-1, -1, 63], [0, 0, 1], [0, 0, 0]], dtype=torch.int32))
    got = shape(device, logits, None, Masks(bits, torch.tensor([0, 1, 1], dtype=torch.int32)))
    assert torch.equal(got[0], logits[0])
    assert torch.isfinite(got[1]).nonzero().flatten().tolist() == [64]
    assert not torch.isfinite(got[2]).any()


def test_logits_whose_rows_are_apart(rng: random.Random, device: HostDevice) -> None:
    wide = torch.randn(4, 100)
    rows, penalties = penalised(rng, 4, 64)
    got = shape(device, wide[:, :64], penalties, None)
    torch.testing.assert_close(got, expected(wide[:, :64], rows, penalties, None), rtol=1e-6, atol=1e-6)
