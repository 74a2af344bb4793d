"""``python -m benchmark.cpu.linear``: products with one weight of 2048 x 8192, in each format, beside torch's.

So many copies of the weight take turns that none is still in a cache. Ours and torch's runs take turns too, since the
bandwidth of a shared machine drifts; each figure is a median.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.ops.cpu.library import BF16, F32, BufferRecord, Handle, Kernels, Operation, PlanOptions, Step

OUTPUTS, INPUTS = 2048, 8192
FORMS = {"float32": (0, 4.0, 0), "bfloat16": (1, 2.0, 0), "int8": (2, 1.0, 0), "int8 g64": (3, 1.0 + 2 / 64, 64)}
FORMS |= {f"int4 g{group}": (4, 0.5 + 2 / group, group) for group in (32, 64, 128)}
BLOCKS = {"Q4_K": (6, 144), "Q5_K": (7, 176), "Q6_K": (8, 210)}  # of GGUF files; bytes of 256 inputs
FORMS |= {name: (form, size / 256, 0) for name, (form, size) in BLOCKS.items()}


def packed(kernels: Kernels, form: int, group: int) -> Handle:
    weight = kernels.weight(form, OUTPUTS, INPUTS, group)
    if form >= 6:
        size = next(size for each, size in BLOCKS.values() if each == form)
        kernels.pack(weight, 0, torch.randint(0, 60, (OUTPUTS, INPUTS // 256 * size), dtype=torch.uint8))
    elif form < 2:
        kernels.pack(weight, 0, torch.randn(OUTPUTS, INPUTS, dtype=torch.bfloat16 if form else torch.float32))
    else:
        values = torch.randint(-8, 8, (OUTPUTS, INPUTS), dtype=torch.int8)
        kernels.pack(weight, 0, values, torch.rand(OUTPUTS, INPUTS // group if group else 1))
    return weight


def product(kernels: Kernels, pool: Handle, weights: list[Handle], rows: int, dtype: torch.dtype) -> Callable[[], None]:
    """Runs one product with each weight."""
    x, y = torch.randn(rows, INPUTS, dtype=dtype), torch.empty(rows, OUTPUTS, dtype=dtype)
    kind = BF16 if dtype == torch.bfloat16 else F32
    buffers = (BufferRecord * 2)(*(BufferRecord(t.data_ptr(), 0, t.shape[1], t.shape[1], kind, 0) for t in (x, y)))
    ops = (Operation * len(weights))()
    for op, weight in zip(ops, weights, strict=True):
        op.args[0], op.args[2], op.args[3] = weight.address, 0, 1
    options = PlanOptions(ops, buffers, None, len(ops), 2, 0, rows, rows, rows, 1)
    plan, step = kernels.plan(pool, options, x, y, weights), Step(tokens=rows)
    return lambda: kernels.run(plan, step)


def by_torch(weights: list[Tensor], rows: int) -> Callable[[], None]:
    x = torch.randn(rows, INPUTS, dtype=weights[0].dtype)

    def run() -> None:
        for weight in weights:
            F.linear(x, weight)

    return run


def seconds(runs: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            begun = clock()
            run()
            times[name].append(clock() - begun)
    return {name: median(taken[1:]) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="kernels to run; the machine's best if not given")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", default="1,2,8,16,32,512")
    parser.add_argument("--forms", default="bfloat16,int8,int4 g64")
    parser.add_argument("--megabytes", type=int, default=1200, help="of weights that take turns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--busy", action="store_true", help="one thread, by processor time: on a machine that is not free"
    )
    parser.add_argument("--library", type=Path, help="of `make -C csrc/cpu`, in place of the one in the extension")
    args = parser.parse_args()
    if "OMP_WAIT_POLICY" not in os.environ:  # read when torch is loaded; its threads would spin through our turns
        again = [sys.executable, "-m", "benchmark.cpu.linear", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {"OMP_WAIT_POLICY": "passive"})
    if args.busy:
        args.threads = 1
    clock = time.thread_time if args.busy else time.perf_counter

    kernels = Kernels(args.isa, args.library)
    pool = kernels.pool(args.threads, 1000)
    torch.set_num_threads(args.threads)
    print(f"{OUTPUTS} x {INPUTS}, {kernels.isa}, {args.threads} threads; GB/s of weights read, GOP/s")
    matrix = torch.randn(OUTPUTS, INPUTS, dtype=torch.bfloat16)
    theirs = [matrix.clone() for _ in range(max(2, args.megabytes * 10**6 // (OUTPUTS * INPUTS * 2)))]
    for name in args.forms.split(","):
        form, size, group = FORMS[name]
        copies = max(2, int(args.megabytes * 1e6 / (OUTPUTS * INPUTS * size)))
        begun = time.perf_counter()
        weights = [packed(kernels, form, group) for _ in range(copies)]
        packing = (time.perf_counter() - begun) / copies
        print(f"{name}: {copies} copies, made and packed in {packing * 1e3:.0f} ms each")
        dtype = torch.float32 if form == 0 else torch.bfloat16
        for rows in map(int, args.rows.split(",")):
            # Of many rows a product takes long: fewer weights a round, still more than the caches hold.
            count = max(2, copies // (1 + rows // 64))
            runs = {"ours": product(kernels, pool, weights[:count], rows, dtype)}
            others = theirs[: max(2, len(theirs) // (1 + rows // 64))]
            runs["torch"] = by_torch(others, rows)
            taken = seconds(runs, args.rounds, clock)
            ours, other = taken["ours"] / count, taken["torch"] / len(others)
            work = 2 * OUTPUTS * INPUTS * rows
            print(
                f"  {rows:4} rows: {ours * 1e3:8.3f} ms {OUTPUTS * INPUTS * size / ours / 1e9:6.1f} GB/s"
                f" {work / ours / 1e9:7.0f} GOP/s | torch bfloat16 {other * 1e3:8.3f} ms"
                f" {OUTPUTS * INPUTS * 2 / other / 1e9:6.1f} GB/s {work / other / 1e9:7.0f} GFLOP/s"
                f" | {other / ours:5.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
