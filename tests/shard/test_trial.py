"""On a GPU the KV cache takes what is left beside the largest steps: with less memory there are fewer pages, and no
request finds that there is none. Each allocation is counted by torch's own dispatch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.seeds import fresh_seed
from textgen.ops import pages
from textgen.ops.cuda.ops import CudaOps
from textgen.shard.errors import OutOfMemory
from textgen.shard.runner import Runner

from ..ops.cuda.conftest import BUILT
from ..ops.cuda.host_device import COMPILER
from .conftest import RunnerMaker
from .scheduling import CarelessScheduler, Request
from .stand_in import Meter, StandIn, StandInKernels

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ is missing")

MIB = 2**20
MOST = 2000  # pages that are of use


@pytest.fixture
def rng() -> random.Random:
    return random.Random(fresh_seed())


@pytest.fixture
def meter(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    monkeypatch.setattr(pages, "LARGE", 1 << 40)  # what stands for a GPU's memory is torch's, which it counts
    meter = Meter()
    kernels = StandInKernels(rng.getrandbits(64), BUILT)
    accelerator = StandIn(kernels, rng, meter)
    monkeypatch.setattr("textgen.shard.start.open_accelerator", lambda *_: (accelerator, CudaOps(kernels)))
    with meter:
        yield meter


def make(make_runner: RunnerMaker, **changes: Any) -> Runner:
    sizes = {"num_blocks": MOST, "max_slots": 3, "max_batch_tokens": 24, "max_context": 40, "least_blocks": 10}
    return make_runner(device="cuda", **(sizes | changes))


def test_a_shard_that_is_told_it_has_less_serves_within_it(
    make_runner: RunnerMaker, meter: Meter, rng: random.Random
) -> None:
    runner = make(make_runner)
    assert runner.bounds.num_pages == MOST
    page, needed = runner.cache.bytes_per_page, meter.peak
    del runner
    meter.limit = needed - page * rng.randint(MOST // 4, MOST - 40)
    print(f"{meter.limit} bytes, a page of {page}")
    runner = make(make_runner)
    assert 10 <= runner.bounds.num_pages < MOST
    sampling = {"temperature": 1.0, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.2, "top_n": 20}
    kinds: list[dict[str, Any]] = [{}, sampling, sampling | {"typical_p": 0.8}]
    requests = [
        Request([rng.randrange(101) for _ in range(rng.randint(1, 30))], rng.randint(1, 9), rng.choice(kinds))
        for _ in range(5)
    ]
    CarelessScheduler(runner, rng).run(requests)  # which takes no answer but tokens
    assert meter.peak <= meter.limit


def test_pages_are_a_share_of_what_is_left(make_runner: RunnerMaker, meter: Meter) -> None:
    meter.limit = 16 * MIB
    all_of_it = make(make_runner, num_blocks=10**6).bounds.num_pages
    half = make(make_runner, num_blocks=10**6, kv_share=0.5).bounds.num_pages
    assert abs(2 * half - all_of_it) <= 4 and half > MOST


def test_too_little_for_one_sequence_is_said_at_the_start(make_runner: RunnerMaker, meter: Meter) -> None:
    meter.limit = 16 * MIB
    with pytest.raises(OutOfMemory, match="one sequence of 40 tokens does not fit .* --max-total-tokens"):
        make(make_runner, num_blocks=10**6, least_blocks=10**6)


def test_a_step_that_does_not_fit_is_said_at_the_start(
    make_runner: RunnerMaker, meter: Meter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = StandIn.settle

    def with_little_left(self: StandIn) -> None:
        settle(self)
        meter.limit = meter.limit or meter.held + 50_000

    monkeypatch.setattr(StandIn, "settle", with_little_left)
    with pytest.raises(OutOfMemory, match="largest step does not run .* --max-batch-prefill-tokens"):
        make(make_runner)
    assert "OutOfMemoryError" in caplog.text
