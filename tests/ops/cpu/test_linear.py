"""Products with packed weights: every format, on every instruction set of this machine, against torch in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from textgen.ops.cpu.library import Handle, Kernels, KernelsMissing

from ...seeds import fresh_seed
from . import weights
from .guarded import guarded
from .weights import (
    BF16,
    BLOCKS,
    COMPACT,
    F16,
    F32,
    INT4_GROUPS,
    INT4_ZEROS,
    INT8,
    INT8_GROUPS,
    MXFP4,
    Q4_K,
    Q6_K,
    Matrix,
    kernels_of,
    packed,
    random_matrix,
    unpacks,
)

GROUPED = [(form, group) for form in (INT8_GROUPS, INT4_GROUPS, INT4_ZEROS) for group in (32, 64, 128)]
FORMS = [(F32, 0), (BF16, 0), (COMPACT, 0), (F16, 0), (INT8, 0), *GROUPED, (MXFP4, 32), *((form, 0) for form in BLOCKS)]
ISAS = ("amx", "avx512", "avx512vnni", "avxvnni", "avx2", "neon", "portable")
KERNELS = [kernels for isa in ISAS if (kernels := kernels_of(isa))]


@dataclass(frozen=True)
class Native:
    """Kernels of one instruction set on a pool of threads."""

    kernels: Kernels
    pool: Handle


@pytest.fixture(
    params=[(kernels, workers) for kernels in KERNELS for workers in (1, 2)], ids=lambda p: f"{p[0].isa}-{p[1]}"
)
def native(request: pytest.FixtureRequest) -> Native:
    kernels, workers = request.param
    return Native(kernels, kernels.pool(workers, 100))


@pytest.fixture
def rng() -> random.Random:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return random.Random(seed)


def run_linear(
    native: Native, rng: random.Random, matrix: Matrix, x: Tensor, bias: Tensor | None, y: Tensor, add: bool
) -> None:
    weight = packed(native.kernels, matrix, rng)
    weights.run_linear(native.kernels, native.pool, weight, x, bias, y, add)


def check(native: Native, rng: random.Random, form: int, group: int, rows: int, outs: int, ins: int) -> None:
    matrix = random_matrix(rng, form, outs, ins, group)
    x_dtype, y_dtype = (rng.choice((torch.float32, torch.bfloat16)) for _ in range(2))
    x = guarded(torch.randn(rows, ins).mul(rng.choice((1e-3, 1.0, 50.0))).to(x_dtype))
    bias = guarded(torch.randn(outs)) if rng.random() < 0.5 else None
    add = rng.random() < 0.5
    before = torch.randn(rows, outs).to(y_dtype)
    y = guarded(before)
    run_linear(native, rng, matrix, x, bias, y, add)

    product, size = matrix.product(x, unpacks(native.kernels.isa, rows))
    expected = product + (0 if bias is None else bias.double()) + (before.double() if add else 0)
    # Sums of float32 in any order, quantized values exact; one rounding to y's dtype.
    bound = size * ins * 2**-24 + expected.abs() * (2**-8 if y_dtype == torch.bfloat16 else 2**-22) + 1e-6
    excess = (y.double() - expected).abs() - bound
    assert excess.max() <= 0, (rows, outs, ins, x_dtype, y_dtype, excess.max())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("form", "group"), FORMS)
def test_a_number_that_is_none_makes_its_row_none(
    native: Native, rng: random.Random, form: int, group: int, kind: torch.dtype
) -> None:
    """Wherever it is, also where activations become integers; rows beside it do not see it."""
    rows, ins = rng.choice((1, 3, 40)), 256 * rng.randint(1, 3)
    matrix, x = random_matrix(rng, form, 20, ins, group), torch.randn(rows, ins).to(kind)
    x[broken := rng.randrange(rows), rng.randrange(ins)] = torch.nan
    y = guarded(torch.zeros(rows, 20))
    run_linear(native, rng, matrix, guarded(x), None, y, False)
    assert y[broken].isnan().all()
    assert y.isfinite().all(dim=1).sum() == rows - 1


@pytest.mark.parametrize("form", [BF16, COMPACT, INT8])
def test_outputs_that_are_more_than_caches_have(native: Native, rng: random.Random, form: int) -> None:
    """Whole lines of them go past these; what lies behind a row's end stays as it is."""
    rows, outs, ins, wide = rng.choice((33, 40)), 16384 + rng.randint(1, 60), 40, 16448
    matrix, x = random_matrix(rng, form, outs, ins, 0), torch.randn(rows, ins)
    room = torch.full((rows * wide + 16,), 7.0)
    y = room[-room.data_ptr() % 64 // 4 :][: rows * wide].view(rows, wide)
    run_linear(native, rng, matrix, guarded(x), None, y[:, :outs], False)
    product, size = matrix.product(x, unpacks(native.kernels.isa, rows))
    excess = (y[:, :outs].double() - product).abs() - size * ins * 2**-24 - product.abs() * 2**-22 - 1e-6
    assert excess.max() <= 0
    assert (y[:, outs:] == 7).all()


@pytest.mark.parametrize(("form", "group"), FORMS)
@pytest.mark.parametrize("rows", [1, 2, 9, 32, 70])
def test_equals_torch(native: Native, rng: random.Random, form: int, group: int, rows: int) -> None:
    ins = group * rng.randint(1, 5) if group else rng.randint(1, 300)
    ins = 256 * rng.randint(1, 3) if form in BLOCKS else ins
    check(native, rng, form, group, rows, rng.randint(1, 400), ins)


@pytest.mark.parametrize(("form", "group"), [(F32, 0), (BF16, 0), (COMPACT, 0), (INT8, 0), *GROUPED])
def test_long_rows_in_blocks(native: Native, rng: random.Random, form: int, group: int) -> None:
    """Large enough for several blocks of rows and parts of the inputs."""
    check(native, rng, form, group, rng.randint(97, 200), rng.randint(33, 80), 128 * rng.randint(50, 80))


@pytest.mark.parametrize("rows", [128, 255, 256, 289])
def test_rows_that_workers_keep(native: Native, rng: random.Random, rows: int) -> None:
    """From some hundred on each worker has rows of its own, in stretches that need not be even."""
    for form, group in ((F32, 0), (BF16, 0), (COMPACT, 0), (INT8, 0), (INT4_GROUPS, 64)):
        check(native, rng, form, group, rows, rng.choice((1, 33, 96)), 64 * rng.randint(1, 30))


def test_rows_of_zeros(native: Native, rng: random.Random) -> None:
    for form, group in FORMS:
        matrix = random_matrix(rng, form, 40, 256, group)
        y = torch.ones(3, 40)
        run_linear(native, rng, matrix, torch.zeros(3, 256), None, y, add=False)
        assert not y.any()


def test_columns_of_wider_buffers(native: Native, rng: random.Random) -> None:
    """x and y may be views; what lies beside them stays as it was."""
    for form, group in FORMS:
        for rows in (1, 5, 40):
            matrix = random_matrix(rng, form, 50, 256, group)
            wide_x, wide_y = torch.randn(rows, 400), torch.full((rows, 200), 7.0)
            x, y = wide_x[:, 100:356], wide_y[:, 30:80]
            run_linear(native, rng, matrix, x, None, y, add=False)
            product, size = matrix.product(x, unpacks(native.kernels.isa, rows))
            assert ((y.double() - product).abs() <= size * 1e-4).all()
            assert (wide_y[:, :30] == 7).all() and (wide_y[:, 80:] == 7).all()


def test_the_same_row_gives_the_same_numbers(native: Native, rng: random.Random) -> None:
    """Whatever stands beside a row changes nothing of it, as long as the same instructions are taken."""
    matrix = random_matrix(rng, INT8, 100, 200)
    x = torch.randn(40, 200)
    together, alone = torch.empty(40, 100), torch.empty(40, 100)
    run_linear(native, rng, matrix, x, None, together, add=False)
    for row in range(40):
        run_linear(native, rng, matrix, x[row : row + 1], None, alone[row : row + 1], add=False)
    assert torch.equal(together, alone)


def test_what_cannot_be_is_refused(native: Native, rng: random.Random) -> None:
    with pytest.raises(KernelsMissing, match="group has 32, 64 or 128"):
        packed(native.kernels, Matrix(INT4_GROUPS, torch.zeros(16, 48, dtype=torch.int8), torch.ones(16, 1), 48), rng)
    with pytest.raises(KernelsMissing, match="multiple of the group"):
        packed(native.kernels, Matrix(INT4_GROUPS, torch.zeros(16, 80, dtype=torch.int8), torch.ones(16, 1), 64), rng)
    with pytest.raises(KernelsMissing, match="needs scales"):
        packed(native.kernels, Matrix(INT8, torch.zeros(16, 80, dtype=torch.int8)), rng)
    with pytest.raises(KernelsMissing, match="blocks have 256 inputs"):
        native.kernels.weight(Q4_K, 16, 320)
    with pytest.raises(KernelsMissing, match="packed from bytes"):
        native.kernels.pack(native.kernels.weight(Q6_K, 16, 256), 0, torch.zeros(16, 256))
    matrix = random_matrix(rng, F32, 8, 16)
    with pytest.raises(KernelsMissing, match="widths"):
        run_linear(native, rng, matrix, torch.zeros(2, 17), None, torch.zeros(2, 8), add=False)
