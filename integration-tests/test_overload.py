"""Two thousand clients at once, most of whom cannot be served: each hears so at once, by status."""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.processes import frozen
from support.server import Launcher, Start

pytestmark = pytest.mark.timeout(240)

CLIENTS = 2000
SEATS = 8
HOUSE = 24  # of whom the others wait
SECONDS = 120.0


@pytest.fixture(autouse=True)
def enough_sockets() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < 2 * CLIENTS:
        pytest.skip(f"this machine allows {most} open files, and {CLIENTS} connections need more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Counted:
    """Answers so far, and a bell for the moment when only those inside are left."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.refused = asyncio.Event()

    def add(self, status: int) -> None:
        self.statuses[status] += 1
        if self.statuses.total() == CLIENTS - HOUSE:
            self.refused.set()


async def ask(host: str, port: int, number: int, counted: Counted) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own; every second one streams."""
    body = json.dumps({"prompt": "Hello", "max_tokens": 4, "temperature": 0, "stream": number % 2 == 0}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.read(-1)
    writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    status = int(first.split()[1])
    counted.add(status)
    return status, headers, rest


async def flood(launcher: Launcher) -> list[tuple[int, dict[str, str], bytes]]:
    parts = urlsplit(launcher.url)
    assert parts.hostname is not None
    assert parts.port is not None
    counted = Counted()
    with frozen(launcher.shard()):  # nobody inside can leave before everybody has asked
        calls = [asyncio.ensure_future(ask(parts.hostname, parts.port, number, counted)) for number in range(CLIENTS)]
        await asyncio.wait_for(counted.refused.wait(), SECONDS)
        assert set(counted.statuses) <= {429, 503}
    return await asyncio.wait_for(asyncio.gather(*calls), SECONDS)


@pytest.mark.parametrize(
    ("flags", "status", "code"),
    [
        ({"max_concurrent_requests": HOUSE}, 429, "overloaded"),
        ({"max_concurrent_requests": CLIENTS, "max_queue_size": HOUSE - SEATS}, 503, "queue_full"),
    ],
    ids=["no permit", "full queue"],
)  # fmt: skip
def test_two_thousand_at_once(start: Start, tiny_folder: Path, flags: dict[str, int], status: int, code: str) -> None:
    launcher = start(model=tiny_folder, max_batch_size=SEATS, **flags).wait_ready()
    answers = asyncio.run(flood(launcher))
    statuses = Counter(answer[0] for answer in answers)
    assert statuses == {200: HOUSE, status: CLIENTS - HOUSE}
    for got, headers, body in answers:
        if got == 200:
            continue
        assert headers["content-type"] == "application/json"
        assert 1 <= int(headers["retry-after"]) <= 60
        assert json.loads(body)["error"]["code"] == code
    metrics = launcher.metrics()
    assert metrics.value("tgi_request_failure", err="overloaded") == CLIENTS - HOUSE
    assert metrics.value("tgi_request_success") == HOUSE
    launcher.must_run()
