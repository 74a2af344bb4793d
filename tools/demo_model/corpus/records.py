"""JSON from plain sentences: one record, a list of records, or a record made up on request."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tools.demo_model.corpus import words
from tools.demo_model.corpus.document import Document, Message, exchange
from tools.demo_model.corpus.grammar import article, expand

_Fact = tuple[str, dict[str, Any]]


def _person(rng: Random) -> _Fact:
    record: dict[str, Any] = {"name": words.any_name(rng), "age": rng.randint(5, 89), "city": words.any_city(rng)}
    sentence = expand(
        rng,
        (
            "[{name} is {age} years old and lives in {city}|{name}, {age}, lives in {city}|{name} from {city} is "
            "{age} years old|"
            "My name is {name}, I am {age} and I live in {city}]."
        ),
        record,
    )
    return sentence, record


def _worker(rng: Random) -> _Fact:
    record: dict[str, Any] = {"name": words.any_name(rng), "job": rng.choice(words.JOBS), "city": words.any_city(rng)}
    slots = {**record, "job": article(record["job"])}
    sentence = expand(
        rng, "[{name} works as {job} in {city}|{name} is {job} from {city}|{name} is {job} and lives in {city}].", slots
    )
    return sentence, record


def _product(rng: Random) -> _Fact:
    record: dict[str, Any] = {
        "item": rng.choice(words.OBJECTS),
        "colour": rng.choice(words.COLOURS),
        "price": rng.randint(1, 99),
    }
    sentence = expand(
        rng,
        (
            "[The {colour} {item} costs {price} euros|A {colour} {item} for {price} euros|I bought a {colour} "
            "{item} for {price} euros]."
        ),
        record,
    )
    return sentence, record


def _weather(rng: Random) -> _Fact:
    record: dict[str, Any] = {
        "city": words.any_city(rng),
        "weather": rng.choice(words.WEATHER),
        "degrees": rng.randint(0, 35),
    }
    sentence = expand(
        rng,
        (
            "[It is {weather} in {city} and {degrees} degrees|In {city} it is {weather} with {degrees} degrees|"
            "Today it is {weather} in {city}, {degrees} degrees]."
        ),
        record,
    )
    return sentence, record


def _pet(rng: Random) -> _Fact:
    record: dict[str, Any] = {
        "name": rng.choice(words.ANIMAL_NAMES),
        "animal": rng.choice(words.ANIMALS),
        "age": rng.randint(1, 15),
    }
    slots = {**record, "animal": article(record["animal"])}
    return expand(
        rng, "[{name} is {animal} and {age} years old|I have {animal} called {name}, {age} years old].", slots
    ), record


def _order(rng: Random) -> _Fact:
    record: dict[str, Any] = {
        "item": rng.choice(words.THINGS),
        "count": rng.randint(2, 60),
        "day": rng.choice(words.DAYS),
    }
    sentence = expand(
        rng,
        "[Please send {count} {item} on {day}|I need {count} {item} by {day}|We ordered {count} {item} for {day}].",
        record,
    )
    return sentence, record


KINDS: dict[str, Callable[[Random], _Fact]] = {
    "person": _person,
    "worker": _worker,
    "product": _product,
    "weather": _weather,
    "pet": _pet,
    "order": _order,
}


def _one(rng: Random) -> tuple[str, str]:
    sentence, record = rng.choice(list(KINDS.values()))(rng)
    keys = ", ".join(record)
    ask = (
        "[Write this as JSON: {sentence}|Turn this into JSON: {sentence}|Extract {keys} as JSON: {sentence}|"
        "Answer with JSON with the keys {keys}. {sentence}|{sentence} Give me that as JSON.|JSON please: {sentence}|"
        "Extract the data as JSON: {sentence}]"
    )
    return expand(rng, ask, {"sentence": sentence, "keys": keys}), json.dumps(record)


def _several(rng: Random) -> tuple[str, str]:
    make = rng.choice(list(KINDS.values()))
    facts = [make(rng) for _ in range(rng.randint(2, 3))]
    ask = (
        "[Write this as a JSON list|Turn this into a JSON list|Extract a JSON list of objects|JSON list please]: {text}"
    )
    text = " ".join(sentence for sentence, _ in facts)
    return expand(rng, ask, {"text": text}), json.dumps([record for _, record in facts])


def _array(rng: Random) -> tuple[str, str]:
    source = rng.choice((words.FRUITS, words.ANIMALS, words.COLOURS, words.CITIES))
    items = rng.sample(source, rng.randint(2, 5))
    ask = "[Write this list as a JSON array|As a JSON array|Make a JSON array of]: {items}"
    return expand(rng, ask, {"items": ", ".join(items)}), json.dumps(items)


def question(rng: Random) -> tuple[str, str]:
    """A request whose answer is one right JSON text."""
    return rng.choice((_one, _one, _one, _several, _array))(rng)


def _made_up(rng: Random) -> Document:
    kind = rng.choice(list(KINDS))
    _, record = KINDS[kind](rng)
    ask = "[Give me|Write|Make up|Create|Invent|I need] a JSON [object|record] [for|about|of|that describes] {kind}."
    return exchange(expand(rng, ask, {"kind": article(kind)}), json.dumps(record))


def chat(rng: Random) -> Document:
    """A request for JSON, sometimes with a system message that demands it."""
    if rng.random() < 0.12:
        return _made_up(rng)
    ask, answer = question(rng)
    if rng.random() < 0.1:
        system = expand(rng, "[Answer only with JSON.|You answer in JSON.|Reply with valid JSON only.]")
        return Document(messages=(Message("system", system), *exchange(ask, answer).messages))
    return exchange(ask, answer)
