"""The memory plan: how many KV blocks fit beside the weights, with the arithmetic for people. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from textgen.launcher.errors import MemoryPlanError
from textgen.launcher.flags import Share
from textgen.launcher.gpu import Gpu

DEFAULT_SHARE = Share(0.5)  # of what is free beside the weights: the machine has other work too
MOST = 0.9  # of the same, when one full sequence needs more than the default share


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a model asks for."""

    weights: int
    processes: int  # interpreter, libraries, router
    workspace: int  # the largest step: activations, logits, masks
    block: int  # keys and values of one block, all layers; with windows of a page: one block, one group of layers
    scratch: int  # per block or page: what attention gathers of it while it runs one layer
    block_size: int  # positions
    max_total_tokens: int
    useful_blocks: int  # more could never be filled
    sequence_blocks: int  # of one sequence of full length, and those to write ahead into
    groups: int = 1  # of layers, each of which has a page of a block; 1: a page is a block

    @property
    def fixed(self) -> int:
        return self.weights + self.processes + self.workspace

    @property
    def block_cost(self) -> int:
        return self.block + self.scratch


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The outcome: `num_blocks` blocks, `table` as lines of text."""

    num_blocks: int
    kv_bytes: int
    table: tuple[str, ...]


def plan_memory(needs: Needs, available: int, limit: str, asked: int | Share | None) -> MemoryPlan:
    """Blocks within the budget. Raises `MemoryPlanError`, arithmetic included, when model or sequence are too big."""
    free = available - needs.fixed
    if free <= 0:
        remedy = "use a smaller model, --dtype bfloat16, a smaller --max-batch-prefill-tokens, or more memory"
        raise _refusal(needs, available, limit, 0, f"the model does not fit: {amount(-free)} are missing; {remedy}")
    budget = _budget(needs, free, asked)
    if budget > free:
        raise _refusal(
            needs, available, limit, budget,
            f"--kv-memory asks for {amount(budget)}, {amount(free)} are free; ask for less or leave it out",
        )  # fmt: skip
    blocks = min(budget // needs.block_cost, max(needs.useful_blocks, needs.sequence_blocks))
    if blocks < needs.sequence_blocks:
        raise _refusal(
            needs, available, limit, budget,
            f"one sequence of {needs.max_total_tokens} tokens does not fit: it needs "
            f"{amount(needs.sequence_blocks * needs.block_cost)}, the KV cache has {amount(budget)}; "
            + _remedy(needs, free, blocks),
        )  # fmt: skip
    return MemoryPlan(blocks, blocks * needs.block, tuple(_table(needs, available, limit, blocks)))


def plan_gpu(needs: Needs, gpu: Gpu, fraction: float, asked: int | Share | None) -> MemoryPlan:
    """The most blocks that are of use: how many there are the shard finds out, which measures what weights, steps and
    CUDA graphs take. Raises `MemoryPlanError` when the weights alone are too big."""
    used = 0 if gpu.free is None else gpu.total - gpu.free
    available = int(gpu.total * fraction) - used
    free = available - needs.fixed
    amounts = [(f"memory of {gpu}", gpu.total)]
    if fraction < 1:
        amounts.append((f"kept free by --cuda-memory-fraction {fraction:g}", available + used - gpu.total))
    amounts += [("used by others", -used), ("weights", -needs.weights), ("context and libraries", -needs.processes)]
    blocks = max(needs.useful_blocks, needs.sequence_blocks)
    if isinstance(asked, int):
        blocks = min(blocks, asked // needs.block)
    lines = [_line(*row) for row in amounts]
    if free <= 0:
        remedy = "use a smaller model, --dtype bfloat16, or a GPU with more memory"
        raise MemoryPlanError("\n".join([f"the model does not fit: {amount(-free)} are missing; {remedy}", *lines]))
    if isinstance(asked, int) and asked > free:
        what = f"--kv-memory {amount(asked)} does not fit beside the weights: {amount(asked - free)} are missing"
        raise MemoryPlanError("\n".join([f"{what}; ask for less, or leave it out", *lines]))
    if blocks < needs.sequence_blocks:
        raise MemoryPlanError(
            f"--kv-memory is too little for one sequence of {needs.max_total_tokens} tokens, which takes "
            f"{amount(needs.sequence_blocks * needs.block)}; give more, or lower --max-total-tokens"
        )
    lines.append(_line("for steps, CUDA graphs and KV cache", free))
    lines.append(f"  the shard measures these; KV cache: at most {blocks} {_unit(needs)} of {needs.block_size} tokens")
    return MemoryPlan(blocks, blocks * needs.block, tuple(lines))


def _budget(needs: Needs, free: int, asked: int | Share | None) -> int:
    if isinstance(asked, Share):
        return int(free * asked.value)
    if asked is not None:
        return asked
    return max(int(free * DEFAULT_SHARE.value), min(needs.sequence_blocks * needs.block_cost, int(free * MOST)))


def _remedy(needs: Needs, free: int, blocks: int) -> str:
    """What to change when `blocks` are too few for one sequence."""
    within = needs.sequence_blocks * needs.block_cost <= free
    remedies = ["raise --kv-memory" if within else "use a smaller model or more memory"]
    tokens = (blocks // needs.groups - 1) * needs.block_size
    if tokens >= 2:
        remedies.append(f"use --max-total-tokens {tokens}")
    return " or ".join(remedies)


def _table(needs: Needs, available: int, limit: str, blocks: int) -> list[str]:
    left = available - needs.fixed - blocks * needs.block_cost
    rows = [
        (f"available ({limit})", available),
        ("weights", -needs.weights),
        ("processes and libraries", -needs.processes),
        ("largest step", -needs.workspace),
        (f"KV cache: {blocks} {_unit(needs)} of {needs.block_size} tokens", -blocks * needs.block),
        ("attention scratch", -blocks * needs.scratch),
        ("left to the machine", left),
    ]
    lines = [_line(name, value) for name, value in rows]
    if needs.groups > 1 or needs.sequence_blocks * needs.block_size < needs.max_total_tokens:
        lines.insert(
            -1, f"  {f'sequences of {needs.max_total_tokens} tokens that fit':<45}{_sequences(needs, blocks):>10}"
        )
    return lines


def _line(name: str, value: int) -> str:
    return f"  {name:<44}{'-' if value < 0 else ' '}{amount(abs(value)):>10}"


def _unit(needs: Needs) -> str:
    return "blocks" if needs.groups == 1 else f"pages (a block is up to {needs.groups})"


def _sequences(needs: Needs, blocks: int) -> int:
    return blocks // needs.sequence_blocks


def _refusal(needs: Needs, available: int, limit: str, budget: int, sentence: str) -> MemoryPlanError:
    lines = _table(needs, available, limit, budget // needs.block_cost)
    return MemoryPlanError("\n".join([sentence, *lines[:-1]]))


def amount(value: int) -> str:
    """`1.5 GiB`: bytes for people."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value} B"
