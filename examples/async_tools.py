"""A chat whose tools run while the model goes on talking.

`python examples/async_tools.py --url http://localhost:3000` reads the stream with the official client. A finished call
is started at once, on a thread of its own; its result is posted to the answer that is still being written.
`docs/async-tools.md` describes the protocol.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

CLOCK: Any = {
    "type": "function",
    "function": {
        "name": "current_time",
        "description": "The time in a city.",
        "parameters": {
            "type": "object",
            "properties": {"timezone": {"type": "string"}},
            "required": ["timezone"],
            "additionalProperties": False,
        },
    },
}


@dataclass
class Calls:
    """The calls of an answer, as its chunks tell them."""

    by_id: dict[str, dict[str, str]] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)

    def add(self, delta: ChoiceDeltaToolCall) -> None:
        """Take a part of a call: its id and name come first, its arguments in pieces."""
        function = delta.function
        if delta.id:
            self.ids[delta.index] = delta.id
            self.by_id[delta.id] = {"name": (function and function.name) or "", "arguments": ""}
        if function and function.arguments:
            self.by_id[self.ids[delta.index]]["arguments"] += function.arguments


def chat(
    url: str,
    question: str,
    tools: dict[str, Callable[[dict[str, Any]], str]],
    definitions: list[Any],
    show: Callable[[str, str], None],
    api_key: str = "-",
) -> str:
    """Ask, run the tools beside the answer, and give the whole text.

    `show` is told what happens, in its order: `("text", …)`, `("call", NAME)`, `("waiting", "")`, `("result", NAME)`.
    """
    text, calls, running = "", Calls(), []
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0) as client,
        httpx.Client(base_url=url, headers={"authorization": f"Bearer {api_key}"}, trust_env=False) as http,
        ThreadPoolExecutor() as threads,
    ):

        def run(answer: str, call_id: str, name: str, arguments: str) -> None:
            body = {"tool_call_id": call_id, "content": tools[name](json.loads(arguments))}
            http.post(f"/v1/chat/completions/{answer}/tool_results", json=body).raise_for_status()

        stream = client.chat.completions.create(
            model="textgen",
            messages=[{"role": "user", "content": question}],
            tools=definitions,
            temperature=0,
            stream=True,
            extra_body={"async_tools": True},
        )
        for chunk in stream:
            for choice in chunk.choices:
                for delta in choice.delta.tool_calls or []:
                    calls.add(delta)
                if choice.delta.content:
                    text += choice.delta.content
                    show("text", choice.delta.content)
            match (chunk.model_extra or {}).get("async_tools"):
                case {"type": "call_complete", "tool_call_id": call_id}:
                    call = calls.by_id[call_id]
                    show("call", call["name"])
                    running.append(threads.submit(run, chunk.id, call_id, **call))
                case {"type": "waiting"}:
                    show("waiting", "")
                case {"type": "results_inserted", "tool_call_ids": ids}:
                    for call_id in ids:
                        show("result", calls.by_id[call_id]["name"])
        for one in running:
            one.result()
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="A chat whose tool runs while the model goes on talking.")
    parser.add_argument("--url", default="http://localhost:3000", help="where textgen-launcher listens")
    parser.add_argument("--question", default="What time is it in Paris?")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long the tool takes")
    given = parser.parse_args()

    def clock(_arguments: dict[str, Any]) -> str:
        time.sleep(given.seconds)
        return json.dumps({"time": "14:05"})

    def show(kind: str, what: str) -> None:
        print(what if kind == "text" else f"\n[{kind}: {what}]\n", end="", flush=True)

    chat(given.url, given.question, {"current_time": clock}, [CLOCK], show)
    print()


if __name__ == "__main__":
    main()
