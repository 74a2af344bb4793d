"""Which kernel takes a layer's attention, by its shapes and dtypes alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from textgen.ops import KvScales
from textgen.ops.cuda.attention_kernels import Shape, kernel_for, takes

BFLOAT, FLOAT, INT8, FP8 = torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn
LARGE, SMALL = 227 << 10, 99 << 10  # shared memory of a block
USUAL = Shape(BFLOAT, BFLOAT, 128, 128, 4, 16, False, False, False)
LATENT = replace(USUAL, dim=576, value_dim=512, share=128, latent=True)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (USUAL, "attention_tiles"),
        (replace(USUAL, share=1, stored=FP8), "attention_tiles"),
        (replace(USUAL, dtype=FLOAT, stored=FLOAT), "attention_decode"),
        (replace(USUAL, dtype=FLOAT, stored=INT8), "attention_decode"),
        (replace(USUAL, dim=72, value_dim=72), "attention_decode"),
        (replace(USUAL, dim=72, value_dim=72, stored=INT8), None),  # no whole times 16 bytes
        (replace(USUAL, stored=torch.float16), None),
        (replace(USUAL, dtype=torch.float64, stored=torch.float64), None),
        (replace(USUAL, value_dim=64), None),
        (replace(USUAL, dim=512, value_dim=512), None),
        (LATENT, "attention_latent"),
        (replace(LATENT, dtype=FLOAT, stored=FLOAT), None),
        (replace(LATENT, dim=584), None),
        (replace(LATENT, dim=2048), None),
    ],
)
def test_kernels_by_shape(shape: Shape, name: str | None) -> None:
    kernel = kernel_for(shape, LARGE)
    assert (None if kernel is None else kernel.name) == name


def test_heads_are_divided_evenly() -> None:
    for share, group, groups in ((1, 1, 1), (16, 16, 1), (20, 10, 2), (71, 15, 5)):
        kernel = kernel_for(replace(USUAL, share=share), LARGE)
        assert kernel is not None and (kernel.group, kernel.groups) == (group, groups)
        assert kernel.tile_tokens == 64 // group


def test_latent_attention_takes_fewer_rows_where_memory_is_small() -> None:
    large, small = kernel_for(LATENT, LARGE), kernel_for(LATENT, SMALL)
    assert large is not None and small is not None
    assert (large.group, large.threads, small.group, small.threads) == (32, 256, 16, 128)
    assert small.shared_bytes <= SMALL < large.shared_bytes
    assert kernel_for(LATENT, 64 << 10) is None


def test_caches_that_kernels_can_read() -> None:
    numbers = torch.zeros(4, 16, 2, 64)
    integers, scales = numbers.to(INT8), KvScales(torch.zeros(4, 16, 2), torch.zeros(4, 16, 2))
    assert takes(numbers, numbers.clone(), None) and takes(integers, integers.clone(), scales)
    assert takes(numbers, numbers[..., :32], None), "values in the keys"
    assert not takes(integers, integers.clone(), None) and not takes(numbers, numbers.clone(), scales)
    assert not takes(numbers, numbers.to(FP8), None)
    assert not takes(numbers, numbers.clone()[..., :32], None), "a part of something else"
    assert not takes(numbers.transpose(1, 2), numbers.transpose(1, 2), None)
