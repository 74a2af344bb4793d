"""Products with weights of few bits alone, of the two matrices of a layer's neurons: with few rows against the memory's
bandwidth, with many against the matrix rate; beside torch's product with the same numbers in bfloat16."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.places import Place
from benchmark.gpu.shapes import SHAPES
from benchmark.gpu.tasks import Collected, Found, Task
from benchmark.gpu.turns import Programs, Turns, beside
from benchmark.report import Row
from textgen.ops.cuda.bricks import FOUR_BITS, SIGN, Bricks, Kind, Plain, pack
from textgen.ops.cuda.linear import FEW, Linears
from textgen.quantization.kernels import KernelWeight

OF_SHEET = {"llama-8b": 0.7}  # of the data sheet's bandwidth, with one row
SPREAD = 0.02  # of the weights' numbers
KINDS = {
    "int4": Kind("INT4", 32, torch.float16, None),
    "int4 with zero points": Kind("INT4", 128, torch.float16, torch.uint8),
    "Q4_K": Kind("INT4", 32, torch.float16, torch.float16),
    "MXFP4": Kind("E2M1", 32, torch.bfloat16, None),
    "int8": Kind("INT8", 0, torch.float32, None),
    "Q8_0": Kind("INT8", 32, torch.float16, None),
    "fp8": Kind("E4M3", 128, torch.float32, None),
}


@torch.inference_mode()
def measure(task: Task, place: Place, ceilings: Ceilings) -> Found:
    config, found, turns = SHAPES[task.shape], Collected(), Turns(place, task.rounds)
    hidden, neurons = config["hidden_size"], config["intermediate_size"]
    for name, kind in KINDS.items():
        for size in ((2 * neurons, hidden), (hidden, neurons)):
            weights = _Weights(turns, kind, size)
            for rows in sorted({*task.batches, min(task.prompts)}):
                found.rows += _product(f"{task.shape}, {name}", task, ceilings, turns, weights, rows)
    found.notes += sorted(set(turns.missing))
    return found.found()


class _Weights:
    """One matrix, often enough that it comes from the memory each time; and its numbers for torch, as often."""

    def __init__(self, turns: Turns, kind: Kind, size: tuple[int, int]) -> None:
        device = turns.place.device
        plain = draw(kind, size, device)
        bricks, numbers = pack(plain), plain.numbers().to(torch.bfloat16)
        kernels = None if turns.accelerator is None else turns.accelerator.kernels
        linears = None if kernels is None else Linears.on(kernels, device)
        self.size, self.nbytes = size, bricks.nbytes
        self.ours = [KernelWeight(_copy(bricks), linears) for _ in range(turns.copies(bricks.nbytes))]
        self.theirs = [numbers.clone() for _ in self.ours]

    def over(self, x: Tensor) -> list[Programs]:
        def programs(ours: KernelWeight, theirs: Tensor) -> Programs:
            return {"textgen": lambda: ours.multiply(x, None), "torch": lambda: x @ theirs.t()}

        return [programs(*both) for both in zip(self.ours, self.theirs, strict=True)]


def draw(kind: Kind, size: tuple[int, int], device: torch.device) -> Plain:
    """Random codes, and scales with which numbers are about as large as a model's."""
    outputs, inputs = size
    groups = outputs, 1 if kind.group == 0 else -(-inputs // kind.group)
    four = kind.form in FOUR_BITS
    codes = torch.randint(0, 16 if four else 120, size, dtype=torch.uint8, device=device)
    if not four:
        codes += torch.randint_like(codes, 2) * SIGN
    scales = 0.5 + torch.rand(groups, device=device)
    zeros: Tensor | None = None
    if kind.zeros == torch.uint8:
        zeros = torch.randint(0, 16, groups, dtype=torch.uint8, device=device)
    elif kind.zeros is not None:
        zeros = 7.5 * scales
    plain = Plain(kind.form, codes, scales, zeros, kind.group)
    some = replace(plain, codes=codes[:64], scales=scales[:64], zeros=None if zeros is None else zeros[:64])
    factor = SPREAD / some.numbers().square().mean().sqrt()
    if zeros is not None and kind.zeros != torch.uint8:
        zeros = (zeros * factor).to(kind.scales)
    return Plain(kind.form, codes, (scales * factor).to(kind.scales), zeros, kind.group)


def _copy(bricks: Bricks) -> Bricks:
    zeros = None if bricks.zeros is None else bricks.zeros.clone()
    return replace(bricks, packed=bricks.packed.clone(), scales=bricks.scales.clone(), zeros=zeros)


def _product(case: str, task: Task, ceilings: Ceilings, turns: Turns, weights: _Weights, rows: int) -> list[Row]:
    outputs, inputs = weights.size
    x = torch.randn(rows, inputs, device=turns.place.device).to(torch.bfloat16)
    took = turns.seconds("a product", weights.over(x))
    case, ours = f"{case}, {rows} x {inputs} x {outputs}", took["textgen"]
    if rows <= FEW:
        read = (weights.nbytes + 2 * rows * (inputs + outputs)) / ours
        wanted = OF_SHEET.get(task.shape) if rows == 1 else None
        return [*ceilings.bandwidth_rows(case, "read", read, wanted), *beside(case, took)]
    done = 2.0 * rows * inputs * outputs / ours / 1e12
    return [Row(case, "products", "TFLOP/s", done, "matrices", None, ceilings.rate / 1e12), *beside(case, took)]
