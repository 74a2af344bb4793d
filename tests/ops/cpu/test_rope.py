"""Rotary tables, rotation and cache writes equal the reference."""

from __future__ import annotations

import random

import pytest
import torch

from textgen.ops import reference

from .native import DTYPES, ROPE_TABLE, ROPE_WRITE, Native, Step
from .test_rows import KINDS, assert_near, wider


@KINDS
def test_tables_at_near_and_far_positions(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    tokens, half = rng.randint(1, 7), rng.choice([1, 5, 32, 64])
    inverse = 1.0 / 10000.0 ** (torch.arange(half) / half)
    positions = torch.randint(0, 200_000, (tokens,))
    cos, sin = reference.rotary_table(positions, inverse, 1.25, torch.empty(0, dtype=dtype))
    y = wider(torch.empty(tokens, 2 * half, dtype=dtype))
    native.run((ROPE_TABLE, {0: 0, 1: inverse.data_ptr()}, {0: 1.25}, 0), [y], Step(tokens, positions=positions))
    assert_near(y, torch.cat((cos[:, 0, :half], sin[:, 0, half:]), -1), 4)


@KINDS
@pytest.mark.parametrize("rest", [0, 6])
@pytest.mark.parametrize("turning", [True, False])
def test_rotation_and_writing(native: Native, rng: random.Random, dtype: torch.dtype, rest: int, turning: bool) -> None:
    tokens, half = rng.randint(1, 7), rng.choice([1, 5, 16, 32])
    heads, kv_heads, dim, value_dim = rng.choice([3, 4]), rng.choice([1, 2]), 2 * half + rest, rng.choice([3, 16, 40])
    width = (heads + kv_heads) * dim + kv_heads * value_dim
    x, table = wider(torch.randn(tokens, width).to(dtype)), torch.randn(tokens, 2 * half).to(dtype)
    keys = torch.randn(4, 5, kv_heads, dim).to(dtype)
    values = torch.randn(4, 5, kv_heads, value_dim).to(dtype)
    rows = torch.tensor(rng.sample(range(20), tokens))
    expected_keys, expected_values = keys.clone(), values.clone()
    turned = x[:, : (heads + kv_heads) * dim].reshape(tokens, heads + kv_heads, dim)
    value = x[:, (heads + kv_heads) * dim :].reshape(tokens, kv_heads, value_dim)
    if turning:
        cos, sin = table[:, None, :half].float(), table[:, None, half:].float()
        exact = reference.rotate(turned.float(), torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
        turned = exact.to(dtype)  # the reference rounds the product with the cosine too; here the sum alone is rounded
    reference.write_kv(expected_keys, rows, turned[:, heads:])
    reference.write_kv(expected_values, rows, value)
    expected = torch.cat((turned.flatten(1), value.flatten(1)), 1)
    args = {0: 0, 1: heads, 2: kv_heads, 3: dim, 4: value_dim, 5: 1 if turning else -1, 7: keys.data_ptr()}
    args |= {8: values.data_ptr(), 9: DTYPES[dtype], 10: kv_heads * dim, 11: kv_heads * value_dim}
    native.run((ROPE_WRITE, args, {}, 0), [x, table], Step(tokens, rows=rows))
    assert_near(x, expected, 4)
    assert_near(keys, expected_keys, 4)
    assert torch.equal(values, expected_values)
    assert torch.equal(keys.view(20, -1)[rows], x[:, heads * dim : (heads + kv_heads) * dim])


@KINDS
@pytest.mark.parametrize("with_values", [True, False])
def test_writing_integers(native: Native, rng: random.Random, dtype: torch.dtype, with_values: bool) -> None:
    """The very integers and scales of the reference; a head with a number that is not finite has no scale."""
    tokens, heads, kv_heads = rng.randint(2, 7), 3, rng.choice([1, 2])
    dim, value_dim = rng.choice([6, 40, 64]), rng.choice([3, 16, 72]) if with_values else 0
    x = wider(torch.randn(tokens, (heads + kv_heads) * dim + kv_heads * value_dim).to(dtype))
    x[0, heads * dim : (heads + 1) * dim] = 0
    table = torch.randn(tokens, dim).to(dtype)
    keys, values = (torch.zeros(4, 5, kv_heads, max(size, 1), dtype=torch.int8) for size in (dim, value_dim))
    key_scales, value_scales = torch.zeros(4, 5, kv_heads), torch.zeros(4, 5, kv_heads)
    rows = torch.tensor(rng.sample(range(20), tokens))
    args = {0: 0, 1: heads, 2: kv_heads, 3: dim, 4: value_dim, 5: 1, 7: keys.data_ptr(), 9: DTYPES[torch.int8]}
    args |= {8: values.data_ptr() if with_values else 0, 10: kv_heads * dim, 11: kv_heads * value_dim}
    args |= {13: key_scales.data_ptr(), 14: value_scales.data_ptr()}
    native.run((ROPE_WRITE, args, {}, 0), [x, table], Step(tokens, rows=rows))
    written = [(keys, key_scales, x[:, heads * dim : (heads + kv_heads) * dim])]
    if with_values:
        written.append((values, value_scales, x[:, (heads + kv_heads) * dim :]))
    for stored, scales, numbers in written:
        expected, expected_scales = torch.zeros_like(stored), torch.zeros_like(scales)
        reference.write_kv(expected, rows, numbers.reshape(tokens, kv_heads, -1), expected_scales)
        assert torch.equal(stored, expected) and torch.equal(scales, expected_scales)
    x[1, heads * dim] = rng.choice([torch.nan, torch.inf, -torch.inf])
    native.run((ROPE_WRITE, args | {5: -1}, {}, 0), [x, table], Step(tokens, rows=rows))
    gone = key_scales.view(20, kv_heads)[rows].isnan()
    assert gone[1, 0] and gone.sum() == 1
    with pytest.raises(ValueError, match="no scales"):
        native.plan((ROPE_WRITE, args | {13: 0}, {}, 0), [x, table])


def test_heads_that_do_not_fit_are_refused(native: Native) -> None:
    x, table = torch.zeros(1, 24), torch.zeros(1, 10)
    with pytest.raises(ValueError, match="narrower than its heads"):
        native.plan((ROPE_WRITE, {0: 0, 1: 2, 2: 1, 3: 9, 5: -1}, {}, 0), [x])
    with pytest.raises(ValueError, match="wider than a head"):
        native.plan((ROPE_WRITE, {0: 0, 1: 2, 2: 1, 3: 8, 5: 1}, {}, 0), [x, table])
