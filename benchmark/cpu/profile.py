"""Where the time of a step goes: each kind of operation, and what is outside of the kernels, as a table and a picture.

``python -m benchmark.cpu.profile FOLDER [--quantize int8] [--sequences 1] [--context 128] [--picture FILE]``: the
shard's whole step, from the router's frame to the answer, without the socket.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from textgen.ops.cpu.library import Kernels
from textgen.ops.cpu.lower import KINDS
from textgen.ops.cpu.model import PlannedModel
from textgen.shard.executor import use_threads
from textgen.shard.protocol import Admit, Done, Flag, Step, pack_u32
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.start import build_runner

OUTSIDE = "outside of the kernels"
WARM, STEPS = 20, 200
BLOCK = 16


def steps(runner: Runner, sequences: int, first: int, count: int) -> list[float]:
    """Seconds of each of so many steps with a token for each sequence."""
    slots, took = np.arange(sequences), []
    for position in range(first, first + count):
        new = int(position % BLOCK == 0)
        pages = np.arange(sequences) * (runner.bounds.max_context // BLOCK) + position // BLOCK
        flags = int(Flag.SAMPLE | Flag.LAST)
        columns = [slots, 0 * slots + position, 0 * slots + 1, 0 * slots, 0 * slots + flags, 0 * slots + new]
        step = Step(position, pack_u32(columns), b"", pack_u32(pages) if new else b"", b"", b"", b"")
        begun = time.perf_counter()
        (frame,) = runner.step(step, time.monotonic_ns()).frames
        took.append(time.perf_counter() - begun)
        assert isinstance(frame, Done), frame
    return took


def seat(runner: Runner, sequences: int, context: int) -> None:
    """Greedy sequences with so many tokens each, a prompt of random ones."""
    rng, pages = np.random.default_rng(0), -(-context // BLOCK)
    for slot in range(sequences):
        runner.admit(Admit(slot, 0.0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0, 0, context, 0, 0, None, b"", None, None))
        own = slot * (runner.bounds.max_context // BLOCK) + np.arange(pages)
        row = [slot, 0, context, 0, int(Flag.SAMPLE), pages]
        tokens = rng.integers(0, runner.bounds.vocab_size, context)
        runner.step(Step(0, pack_u32(row), pack_u32(tokens), pack_u32(own), b"", b"", b""), time.monotonic_ns())


def profile(runner: Runner, sequences: int, context: int) -> tuple[float, dict[str, float]]:
    """Seconds of a step, and the part of each kind of operation; the kernels' are those of the first worker."""
    model = runner.model
    assert isinstance(model, PlannedModel), "the reference path serves this model"
    seat(runner, sequences, context)
    steps(runner, sequences, context, WARM)
    plain = median(steps(runner, sequences, context + WARM, STEPS))
    parts: dict[str, float] = {}
    with model.profiled() as spent:
        whole = sum(steps(runner, sequences, context + WARM + STEPS, STEPS))
    for kind, nanoseconds in spent():
        parts[KINDS[kind]] = parts.get(KINDS[kind], 0.0) + nanoseconds / 1e9
    parts[OUTSIDE] = whole - sum(parts.values())
    return plain, {name: part / whole for name, part in parts.items()}


def draw(parts: dict[str, float], title: str, picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names: Sequence[str] = sorted(parts, key=lambda name: parts[name])
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(names) + 1.2), layout="constrained")
    colours = ["tab:red" if name == OUTSIDE else "tab:blue" for name in names]
    bars = axes.barh(names, [100 * parts[name] for name in names], color=colours)
    axes.bar_label(bars, fmt="%.1f %%", padding=3)
    axes.set_xlabel("of a step's time [%]")
    axes.set_title(title, fontsize=10)
    axes.margins(x=0.12)
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quantize", choices=("int8", "int4"))
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    length = -(-(given.context + WARM + 2 * STEPS + 1) // BLOCK) * BLOCK
    use_threads(given.threads)
    settings = ShardSettings(
        model_dir=str(given.folder), dtype="bfloat16", device="cpu", num_blocks=given.sequences * length // BLOCK,
        block_size=BLOCK, max_slots=given.sequences, max_batch_tokens=max(512, given.sequences), max_context=length,
        quantize=given.quantize, threads=given.threads,
    )  # fmt: skip
    runner = build_runner(settings, os.memfd_create("profile", os.MFD_ALLOW_SEALING))
    use_threads(1)
    seconds, parts = profile(runner, given.sequences, given.context)
    what = f"{given.folder.name}, {given.quantize or 'bfloat16'}, {given.sequences} x {given.context} tokens"
    title = f"{what}: {seconds * 1e3:.2f} ms a step, kernels for {Kernels().isa}, {given.threads} threads"
    print(title)
    for name in sorted(parts, key=lambda name: -parts[name]):
        print(f"{100 * parts[name]:6.2f} %  {name}")
    if given.picture is not None:
        draw(parts, title, given.picture)


if __name__ == "__main__":
    main()
