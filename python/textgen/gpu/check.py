"""Kernels against the reference, captured steps against launched ones, and the server on the GPU against the server on
the processor. Each line says what was held against what."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch

from textgen.demo import MODEL_FOLDER
from textgen.gpu.kernels import CHECKS, Case
from textgen.shard.protocol import Admit, Done, Flag, Step, pack_u32, unpack_u32
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings

START_SECONDS = 300.0
TOKENS = 24
PROMPTS = ["Once upon a time", "The king said", "In the morning they", "A dog and a cat"]
Dtypes: TypeAlias = tuple[Literal["float32", "bfloat16"], Literal["auto", "int8", "fp8"]]
DTYPES: list[Dtypes] = [("float32", "auto"), ("bfloat16", "auto"), ("bfloat16", "int8"), ("bfloat16", "fp8")]
_READY = re.compile(r"ready on (http://\S+) after")


def check(seed: int, rounds: int, skip: set[str]) -> bool:
    """Run all parts but those to skip; whether all is well."""
    device = torch.cuda.get_device_name(0)
    print(f"{device}, torch {torch.__version__}, CUDA {torch.version.cuda}, seed {seed}")
    parts: dict[str, Callable[[], bool]] = {
        "kernels": lambda: check_on_gpu(seed, rounds),
        "graphs": lambda: check_all_graphs(seed),
        "server": check_server,
    }
    good = [part() for name, part in parts.items() if name not in skip]
    print("all is well" if all(good) else "something is wrong; see above")
    return all(good)


def check_on_gpu(seed: int, rounds: int) -> bool:
    from textgen.ops.cuda.device import CudaDevice
    from textgen.ops.cuda.ops import CudaOps

    kernels = CudaDevice(0)
    torch.manual_seed(seed)
    return check_kernels(
        Case(random.Random(seed), kernels, CudaOps(kernels), torch.device("cuda", 0), 4096), rounds, list(CHECKS)
    )


def check_kernels(case: Case, rounds: int, names: list[str]) -> bool:
    """Each of the kernels on so many random shapes."""
    good = True
    for name in names:
        errors = []
        try:
            errors = [CHECKS[name](case) for _ in range(rounds)]
            fine = all(error <= allowed for error, allowed in errors)
            said = f"largest error {max(error for error, _ in errors):.1e} of {max(most for _, most in errors):.1e}"
        except Exception as error:  # the next kernel may be fine
            fine, said = False, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        print(f"{'ok   ' if fine else 'WRONG'} kernel {name}: {said}")
        good &= fine
    return good


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


def check_all_graphs(seed: int) -> bool:
    """On tensor cores and without them, and with each type of cache."""
    names = ["graphs of {}, cache {}".format(*dtypes) for dtypes in DTYPES]
    good = [check_graphs(seed, partial(on_gpu, dtypes), name) for dtypes, name in zip(DTYPES, names, strict=True)]
    return all(good)


def check_graphs(
    seed: int, make: Callable[[tuple[int, ...] | None], AbstractContextManager[Runner]], name: str = "graphs"
) -> bool:
    """Tokens of several sequences, some drawn and penalised: captured, and each operation launched."""
    said = []
    for graphs in (None, ()):
        with make(graphs) as runner:
            said.append(tokens_of_sequences(runner, random.Random(seed)))
            captured = 0 if runner.pipeline is None else len(runner.pipeline.steps.graphs)
        if graphs is None and not captured:
            print(f"WRONG {name}: nothing was captured")
            return False
    good = said[0] == said[1]
    print(f"{'ok   ' if good else 'WRONG'} {name}: {len(said[0])} tokens, captured as launched")
    return good


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


def check_server() -> bool:
    """The built-in model's greedy answers through the launcher."""
    texts = []
    for device in ("cuda", "cpu"):
        with served(device) as address:
            texts.append([_generate(address, prompt) for prompt in PROMPTS])
    good = texts[0] == texts[1]
    print(f"{'ok   ' if good else 'WRONG'} server: {len(PROMPTS)} answers on the GPU as on the processor")
    for prompt, ours, theirs in zip(PROMPTS, *texts, strict=True):
        if ours != theirs:
            print(f"      {prompt!r}: {ours!r}, on the processor {theirs!r}")
    return good


@contextmanager
def served(device: str) -> Iterator[str]:
    """The address of a launcher with the built-in model."""
    command = [sys.executable, "-m", "textgen.launcher", "--device", device, "--dtype", "float32", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        lines, until = [], time.monotonic() + START_SECONDS
        for line in process.stdout:
            lines.append(line)
            if found := _READY.search(line):
                break
            if time.monotonic() > until:
                raise RuntimeError(f"the server was not ready within {START_SECONDS:.0f} s:\n{''.join(lines[-20:])}")
        else:
            raise RuntimeError(f"the server ended before it was ready:\n{''.join(lines[-20:])}")
        yield found[1]
    finally:
        process.terminate()
        process.communicate()


def _generate(address: str, prompt: str) -> str:
    body = json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": TOKENS}}).encode()
    asked = urllib.request.Request(f"{address}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=START_SECONDS) as answer:
        text: str = json.load(answer)["generated_text"]
    return text
