"""Processes that die and signals that arrive: what goes on, what ends, and what is left behind."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.api import Answer, Api, collect_from, native
from support.models import GROUPED
from support.processes import frozen, nudge, running
from support.prompts import Case, random_case
from support.raw import send, send_json
from support.reference import Reference, must_match
from support.scripted import Script
from support.server import UNHURRIED, Launcher, Start
from support.waiting import until

pytestmark = pytest.mark.timeout(180)

LONG = 1500  # tokens nobody waits for
ENOUGH = 500  # that no stream is complete while a test looks away
STREAMS = 6
AFTER = 3  # events that every stream has had when the fault comes


@pytest.fixture(scope="module")
def survivor(start_for_module: Start, tiny_folder: Path) -> Launcher:
    """A server whose shard is killed again and again."""
    return start_for_module(
        model=tiny_folder, block_size=8, max_total_tokens=1024, max_batch_size=8, max_batch_prefill_tokens=64,
        shard_restarts=100, **UNHURRIED,
    ).wait_ready()  # fmt: skip


@pytest.fixture
def client(survivor: Launcher) -> Iterator[Api]:
    client = Api(survivor.url)
    yield client
    client.close()
    assert survivor.faults() == []
    until(survivor.ready, "the server is ready for the next test")


class Stream:
    """A native stream that reads a few events, waits for a word, and reads the rest on a thread of its own."""

    def __init__(self, client: Api, body: dict[str, Any], pool: ThreadPoolExecutor, after: int) -> None:
        self._stack = ExitStack()
        self._events = self._stack.enter_context(client.events("/generate_stream", body))
        self.first = [next(self._events) for _ in range(after)]
        self._pool = pool

    def rest(self) -> Future[Answer]:
        return self._pool.submit(self._read)

    def close(self) -> None:
        """Leave before the end."""
        self._stack.close()

    def _read(self) -> Answer:
        with self._stack:
            return collect_from(self.first, self._events)


@contextmanager
def opened(
    launcher: Launcher, client: Api, bodies: list[dict[str, Any]], pool: ThreadPoolExecutor, after: int = AFTER
) -> Iterator[list[Stream]]:
    """Streams that have had their first events, and a shard that stands still: none is complete, however fast it is."""
    shard = launcher.shard()

    def begun() -> bool:
        nudge(shard)
        return all(future.done() for future in asked)

    with frozen(shard):
        asked = [pool.submit(Stream, client, body, pool, after) for body in bodies]
        until(lambda: in_the_house(launcher) == len(bodies), "all streams have begun")
        until(begun, "each has had its first events")
        yield [future.result() for future in asked]


def in_the_house(launcher: Launcher) -> float:
    """A frozen shard has two steps to do, and who is not in them waits."""
    metrics = launcher.metrics()
    return metrics.value("textgen_sequences_running") + metrics.value("textgen_sequences_waiting")


# --- the shard is killed


def test_a_killed_shard_does_not_end_the_streams(survivor: Launcher, client: Api, tiny_reference: Reference) -> None:
    random_ = random.Random(9)
    cases = [long_case(tiny_reference, random_, random_.randint(1, 150), ENOUGH) for _ in range(STREAMS)]
    bodies = [native(case.text, truncate=case.truncate, max_new_tokens=case.max_new_tokens) for case in cases]
    restarts = survivor.metrics().value("textgen_shard_restarts_total")
    first = survivor.shard()
    with ThreadPoolExecutor(STREAMS) as pool:
        with opened(survivor, client, bodies, pool) as running_streams:
            assert survivor.metrics().value("textgen_sequences_running") == STREAMS
            os.kill(first, signal.SIGKILL)
        until(lambda: survivor.status("/ready") == 503, "the server says that it is not ready")
        assert survivor.status("/health") == 200
        answers = [future.result() for future in [stream.rest() for stream in running_streams]]
    for case, answer in zip(cases, answers, strict=True):
        must_match(answer.tokens, case.expected, str(case))
        assert answer.text == "".join(answer.pieces) == case.expected.text, str(case)
    until(survivor.ready, "the server is ready again")
    assert survivor.shard() != first
    assert survivor.metrics().value("textgen_shard_restarts_total") == restarts + 1
    survivor.must_run()


def long_case(reference: Reference, random_: random.Random, length: int, max_new_tokens: int) -> Case:
    """One whose answer has all its tokens."""
    while True:
        case = random_case(reference, random_, length, max_new_tokens)
        if len(case.expected.tokens) == max_new_tokens:
            return case


PENALIZED: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.5, "frequency_penalty": 1.0},
    {"seed": 5, "temperature": 0.7, "top_k": 4, "presence_penalty": 2.0, "frequency_penalty": 0.5},
)


def test_penalties_and_draws_go_on_as_they_would_have(survivor: Launcher, client: Api) -> None:
    """Both depend on what was said before the shard died."""
    text, length = "The cat", ENOUGH
    undisturbed = [client.generate(text, max_new_tokens=length, **parameters) for parameters in PENALIZED]
    for parameters, answer in zip(PENALIZED, undisturbed, strict=True):
        unpenalized = {name: value for name, value in parameters.items() if not name.endswith("_penalty")}
        assert answer.tokens != client.generate(text, max_new_tokens=length, **unpenalized).tokens
    bodies = [native(text, max_new_tokens=length, **parameters) for parameters in PENALIZED]
    with ThreadPoolExecutor(len(bodies)) as pool:
        with opened(survivor, client, bodies, pool, after=60) as running_streams:
            os.kill(survivor.shard(), signal.SIGKILL)
        answers = [future.result() for future in [stream.rest() for stream in running_streams]]
    for answer, truth in zip(answers, undisturbed, strict=True):
        assert (answer.tokens, answer.text) == (truth.tokens, truth.text)


def test_a_shard_killed_while_a_prompt_is_read_and_requests_that_come_later(
    survivor: Launcher, client: Api, tiny_reference: Reference
) -> None:
    """The second comes while there is no shard: it waits for the next one."""
    random_ = random.Random(4)
    case, later = (random_case(tiny_reference, random_, length, 12) for length in (400, 20))
    with ThreadPoolExecutor(1) as pool:
        with frozen(survivor.shard()):
            answer = pool.submit(client.case, case)
            until(lambda: survivor.metrics().value("textgen_sequences_running") == 1, "the request runs")
            os.kill(survivor.shard(), signal.SIGKILL)
        until(lambda: survivor.status("/ready") == 503, "the server has noticed")
        check(later, client.case(later))
        check(case, answer.result())


def check(case: Case, answer: Answer) -> None:
    must_match(answer.tokens, case.expected, str(case))
    assert answer.text == case.expected.text


@pytest.mark.parametrize("seed", [7])
def test_everything_at_once(seed: int, start: Start, tiny_folder: Path, tiny_reference: Reference) -> None:
    """Requests of all lengths at random moments, clients that leave, too few blocks and two dead shards."""
    print(f"seed {seed}")
    random_ = random.Random(seed)
    launcher = start(
        model=tiny_folder, block_size=8, max_total_tokens=160, max_batch_size=12, max_batch_prefill_tokens=48,
        kv_memory=GROUPED.pool_bytes(26, block_size=8),
    ).wait_ready()  # fmt: skip
    cases = [random_case(tiny_reference, random_, random_.randint(1, 120), random_.randint(5, 40)) for _ in range(32)]
    leaving = {place: random_.randint(1, 20) for place in random_.sample(range(len(cases)), 8)}
    client = Api(launcher.url)

    def ask(place: int, moment: float) -> None:
        threading.Event().wait(moment)
        case = cases[place]
        if place not in leaving:
            return check(case, client.case(case))
        body = native(case.text, truncate=case.truncate, max_new_tokens=case.max_new_tokens)
        with client.events("/generate_stream", body) as events:
            said = [event["token"]["id"] for event in itertools.islice(events, leaving[place])]
        assert said == list(case.expected.tokens[: leaving[place]]), str(case)

    with ThreadPoolExecutor(len(cases)) as pool:
        asked: list[Future[None]] = []
        for early, late in ((range(10), range(10, 16)), (range(16, 26), range(26, 32))):
            asked += [pool.submit(ask, place, random_.uniform(0, 0.5)) for place in early]
            wait(asked[-len(early) :], return_when=FIRST_COMPLETED)
            with frozen(launcher.shard()):  # A fast machine would otherwise be done before it is seen to be busy.
                asked += [pool.submit(ask, place, random_.uniform(0, 0.2)) for place in late]
                until(lambda: in_the_house(launcher) > 1, "the server is busy")
                os.kill(launcher.shard(), signal.SIGKILL)
            until(lambda: launcher.status("/ready") == 503, "the server has noticed")
            until(launcher.ready, "another shard is there")
        for future in asked:
            future.result()
    idle = ("textgen_sequences_running", "textgen_sequences_waiting", "textgen_kv_blocks_used")
    until(lambda: not any(map(launcher.metrics().value, idle)), "nothing is left")
    client.close()


def test_a_shard_that_hangs_is_replaced_and_its_requests_go_on(
    start: Start, tiny_folder: Path, tiny_reference: Reference
) -> None:
    launcher = start(
        model=tiny_folder, max_total_tokens=512, shard_step_timeout=3, shard_termination_timeout=0.2
    ).wait_ready()  # fmt: skip
    client = Api(launcher.url)
    random_ = random.Random(12)
    cases = [random_case(tiny_reference, random_, 30, 50) for _ in range(2)]
    first = launcher.shard()
    with ThreadPoolExecutor(len(cases)) as pool:
        with frozen(first):
            asked = [pool.submit(client.case, case) for case in cases]
            until(lambda: not running(first), "the shard that stands still is ended")
        for case, answer in zip(cases, asked, strict=True):
            check(case, answer.result())
    assert "has not answered a step for 3 s" in launcher.log
    assert launcher.shard() != first
    client.close()


def test_a_shard_that_dies_again_and_again(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, shard_restarts=2, max_total_tokens=64).wait_ready()
    for number in range(3):
        os.kill(launcher.shard(), signal.SIGKILL)
        if number < 2:
            until(lambda: launcher.log.count("shard is back") > number, "the shard is back")  # noqa: B023
    assert launcher.wait() == 5
    assert "--shard-restarts" in launcher.log
    assert launcher.faults() == []
    until(lambda: not any(running(pid) for pid in launcher.known_shards), "no shard is left")


# --- too much at once


def test_too_many_requests_are_told_to_come_back(start: Start, endless: Script) -> None:
    launcher = start(model=endless.folder, max_concurrent_requests=3, **UNHURRIED).wait_ready()
    api = Api(launcher.url)
    body = native("Go on", max_new_tokens=LONG)
    with ThreadPoolExecutor(3) as pool:
        with opened(launcher, api, [body] * 3, pool) as taken:
            for path, dialect in (("/generate", False), ("/generate_stream", False), ("/v1/completions", True)):
                refused = send_json(launcher.url, path, body | {"prompt": "Go on", "stream": dialect})
                assert refused.status == 429
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.json()["error_type"] == "overloaded"
            assert launcher.status("/health") == 200
            for stream in taken[1:]:
                stream.close()
            shard = launcher.shard()

            def one_is_left() -> bool:
                nudge(shard)
                return launcher.metrics().value("textgen_sequences_running") == 1

            until(one_is_left, "two clients are gone")
        assert api.generate("Go on", max_new_tokens=3).finish_reason == "length"
        taken[0].close()
    assert launcher.metrics().value("tgi_request_failure", err="overloaded") == 3
    api.close()
    assert launcher.faults() == []


def test_a_request_under_which_shards_die_is_failed_and_others_are_not(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder, max_total_tokens=512, max_batch_size=1, max_shard_failures=0).wait_ready()
    client = Api(launcher.url)
    with ThreadPoolExecutor(3) as pool:
        with frozen(launcher.shard()):
            (shard,) = launcher.shards()
            running_one = pool.submit(send_json, launcher.url, "/generate", native("Go on", max_new_tokens=400))
            until(lambda: launcher.metrics().value("textgen_sequences_running") == 1, "the request runs")
            waiting_one = pool.submit(client.generate, "Hello", max_new_tokens=3)
            until(lambda: launcher.metrics().value("textgen_sequences_waiting") == 1, "the other one waits")
            os.kill(shard, signal.SIGKILL)
        failed = running_one.result()
        assert (failed.status, failed.json()["error_type"]) == (424, "generation")
        assert "died 1 times" in failed.json()["error"]
        assert waiting_one.result().finish_reason == "length"
    assert launcher.metrics().value("tgi_request_failure", err="generation") == 1
    client.close()


# --- signals


@pytest.fixture
def busy(start: Start, tiny_folder: Path) -> Callable[..., Launcher]:
    """Starts a small server, whose streams do not end while a busy machine lets a test wait."""

    def begin(**flags: object) -> Launcher:
        settings = UNHURRIED | {"max_total_tokens": 1024, "max_batch_size": 4} | flags
        return start(model=tiny_folder, **settings).wait_ready()

    return begin


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_stop_lets_running_requests_finish(
    number: signal.Signals, busy: Callable[..., Launcher], tiny_reference: Reference
) -> None:
    launcher = busy()
    api = Api(launcher.url)
    case = long_case(tiny_reference, random.Random(1), 12, ENOUGH)
    with ThreadPoolExecutor(1) as pool:
        body = native(case.text, truncate=case.truncate, max_new_tokens=ENOUGH)
        with opened(launcher, api, [body], pool) as (stream,):
            os.kill(launcher.pid, number)
            until(lambda: launcher.status("/ready") == 503, "the server drains")
            for path in ("/generate", "/generate_stream"):
                refused = send_json(launcher.url, path, native("New", max_new_tokens=2))
                assert refused.status == 503
                assert refused.json()["error_type"] == "draining"
                assert int(refused.headers["retry-after"]) >= 1
            assert launcher.status("/health") == 200
            assert launcher.metrics().value("textgen_sequences_in_flight") == 1
            launcher.must_run()
        check(case, stream.rest().result())
    assert launcher.wait() == 0
    assert launcher.faults() == []
    assert not any(running(pid) for pid in launcher.known_shards)
    api.close()


def test_a_stop_of_an_idle_server(busy: Callable[..., Launcher]) -> None:
    launcher = busy()
    os.kill(launcher.pid, signal.SIGTERM)
    assert launcher.wait() == 0
    assert not any(running(pid) for pid in launcher.known_shards)
    assert launcher.faults() == []


def test_a_second_signal_stops_at_once(busy: Callable[..., Launcher]) -> None:
    launcher = busy()
    with ThreadPoolExecutor(1) as pool:
        with opened(launcher, Api(launcher.url), [native("Go on", max_new_tokens=LONG // 2)], pool) as (stream,):
            os.kill(launcher.pid, signal.SIGTERM)
            until(lambda: launcher.status("/ready") == 503, "the server drains")
            os.kill(launcher.pid, signal.SIGTERM)
            assert launcher.wait() == 128 + signal.SIGTERM
        stream.close()
    until(lambda: not any(running(pid) for pid in launcher.known_shards), "the shard is gone")
    assert launcher.faults() == []


def test_draining_has_an_end(start: Start, endless: Script) -> None:
    launcher = start(model=endless.folder, graceful_termination_timeout=0.1, **UNHURRIED).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        with opened(launcher, Api(launcher.url), [native("Go on", max_new_tokens=LONG)], pool) as (stream,):
            os.kill(launcher.pid, signal.SIGTERM)
            until(lambda: "1 requests were cut off" in launcher.log, "draining ends")
        assert launcher.wait() == 0
        stream.close()
    assert not any(running(pid) for pid in launcher.known_shards)


def test_a_stop_before_the_server_is_ready(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder)
    assert launcher.status("/health") in (503, 200)
    launcher.shards()
    os.kill(launcher.pid, signal.SIGTERM)
    assert launcher.wait() == 0
    assert not any(running(pid) for pid in launcher.known_shards)
    assert launcher.faults() == []


def test_a_killed_launcher_leaves_nothing_behind(busy: Callable[..., Launcher]) -> None:
    launcher = busy()
    shard = launcher.shard()
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    until(lambda: not running(shard), "the shard ends by itself")


# --- before the shard is there


def test_a_server_that_still_loads_says_so(start: Start, tiny_folder: Path) -> None:
    launcher = start(model=tiny_folder)
    url = launcher.url
    with frozen(launcher.shard()):
        assert launcher.status("/ready") == 503
        assert launcher.status("/health") == 503
        assert send(url, "GET", "/info").status == 200
        assert send(url, "GET", "/metrics").status == 200
        refused = send_json(url, "/generate", {"inputs": "Hello"})
        assert (refused.status, refused.json()["error_type"]) == (503, "loading")
    launcher.wait_ready()
    assert "WARN" not in launcher.log, "a probe that comes too early is no news"
    assert send_json(url, "/generate", {"inputs": "Hello", "parameters": {"max_new_tokens": 2}}).status == 200
