"""Requests to a server, and the answers in the shapes that tests compare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from support.prompts import Case

T = TypeVar("T")

SECONDS = 100.0
MANY = httpx.Limits(max_connections=None, max_keepalive_connections=0)


@dataclass(frozen=True)
class Answer:
    """What a native route said. `pieces` are the texts of the tokens or events, special ones left out."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    seed: int | None = None
    pieces: tuple[str, ...] = ()


class Api:
    """A client of one server; safe to share between threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=SECONDS, trust_env=False, limits=MANY)

    def close(self) -> None:
        self.http.close()

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer of a request that must succeed."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        return answer.json()

    def generate(self, inputs: str, **parameters: Any) -> Answer:
        """`POST /generate`."""
        said = self.post("/generate", {"inputs": inputs, "parameters": parameters | {"details": True}})
        details = said["details"]
        assert details["generated_tokens"] == len(details["tokens"])
        return Answer(
            tokens=tuple(token["id"] for token in details["tokens"]),
            text=said["generated_text"],
            finish_reason=details["finish_reason"],
            seed=details["seed"],
            pieces=tuple(token["text"] for token in details["tokens"] if not token["special"]),
        )

    def stream(self, inputs: str, **parameters: Any) -> Answer:
        """`POST /generate_stream`, read to its end."""
        with self.events("/generate_stream", native(inputs, **parameters)) as events:
            return collect(events)

    def case(self, case: Case) -> Answer:
        return self.generate(case.text, truncate=case.truncate, max_new_tokens=case.max_new_tokens)

    @contextmanager
    def events(self, path: str, body: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a stream as they come; leaving the block closes the connection."""
        with self.http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                raise AssertionError(f"{answer.status_code}: {answer.read().decode()}")
            assert answer.headers["content-type"] == "text/event-stream"
            yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data:") and line != "data: [DONE]":
            event: dict[str, Any] = json.loads(line.removeprefix("data:"))
            assert "error" not in event, event
            yield event


def native(inputs: str, **parameters: Any) -> dict[str, Any]:
    """The body of a native stream."""
    return {"inputs": inputs, "parameters": parameters | {"details": True}}


def collect(events: Iterator[dict[str, Any]]) -> Answer:
    """A native stream as an answer; checks the order of its events."""
    return collect_from([], events)


def collect_from(seen: Sequence[dict[str, Any]], rest: Iterator[dict[str, Any]]) -> Answer:
    """The same, where some events were read before."""
    every = [*seen, *rest]
    assert [event["index"] for event in every] == list(range(1, len(every) + 1))
    assert all(event["generated_text"] is None and event["details"] is None for event in every[:-1])
    last = every[-1]
    assert last["details"]["generated_tokens"] == len(every)
    return Answer(
        tokens=tuple(event["token"]["id"] for event in every),
        text=last["generated_text"],
        finish_reason=last["details"]["finish_reason"],
        seed=last["details"]["seed"],
        pieces=tuple(event["token"]["text"] for event in every if not event["token"]["special"]),
    )


def together(calls: Sequence[Any]) -> list[Any]:
    """Run calls without arguments, each on a thread of its own; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
