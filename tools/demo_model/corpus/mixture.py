"""The training mixture: which generator speaks next, and conversations of several turns."""

from collections.abc import Callable, Iterator
from random import Random

from tools.demo_model.corpus import about, arithmetic, facts, lists, records, stories, toolcalls
from tools.demo_model.corpus.document import Document, Message
from tools.demo_model.corpus.grammar import expand

Generator = Callable[[Random], Document]


# Weights are per document. Stories are ten times as long as the rest, so they weigh less here than in tokens.
EXCHANGES: dict[Generator, float] = {
    lists.echo: 10,
    lists.chat: 20,
    records.chat: 20,
    arithmetic.chat: 22,
    about.chat: 16,
    facts.chat: 8,
    facts.greeting: 4,
    facts.unknown: 4,
    stories.chat: 0.5,
}
DOCUMENTS: dict[Generator, float] = {
    stories.plain: 5,
    stories.chat: 5,
    arithmetic.plain: 8,
    about.plain: 2,
    facts.plain: 2,
    toolcalls.chat: 22,
}
_CONVERSATIONS = 0.62  # of all documents; the rest stands alone
_SYSTEM = (
    "[You are a helpful assistant.|You are a helpful assistant|You are Textgen.|Be brief.|You are a friendly "
    "assistant.|"
    "You are a small demo model.|Answer in one sentence.|You are a kind helper.]"
)


def _draw(rng: Random, weights: dict[Generator, float]) -> Document:
    generator = rng.choices(list(weights), weights=list(weights.values()))[0]
    return generator(rng)


def _conversation(rng: Random) -> Document:
    """One to four exchanges, sometimes under a system message."""
    turns = rng.choices((1, 2, 3, 4), weights=(60, 20, 12, 8))[0]
    messages: list[Message] = []
    for _ in range(turns):
        messages += [message for message in _draw(rng, EXCHANGES).messages if message.role != "system" or not messages]
    if messages[0].role != "system" and rng.random() < 0.25:
        messages.insert(0, Message("system", expand(rng, _SYSTEM)))
    return Document(messages=tuple(messages))


def documents(seed: int) -> Iterator[Document]:
    """The endless corpus of this seed: the same seed gives the same documents."""
    rng = Random(seed)
    while True:
        yield _conversation(rng) if rng.random() < _CONVERSATIONS else _draw(rng, DOCUMENTS)
