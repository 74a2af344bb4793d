"""Models whose layers have sliding windows: a window layer keeps its window and nothing else, and nobody can tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from textgen.shard.protocol import NO_PAGE, Done, Failed
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.start import build_runner

from ..models.tiny import make_model, random_prompt, reference_greedy
from ..seeds import fresh_rng
from .router import Segment, admit, shard_settings, step, tokens_of
from .scheduling import CarelessScheduler, Request

Made = tuple[PreTrainedModel, Runner]

KINDS: dict[str, tuple[str, dict[str, Any], int]] = {  # and how many groups of layers there are
    "gemma2": ("Gemma2ForCausalLM", {"sliding_window": 9, "num_hidden_layers": 4}, 2),
    "gemma3": ("Gemma3ForCausalLM", {"sliding_window": 6, "num_hidden_layers": 7}, 7),
    "gpt-oss": ("GptOssForCausalLM", {"sliding_window": 5, "num_hidden_layers": 4}, 2),
    "mistral": ("MistralForCausalLM", {"sliding_window": 7}, 1),
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Made]]:
    descriptors: list[int] = []

    def make(kind: str, **settings: Any) -> Made:
        architecture, sizes, groups = KINDS[kind]
        reference = make_model(tmp_path, architecture, **sizes)
        descriptors.append(os.memfd_create("textgen-test", os.MFD_ALLOW_SEALING))
        runner = build_runner(ShardSettings(**shard_settings(tmp_path, **settings)), descriptors[-1])
        assert runner.slots.groups == groups
        return reference, runner

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_when_what_no_window_reaches_is_gone(kind: str, make: Callable[..., Made]) -> None:
    """Chunks longer than the window, mixed batches, sequences thrown out; NaN in every page that was let go."""
    rng = fresh_rng()
    groups = KINDS[kind][2]
    reference, runner = make(kind, num_blocks=20 * groups, max_slots=5)
    requests = [Request(random_prompt(rng, rng.choice([1, 7, 30, 40])), rng.randint(1, 20)) for _ in range(8)]
    CarelessScheduler(runner, rng).run(requests)
    for request in requests:
        assert request.output == reference_greedy(reference, request.prompt, request.new)


def run(runner: Runner, *segments: Segment, number: int = 1) -> list[Done | Failed]:
    return list(runner.step(step(number, segments), time.monotonic_ns()).frames)


def test_a_prefix_without_the_pages_before_its_window(make: Callable[..., Made]) -> None:
    """As after a hit in the prefix cache: the new sequence shares what its window reaches and never had the rest."""
    rng = fresh_rng()
    reference, runner = make("gemma2", num_blocks=64)
    prompt = random_prompt(rng, 23)
    first = [(2 * block, 2 * block + 1) for block in range(6)]
    assert not runner.admit(admit(0, len(prompt)))
    (done,) = run(runner, Segment(0, 0, prompt, blocks=[page for pages in first for page in pages]))
    assert isinstance(done, Done)
    # 20 tokens are cached; a window of 9 at position 20 reaches back to position 12, in block 3.
    tables = [
        page if block >= 3 or group == 0 else NO_PAGE for block in range(5) for group, page in enumerate(first[block])
    ]
    assert not runner.admit(admit(1, len(prompt)))
    (done,) = run(runner, Segment(1, 20, prompt[20:], blocks=[*tables, 40, 41]), number=2)
    assert isinstance(done, Done)
    assert tokens_of(done)[1] == reference_greedy(reference, prompt, 1)[0]
    assert runner.slots.blocks_in_use() == 6 + 6 + 2  # the first has not moved on; the second has a block of its own


@pytest.mark.parametrize(
    ("blocks", "start", "words"),
    [
        ([0, 1, 2], 0, "other than all 2 groups"),
        ([0, 64], 0, "a page is not below"),
        ([NO_PAGE, 1], 0, "a page is not below"),
        ([0, NO_PAGE], 0, "has not"),
        ([0, 1, 2, NO_PAGE, 4, 5, 6, 7, 8, 9], 15, "has not"),
    ],
)
def test_pages_that_are_wrong_or_missing(blocks: list[int], start: int, words: str, make: Callable[..., Made]) -> None:
    _, runner = make("gemma2", num_blocks=64)
    assert not runner.admit(admit(0, 20))
    frames = run(runner, Segment(0, start, [5, 6], blocks=blocks))
    assert isinstance(frames[0], Failed), frames
    assert frames[0].kind == "protocol" and words in frames[0].message


def test_warm_up_and_hello_of_windows(make: Callable[..., Made]) -> None:
    from textgen.shard.start import hello
    from textgen.shard.warmup import warm_up

    _, runner = make("gemma3")
    warm_up(runner)
    assert runner.slots.in_use() == 0
    settings = ShardSettings(**shard_settings(Path("unused")))
    kv = hello(settings, runner, [], []).kv
    assert kv.groups == [None, *[6] * 6]
    assert kv.bytes_per_page * 64 == sum(stored.nbytes for place in runner.cache.places for stored in place.stored)
