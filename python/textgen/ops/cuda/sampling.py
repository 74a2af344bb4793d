"""The draw by the kernel of `csrc/cuda/sample.cu`: filters and choice in one launch, no row sorted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from textgen.ops import sampling
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.source import Source
from textgen.ops.cuda.structures import Sample

THREADS = 512
MAX_VOCAB = 2**22  # ids whose shares, whole numbers of 2^-40 of the likeliest one's, have a sum of 64 bits
MAX_EXPONENT = 3e38  # times 0 it is 0


def choose(device: Device, logits: Tensor, rows: sampling.SamplingRows) -> tuple[Tensor, Tensor]:
    """What `sampling.choose` takes of shaped logits [rows, vocab] float32, [rows] int64, and the log of the sum of
    exp(logits), [rows] float32.

    Shares are rounded before they are summed, and their sums are exact: a draw that falls within 2^-20 of where two
    tokens meet may go to the other one."""
    count, vocab = logits.shape
    typical = ((rows.typical_p < 1) & (rows.temperature > 0)).any()
    kernel_takes = device.holds(logits) and logits.dtype == torch.float32 and count > 0 and vocab <= MAX_VOCAB
    if typical or not kernel_takes or logits.stride(1) != 1:
        return sampling.choose(logits, rows), logits.logsumexp(dim=-1)
    columns = [
        torch.from_numpy(np.ascontiguousarray(column)).to(logits.device)
        for column in (
            _exponents(rows.temperature),
            np.minimum(rows.top_k, vocab).astype(np.int32),
            rows.top_p,
            rows.min_p,
            sampling.uniform(rows.seed, rows.position),
        )
    ]
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    normaliser = torch.empty(count, dtype=torch.float32, device=logits.device)
    addresses = [tensor.data_ptr() for tensor in (logits, *columns, tokens, normaliser)]
    device.kernel(Source.of("sample"))((count, 1, 1), THREADS, Sample(*addresses, logits.stride(0), vocab, 0))
    return tokens, normaliser


def _exponents(temperature: sampling.Floats) -> sampling.Floats:
    """What scores are multiplied by before 2 is raised to them: log2(e) / temperature, finite; 0 stays 0."""
    hot = np.where(temperature > 0, temperature, 1).astype(np.float64)
    exponents = np.where(temperature > 0, np.minimum(np.log2(np.e) / hot, MAX_EXPONENT), 0)
    return exponents.astype(np.float32)
