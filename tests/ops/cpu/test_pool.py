"""Workers that are bound to processors."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable

import pytest
import torch

from textgen.ops.cpu.library import Handle, Kernels, KernelsMissing

from .weights import BF16, kernels_of, packed, random_matrix, run_linear

ALLOWED = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = kernels_of("portable")
    assert found is not None
    return found


def tasks() -> set[int]:
    """The threads of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def allowed_of(threads: Iterable[int]) -> list[set[int]]:
    return [os.sched_getaffinity(thread) for thread in threads]


def multiply(kernels: Kernels, pool: Handle) -> None:
    """A product on the pool, whose first worker is the calling thread."""
    rng = random.Random(0)
    weight, y = packed(kernels, random_matrix(rng, BF16, 64, 64, 0), rng), torch.zeros(2, 64)
    run_linear(kernels, pool, weight, torch.ones(2, 64), None, y, False)
    assert y.abs().sum() > 0


def in_a_thread(kernels: Kernels, pool: Handle, start: set[int]) -> set[int]:
    """What a thread that begins with those processors may use once it has run something on the pool."""
    found: list[set[int]] = []

    def run() -> None:
        os.sched_setaffinity(0, start)
        multiply(kernels, pool)
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_each_worker_keeps_to_its_processor(kernels: Kernels) -> None:
    cpus = [ALLOWED[-1], ALLOWED[0]]
    before = tasks()
    pool = kernels.pool(2, 100, cpus)
    workers = tasks() - before
    assert in_a_thread(kernels, pool, set(ALLOWED)) == {cpus[0]}
    assert allowed_of(workers) == [{cpus[1]}]
    assert os.sched_getaffinity(0) == set(ALLOWED), "only who computes is bound"


def test_without_processors_nobody_is_bound(kernels: Kernels) -> None:
    before = tasks()
    pool = kernels.pool(2, 100)
    workers = tasks() - before
    assert in_a_thread(kernels, pool, set(ALLOWED)) == set(ALLOWED)
    assert allowed_of(workers) == [set(ALLOWED)]


def test_processors_that_cannot_be(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="2 workers cannot be bound to 1 processors"):
        kernels.pool(2, 100, [0])
    with pytest.raises(KernelsMissing, match="a worker is pinned to a processor that cannot be"):
        kernels.pool(1, 100, [1 << 20])
