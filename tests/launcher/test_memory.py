"""The memory plan: what it hands out never exceeds what there is, and its refusals carry the arithmetic."""

from __future__ import annotations

import dataclasses
import re
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textgen.launcher.errors import MemoryPlanError
from textgen.launcher.flags import Share
from textgen.launcher.memory import MemoryPlan, Needs, amount, plan_memory

sizes = st.integers(1, 2**33)
blocks = st.integers(1, 2**16)


def full_length(max_total_tokens: int, block_size: int, **others: int) -> Needs:
    """Of a model without windows: a sequence takes all its blocks."""
    blocks = -(-max_total_tokens // block_size) + 1
    return Needs(max_total_tokens=max_total_tokens, block_size=block_size, sequence_blocks=blocks, **others)


NEEDS = st.builds(
    full_length,
    weights=sizes,
    processes=sizes,
    workspace=sizes,
    block=blocks,
    scratch=st.integers(0, 2**16),
    block_size=st.integers(1, 256),
    max_total_tokens=st.integers(2, 20_000),
    useful_blocks=blocks,
)
Asked: TypeAlias = int | Share | None
ASKED = st.none() | st.integers(1, 2**34) | st.floats(0.01, 1).map(Share)
AVAILABLE = st.integers(0, 2**37)


def planned(needs: Needs, available: int, asked: Asked) -> MemoryPlan | None:
    try:
        return plan_memory(needs, available, "the machine", asked)
    except MemoryPlanError:
        return None


@st.composite
def roomy(draw: st.DrawFn) -> tuple[Needs, int, Asked]:
    """Machines with room for the model and up to twice the blocks of a full sequence; wishes near what is free."""
    needs = draw(NEEDS)
    free = draw(st.integers(0, 2 * needs.sequence_blocks * needs.block_cost))
    asked = draw(st.none() | st.integers(1, free + free // 8 + 1) | st.floats(0.01, 1).map(Share))
    return needs, needs.fixed + free, asked


@given(roomy())
def test_what_is_handed_out_never_exceeds_what_there_is(case: tuple[Needs, int, Asked]) -> None:
    needs, available, asked = case
    plan = planned(needs, available, asked)
    if plan is None:
        return
    cost = plan.num_blocks * needs.block_cost
    free = available - needs.weights - needs.processes - needs.workspace
    assert cost <= free
    if isinstance(asked, Share):
        assert cost <= free * asked.value
    elif asked is not None:
        assert cost <= asked
    assert needs.sequence_blocks <= plan.num_blocks <= max(needs.useful_blocks, needs.sequence_blocks)
    assert needs.sequence_blocks * needs.block_size > needs.max_total_tokens
    assert plan.kv_bytes == plan.num_blocks * needs.block


@given(NEEDS, AVAILABLE, st.integers(0, 2**38), ASKED)
def test_more_memory_never_gives_fewer_blocks(needs: Needs, available: int, more: int, asked: Asked) -> None:
    less, greater = planned(needs, available, asked), planned(needs, available + more, asked)
    if less is not None:
        assert greater is not None
        assert greater.num_blocks >= less.num_blocks


@given(NEEDS, AVAILABLE, st.integers(1, 2**38), st.integers(0, 2**38))
def test_asking_for_more_gives_no_fewer_blocks_or_a_refusal(
    needs: Needs, available: int, asked: int, more: int
) -> None:
    less, greater = planned(needs, available, asked), planned(needs, available, asked + more)
    if less is not None and greater is not None:
        assert greater.num_blocks >= less.num_blocks


@given(NEEDS, AVAILABLE)
def test_without_a_wish_a_full_sequence_is_served_when_nine_tenths_can_hold_it(needs: Needs, available: int) -> None:
    free = available - needs.fixed
    fits = needs.sequence_blocks * needs.block_cost <= int(free * 0.9)
    assert (planned(needs, available, None) is not None) == (free > 0 and fits)


def example(**changes: int) -> Needs:
    values = {
        "weights": 2**30, "processes": 2**29, "workspace": 2**28, "block": 2**20, "scratch": 2**18, "block_size": 16,
        "max_total_tokens": 1024, "useful_blocks": 500,
    }  # fmt: skip
    return full_length(**(values | changes))


def test_pages_of_windows_are_told_apart() -> None:
    """A sequence takes fewer pages than its blocks have, and the table says how many sequences fit."""
    windowed = dataclasses.replace(example(), groups=6, sequence_blocks=100)
    plan = plan_memory(windowed, 4 * 2**30, "the machine", None)
    text = "\n".join(plan.table)
    assert plan.num_blocks == 500
    assert "500 pages (a block is up to 6) of 16 tokens" in text
    assert re.search(r"sequences of 1024 tokens that fit +5$", text, re.MULTILINE), text
    small = plan_memory(windowed, 4 * 2**30, "the machine", 125 * 2**20)
    assert small.num_blocks == 100
    with pytest.raises(MemoryPlanError, match=r"use --max-total-tokens 240"):
        plan_memory(windowed, 4 * 2**30, "the machine", 120 * 2**20)


def test_the_table_adds_up() -> None:
    plan = plan_memory(example(), 4 * 2**30, "the machine", None)
    assert plan.num_blocks == 500
    text = "\n".join(plan.table)
    for part in (
        "4.0 GiB",
        "1.0 GiB",
        "512.0 MiB",
        "256.0 MiB",
        "500 blocks of 16 tokens",
        "500.0 MiB",
        "125.0 MiB",
        "1.6 GiB",
    ):
        assert part in text, text


@pytest.mark.parametrize(
    ("needs", "available", "asked", "parts"),
    [
        (example(weights=5 * 2**30), 4 * 2**30, None, ["the model does not fit", "1.8 GiB are missing", "bfloat16"]),
        (example(), 4 * 2**30, 2**33, ["--kv-memory asks for 8.0 GiB", "2.2 GiB are free"]),
        (example(), 4 * 2**30, 40 * 2**20, ["81.2 MiB", "raise --kv-memory or use --max-total-tokens 496"]),
        (example(), 4 * 2**30, 2**20, ["one sequence of 1024 tokens", "; raise --kv-memory"]),
        (example(block=2**26), 4 * 2**30, None, ["more memory or use --max-total-tokens 496"]),
    ],
)  # fmt: skip
def test_refusals_carry_the_arithmetic(needs: Needs, available: int, asked: int | None, parts: list[str]) -> None:
    with pytest.raises(MemoryPlanError) as caught:
        plan_memory(needs, available, "the machine", asked)
    text = str(caught.value)
    assert caught.value.exit_code == 4
    assert all(part in text for part in [*parts, "available (the machine)", "weights", "largest step"]), text


def test_the_remedy_of_a_refusal_is_true() -> None:
    with pytest.raises(MemoryPlanError, match="--max-total-tokens 496"):
        plan_memory(example(), 4 * 2**30, "the machine", 40 * 2**20)
    assert plan_memory(example(max_total_tokens=496), 4 * 2**30, "the machine", 40 * 2**20).num_blocks == 32


def test_amounts_for_people() -> None:
    assert [amount(value) for value in (0, 1023, 1536, 2**20, 3 * 2**29)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1.0 MiB",
        "1.5 GiB",
    ]
