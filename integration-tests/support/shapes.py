"""Asking for answers of a shape, and what is asked for: a small schema and some tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import openai
import pydantic

from support.api import Api

T = TypeVar("T")

AT_ONCE = 32
ASKED: list[Any] = [{"role": "user", "content": "Tell me a story about the weather in Bern."}]
CHAT = "/v1/chat/completions"

DAYS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3}
SMALL = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome", "Oslo"]}, "days": DAYS},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SHAPE = {"type": "json_schema", "json_schema": {"name": "small", "schema": SMALL, "strict": True}}


class Report(pydantic.BaseModel):
    """The weather of a place."""

    city: Literal["Bern", "Rome"]
    degrees: int = pydantic.Field(ge=-50, le=50)
    windy: bool


class Place(pydantic.BaseModel):
    """Where something is."""

    kind: Literal["town", "lake"]
    report: Report


PING: dict[str, Any] = {"type": "function", "function": {"name": "ping"}}
REPORT: Any = openai.pydantic_function_tool(Report, name="report")
PLACE: Any = openai.pydantic_function_tool(Place, name="place")
TOOLS: list[Any] = [REPORT, PLACE, PING]


def chat(api: Api, **fields: Any) -> dict[str, Any]:
    """A drawn chat answer's only choice; its text may be streamed."""
    body = {"messages": ASKED, "temperature": 1.5, "max_tokens": 160} | fields
    if not body.get("stream"):
        choice: dict[str, Any] = api.post(CHAT, body)["choices"][0]
        return choice
    calls: list[dict[str, Any]] = []
    text, reason = "", None
    with api.events(CHAT, body) as events:
        for event in events:
            (choice,) = event["choices"]
            text += choice["delta"].get("content") or ""
            calls += choice["delta"].get("tool_calls") or []
            reason = choice["finish_reason"] or reason
    return {"message": {"content": text, "tool_calls": joined(calls)}, "finish_reason": reason}


def joined(deltas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls put together from a stream's pieces."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta["index"] == len(calls):
            calls.append({"id": delta["id"], "type": delta["type"], "function": {**delta["function"]}})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


def many(ask: Callable[[int], T], count: int) -> list[T]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, range(count)))


def finished(answers: Sequence[dict[str, Any]], at_least: float) -> list[tuple[int, str]]:
    """Number and text of the answers that came to an end; there must be some."""
    assert {answer["finish_reason"] for answer in answers} <= {"stop", "length"}
    whole = [
        (number, answer["message"]["content"] or "")
        for number, answer in enumerate(answers)
        if answer["finish_reason"] == "stop"
    ]
    assert len(whole) >= at_least * len(answers), f"only {len(whole)} of {len(answers)} ended"
    return whole
