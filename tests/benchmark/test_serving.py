"""Chats with a server that says what it was told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from benchmark.servers import LlamaServer, Models, Running, Server, Textgen
from benchmark.serving.load import Answered, Request, Turn, Unanswered, chats, quantile, requests
from benchmark.serving.run import CASES, Results, rows

MODELS = Models(Path("model"), Path("model.gguf"))


@asynccontextmanager
async def said(path: str, short: int = 0, status: int = 200) -> AsyncIterator[tuple[Running, list[dict[str, Any]]]]:
    """A server of two dialects that leaves out so many tokens, and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked.append(body)
        if status != 200:
            return web.Response(status=status, text="no room")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        tokens = body.get("max_tokens", body.get("n_predict")) - short
        events: list[dict[str, Any]] = [{"choices": [{"text": "a"}], "content": "a"} for _ in range(tokens)]
        events.append({"choices": [], "usage": {"completion_tokens": tokens}, "stop": True, "tokens_predicted": tokens})
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    try:
        yield Running(site._server.sockets[0].getsockname()[1], 0, 0.0), asked  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("server", [Textgen(), LlamaServer(Path("bin/python"))], ids=lambda server: server.name)
def test_all_are_asked_and_timed(server: Server) -> None:
    async def run() -> tuple[Turn, list[dict[str, Any]]]:
        async with said(server.path) as (running, asked):
            given = [Request([5, 6, 7], number) for number in range(1, 8)]
            return await chats(server, running, MODELS, given, 3), asked

    turn, asked = asyncio.run(run())
    assert len(turn.answers) == len(asked) == 7
    assert sorted(len(each.gaps) for each in turn.answers) == list(range(7))
    assert all(each.first > 0 for each in turn.answers)
    assert all(body["prompt"] == [5, 6, 7] and body["stream"] for body in asked)


@pytest.mark.parametrize(("fault", "words"), [({"short": 1}, "sent 3 tokens instead"), ({"status": 503}, "503: no")])
def test_what_was_not_sent_is_not_counted(fault: dict[str, int], words: str) -> None:
    async def run() -> None:
        async with said(Textgen.path, **fault) as (running, _):
            await chats(Textgen(), running, MODELS, [Request([5], 4)], 1)

    with pytest.raises(Unanswered, match=words):
        asyncio.run(run())


def test_requests_are_drawn_within_bounds() -> None:
    drawn = requests(50, (3, 9), (2, 4), 20, seed=1)
    assert drawn == requests(50, (3, 9), (2, 4), 20, seed=1) != requests(50, (3, 9), (2, 4), 20, seed=2)
    assert {len(each.prompt) for each in drawn} <= set(range(3, 10))
    assert {each.new_tokens for each in drawn} == {2, 3, 4}
    assert all(8 <= token < 20 for each in drawn for token in each.prompt)


def test_medians_beside_each_peer() -> None:
    def turn(first: float) -> Turn:
        return Turn(2.0, [Answered(first, (0.1, 0.2)), Answered(2 * first, (0.3,))])

    servers = {"textgen": (1.0, 100.0), "vllm": (50.0, 400.0), "llama-server": (0.5, 95.0)}
    results = Results(servers={"S, bf16": servers})
    results.turns["S, bf16", "32 chats"] = {
        "textgen": [turn(0.1), turn(0.2), turn(0.9)], "vllm": [turn(0.4)], "llama-server": [turn(0.8)],
    }  # fmt: skip
    found = {(row.case, row.metric, row.peer): row for row in rows(results, {"vllm": "1", "llama-server": "2"})}
    first = found["S, bf16, 32 chats", "first token, 95 of 100", "vllm"]
    assert [first.ours, first.theirs] == pytest.approx([400, 800])
    assert first.holds
    assert found["S, bf16, 32 chats", "requests", "llama-server"].bar is None
    assert found["S, bf16", "ready", "vllm"].ratio == 0.02
    assert found["S, bf16", "ready", "llama-server"].bar is None
    memory = "memory at most, mapped files included"
    assert [found["S, bf16", memory, peer].bar for peer in ("vllm", "llama-server")] == ["ratio <= 1", "ratio <= 1.1"]
    assert set(CASES) == {"32 chats", "64 chats", "a prompt of 128", "8 prompts of 128"}


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 2.0, 3.0, 3.0]
