"""How the kernels draw tokens: `tg_draw` of `csrc/cpu/include/textgen_cpu_kinds.h`, a record for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from textgen.ops.sampling import Allowed, Histories, SamplingRows

DRAW = np.dtype(
    [
        *((name, np.uint64) for name in ("logits", "history", "mask", "seed")),
        *((name, np.int64) for name in ("position", "prompt", "window")),
        *((name, np.float32) for name in ("factor", "top_p", "min_p", "repetition", "frequency", "presence")),
        ("top_k", np.int32),
    ],
    align=True,
)
MAX_FACTOR = 3e38  # times 0 it is 0
Records = NDArray[Any]  # of DRAW


def draws(rows: SamplingRows, allowed: Allowed | None = None) -> bool:
    """Whether the kernels draw such rows."""
    whole = allowed is None or (allowed.bits.strides[1] == 1 and allowed.bits.shape[1] % 4 == 0)
    return whole and not ((rows.typical_p < 1) & (rows.temperature > 0)).any()


def fill(
    to: Records, rows: SamplingRows, source: Histories | Tensor | None = None, allowed: Allowed | None = None
) -> None:
    """Records [rows] of how each is drawn from the model's logits. source: what the penalised ones have said, or what
    is drawn from instead, [rows, vocab] float32. allowed: which tokens some may draw, in whole rows of 4 bytes. Both
    must live until the rows are drawn."""
    hot = rows.temperature > 0
    inverse = 1 / np.where(hot, rows.temperature, 1).astype(np.float64)
    to["logits"] = to["history"] = to["mask"] = 0
    if isinstance(source, Tensor):
        to["logits"] = _addresses(source, np.arange(len(to)))
    elif source is not None:
        to["history"] = np.where(rows.penalised, _addresses(source.tokens, source.slots), 0)
    if allowed is not None and allowed.rows.size:
        bits = allowed.bits
        to["mask"][allowed.rows] = bits.ctypes.data + bits.strides[0] * np.arange(len(bits), dtype=np.uint64)
    to["seed"], to["position"], to["prompt"], to["window"] = rows.seed, rows.position, rows.prompt_len, rows.window
    for name in ("repetition", "frequency", "presence"):
        to[name] = getattr(rows, name)
    to["factor"] = np.where(hot, np.minimum(inverse, MAX_FACTOR), 0)
    to["top_p"], to["min_p"] = rows.top_p, rows.min_p
    to["top_k"] = np.minimum(rows.top_k, np.iinfo(np.int32).max)


def _addresses(of: Tensor, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    step = of.stride(0) * of.element_size()
    return of.data_ptr() + step * rows.astype(np.uint64)
