"""What is done with logits by kernels: penalties and masks (`shape.cu`), filters and the draw (`sample.cu`).

Each takes its columns on the device, so that a step that was captured can be replayed; `choose` brings them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from textgen.ops import sampling
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.source import Source
from textgen.ops.cuda.structures import Sample, Shape
from textgen.ops.transfer import upload

THREADS = 512
MAX_VOCAB = 2**22  # ids whose shares, whole numbers of 2^-40 of the likeliest one's, have a sum of 64 bits
MAX_EXPONENT = 3e38  # times 0 it is 0


@dataclass(frozen=True, slots=True)
class DrawColumns:
    """How each row is drawn, on the device; each [rows]."""

    exponent: Tensor  # float32, log2(e) / temperature; 0: the likeliest token
    top_k: Tensor  # int32, at most the vocabulary; 0: off
    top_p: Tensor  # float32, 1: off
    min_p: Tensor  # float32, 0: off
    u: Tensor  # float64 in [0, 1)


@dataclass(frozen=True, slots=True)
class Penalties:
    """Which rows are penalised for which tokens, on the device."""

    history: Tensor  # [slots, positions] int32, token ids
    slots: Tensor  # [rows] int64, the row's of the history
    known: Tensor  # [rows] int64, tokens of it that count
    prompt: Tensor  # [rows] int64, of these the prompt's
    repetition: Tensor  # [rows] float32, 1: off
    frequency: Tensor  # [rows] float32, 0: off
    presence: Tensor  # [rows] float32, 0: off


@dataclass(frozen=True, slots=True)
class Masks:
    """Which tokens rows may draw, on the device."""

    bits: Tensor  # [rows, words] int32: a bit for each token id
    masked: Tensor  # [rows] int32: 0 where a row may draw all


def choose(device: Device, logits: Tensor, rows: sampling.SamplingRows) -> tuple[Tensor, Tensor]:
    """What `sampling.choose` takes of shaped logits [rows, vocab] float32, [rows] int64, and the log of the sum of
    exp(logits), [rows] float32.

    Shares are rounded before they are summed, and their sums are exact: a draw that falls within 2^-20 of where two
    tokens meet may go to the other one."""
    if not draws(device, logits, rows):
        return sampling.choose(logits, rows), logits.logsumexp(dim=-1)
    there = logits.device
    columns: list[NDArray[Any]] = [*host_columns(rows, logits.shape[1]), sampling.uniform(rows.seed, rows.position)]
    return draw(device, logits, DrawColumns(*(upload(column, there) for column in columns)))


def draws(device: Device, logits: Tensor, rows: sampling.SamplingRows) -> bool:
    """Whether the kernel draws such rows."""
    typical = ((rows.typical_p < 1) & (rows.temperature > 0)).any()
    fits = logits.dtype == torch.float32 and len(logits) > 0 and logits.shape[1] <= MAX_VOCAB and logits.stride(1) == 1
    return not typical and fits and device.holds(logits)


def host_columns(rows: sampling.SamplingRows, vocab: int) -> tuple[sampling.Floats, ...]:
    """The first columns of `DrawColumns`, on the host."""
    return (
        _exponents(rows.temperature),
        np.minimum(rows.top_k, vocab).astype(np.int32),
        np.ascontiguousarray(rows.top_p),
        np.ascontiguousarray(rows.min_p),
    )


def draw(device: Device, logits: Tensor, columns: DrawColumns) -> tuple[Tensor, Tensor]:
    """[rows] int64 tokens and [rows] float32 normalisers of logits [rows, vocab] float32, rows strided."""
    count, vocab = logits.shape
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    normaliser = torch.empty(count, dtype=torch.float32, device=logits.device)
    given = (logits, columns.exponent, columns.top_k, columns.top_p, columns.min_p, columns.u, tokens, normaliser)
    params = Sample(*(tensor.data_ptr() for tensor in given), logits.stride(0), vocab, 0)
    device.kernel(Source.of("sample"))((count, 1, 1), THREADS, params)
    return tokens, normaliser


def shape(device: Device, logits: Tensor, penalties: Penalties | None, masks: Masks | None) -> Tensor:
    """[rows, vocab] float32, a new tensor: logits with penalties on them, minus infinity where a mask forbids."""
    count, vocab = logits.shape
    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    params = Shape(logits=logits.data_ptr(), out=out.data_ptr(), stride=logits.stride(0), vocab=vocab)
    if masks is not None:
        params.bits, params.masked, params.words = masks.bits.data_ptr(), masks.masked.data_ptr(), masks.bits.shape[1]
    if penalties is not None:
        counts = torch.empty((count, vocab), dtype=torch.int32, device=logits.device)
        params.counts, params.history_stride = counts.data_ptr(), penalties.history.stride(0)
        for name in ("history", "slots", "known", "prompt", "repetition", "frequency", "presence"):
            setattr(params, name, getattr(penalties, name).data_ptr())
    device.kernel(Source.of("shape"))((count, 1, 1), THREADS, params)
    return out


def _exponents(temperature: sampling.Floats) -> sampling.Floats:
    """What scores are multiplied by before 2 is raised to them: log2(e) / temperature, finite; 0 stays 0."""
    hot = np.where(temperature > 0, temperature, 1).astype(np.float64)
    exponents = np.where(temperature > 0, np.minimum(np.log2(np.e) / hot, MAX_EXPONENT), 0)
    return exponents.astype(np.float32)
