"""One function for each kernel but attention's: what it is compiled for, its parameters, its grid.

Tensors are on the device, as their shapes and dtypes say; `width_of` tells how many numbers may be loaded at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.models.spec import ClampedSilu, GatedActivation
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.source import Source
from textgen.ops.cuda.structures import Activate, CopyRows, Head, RmsNorm, Rotary

DTYPES = {torch.float32: "float", torch.bfloat16: "bf16", torch.float16: "f16"}
NARROW = {torch.int8: "i8", torch.float8_e4m3fn: "e4m3"}
STORED = {**DTYPES, **NARROW}  # of a cache
MAX_NORM_PARTS = 4  # loads of a thread that a norm keeps in registers
BLOCKS = 16  # of a grid that goes round, for each multiprocessor


def width_of(dtype: torch.dtype, sizes: list[int], tensors: list[Tensor]) -> int:
    """How many numbers 16 bytes have, if sizes are multiples of it and tensors begin at such bytes, else 1."""
    width = 16 // dtype.itemsize
    whole = all(size % width == 0 for size in sizes) and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    return width if whole else 1


def norm_threads(size: int, width: int) -> int | None:
    """How many threads share a row of a norm; None: it is too long."""
    if size <= 32 * width * MAX_NORM_PARTS:
        return 32
    threads = 128
    while threads < 1024 and size > threads * width * MAX_NORM_PARTS:
        threads *= 2
    return threads if size <= threads * width * MAX_NORM_PARTS else None


def rms_norm(
    device: Device,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    out: Tensor,
    residual: Tensor | None,
    total: Tensor | None,
) -> bool:
    """x [outer, inner, size] strided, weight [size] or None, out contiguous; residual and total as out, or None.

    False: nothing was done, the row is too long.
    """
    outer, inner, size = x.shape
    tensors = [tensor for tensor in (x, weight, out, residual, total) if tensor is not None]
    width = width_of(x.dtype, [size, x.stride(0), x.stride(1)], tensors)
    threads = norm_threads(size, width)
    if threads is None:
        return False
    source = Source.of("rms_norm", T=DTYPES[x.dtype], SIZE=size, WIDTH=width, ROW_THREADS=threads)
    same = weight is not None and weight.dtype == x.dtype
    params = RmsNorm(
        x=x.data_ptr(),
        residual=_address(residual),
        sum=_address(total),
        weight=_address(weight) if same else None,
        weight32=None if same else _address(weight),
        out=out.data_ptr(),
        rows=outer * inner,
        inner=inner,
        outer_stride=x.stride(0),
        inner_stride=x.stride(1),
        eps=eps,
    )
    block = max(threads, 128)
    device.kernel(source)((-(-outer * inner // (block // threads)), 1, 1), block, params)
    return True


def activate(device: Device, x: Tensor, kind: GatedActivation, gated: bool, out: Tensor) -> None:
    """x [rows, size], with a gate [rows, 2 * size], rows strided; out [rows, size]."""
    rows, size = out.shape
    width = width_of(x.dtype, [size, x.stride(0)], [x, out])
    name, alpha, limit = (
        ("CLAMPED_SILU", kind.alpha, kind.limit) if isinstance(kind, ClampedSilu) else (kind.upper(), 0.0, 0.0)
    )
    source = Source.of("activate", T=DTYPES[x.dtype], WIDTH=width, KIND=name, GATED=int(gated))
    params = Activate(
        x=x.data_ptr(),
        out=out.data_ptr(),
        rows=rows,
        size=size,
        stride=x.stride(0),
        alpha=alpha,
        limit=limit,
    )
    device.kernel(source)((_blocks(device, rows * size // width), 1, 1), 256, params)


def rotary(
    device: Device,
    heads: list[Head],
    dtype: torch.dtype,
    tables: tuple[Tensor, Tensor] | None,
    slots: Tensor | None,
    tokens: int,
    width: int,
    stored: torch.dtype | None = None,
) -> None:
    """Up to three heads of `head_of`; stored: the dtype of their caches, where that is another; tables [tokens, dim]
    each; slots [tokens] int64 where a head has a cache."""
    dim = 2 * width if tables is None else tables[0].shape[-1]
    source = Source.of("rotary", T=DTYPES[dtype], STORED=STORED[stored or dtype], WIDTH=width, DIM=dim)
    cos, sin = (None, None) if tables is None else tables
    params = Rotary(*heads, *([Head()] * (3 - len(heads))), _address(cos), _address(sin), _address(slots), tokens)
    device.kernel(source)((tokens, 1, 1), 128, params)


def head_of(x: Tensor, out: Tensor | None, cache: Tensor | None, rotated: bool, scales: Tensor | None = None) -> Head:
    """x [tokens, heads, head_dim], tokens strided; out as x, or None; cache [..., heads, head_dim], or None; its scales
    [..., heads]."""
    _, heads, dim = x.shape
    stride = 0 if out is None else out.stride(0)
    return Head(
        x.data_ptr(), x.stride(0), _address(out), stride, _address(cache), _address(scales), heads, dim, int(rotated), 0
    )


def copy_rows(
    device: Device, source: Tensor, target: Tensor, sources: Tensor | None, targets: Tensor | None, rows: int
) -> None:
    """target[targets] = source[sources]: rows of the first dimension, contiguous; indices int64, None counts up."""
    size = source[0].numel() * source.element_size() if len(source) else 0
    aligned = [unit for unit in (16, 4, 1) if all(x % unit == 0 for x in (size, source.data_ptr(), target.data_ptr()))]
    units = size // aligned[0]
    params = CopyRows(source.data_ptr(), target.data_ptr(), _address(sources), _address(targets), rows, units)
    grid = (_blocks(device, rows * units), 1, 1)
    device.kernel(Source.of("copy_rows", UNIT=aligned[0]))(grid, 256, params)


def _blocks(device: Device, items: int) -> int:
    return max(min(-(-items // 256), device.processors * BLOCKS), 1)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
