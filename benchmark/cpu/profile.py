"""Where the time of a step goes: each kind of operation, and what is outside of the kernels, as a table and a picture.

``python -m benchmark.cpu.profile FOLDER [--quantize int8] [--sequences 1] [--context 128] [--picture FILE]``: the
shard's executor, from the frames of steps in its socket to their answers.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from textgen.ops.cpu.library import Kernels
from textgen.ops.cpu.lower import KINDS
from textgen.ops.cpu.model import PlannedModel
from textgen.shard.executor import Executor, use_threads
from textgen.shard.link import Link
from textgen.shard.metrics import Metrics
from textgen.shard.protocol import Admit, Done, Flag, FrameReader, Step, Stop, decode, encode, pack_u32
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.start import build_runner, hello

OUTSIDE = "outside of the kernels"
WARM, STEPS, ROUNDS = 20, 200, 5
BLOCK = 16


def frames(runner: Runner, sequences: int, first: int, count: int) -> bytes:
    """Of so many steps with a token for each sequence, the first at a position."""
    slots, flags, sent = np.arange(sequences), int(Flag.SAMPLE | Flag.LAST), []
    for position in range(first, first + count):
        new = int(position % BLOCK == 0)
        columns = [slots, 0 * slots + position, 0 * slots + 1, 0 * slots, 0 * slots + flags, 0 * slots + new]
        pages = slots * (runner.bounds.max_context // BLOCK) + position // BLOCK
        step = Step(position, pack_u32(columns), b"", pack_u32(pages) if new else b"", b"", b"", b"")
        sent.append(encode(step))
    return b"".join(sent)


def steps(runner: Runner, settings: ShardSettings, data: bytes, count: int) -> float:
    """Seconds that a shard's executor takes for the frames of so many steps. All lie in the socket when it begins, and
    nobody reads its answers meanwhile: a router's own time is not in it."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    theirs.setblocking(False)
    ended = 0.0

    def run() -> None:
        nonlocal ended
        use_threads(1)
        Executor(runner, Link(theirs), Metrics(runner.slots, 1), 60.0).run(hello(settings, runner, [], []))
        ended = time.perf_counter()

    with ours, theirs:
        ours.sendall(data + encode(Stop()))
        began = time.perf_counter()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        reader, answers = FrameReader(), list[object]()
        while len(answers) <= count:
            answers += [decode(kind, payload) for kind, payload in reader.feed(ours.recv(1 << 16))]
    wrong = [answer for answer in answers[1:] if not isinstance(answer, Done)]
    assert not wrong, wrong[0]
    return ended - began


def seat(runner: Runner, sequences: int, context: int) -> None:
    """Greedy sequences with so many tokens each, a prompt of random ones."""
    rng, pages = np.random.default_rng(0), -(-context // BLOCK)
    for slot in range(sequences):
        runner.admit(Admit(slot, 0.0, 0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0, 0, context, 0, 0, None, b"", None, None))
        own = slot * (runner.bounds.max_context // BLOCK) + np.arange(pages)
        row = [slot, 0, context, 0, int(Flag.SAMPLE), pages]
        tokens = rng.integers(0, runner.bounds.vocab_size, context)
        runner.step(Step(0, pack_u32(row), pack_u32(tokens), pack_u32(own), b"", b"", b""), time.monotonic_ns())


def profile(runner: Runner, settings: ShardSettings, sequences: int, context: int) -> tuple[float, dict[str, float]]:
    """Seconds of a step, and the part of each kind of operation; the kernels' are those of the first worker."""
    model = runner.model
    assert isinstance(model, PlannedModel), "the reference path serves this model"
    seat(runner, sequences, context)

    def run(count: int) -> float:
        nonlocal context
        taken = steps(runner, settings, frames(runner, sequences, context, count), count)
        context += count
        return taken

    run(WARM)
    plain = median(run(STEPS // ROUNDS) for _ in range(ROUNDS)) / (STEPS // ROUNDS)
    parts: dict[str, float] = {}
    with model.profiled() as spent:
        whole = run(STEPS)
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
    length = -(-(given.context + WARM + 2 * STEPS + 4) // BLOCK) * BLOCK
    use_threads(given.threads)
    settings = ShardSettings(
        model_dir=str(given.folder), dtype="bfloat16", device="cpu", num_blocks=given.sequences * length // BLOCK,
        block_size=BLOCK, max_slots=given.sequences, max_batch_tokens=max(512, given.sequences), max_context=length,
        quantize=given.quantize, threads=given.threads,
    )  # fmt: skip
    runner = build_runner(settings, os.memfd_create("profile", os.MFD_ALLOW_SEALING))
    use_threads(1)
    seconds, parts = profile(runner, settings, given.sequences, given.context)
    what = f"{given.folder.name}, {given.quantize or 'bfloat16'}, {given.sequences} x {given.context} tokens"
    title = f"{what}: {seconds * 1e3:.2f} ms a step, kernels for {Kernels().isa}, {given.threads} threads"
    print(title)
    for name in sorted(parts, key=lambda name: -parts[name]):
        print(f"{100 * parts[name]:6.2f} %  {name}")
    if given.picture is not None:
        draw(parts, title, given.picture)


if __name__ == "__main__":
    main()
