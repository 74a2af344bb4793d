"""The engine without a server: Transformers' own tokens, in order, streamed, cancelled, and through a shard's death."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.processes import children, command_line, frozen, running
from support.prompts import CHATS, PLAIN
from support.reference import Reference, must_match
from support.server import UNHURRIED, environment
from support.waiting import until

from tests.seeds import fresh_rng
from textgen import (
    LLM,
    AsyncLLM,
    EngineClosed,
    InvalidRequest,
    RequestError,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)

pytestmark = pytest.mark.timeout(180)

NEW_TOKENS = 24
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


def start(model: Path | None = None, **settings: Any) -> LLM:
    return LLM(None if model is None else str(model), dtype="float32", threads=1, **settings)


@pytest.fixture(scope="module")
def listening_before() -> set[str]:
    return _listening()


@pytest.fixture(scope="module")
def llm(listening_before: set[str]) -> Iterator[LLM]:
    with start(max_concurrent_requests=8) as llm:
        yield llm
        until(lambda: llm.engine.in_flight() == 0, "nothing is left behind")


def shards() -> list[int]:
    return [pid for pid in children(os.getpid()) if "textgen.shard" in command_line(pid)]


def test_many_prompts_come_back_in_order_as_transformers_continues_them(
    llm: LLM, built_in_reference: Reference
) -> None:
    before = time.time()
    outputs = llm.generate(PLAIN, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == list(PLAIN)
    for output in outputs:
        assert (met := output.metrics) is not None
        moments = (met.arrival_time, met.first_scheduled_time, met.first_token_time, met.last_token_time)
        # Two results that are read at once have one moment.
        assert before <= moments[0] <= moments[1] <= moments[2] <= moments[3]
        assert moments[0] < moments[3]
        assert output.prompt is not None
        assert output.prompt_token_ids == built_in_reference.encode(output.prompt)
        expected = built_in_reference.greedy(output.prompt_token_ids, NEW_TOKENS)
        (answer,) = output.outputs
        must_match(answer.token_ids, expected, output.prompt)
        if expected.clear:
            assert answer.text == expected.text
        assert output.finished
        assert answer.finish_reason == "stop" or len(answer.token_ids) == NEW_TOKENS


def test_conversations_are_rendered_and_continued_as_by_transformers(llm: LLM, built_in_reference: Reference) -> None:
    outputs = llm.chat(CHATS, GREEDY, use_tqdm=False)
    assert len(outputs) == len(CHATS)
    for messages, output in zip(CHATS, outputs, strict=True):
        assert output.prompt_token_ids == built_in_reference.chat(messages)
        expected = built_in_reference.greedy(output.prompt_token_ids, NEW_TOKENS)
        must_match(output.outputs[0].token_ids, expected, str(messages))
        message = output.outputs[0].message
        assert message is not None
        assert message["role"] == "assistant"


def test_log_probabilities_are_transformers(llm: LLM, built_in_reference: Reference) -> None:
    text = PLAIN[0]
    (output,) = llm.generate(text, SamplingParams(temperature=0, max_tokens=2, logprobs=2, prompt_logprobs=1))
    expected = built_in_reference.prompt_logprobs(text)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for token, found, wanted in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], expected, strict=True):
        assert found is not None
        assert found[token].logprob == pytest.approx(wanted, abs=1e-4)
    (answer,) = output.outputs
    assert answer.logprobs is not None
    for token, found in zip(answer.token_ids, answer.logprobs, strict=True):
        assert found[token].rank == 1
        assert len(found) == 2
        assert max(found.values(), key=lambda one: one.logprob) is found[token]


def test_answers_can_be_held_to_a_shape_and_to_calls(llm: LLM) -> None:
    shape = StructuredOutputsParams(regex="[0-9]{3}-[a-f]{2}")
    outputs = llm.generate(["The number is", "It is"], SamplingParams(max_tokens=20, structured_outputs=shape))
    assert all(re.fullmatch("[0-9]{3}-[a-f]{2}", output.outputs[0].text) for output in outputs)
    kinds = {"city": {"type": "string", "enum": ["Bonn", "Rome"]}}
    parameters = {"type": "object", "properties": kinds, "required": ["city"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    question = [{"role": "user", "content": "What is the weather in Bonn?"}]
    (output,) = llm.chat(question, SamplingParams(max_tokens=60), tools=[tool], tool_choice="required")
    message = output.outputs[0].message
    assert message is not None
    call = message["tool_calls"][0]["function"]
    assert call["name"] == "weather"
    assert json.loads(call["arguments"])["city"] in ("Bonn", "Rome")


def test_pieces_of_a_stream_make_the_whole(llm: LLM) -> None:
    drawn = SamplingParams(temperature=0.9, seed=fresh_rng().getrandbits(63), max_tokens=40, n=2)
    (whole,) = llm.generate("Once upon a time", drawn)
    texts: dict[int, str] = {0: "", 1: ""}
    tokens: dict[int, list[int]] = {0: [], 1: []}
    for piece in llm.stream("Once upon a time", drawn):
        texts[piece.index] += piece.text
        tokens[piece.index] += piece.token_ids
    assert [answer.text for answer in whole.outputs] == [texts[0], texts[1]]
    assert [answer.token_ids for answer in whole.outputs] == [tokens[0], tokens[1]]


def test_leaving_a_stream_cancels_it(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", ENDLESS)
    assert next(stream).token_ids
    stream.close()  # type: ignore[attr-defined]
    until(lambda: llm.engine.in_flight() == 0, "the prompt is cancelled")


def test_threads_share_an_engine(llm: LLM) -> None:
    (alone,) = llm.generate("Once upon a time", GREEDY)
    found: list[list[str]] = []

    def ask() -> None:
        outputs = llm.generate(["Once upon a time"] * 12, GREEDY, use_tqdm=False)
        found.append([output.outputs[0].text for output in outputs])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[alone.outputs[0].text] * 12] * 3


def test_errors_name_the_prompt_and_leave_the_engine_as_it_was(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="temperature") as caught:
        llm.generate(["a", "b"], [GREEDY, SamplingParams(temperature=-1)], use_tqdm=False)
    assert (caught.value.index, caught.value.status) == (1, 422)
    with pytest.raises(InvalidRequest, match="stream"):
        list(llm.stream("a", SamplingParams(prompt_logprobs=0)))
    with pytest.raises(RequestError, match="at once"):
        llm.generate("a", SamplingParams(n=9))
    assert llm.generate([]) == []
    until(lambda: llm.engine.in_flight() == 0, "the other prompt is cancelled")


def test_nothing_listens(listening_before: set[str], llm: LLM) -> None:
    assert _listening() <= listening_before


def _listening() -> set[str]:
    """This process's listening sockets. The tests' own libraries may have some."""
    ours = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_link(name)}
    tables = (Path(f"/proc/self/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    rows = [row.split() for table in tables for row in table]
    return {socket for fields in rows if fields[3] == "0A" and (socket := f"socket:[{fields[9]}]") in ours}


def _is_link(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def test_a_loop_runs_many_prompts_and_can_leave_them(tiny_folder: Path) -> None:
    async def use() -> None:
        async with await AsyncLLM.start(
            str(tiny_folder), dtype="float32", threads=1, max_concurrent_requests=4, max_model_len=512
        ) as llm:
            whole = await last(llm, GREEDY)
            found = []

            async def ask(kind: RequestOutputKind) -> None:
                params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, output_kind=kind)
                outputs = [output async for output in llm.generate("a b c", params, "mine")]
                assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
                assert (met := outputs[-1].metrics) is not None
                assert met.arrival_time <= met.first_scheduled_time < met.first_token_time < met.last_token_time
                texts = [output.outputs[0].text for output in outputs]
                found.append("".join(texts) if kind is RequestOutputKind.DELTA else texts[-1])

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    for kind in RequestOutputKind:
                        tasks.start_soon(ask, kind)
            assert found == [whole] * 15

            with anyio.CancelScope() as scope:
                async for output in llm.generate("a b c", ENDLESS):
                    assert output.outputs[0].token_ids
                    scope.cancel()
            await anyio.to_thread.run_sync(until, lambda: llm.engine.in_flight() == 0, "the prompt is cancelled")
            assert await last(llm, GREEDY) == whole

    async def last(llm: AsyncLLM, params: SamplingParams) -> str:
        return [output async for output in llm.generate("a b c", params)][-1].outputs[0].text

    anyio.run(use)


def test_a_shard_that_dies_is_replaced_and_the_prompts_go_on(tiny_folder: Path) -> None:
    before = set(shards())
    with start(tiny_folder, max_model_len=256, log_level="error", **UNHURRIED) as llm:
        (shard,) = set(shards()) - before
        asked = SamplingParams(temperature=0.8, seed=5, max_tokens=100, ignore_eos=True)
        (expected,) = llm.generate("a b c", asked)
        stream = llm.stream("a b c", asked)
        tokens = list(next(stream).token_ids)
        with frozen(shard):
            os.kill(shard, signal.SIGKILL)
        for piece in stream:
            tokens += piece.token_ids
        assert tokens == expected.outputs[0].token_ids

        ended: list[EngineClosed] = []

        def ask_for_ever() -> None:
            try:
                while True:
                    llm.generate(["a b c"] * 20, ENDLESS, use_tqdm=False)
            except EngineClosed as error:
                ended.append(error)

        asking = threading.Thread(target=ask_for_ever)
        asking.start()
        until(lambda: llm.engine.in_flight() > 0, "prompts run")
    asking.join()
    assert "was closed" in str(ended[0])
    until(lambda: not set(shards()) - before, "no shard is left")
    with pytest.raises(EngineClosed, match="closed"):
        llm.generate("a")


def test_closing_does_not_wait_for_a_shard_that_is_stopped(tiny_folder: Path) -> None:
    before = set(shards())
    engine = start(tiny_folder, shard_termination_timeout=0)
    (shard,) = set(shards()) - before
    os.kill(shard, signal.SIGSTOP)
    engine.close()
    assert not running(shard)


def test_an_engine_whose_shard_dies_too_often_says_so(tiny_folder: Path) -> None:
    before = set(shards())
    with start(tiny_folder, max_model_len=2048, shard_restarts=0, log_level="error") as llm:
        (shard,) = set(shards()) - before
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                llm.generate("a b c", GREEDY, use_tqdm=False)
            except EngineClosed as error:
                failures.append(error)

        asking = threading.Thread(target=ask)
        with frozen(shard):
            asking.start()
            until(lambda: llm.engine.in_flight() == 1, "the prompt is there")
            os.kill(shard, signal.SIGKILL)
        asking.join()
        assert "--shard-restarts" in str(failures)
        with pytest.raises(EngineClosed, match="--shard-restarts"):
            llm.generate("a")


ENGINES = """
import sys, threading
from textgen import LLM, SamplingParams

def use(times):
    for _ in range(times):
        with LLM(sys.argv[1], threads=1, max_batch_size=4, log_level="error") as llm:
            (answer,) = llm.generate("a b c", SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
            print(len(answer.outputs[0].token_ids))

use(3)
beside = [threading.Thread(target=use, args=(1,)) for _ in range(2)]
for thread in beside:
    thread.start()
for thread in beside:
    thread.join()
"""


def test_a_program_may_have_engines_one_after_another_and_beside_each_other(tiny_folder: Path) -> None:
    """In a process of its own: where threads are new to the library, and nothing else has been loaded before it."""
    command = [sys.executable, "-c", ENGINES, str(tiny_folder)]
    ended = subprocess.run(command, capture_output=True, env=environment(), text=True, timeout=100)
    assert (ended.returncode, ended.stdout.split()) == (0, ["4"] * 5), ended.stderr


PROGRAM = """
import sys
from textgen import LLM, SamplingParams
llm = LLM(sys.argv[1], threads=1)
print(llm.engine.plan.max_total_tokens, flush=True)
for piece in llm.stream("a b c", SamplingParams(max_tokens=None, ignore_eos=True)):
    break
llm.generate("a b c", SamplingParams(max_tokens=1))  # in the midst of an import Python may lose an interrupt
print("begun", flush=True)
while True:
    llm.generate(["a b c"] * 600, SamplingParams(max_tokens=None, ignore_eos=True))
"""


def test_ctrl_c_ends_a_program_and_its_shard(tiny_folder: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip().isdigit()
            assert process.stdout.readline() == "begun\n"
            (shard,) = [pid for pid in children(process.pid) if "textgen.shard" in command_line(pid)]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in errors
    assert process.returncode in (1, 130, -signal.SIGINT)
    until(lambda: not running(shard), "the shard has ended")


def test_a_batch_that_was_interrupted_goes_on(tiny_folder: Path, tmp_path: Path) -> None:
    names = [str(number) for number in range(7)]
    bodies = [{"prompt": f"a b {name}", "max_tokens": 20, "temperature": 0, "ignore_eos": True} for name in names[:-1]]
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}) + "\n"
        for name, body in zip(names, [*bodies, {"prompt": {}}], strict=True)
    ]
    # It has twice as many open as run at once, so with some answers it waits for a line of the pipe that never comes.
    pipe, source, target = tmp_path / "pipe", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    source.write_text("".join(lines))

    def begin(path: Path) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-m", "textgen.cli", "batch", str(path), str(target), "--model-id", str(tiny_folder),
            "--threads", "1", "--max-concurrent-requests", "1", "--max-total-tokens", "64",
        ]  # fmt: skip
        return subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(), text=True)

    def written() -> int:
        return target.read_bytes().count(b"\n") if target.exists() else 0

    process = begin(pipe)
    with pipe.open("w") as feeding:
        feeding.writelines(lines[:5])
        feeding.flush()
        until(lambda: written() >= 3 or process.poll() is not None, "some answers are there", 90.0)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "goes on" in errors
    before = written()
    with target.open("ab") as file:
        file.write(b'{"id": "torn')

    process = begin(source)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 7, errors
    assert f"{6 - before} answered, 1 failed, {before} were done before" in errors
    answers = {answer["custom_id"]: answer["response"] for answer in map(json.loads, target.read_text().splitlines())}
    assert {name: answer["status_code"] for name, answer in answers.items()} == dict.fromkeys(names, 200) | {"6": 422}
    assert {answers[name]["body"]["usage"]["completion_tokens"] for name in names[:-1]} == {20}
