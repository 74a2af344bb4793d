"""Chats with a server: so many at once, each asking again as soon as it was answered."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from benchmark.servers import Models, Running, Server

SECONDS = 600.0  # after which an answer has failed


class Unanswered(Exception):
    """A server did not send what it was asked for; the message says what came."""


@dataclass(frozen=True)
class Request:
    """prompt: ids of tokens. new_tokens: of the answer, exactly."""

    prompt: Sequence[int]
    new_tokens: int


@dataclass(frozen=True)
class Answered:
    """Seconds. first: from the request until something of the answer came. gaps: between what came, piece by piece."""

    first: float
    gaps: Sequence[float]


@dataclass(frozen=True)
class Turn:
    """What all clients saw within some seconds."""

    seconds: float
    answers: Sequence[Answered]

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.answers) / self.seconds

    def first(self, share: float) -> float:
        """Seconds to the first token that this share of the requests did not exceed."""
        return quantile([each.first for each in self.answers], share)

    def gap(self, share: float) -> float:
        """The same for the time between two pieces of an answer."""
        return quantile([gap for each in self.answers for gap in each.gaps], share)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of them that is not exceeded by this share of them."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def requests(count: int, prompt: tuple[int, int], new: tuple[int, int], vocabulary: int, seed: int) -> list[Request]:
    """Random ids and lengths, at least and at most."""
    draw = random.Random(seed)
    return [
        Request([draw.randrange(8, vocabulary) for _ in range(draw.randint(*prompt))], draw.randint(*new))
        for _ in range(count)
    ]


async def chats(server: Server, running: Running, models: Models, asked: Sequence[Request], at_once: int) -> Turn:
    """Asks for everything, so much of it at once. Raises `Unanswered`."""
    waiting, answers = iter(asked), list[Answered]()
    connector = aiohttp.TCPConnector(limit=at_once)
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    url = f"http://127.0.0.1:{running.port}{server.path}"
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def client() -> None:
            for request in waiting:
                answers.append(await _ask(session, url, server, models, request))

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(at_once)))
        return Turn(time.perf_counter() - began, answers)


async def _ask(session: aiohttp.ClientSession, url: str, server: Server, models: Models, request: Request) -> Answered:
    tokens, came = 0, list[float]()
    began = time.perf_counter()
    async with session.post(url, json=server.body(models, request.prompt, request.new_tokens)) as response:
        if response.status != 200:
            raise Unanswered(f"{server.name} answered {response.status}: {(await response.text())[:200]}")
        async for line in response.content:
            if not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[5:])
            told = server.tokens(event)
            if told is None:
                came.append(time.perf_counter())
            else:
                tokens = told
    if tokens != request.new_tokens or not came:
        raise Unanswered(f"{server.name} sent {tokens} tokens instead of {request.new_tokens}")
    return Answered(came[0] - began, [later - earlier for earlier, later in zip(came, came[1:], strict=False)])
