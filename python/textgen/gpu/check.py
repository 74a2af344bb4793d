"""Kernels against the reference, captured steps against launched ones, and the server on the GPU against the server on
the processor. Each line says what was held against what."""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch

from textgen import __version__
from textgen.demo import MODEL_FOLDER
from textgen.gpu.kernels import CHECKS, Case, checks_here
from textgen.gpu.results import Results, first_line
from textgen.gpu.server import check_server
from textgen.shard.protocol import Admit, Done, Flag, Step, pack_u32, unpack_u32
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings

TOKENS = 24
Dtypes: TypeAlias = tuple[Literal["float32", "bfloat16"], Literal["auto", "int8", "fp8"]]
# Whose steps are captured.
DTYPES: list[Dtypes] = [("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "int8"), ("bfloat16", "fp8")]


def check(seed: int, rounds: int, skip: set[str], told: Path | None = None) -> bool:
    """Run all parts but those to skip; whether all is well. told: gets the results as JSON. Raises `OSError`."""
    where = {
        "device": torch.cuda.get_device_name(0), "textgen": __version__, "torch": torch.__version__,
        "CUDA": str(torch.version.cuda), "Python": platform.python_version(),
    }  # fmt: skip
    print(", ".join(f"{name} {version}" for name, version in where.items()) + f", seed {seed}", flush=True)
    results = Results()
    parts: dict[str, Callable[[], None]] = {
        "kernels": lambda: check_on_gpu(results, seed, rounds),
        "graphs": lambda: check_all_graphs(results, seed),
        "server": lambda: check_server(results),
    }
    for name, part in parts.items():
        if name not in skip:
            with results.guarded(name, "as a whole"):
                part()
    print(results.table())
    print("all is well" if results.good else "something is wrong; see above")
    if told is not None:
        results.save(told, seed, where)
    return results.good


def check_on_gpu(results: Results, seed: int, rounds: int) -> None:
    from textgen.ops.cuda.device import CudaDevice
    from textgen.ops.cuda.ops import CudaOps

    kernels = CudaDevice(0)
    torch.manual_seed(seed)
    case = Case(random.Random(seed), kernels, CudaOps(kernels), torch.device("cuda", 0), 4096)
    check_kernels(results, case, rounds, checks_here())


def check_kernels(results: Results, case: Case, rounds: int, names: Sequence[str]) -> None:
    """Each of the kernels on so many random shapes."""
    for name in names:
        try:
            errors = [CHECKS[name](case) for _ in range(rounds)]
            fine = all(error <= allowed for error, allowed in errors)
            said = f"largest error {max(error for error, _ in errors):.1e} of {max(most for _, most in errors):.1e}"
        except Exception as error:  # the next kernel may be fine
            fine, said = False, f"{type(error).__name__}: {first_line(error)}"
        results.add("kernel", name, fine, said)


@contextmanager
def on_gpu(dtypes: Dtypes, graphs: tuple[int, ...] | None) -> Iterator[Runner]:
    """The built-in model on the GPU. dtypes: its own, and its cache's."""
    from textgen.shard.start import build_runner

    settings = ShardSettings(
        model_dir=str(MODEL_FOLDER), dtype=dtypes[0], device="cuda", num_blocks=256, block_size=16, max_slots=8,
        max_batch_tokens=64, max_context=128, graphs=graphs, attention="native", kv_cache_dtype=dtypes[1],
    )  # fmt: skip
    descriptor = os.memfd_create("textgen-check", os.MFD_ALLOW_SEALING)
    try:
        yield build_runner(settings, descriptor)
    finally:
        os.close(descriptor)


def check_all_graphs(results: Results, seed: int) -> None:
    """On tensor cores and without them, and with each type of cache."""
    for dtypes in DTYPES:
        name = "of {}, cache {}".format(*dtypes)
        with results.guarded("graphs", name):
            check_graphs(results, seed, partial(on_gpu, dtypes), name)


def check_graphs(
    results: Results,
    seed: int,
    make: Callable[[tuple[int, ...] | None], AbstractContextManager[Runner]],
    name: str = "of the model",
) -> None:
    """Tokens of several sequences, some drawn and penalised: captured, and each operation launched."""
    said, captured = [], 0
    for graphs in (None, ()):
        with make(graphs) as runner:
            said.append(tokens_of_sequences(runner, random.Random(seed)))
            captured += 0 if runner.pipeline is None else len(runner.pipeline.steps.graphs)
    results.add("graphs", f"{name}, captured", captured > 0, f"{captured} kinds of steps")
    results.add("graphs", f"{name}, tokens", said[0] == said[1], f"{len(said[0])} as launches say")


def tokens_of_sequences(runner: Runner, rng: random.Random, count: int = 5) -> list[int]:
    """What so many sequences say side by side, step by step."""
    said: list[int] = []
    size, vocab = runner.slots.block_size, runner.bounds.vocab_size
    slots, at = np.arange(count), np.zeros(count, np.int64)
    for slot in slots.tolist():
        prompt = [rng.randrange(vocab) for _ in range(rng.randint(1, 20))]
        draw = rng.choice([(0.0, 1.0, 1.0), (1.0, 0.9, 1.0), (0.8, 1.0, 1.2)])
        sequence = Admit(slot, draw[0], 0, draw[1], 0.0, 1.0, draw[2], 0.0, 0.0, 0, slot, len(prompt), 0, 0, None,
                         pack_u32(prompt), None, None)  # fmt: skip
        assert not runner.admit(sequence)
        pages = slot * 8 + np.arange(-(-len(prompt) // size))
        row = [slot, 0, len(prompt), 0, int(Flag.SAMPLE), len(pages)]
        said += _run(runner, row, prompt, pages)
        at[slot] = len(prompt)
    for _ in range(TOKENS):
        begins = at % size == 0
        columns = [slots, at, np.ones_like(at), 0 * at, 0 * at + int(Flag.SAMPLE | Flag.LAST), begins]
        said += _run(runner, columns, [], (slots * 8 + at // size)[begins])
        at += 1
    return said


def _run(runner: Runner, columns: object, tokens: object, pages: object) -> list[int]:
    step = Step(0, pack_u32(columns), pack_u32(tokens), pack_u32(pages), b"", b"", b"")
    (frame,) = runner.step(step, time.monotonic_ns()).frames
    if not isinstance(frame, Done):
        raise RuntimeError(f"a step failed: {frame.message}")
    tokens_said: list[int] = unpack_u32(frame.tokens, "tokens").tolist()
    return tokens_said
