"""Runs a plan's steps where nothing may be allocated and no system call be made; a test starts it as a process.

`python -m tests.ops.cpu.steady FOLDER WORKERS`: prints the allocations of many steps. A single worker then goes on in
the kernel's strict mode, in which all but reading, writing and ending a thread is death (`prctl(2)`, PR_SET_SECCOMP),
and says "alive" after as many.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from textgen.models.decoder import Decoder, PackedBatch
from textgen.models.load import load_model
from textgen.ops import SegmentLayout, select_ops
from textgen.ops.cpu.library import Kernels
from textgen.ops.cpu.model import PlannedModel, PlanSizes
from textgen.ops.cpu.record import record
from textgen.ops.sampling import SamplingRows
from textgen.parallel import Parallel
from textgen.shard.cache import allocate_cache

LIBRARY = os.environ.get("TEXTGEN_CPU_LIBRARY")
STEPS = 300
PR_SET_SECCOMP, STRICT = 22, 1
BLOCK, SEQUENCES, START = 16, 3, 40


def main(folder: Path, workers: int) -> None:
    cpu = torch.device("cpu")
    decoder = load_model(folder, torch.float32, cpu, Parallel(), select_ops())
    assert isinstance(decoder, Decoder)
    kernels = Kernels(None, None if LIBRARY is None else Path(LIBRARY))
    sizes = PlanSizes(max_tokens=SEQUENCES, max_slots=SEQUENCES, max_context=64, threads=workers)
    model = PlannedModel(record(decoder), kernels, sizes)
    model.pack()
    cache = allocate_cache(model.spec, 64, BLOCK, torch.float32, cpu, Parallel())
    for layer in cache.layers:
        layer.keys.zero_()
        layer.values.zero_()
    tables = np.arange(SEQUENCES * 4, dtype=np.int32).reshape(SEQUENCES, 4)
    starts, lengths = np.full(SEQUENCES, START), np.ones(SEQUENCES, np.int64)
    layout = SegmentLayout(np.arange(SEQUENCES), starts, lengths, tables, BLOCK)
    rows = torch.from_numpy(tables[:, START // BLOCK].astype(np.int64) * BLOCK + START % BLOCK)
    attention = [select_ops().attention(layout, window, model.like) for window in model.spec.windows]
    ids = torch.zeros(SEQUENCES, dtype=torch.int64)
    batch = PackedBatch(ids, torch.from_numpy(starts), [rows] * len(attention), attention)
    model.logits(model.hidden(batch, cache.layers))  # binds the plan to the cache
    again = model.repeat(np.arange(SEQUENCES), np.zeros(SEQUENCES, np.int64), drawn())
    assert again is not None
    again.following.moving_count = 0  # the same position for ever
    count = getattr(ctypes.CDLL(None), "textgen_allocations", lambda: 0)
    gc.disable()
    before = count()
    for _ in range(STEPS):
        again.run(None, True)
    print(count() - before, flush=True)
    if workers > 1:  # who waits for a worker that has lost its core may sleep in the end
        return
    if ctypes.CDLL(None).prctl(PR_SET_SECCOMP, STRICT, 0, 0, 0) != 0:
        print("no strict mode", flush=True)
        return
    for _ in range(STEPS):
        again.run(None, True)
    os.write(1, b"alive\n")


def drawn() -> SamplingRows:
    """One takes the likeliest token, the others do not."""

    def column(*values: float, dtype: type[np.generic] = np.float32) -> NDArray[Any]:
        return np.array(values, dtype)

    off, none = column(0, 0, 0), column(0, 0, 0, dtype=np.int64)
    return SamplingRows(
        temperature=column(0, 0.7, 1.2), top_k=column(0, 0, 20, dtype=np.int64), top_p=column(1, 0.9, 0.95),
        min_p=column(0, 0.1, 0), typical_p=off + 1, repetition=off + 1, frequency=off, presence=off, window=none,
        seed=column(1, 2, 3, dtype=np.uint64), position=none + START, prompt_len=none,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
