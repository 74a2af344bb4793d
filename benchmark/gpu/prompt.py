"""Whole prompts against the rate of large products."""

from __future__ import annotations

from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.places import Place
from benchmark.gpu.shapes import SHAPES, prompt_flops
from benchmark.gpu.steps import BLOCK, make_runner, run_prompt
from benchmark.gpu.tasks import Collected, Found, Task
from benchmark.report import Row

BARRED = 8192  # tokens of the prompt that is to reach the bar


def measure(task: Task, place: Place, ceilings: Ceilings) -> Found:
    """The fastest of some prompts, each in one step."""
    found, longest = Collected(), max(task.prompts)
    runner = make_runner(task, 1, longest + BLOCK, longest)
    for tokens in task.prompts:
        seconds = min(run_prompt(runner, tokens) for _ in range(task.rounds + 1))
        ours, most = prompt_flops(SHAPES[task.shape], tokens) / seconds / 1e12, ceilings.rate / 1e12
        case = f"{task.model}, a prompt of {tokens} tokens"
        bar = "ratio >= 0.6" if tokens == BARRED and task.form == "bf16" else None
        found.rows.append(Row(case, "products", "TFLOP/s", ours, "matrices", None, most, bar))
        found.rows.append(Row(case, "first token", "ms", seconds * 1e3))
    return found.found()
