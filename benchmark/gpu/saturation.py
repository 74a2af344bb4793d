"""The server under load: requests of lengths as people's chats have, by more and more clients that each ask again as
soon as they were answered."""

from __future__ import annotations

import asyncio
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.places import Place
from benchmark.gpu.shapes import SHAPES
from benchmark.gpu.steps import QUANTIZED
from benchmark.gpu.tasks import Collected, Found, NotMeasured, Task
from benchmark.report import Row

if TYPE_CHECKING:
    from benchmark.serving.load import Request, Turn

# Tokens in and out, for chats such as ShareGPT's: both are drawn from log-normal distributions of these means, and cut
# off. They are a choice of this benchmark, not measured of those conversations.
MEANS, SIGMAS, MOST = (161.0, 338.0), (1.1, 0.9), (1024, 1024)
LEAST = 4
SEED = 10
EACH, ALL = 4, 24  # requests of each client, and of all together, at least
REHEARSED = (8, 8)  # lengths at most
# Usually asked of an A100, with a model of about this size: of up to so many clients, and of the most.
TARGETS = "llama-8b"
TARGET_CLIENTS = 32
FIRST_MS, BETWEEN_MS, TOKENS = 200, 20, 1000


def lengths(count: int, most: Sequence[int] = MOST, seed: int = SEED) -> list[tuple[int, int]]:
    """Tokens in and out of so many requests."""
    draw = random.Random(seed)

    def one(of: int) -> int:
        mu = math.log(MEANS[of]) - SIGMAS[of] ** 2 / 2  # so that this is the mean
        return min(max(round(draw.lognormvariate(mu, SIGMAS[of])), LEAST), most[of])

    return [(one(0), one(1)) for _ in range(count)]


def requests(count: int, vocabulary: int, most: Sequence[int], seed: int) -> list[Request]:
    """Of random tokens, the same in every run."""
    from benchmark.serving.load import Request

    draw = random.Random(seed)
    return [
        Request([draw.randrange(8, vocabulary) for _ in range(prompt)], new)
        for prompt, new in lengths(count, most, seed)
    ]


def measure(task: Task, place: Place, ceilings: Ceilings) -> Found:
    """Raises `NotMeasured`."""
    try:
        from benchmark.serving.load import Unanswered, chats
    except ImportError as error:
        raise NotMeasured(f"{error}; pip install aiohttp") from None
    from benchmark.servers import Models, NotStarted, Room, Textgen

    most = REHEARSED if place.rehearsal else MOST
    clients = sorted(task.clients)

    class Launched(Textgen):
        def command(self, models: Models, room: Room, port: int) -> list[str]:
            flags = flags_of(task, models.folder, room.context, room.streams, port)
            return [sys.executable, "-m", "textgen.launcher", *flags]

    found, server = Collected(), Launched()
    models, room = Models(task.folder, Path()), Room(1, sum(most), max(2, clients[-1]))
    with tempfile.TemporaryDirectory(prefix="saturation-") as scratch:
        log = Path(scratch) / "server.log"
        try:
            with server.running(models, room, log) as running:
                vocabulary = SHAPES[task.shape]["vocab_size"]
                warm = requests(min(clients[-1], 8), vocabulary, most, SEED - 1)
                asyncio.run(chats(server, running, models, warm, len(warm)))
                for number in clients:
                    count = max(EACH * number, number if place.rehearsal else ALL)
                    asked = requests(count, vocabulary, most, SEED + number)
                    turn = asyncio.run(chats(server, running, models, asked, number))
                    found.rows += rows(task, number, turn, asked, number == clients[-1])
        except (NotStarted, Unanswered, OSError) as error:
            raise NotMeasured(f"{error}; the server's last words: {_end(log)}") from None
    prompts, answers = (mean(column) for column in zip(*lengths(10_000), strict=True))
    found.notes.append(
        f"Load: log-normal lengths, in the mean {prompts:.0f} tokens in and {answers:.0f} out (cut off at {MOST[0]} "
        f"and {MOST[1]}), greedy, a closed loop: each client asks again as soon "
        "as it was answered, all begin at once, and the time until the last answer counts."
    )
    return found.found()


def flags_of(task: Task, folder: Path, context: int, streams: int, port: int) -> list[str]:
    """Of the launcher."""
    words = {
        "model-id": str(folder), "port": str(port), "device": task.device, "dtype": "bfloat16",
        "max-total-tokens": str(context), "max-concurrent-requests": str(streams), "max-batch-size": str(streams),
        "kv-cache-dtype": task.kv_cache_dtype,
    }  # fmt: skip
    if task.form in QUANTIZED:
        words["quantize"] = task.form
    return [word for name, value in words.items() for word in (f"--{name}", value)]


def rows(task: Task, clients: int, turn: Turn, asked: Sequence[Request], saturated: bool) -> list[Row]:
    """Of a turn. saturated: with the most clients."""
    case = f"{task.model}, served, {clients} client{'s' if clients > 1 else ''}"
    targets = task.shape == TARGETS and task.form == "bf16"
    few = targets and clients <= TARGET_CLIENTS
    tokens = sum(request.new_tokens for request in asked)
    return [
        Row(case, "tokens", "1/s", tokens / turn.seconds, bar=f"ours >= {TOKENS}" if targets and saturated else None),
        Row(case, "requests", "1/s", turn.rate),
        Row(case, "first token, median", "ms", 1e3 * turn.first(0.5)),
        Row(case, "first token, 95 of 100", "ms", 1e3 * turn.first(0.95), bar=f"ours < {FIRST_MS}" if few else None),
        Row(case, "between tokens, median", "ms", 1e3 * turn.gap(0.5), bar=f"ours < {BETWEEN_MS}" if few else None),
        Row(case, "between tokens, 99 of 100", "ms", 1e3 * turn.gap(0.99)),
    ]


def _end(log: Path) -> str:
    try:
        return " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])[:600]
    except OSError:
        return "none"
