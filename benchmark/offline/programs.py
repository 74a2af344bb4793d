"""What runs in a process of its own: one program that continues all prompts, greedily and past every end, so that each
does the same work. ``python -m benchmark.offline.programs NAME TASK`` reads the task, a JSON file, and prints one JSON
object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

Tokens: TypeAlias = list[list[int]]


@dataclass(frozen=True)
class Task:
    """model: its folder. prompts: token ids. batch: how many are padded together where a program pads."""

    model: str
    prompts: Tokens
    new_tokens: int
    threads: int
    batch: int


@dataclass(frozen=True)
class Result:
    """Seconds to be ready, and from the first prompt to the last token. tokens: in the order of the prompts."""

    load: float
    generate: float
    tokens: Tokens


def textgen(task: Task) -> Result:
    """``textgen.LLM``."""
    from textgen import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=task.new_tokens, ignore_eos=True)
    began = time.perf_counter()
    with LLM(task.model, dtype="float32", threads=task.threads) as llm:
        llm.generate(task.prompts[:1], params, use_tqdm=False)
        ready = time.perf_counter()
        outputs = llm.generate(task.prompts, params, use_tqdm=False)
        return Result(ready - began, time.perf_counter() - ready, [output.outputs[0].token_ids for output in outputs])


def generate(task: Task) -> Result:
    """Transformers' ``generate`` over batches of prompts of similar length."""
    import torch

    began = time.perf_counter()
    model = _model(task)
    order = sorted(range(len(task.prompts)), key=lambda number: len(task.prompts[number]))
    found: dict[int, list[int]] = {}

    def run(numbers: list[int]) -> None:
        longest = max(len(task.prompts[number]) for number in numbers)
        padding = [longest - len(task.prompts[number]) for number in numbers]
        rows = [[0] * pad + task.prompts[number] for pad, number in zip(padding, numbers, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        made = model.generate(
            torch.tensor(rows), attention_mask=torch.tensor(mask), max_new_tokens=task.new_tokens, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        found.update(zip(numbers, made[:, longest:].tolist(), strict=True))

    with torch.inference_mode():
        run(order[:1])
        ready = time.perf_counter()
        for start in range(0, len(order), task.batch):
            run(order[start : start + task.batch])
    return Result(ready - began, time.perf_counter() - ready, [found[number] for number in range(len(order))])


def continuous(task: Task) -> Result:
    """Transformers' continuous batching, ``generate_batch``."""
    from transformers import GenerationConfig

    began = time.perf_counter()
    model = _model(task)
    config = GenerationConfig(max_new_tokens=task.new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)

    def run(prompts: Tokens) -> Tokens:
        made = model.generate_batch(prompts, generation_config=config, progress_bar=False, persistent_manager=True)
        outputs = sorted(made.values(), key=lambda output: int(output.request_id.rsplit("_", 1)[-1]))
        return [output.generated_tokens for output in outputs]

    run(task.prompts[:1])
    ready = time.perf_counter()
    tokens = run(task.prompts)
    return Result(ready - began, time.perf_counter() - ready, tokens)


def _model(task: Task) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(task.threads)
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32)
    model.train(False)
    return model


PROGRAMS: dict[str, Callable[[Task], Result]] = {
    "textgen": textgen,
    "generate": generate,
    "continuous batching": continuous,
}

if __name__ == "__main__":
    print(json.dumps(asdict(PROGRAMS[sys.argv[1]](Task(**json.loads(Path(sys.argv[2]).read_text()))))))
