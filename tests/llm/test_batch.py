"""Batches: every line gets one answer, whatever the line is and however often the run was stopped."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.llm.fakes import FakeEngine, as_engine
from tests.seeds import fresh_rng
from textgen.cli import main
from textgen.launcher.errors import ShardDied
from textgen.llm.batch import Batch, BatchError, Output
from textgen.llm.errors import EngineClosed


def line(name: str, url: str = "/v1/completions", **more: Any) -> bytes:
    return (
        json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {"prompt": name} | more}).encode() + b"\n"
    )


def echo(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    return (422, {"error": "bad"}) if body.get("bad") else (200, {"said": body["prompt"], "path": path})


def run(target: Path, text: bytes, engine: FakeEngine | None = None) -> tuple[Any, list[dict[str, Any]]]:
    with Output(target) as output:
        outcome = Batch(as_engine(engine or FakeEngine(echo)), output).run(io.BytesIO(text))
    return outcome, read(target)


def read(target: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in target.read_text().splitlines()]


def test_answers_have_openais_form(tmp_path: Path) -> None:
    outcome, answers = run(tmp_path / "out", line("one") + line("two", bad=True))
    assert (outcome.answered, outcome.failed, outcome.skipped) == (1, 1, 0)
    by_name = {answer["custom_id"]: answer for answer in answers}
    one = by_name["one"]
    assert set(one) == {"id", "custom_id", "response", "error"}
    assert one["id"].startswith("batch_req_")
    assert set(one["response"]) == {"status_code", "request_id", "body"}
    assert (one["response"]["status_code"], one["error"]) == (200, None)
    assert one["response"]["body"] == {"said": "one", "path": "/v1/completions"}
    assert by_name["two"]["response"]["status_code"] == 422


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"nonsense\n", "invalid_json_line"),
        (b'{"custom_id": "a"\n', "invalid_json_line"),
        (b"\xff\xfe\n", "invalid_json_line"),
        (b'{"a": ' + b"[" * 5000 + b"\n", "invalid_json_line"),
        (b'{"custom_id": "a"}\n', "invalid_request"),
        (b"[1]\n", "invalid_request"),
        (b'{"custom_id": 3, "url": "/v1/completions", "body": {}}\n', "invalid_request"),
        (b'{"custom_id": "a", "url": "/v1/completions", "body": 3}\n', "invalid_request"),
        (line("a", "/v1/embeddings"), "invalid_url"),
        (line("a").replace(b"POST", b"GET"), "invalid_method"),
        (line("a", stream=True), "invalid_request"),
        (line("a" * 20_000), "line_too_long"),
    ],
)
def test_a_line_that_is_no_request_is_told_and_the_others_go_on(tmp_path: Path, text: bytes, code: str) -> None:
    whole = line("before") + b"\n  \n" + text + line("after")
    for _ in range(2):  # the second run has nothing to add
        outcome, answers = run(tmp_path / "out", whole)
        assert sorted(a["custom_id"] for a in answers if a["response"]) == ["after", "before"]
        (fault,) = [answer["error"] for answer in answers if answer["error"]]
        assert (fault["code"], fault["line"]) == (code, 4)
        assert "line 4" in fault["message"]
    assert outcome.skipped == 3


def test_a_name_that_comes_twice_is_answered_once(tmp_path: Path) -> None:
    for _ in range(2):
        _, answers = run(tmp_path / "out", line("a") + line("a", other=1) + line("b"))
        assert sorted(a["custom_id"] for a in answers if a["response"]) == ["a", "b"]
        assert [a["error"]["code"] for a in answers if a["error"]] == ["duplicate_custom_id"]


def test_a_run_that_was_torn_anywhere_goes_on_to_the_same_end(tmp_path: Path) -> None:
    rng = fresh_rng()
    text = b"".join(line(f"n{number}", bad=number % 3 == 0) for number in range(9)) + b"nonsense\n"
    _, whole = run(tmp_path / "whole", text)
    written = (tmp_path / "whole").read_bytes()

    def essence(answers: list[dict[str, Any]]) -> list[str]:
        kept = [(a["custom_id"], a["response"] and a["response"]["body"], a["error"]) for a in answers]
        return sorted(json.dumps(each) for each in kept)

    for cut in [0, 1, len(written) - 1, *(rng.randrange(len(written)) for _ in range(20))]:
        target = tmp_path / f"cut-{cut}"
        target.write_bytes(written[:cut])
        outcome, answers = run(target, text)
        assert essence(answers) == essence(whole), cut
        assert outcome.skipped == written[:cut].count(b"\n")


def test_an_engine_that_ends_leaves_its_lines_to_the_next_run(tmp_path: Path) -> None:
    def dying(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return (0, None) if body["prompt"] == "b" else (200, {})

    engine = FakeEngine(dying)
    with pytest.raises(EngineClosed):
        run(tmp_path / "out", line("a") + line("b") + line("c"), engine)
    assert engine.fake.cancelled
    assert {answer["custom_id"] for answer in read(tmp_path / "out")} <= {"a", "c"}
    _, answers = run(tmp_path / "out", line("a") + line("b") + line("c"))
    assert sorted(answer["custom_id"] for answer in answers) == ["a", "b", "c"]
    assert all(answer["response"]["status_code"] == 200 for answer in answers)


def test_a_failure_of_an_engine_that_died_is_no_answer(tmp_path: Path) -> None:
    engine = FakeEngine(lambda path, body: (503, {"error": "draining"}))
    engine.failed = ShardDied("it died")
    with pytest.raises(EngineClosed):
        run(tmp_path / "out", line("a"), engine)
    assert read(tmp_path / "out") == []


def test_only_so_many_are_open_at_once(tmp_path: Path) -> None:
    engine = FakeEngine(echo, limit=3)
    _, answers = run(tmp_path / "out", b"".join(line(str(number)) for number in range(40)), engine)
    assert len(answers) == 40
    assert engine.fake.most == 6


def test_an_output_belongs_to_one_run_and_is_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with Output(target), pytest.raises(BatchError, match="another run"):
        Output(target)
    target.write_text("my diary\n")
    with pytest.raises(BatchError, match="line 1"):
        Output(target)
    assert target.read_text() == "my diary\n"
    with pytest.raises(BatchError, match="cannot be written"):
        Output(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "INPUT, OUTPUT"),
        (["in", "out", "--port", "1"], 2, "--port is not a flag"),
        (["in", "out", "--threads", "0"], 2, "--threads '0' must be"),
        (["nothing", "out"], 2, "nothing cannot be read"),
        (["in", "folder"], 2, "folder cannot be written"),
        (["in", "in"], 2, "name another output"),
        (["in", "out", "--model-id", "no/such/model"], 3, "no such folder"),
    ],
)
def test_the_command_says_what_to_change(
    arguments: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "in").write_bytes(line("a"))
    assert main(["batch", *arguments]) == code
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert words in errors
    assert (tmp_path / "in").read_bytes() == line("a")


def test_the_command_has_help_and_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in [(["batch", "--help"], "--max-concurrent-requests"), (["--help"], "batch")]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert words in capsys.readouterr().out
