"""Memory that is made for weights before they are there."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from textgen.ops.cpu.library import Kernels

from .weights import BF16, INT8, LIBRARY, packed, random_matrix

HUGE = 2 << 20
Reserve = Callable[[int], None]


@pytest.fixture
def reserve() -> Iterator[Reserve]:
    if LIBRARY is None:
        from textgen import _router

        call: Reserve = _router.reserve_weights
    else:
        function = ctypes.CDLL(LIBRARY).tg_cpu_reserve
        function.restype, function.argtypes = None, [ctypes.c_int64]
        call = function
    yield call
    call(0)


def kernels() -> Kernels:
    return Kernels("portable", Path(LIBRARY) if LIBRARY else None)


def resident(address: int, size: int) -> int:
    """Bytes of the mapping that a weight lies in, and of it those that are there, as the system counts them."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split(" ", 1)[0]
        if "-" in head and not head.endswith(":"):
            begin, _, end = head.partition("-")
            found = int(begin, 16) <= address and address + size <= int(end, 16)
        elif found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the weight lies nowhere")


def test_weights_lie_where_pages_were_made_and_begin_as_zeros(reserve: Reserve) -> None:
    reserve(32 * HUGE)
    library = kernels()
    weights = [library.weight(BF16, 1024, 1024 * 3) for _ in range(5)]  # three huge pages each
    places = [library.memory(weight) for weight in weights]
    assert [address - places[0][0] for address, _ in places] == [3 * HUGE * i for i in range(5)]
    deadline = monotonic() + 60
    while resident(*places[0]) < 15 * HUGE and monotonic() < deadline:
        sleep(0.01)
    if resident(*places[0]) < 15 * HUGE:
        pytest.skip("this system makes no pages in advance")
    for address, size in places:
        assert bytes(ctypes.string_at(address, size)) == bytes(size)


def test_small_weights_share_huge_pages_until_all_are_gone() -> None:
    library, rng = kernels(), random.Random(2)
    fillers = [library.weight(BF16, 512, 1024)]
    while library.memory(fillers[-1])[0] % HUGE:  # behind what other tests hold
        fillers.append(library.weight(BF16, 512, 1024))
    held = fillers[-1:]
    held += [library.weight(BF16, 16 * rng.randint(1, 40), 32 * rng.randint(1, 40)) for _ in range(200)]
    places = sorted(map(library.memory, held))
    for (address, size), (following, _) in zip(places, places[1:], strict=False):
        assert address % 64 == 0 and address + size <= following
        assert following // HUGE - address // HUGE < 2 or following % HUGE == 0  # in line, or on other pages
    assert len({address // HUGE for address, _ in places}) < 60
    for number, (address, size) in enumerate(places):
        assert bytes(ctypes.string_at(address, size)) == bytes(size)
        ctypes.memset(address, number % 256, size)
    rng.shuffle(held)
    for _ in range(120):
        places.remove(library.memory(held.pop()))
        left, size = rng.choice(places)
        assert len(set(ctypes.string_at(left, size))) == 1
    held += [library.weight(BF16, 16, 32) for _ in range(50)]
    assert all(bytes(ctypes.string_at(*library.memory(weight))) == bytes(1024) for weight in held[-50:])


def test_what_is_too_large_for_the_reserve_has_memory_of_its_own(reserve: Reserve) -> None:
    reserve(4 * HUGE)
    library = kernels()
    rng = random.Random(1)
    small, large = random_matrix(rng, BF16, 1024, 1024), random_matrix(rng, BF16, 4096, 1536)
    held = [packed(library, matrix, rng) for matrix in (small, large, small)]
    (first, size), (far, _), (second, _) = map(library.memory, held)
    assert second == first + HUGE and not first <= far < first + 4 * HUGE
    assert ctypes.string_at(first, size) == ctypes.string_at(second, size)
    del held


def test_what_ends_within_a_huge_page_shares_it(reserve: Reserve) -> None:
    """Integers have scales behind them: a little more than whole pages."""
    reserve(16 * HUGE)
    library = kernels()
    held = [library.weight(INT8, 2048, 2048) for _ in range(3)]  # two pages each and the scales
    places = [library.memory(weight) for weight in held]
    assert [address - places[0][0] for address, _ in places] == [places[0][1] * number for number in range(3)]
    assert 0 < places[0][1] - 2 * HUGE < HUGE // 64


def test_pages_of_a_large_weight_go_back_while_others_stay(reserve: Reserve) -> None:
    reserve(7 * HUGE)  # all of them lie there, and it keeps its shelf
    library = kernels()
    small, large, other = (library.weight(BF16, 1024, inputs) for inputs in (64, 6 * 1024, 64))
    places = [library.memory(weight) for weight in (small, large, other)]
    for address, size in places:
        ctypes.memset(address, 7, size)
    address, size = places[1]
    before = resident(address, size)
    del large
    assert before - resident(address, size) >= size - 2 * HUGE
    for address, size in (places[0], places[2]):
        assert set(ctypes.string_at(address, size)) == {7}


def test_weights_come_and_go_while_pages_are_made(reserve: Reserve) -> None:
    library, matrix = kernels(), random_matrix(random.Random(2), BF16, 2048, 1024)
    expected = None

    def work(seed: int) -> None:
        nonlocal expected
        rng = random.Random(seed)
        for _ in range(6):
            reserve(rng.choice((0, 8, 40)) * HUGE)
            held = [packed(library, matrix, rng) for _ in range(rng.randrange(1, 6))]
            for weight in held:
                found = ctypes.string_at(*library.memory(weight))
                expected = expected or found
                assert found == expected

    failed: list[BaseException] = []

    def guarded(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


@pytest.mark.skipif(LIBRARY is not None, reason="the extension module is what a shard has")
def test_a_process_may_end_while_pages_are_made() -> None:
    line = f"from textgen import _router; _router.reserve_weights({200 * HUGE})"
    assert subprocess.run([sys.executable, "-c", line], timeout=120).returncode == 0
