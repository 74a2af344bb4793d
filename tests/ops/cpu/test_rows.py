"""Rows looked up, gathered, normed and added equal the reference; a bfloat16 result is off by at most one rounding."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from textgen.ops import reference
from textgen.quantization.integers import Int8Format, Int8Weight

from .native import (
    ADD,
    ADD_ROWS,
    BY_POSITION,
    DTYPES,
    EMBED,
    GATHER_ROWS,
    LAYER_NORM,
    MOVE,
    NORM,
    PACKED,
    PICK,
    Native,
    Step,
)
from .weights import BF16, F16, F32, INT8, Matrix, kernels_of, packed

KINDS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
FORMS = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16}
WIDTHS = (1, 7, 16, 33, 64, 576)


def wider(x: Tensor) -> Tensor:
    """The same as columns of something wider, which begin anywhere."""
    whole = x.new_full((x.shape[0], x.shape[1] + 5), torch.nan)
    whole[:, 3 : x.shape[1] + 3] = x
    return whole[:, 3 : x.shape[1] + 3]


def assert_near(mine: Tensor, theirs: Tensor, times: float = 1.0) -> None:
    """Within `times` 2^-7 of the number in bfloat16 (one unit in the last place), 2e-6 in float32."""
    bound = 2**-7 if mine.dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(mine, theirs, rtol=bound * times, atol=bound * times * 0.1, equal_nan=True)


@KINDS
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16])
def test_embedding_and_positions(
    native: Native, rng: random.Random, dtype: torch.dtype, table_dtype: torch.dtype
) -> None:
    width, tokens = rng.choice(WIDTHS), rng.randint(1, 9)
    table, learned = torch.randn(50, width).to(table_dtype), torch.randn(12, width).to(table_dtype)
    step = Step(tokens, ids=torch.randint(0, 50, (tokens,)), positions=torch.randint(0, 10, (tokens,)))
    y = wider(torch.empty(tokens, width, dtype=dtype))
    args = {0: table.data_ptr(), 1: DTYPES[table_dtype], 2: 50, 3: 0}
    native.run((EMBED, args, {0: 1.5}, 0), [y], step)
    expected = (table[step.ids].float() * 1.5).to(dtype)
    assert_near(y, expected)
    args = {0: learned.data_ptr(), 1: DTYPES[table_dtype], 2: 12, 3: 0, 4: 2}
    native.run((EMBED, args, {0: 1.0}, ADD | BY_POSITION), [y], step)
    assert step.positions is not None
    assert_near(y, (expected.float() + learned[step.positions + 2].float()).to(dtype))


@KINDS
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_packed_table(native: Native, rng: random.Random, dtype: torch.dtype, table_dtype: torch.dtype) -> None:
    """A head's weight, as it is packed for products, gives rows as the table did."""
    width, tokens = rng.choice(WIDTHS), rng.randint(1, 9)
    table = torch.randn(50, width).to(table_dtype)
    kernels = kernels_of(native.isa)
    assert kernels is not None
    weight = packed(kernels, Matrix(FORMS[table_dtype], table), rng)
    ids = torch.randint(0, 50, (tokens,))
    y = wider(torch.empty(tokens, width, dtype=dtype))
    args = {0: weight.address, 2: 50, 3: 0}
    native.run((EMBED, args, {0: 1.0}, PACKED), [y], Step(tokens, ids=ids))
    assert torch.equal(y, table[ids].to(dtype))
    native.run((EMBED, args, {0: 0.5}, PACKED | ADD), [y], Step(tokens, ids=ids))
    assert_near(y, (table[ids].to(dtype).float() + 0.5 * table[ids].float()).to(dtype))
    with pytest.raises(ValueError, match="no table of floats or of 8 bits as wide as y"):
        native.plan((EMBED, args | {2: 51}, {0: 1.0}, PACKED), [y])


@KINDS
def test_a_table_of_eight_bits(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    """The integers of a head give the rows that torch makes of them, rounded before they are scaled."""
    width, tokens = rng.choice(WIDTHS), rng.randint(1, 9)
    kernels = kernels_of(native.isa)
    assert kernels is not None
    made = Int8Format().of(torch.randn(50, width))
    assert isinstance(made, Int8Weight)
    weight = packed(kernels, Matrix(INT8, made.values, made.scales[:, None]), rng)
    ids = torch.randint(0, 50, (tokens,))
    y = wider(torch.empty(tokens, width, dtype=dtype))
    args = {0: weight.address, 2: 50, 3: 0}
    native.run((EMBED, args, {0: 1.0}, PACKED), [y], Step(tokens, ids=ids))
    assert torch.equal(y, made.rows(ids, dtype))
    native.run((EMBED, args, {0: 3.0}, PACKED), [y], Step(tokens, ids=ids))
    assert torch.equal(y, (made.rows(ids, dtype).float() * 3.0).to(dtype))


@KINDS
def test_runs_of_columns_are_moved(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    units, run, tokens = rng.randint(1, 5), rng.randint(1, 20), rng.randint(1, 9)
    x_step, y_step = run + rng.randint(0, 7), run + rng.randint(0, 7)
    x = wider(torch.randn(tokens, (units - 1) * x_step + run).to(dtype))
    y = wider(torch.zeros(tokens, (units - 1) * y_step + run, dtype=dtype))
    expected = y.clone()
    for unit in range(units):
        expected[:, unit * y_step : unit * y_step + run] = x[:, unit * x_step : unit * x_step + run]
    args = {0: 0, 1: 1, 2: units, 3: run, 4: x_step, 5: y_step}
    native.run((MOVE, args, {}, 0), [x, y], Step(tokens))
    assert torch.equal(y, expected)
    with pytest.raises(ValueError, match="leave x or y"):
        native.plan((MOVE, args | {2: units + 1, 4: x_step}, {}, 0), [x, y])


@KINDS
def test_columns_in_another_order(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    tokens, width, picked = rng.randint(1, 9), rng.choice((1, 13, 256, 600)), rng.choice((1, 40, 256, 700))
    x, y = wider(torch.randn(tokens, width).to(dtype)), wider(torch.empty(tokens, picked, dtype=dtype))
    order = torch.randint(0, width, (picked,), dtype=torch.int32)
    args = {0: 0, 1: 1, 2: order.data_ptr()}
    native.run((PICK, args, {}, 0), [x, y], Step(tokens))
    assert torch.equal(y, x[:, order])
    order[rng.randrange(picked)] = rng.choice((-1, width))
    with pytest.raises(ValueError, match="a column leaves x"):
        native.plan((PICK, args, {}, 0), [x, y])
    with pytest.raises(ValueError, match="there is no order"):
        native.plan((PICK, {0: 0, 1: 1}, {}, 0), [x, y])


def test_an_index_outside_of_the_table_reads_no_other_memory(native: Native) -> None:
    table, y = torch.randn(5, 8), torch.empty(2, 8)
    step = Step(2, ids=torch.tensor([-3, 2**40]))
    native.run((EMBED, {0: table.data_ptr(), 1: 0, 2: 5, 3: 0}, {0: 1.0}, 0), [y], step)
    assert torch.equal(y, table[[0, 4]])


@KINDS
def test_rows_of_sampled_tokens(native: Native, rng: random.Random, dtype: torch.dtype) -> None:
    width, tokens = rng.choice(WIDTHS), rng.randint(3, 9)
    x, y = wider(torch.randn(tokens, width).to(dtype)), torch.empty(2, width, dtype=dtype)
    step = Step(tokens, outputs=2, sampled=torch.tensor([tokens - 1, 1]))
    native.run((GATHER_ROWS, {0: 0, 1: 1}, {}, 0), [x, y], step, outputs=[1])
    assert torch.equal(y, x[[tokens - 1, 1]])


@KINDS
@pytest.mark.parametrize("weight", ["own dtype", "float32", "per head", "none"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms(native: Native, rng: random.Random, dtype: torch.dtype, weight: str, kind: str) -> None:
    size, heads, tokens = rng.choice(WIDTHS), rng.randint(2, 4), rng.randint(1, 9)
    per_head = weight == "per head"
    width = size * heads if per_head else size
    x = wider((torch.randn(tokens, width) * 3 + 1).to(dtype))
    shape = (heads, size) if per_head else (size,)
    w = None if weight == "none" else torch.randn(shape).to(torch.float32 if weight == "float32" else dtype)
    b = None if w is None or kind == "rms" else torch.randn(shape).to(dtype)
    heads_of_x = x.reshape(tokens, heads, size) if per_head else x
    if kind == "rms":
        expected = reference.rms_norm(heads_of_x, w, 1e-5)
    else:
        expected = reference.layer_norm(heads_of_x, w, b, 1e-5)
    args = {0: 0, 1: 1, 6: size if per_head else 0, 7: heads if per_head else 1}
    for at, values in ((2, w), (4, b)):
        if values is not None:
            args |= {at: values.data_ptr(), at + 1: DTYPES[values.dtype]}
    y = wider(torch.empty_like(x))
    native.run((NORM, args, {0: 1e-5}, LAYER_NORM if kind == "layer" else 0), [x, y], Step(tokens))
    assert_near(y, expected.reshape(tokens, width), 4)
    native.run((NORM, args | {1: 0}, {0: 1e-5}, LAYER_NORM if kind == "layer" else 0), [x], Step(tokens))
    assert torch.equal(x, y)


@KINDS
@pytest.mark.parametrize("normed", ["nowhere", "elsewhere", "in place"])
def test_sums_and_their_norms(native: Native, rng: random.Random, dtype: torch.dtype, normed: str) -> None:
    width, tokens = rng.choice(WIDTHS), rng.randint(1, 9)
    x, y = wider(torch.randn(tokens, width).to(dtype)), wider(torch.randn(tokens, width).to(dtype))
    z, weight = torch.empty(tokens, width, dtype=dtype), torch.randn(width).to(dtype)
    total = x.clone().add_(y, alpha=0.25)
    expected = reference.rms_norm(total, weight, 1e-6)
    args = {0: 0, 1: 1, 2: {"nowhere": -1, "elsewhere": 2, "in place": 0}[normed]}
    args |= {3: weight.data_ptr(), 4: DTYPES[dtype]}
    native.run((ADD_ROWS, args, {0: 0.25, 1: 1e-6}, 0), [x, y, z], Step(tokens))
    assert_near(x, expected if normed == "in place" else total, 4)
    if normed == "elsewhere":
        assert_near(z, expected, 4)


def test_what_does_not_fit_is_refused_with_a_sentence(native: Native) -> None:
    x, y = torch.zeros(2, 8), torch.zeros(2, 9)
    with pytest.raises(ValueError, match="x and y differ"):
        native.plan((NORM, {0: 0, 1: 1}, {0: 1e-5}, 0), [x, y])
    with pytest.raises(ValueError, match="not a multiple"):
        native.plan((NORM, {0: 0, 1: 0, 6: 3}, {0: 1e-5}, 0), [x])
    with pytest.raises(ValueError, match="table is empty"):
        native.plan((EMBED, {3: 0}, {}, 0), [x])
    with pytest.raises(ValueError, match="no buffer"):
        native.plan((EMBED, {3: 7}, {}, 0), [x])
