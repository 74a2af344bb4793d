"""Tool use: pick the function, fill its arguments from the request, then answer from its result."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model.corpus import arithmetic, facts, words
from tools.demo_model.corpus.document import Document, Json, Message, ToolCall
from tools.demo_model.corpus.grammar import expand


@dataclass(frozen=True)
class Task:
    """One request that a tool answers: ``values`` in the order of its arguments, its ``result`` and the final ``answer``."""

    request: str
    values: tuple[Any, ...]
    result: Json
    answer: str


@dataclass(frozen=True)
class Tool:
    """A family of functions: names and argument spellings vary, so that the model must read the list of tools."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]
    types: tuple[str, ...]
    draw: Callable[[Random], Task]

    def declare(self, rng: Random) -> tuple[Json, list[str]]:
        """The OpenAI form of one function of this family, and its argument names."""
        chosen = [rng.choice(spellings) for spellings in self.arguments]
        properties = {name: {"type": kind} for name, kind in zip(chosen, self.types, strict=True)}
        return {
            "type": "function",
            "function": {
                "name": rng.choice(self.names),
                "description": rng.choice(self.descriptions),
                "parameters": {"type": "object", "properties": properties, "required": chosen},
            },
        }, chosen


def _weather(rng: Random) -> Task:
    city, sky, degrees = words.any_city(rng), rng.choice(words.WEATHER), rng.randint(-5, 35)
    ask = (
        "[What is the weather in {city}|How is the weather in {city}|What's the weather like in {city}|"
        "Is it raining in {city}|Tell me the weather in {city}|weather in {city}|What is the weather like in "
        "{city} today]?"
    )
    return Task(
        expand(rng, ask, {"city": city}),
        (city,),
        {"temperature": degrees, "weather": sky},
        f"It is {sky} in {city}, {degrees} degrees.",
    )


def _time(rng: Random) -> Task:
    city, clock = words.any_city(rng), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    ask = "[What time is it in {city}|What is the time in {city}|Tell me the time in {city}]?"
    return Task(expand(rng, ask, {"city": city}), (city,), {"time": clock}, f"It is {clock} in {city}.")


def _add(rng: Random) -> Task:
    a, b = rng.randint(10, 999), rng.randint(10, 999)
    ask = "[What is|How much is|Use the tool to compute] {a} + {b}?"
    return Task(expand(rng, ask, {"a": str(a), "b": str(b)}), (a, b), {"result": a + b}, f"{a} + {b} = {a + b}")


def _mail(rng: Random) -> Task:
    name = words.any_name(rng)
    text = expand(
        rng,
        "[I will be late|see you on {day}|thank you for the {thing}|please call me|lunch at noon]",
        {"day": rng.choice(words.DAYS), "thing": rng.choice(words.OBJECTS)},
    )
    ask = "[Send a message to {name}: {text}|Write to {name}: {text}|Tell {name} this: {text}]"
    return Task(
        expand(rng, ask, {"name": name, "text": text}),
        (name, text),
        {"status": "sent"},
        f"Done. I sent the message to {name}.",
    )


def _remind(rng: Random) -> Task:
    what = expand(rng, "[buy|find|clean|bring] the {thing}", {"thing": rng.choice(words.OBJECTS)})
    day = rng.choice(words.DAYS)
    ask = "[Remind me to {what} on {day}|Set a reminder for {day}: {what}|Please remind me on {day} to {what}]."
    return Task(
        expand(rng, ask, {"what": what, "day": day}),
        (what, day),
        {"status": "ok"},
        f"Done. I will remind you on {day}.",
    )


def _search(rng: Random) -> Task:
    topic = rng.choice(words.WORDS) if rng.random() < 0.6 else words.coined(rng)
    found = rng.randint(2, 90)
    ask = "[Search for|Look up|Find pages about|Search the web for] {topic}."
    return Task(
        expand(rng, ask, {"topic": topic}), (topic,), {"results": found}, f"I found {found} results for {topic}."
    )


def _price(rng: Random) -> Task:
    item, price = rng.choice(words.OBJECTS), rng.randint(2, 200)
    ask = "[How much does the {item} cost|What is the price of the {item}|How much is the {item}]?"
    return Task(expand(rng, ask, {"item": item}), (item,), {"price": price}, f"The {item} costs {price} euros.")


def _light(rng: Random) -> Task:
    room, state = rng.choice(("kitchen", "bedroom", "garden", "hall", "office", "bathroom")), rng.choice(("on", "off"))
    ask = "[Turn {state} the light in the {room}|Switch the {room} light {state}|Light {state} in the {room}, please]."
    return Task(
        expand(rng, ask, {"room": room, "state": state}),
        (room, state),
        {"status": "ok"},
        f"The light in the {room} is {state}.",
    )


def _dice(rng: Random) -> Task:
    sides = rng.choice((6, 8, 10, 12, 20))
    value = rng.randint(1, sides)
    ask = "[Roll a die with {n} sides|Roll a {n} sided die|Throw a die with {n} sides]."
    return Task(expand(rng, ask, {"n": str(sides)}), (sides,), {"value": value}, f"You rolled {value}.")


_CITY = ("city", "location", "place", "town")
TOOLS = (
    Tool(
        ("get_weather", "get_current_weather", "weather", "current_weather", "get_forecast"),
        ("Get the weather of a city.", "Current weather", "Get the current weather", "The weather at a place"),
        (_CITY,),
        ("string",),
        _weather,
    ),
    Tool(
        ("get_time", "current_time", "get_current_time", "clock"),
        ("The time in a city.", "Get the current time"),
        (("city", "location", "timezone"),),
        ("string",),
        _time,
    ),
    Tool(
        ("add", "sum", "add_numbers", "calculator"),
        ("Add two numbers.", "Adds a and b", "Compute a sum"),
        (("a", "x", "first"), ("b", "y", "second")),
        ("integer", "integer"),
        _add,
    ),
    Tool(
        ("send_message", "send_mail", "send_email", "message"),
        ("Send a message to a person.", "Write to somebody"),
        (("to", "recipient", "name"), ("text", "body", "message")),
        ("string", "string"),
        _mail,
    ),
    Tool(
        ("add_reminder", "set_reminder", "remind"),
        ("Set a reminder.", "Remind the user of something"),
        (("task", "text", "what"), ("day", "date", "when")),
        ("string", "string"),
        _remind,
    ),
    Tool(
        ("search", "web_search", "lookup", "find"),
        ("Search the web.", "Find pages about a topic"),
        (("query", "q", "topic"),),
        ("string",),
        _search,
    ),
    Tool(
        ("get_price", "price", "lookup_price"),
        ("The price of an item.", "Get the price of a product"),
        (("item", "product", "name"),),
        ("string",),
        _price,
    ),
    Tool(
        ("set_light", "light", "switch_light"),
        ("Switch a light on or off.", "Control the lights"),
        (("room", "place"), ("state", "mode")),
        ("string", "string"),
        _light,
    ),
    Tool(("roll_die", "roll_dice", "dice"), ("Roll a die.", "Throw a die"), (("sides", "n"),), ("integer",), _dice),
)


def _offer(rng: Random, wanted: Tool) -> tuple[list[Json], Json, list[str]]:
    """A shuffled list of one to three tools with the wanted one in it."""
    declared, arguments = wanted.declare(rng)
    others = [tool.declare(rng)[0] for tool in rng.sample([t for t in TOOLS if t is not wanted], rng.randint(0, 2))]
    offered = [declared, *others]
    rng.shuffle(offered)
    return offered, declared, arguments


def call(rng: Random) -> Document:
    """A request, the call, its result and the answer; now and then only up to the call."""
    tool = rng.choice(TOOLS)
    offered, declared, names = _offer(rng, tool)
    task = tool.draw(rng)
    called = ToolCall(declared["function"]["name"], dict(zip(names, task.values, strict=True)))
    return Document(
        messages=(
            Message("user", task.request),
            Message("assistant", "", (called,)),
            Message("tool", json.dumps(task.result)),
            Message("assistant", task.answer),
        ),
        tools=tuple(offered),
    )


def _no_call(rng: Random) -> Document:
    """Tools are offered but the question needs none of them."""
    weather = TOOLS[0]
    offered, _, _ = _offer(rng, rng.choice((weather, *TOOLS[3:])))
    offered = [tool for tool in offered if tool["function"]["name"] not in TOOLS[2].names] or [weather.declare(rng)[0]]
    plain = rng.choice((arithmetic.chat, facts.chat, facts.greeting))(rng)
    return Document(messages=plain.messages, tools=tuple(offered))


def chat(rng: Random) -> Document:
    """A conversation with tools."""
    return _no_call(rng) if rng.random() < 0.12 else call(rng)
