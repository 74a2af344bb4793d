"""Prompts and greedy answers through ``textgen.LLM`` and by Transformers, ``generate`` with a static cache and its
continuous batching: the same weights on the same device in turns, each from token ids to token ids."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any, TypeAlias

import torch

from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.places import Place
from benchmark.gpu.shapes import SHAPES
from benchmark.gpu.tasks import Collected, Found, Task
from benchmark.report import Row
from textgen import LLM, SamplingParams

NEW, REHEARSED = 128, 4  # tokens of an answer
SHARE = 0.45  # of the memory for our server: the peers have the weights a second time
LITTLE, SHORT = 0.01, 256  # of a rehearsal's memory; tokens of its steps, whose buffers have to fit in there
STATIC, CONTINUOUS = "generate, static cache", "continuous batching"

Tokens: TypeAlias = list[list[int]]
Program: TypeAlias = Callable[[Tokens, int], int]
"""Prompts, and how many tokens each answer is to have; how many there were in all."""


def measure(task: Task, place: Place, ceilings: Ceilings) -> Found:
    found, new = Collected(), REHEARSED if place.rehearsal else NEW
    with ExitStack() as stack:
        programs: dict[str, Program] = {"textgen": stack.enter_context(_ours(task, new))}
        programs |= _peers(task, place, new, found.notes)
        for batch in task.batches:
            found.rows += _turns(task, programs, batch, new, found.notes)
    gc.collect()
    return found.found()


def settings_of(task: Task, new: int) -> dict[str, Any]:
    """Of our server. Nothing is kept of a prompt that comes again: no peer does so."""
    most = max(*task.batches, 2)
    settings: dict[str, Any] = {
        "dtype": "bfloat16", "device": task.device, "max_total_tokens": task.context + new,
        "max_concurrent_requests": most, "max_batch_size": most, "prefix_caching": False,
        "kv_cache_dtype": task.kv_cache_dtype,
    }  # fmt: skip
    if task.device == "cuda":
        settings |= {"cuda_memory_fraction": SHARE, "attention": "native"}
    return settings


class _ours:
    """See `Program`; a server that ends with the block."""

    def __init__(self, task: Task, new: int) -> None:
        self._llm = LLM(str(task.folder), **settings_of(task, new))

    def __enter__(self) -> Program:
        return self._run

    def __exit__(self, *_: object) -> None:
        self._llm.close()

    def _run(self, prompts: Tokens, new: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        made = self._llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in made)


def _peers(task: Task, place: Place, new: int, notes: list[str]) -> dict[str, Program]:
    try:
        from transformers import AutoModelForCausalLM, GenerationConfig, StaticCache
    except ImportError as error:
        notes.append(f"Transformers beside us: not installed ({error}).")
        return {}
    model: Any = AutoModelForCausalLM.from_pretrained(task.folder, dtype=torch.bfloat16).to(place.device)
    model.train(False)
    longest, limits = task.context + new, _limits(place)
    compiled = {"disable_compile": False}

    def static(prompts: Tokens, count: int) -> int:
        cache = StaticCache(config=model.config, max_cache_len=longest)
        ids = torch.tensor(prompts, device=place.device)
        settings = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        with torch.inference_mode():
            made = model.generate(
                ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **settings, **compiled
            )
        place.synchronize()
        return int(made[:, len(prompts[0]) :].numel())

    def static_or_not_compiled(prompts: Tokens, count: int) -> int:
        try:
            return static(prompts, count)
        except Exception as error:  # of the compiler, or of what it asks for
            if compiled["disable_compile"]:
                raise
            compiled["disable_compile"] = True
            notes.append(f"{STATIC}: not compiled, because {_first_line(error)}.")
            return static(prompts, count)

    def continuous(prompts: Tokens, count: int) -> int:
        config = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
        made = model.generate_batch(
            prompts, generation_config=config, progress_bar=False, persistent_manager=True, **limits
        )
        return sum(len(output.generated_tokens) for output in made.values())

    return {STATIC: static_or_not_compiled, CONTINUOUS: continuous}


def _limits(place: Place) -> dict[str, Any]:
    """So that continuous batching takes no more of what is free than half: the static cache wants some too."""
    limits: dict[str, Any] = {"max_memory_percent": 0.5}
    if place.rehearsal:
        limits = {"max_memory_percent": LITTLE, "max_batch_tokens": SHORT}
    try:
        from transformers import ContinuousBatchingConfig
    except ImportError:  # an older version
        return {}
    return {"continuous_batching_config": ContinuousBatchingConfig(**limits)}


def _turns(task: Task, programs: Mapping[str, Program], batch: int, new: int, notes: list[str]) -> list[Row]:
    """Medians over rounds of prompts of their own; the first is not counted. Who fails is told and left out."""
    taken: dict[str, dict[int, list[float]]] = {name: {1: [], new: []} for name in programs}
    running = dict(programs)
    for number, prompts in zip(range(task.rounds + 1), _rounds(task, batch), strict=False):
        for name in list(running):
            try:
                seconds = {count: _seconds(running[name], prompts[count == new], count) for count in (1, new)}
            except Exception as error:
                if name == "textgen":
                    raise
                notes.append(f"{name}, {batch} prompts: {_first_line(error)}.")
                del running[name]
                continue
            for count, took in seconds.items():
                taken[name][count] += [took] if number else []
    return _rows(task, {name: taken[name] for name in running}, batch, new)


def _rounds(task: Task, batch: int) -> Iterator[tuple[Tokens, Tokens]]:
    """For each round prompts that nobody has seen, twice."""
    draw, vocabulary = random.Random(9), SHAPES[task.shape]["vocab_size"]
    while True:
        both = [[[draw.randrange(8, vocabulary) for _ in range(task.context)] for _ in range(batch)] for _ in range(2)]
        yield both[0], both[1]


def _seconds(program: Program, prompts: Tokens, new: int) -> float:
    begun = time.perf_counter()
    count = program(prompts, new)
    took = time.perf_counter() - begun
    if count != len(prompts) * new:
        raise ValueError(f"it made {count} tokens instead of {len(prompts) * new}")
    return took


def _rows(task: Task, taken: dict[str, dict[int, list[float]]], batch: int, new: int) -> list[Row]:
    values: dict[str, dict[str, float]] = {"prompts": {}, "answers, prompts included": {}, "answers alone": {}}
    for name, times in taken.items():
        first, whole = median(times[1]), median(times[new])
        values["prompts"][name] = batch * task.context / first
        values["answers, prompts included"][name] = batch * new / whole
        if whole > first:
            values["answers alone"][name] = batch * (new - 1) / (whole - first)
    version = _version()
    case = f"{task.model}, {batch} x {task.context} tokens, {new} new"
    rows = []
    for metric, by_name in values.items():
        if (ours := by_name.get("textgen")) is None:
            continue
        peers = {name: theirs for name, theirs in by_name.items() if name != "textgen"}
        if not peers:
            rows.append(Row(case, metric, "tokens/s", ours))
        for name, theirs in peers.items():
            rows.append(Row(case, metric, "tokens/s", ours, f"transformers, {name}", version, theirs, "ratio >= 1"))
    return rows


def _version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
