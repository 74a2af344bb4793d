"""GGUF's K types taken apart in torch are what the `gguf` package makes of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from tests.seeds import fresh_seed
from textgen.quantization.k_blocks import K_TYPES, k_integers

from .test_blocks import WIDTH, random_blocks


@pytest.mark.parametrize("kind", K_TYPES)
def test_numbers(kind: str) -> None:
    raw = random_blocks(np.random.default_rng(fresh_seed()), kind, 5, WIDTH)
    made = k_integers(kind, torch.from_numpy(raw))
    assert made.values.shape == (5, WIDTH) and made.scales.shape == (5, WIDTH // (16 if kind == "Q6_K" else 32))
    numbers = torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType[kind]))
    torch.testing.assert_close(made.numbers(), numbers, rtol=1e-6, atol=1e-7)
