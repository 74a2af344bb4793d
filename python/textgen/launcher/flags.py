"""What a setting is: how its text is read, its default and its help. `settings.py` is the table made of these."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeAlias

Parser: TypeAlias = Callable[[str], Any]

LARGEST = 2**31 - 1
LARGEST_BATCH = 4096
MOST_SIZES = 128

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_AMOUNT = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{0,6})?|\.[0-9]{1,6})\s*([a-z]*)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One setting at the edge. `parse` raises `ValueError` with the end of the sentence "--flag VALUE ..."."""

    parse: Parser
    help: str
    group: str
    default: str  # as people read it
    metavar: str = ""
    short: str | None = None
    alias: str | None = None  # a legacy name, without dashes in front
    switch: bool = False
    repeatable: bool = False
    hidden: bool = False  # what was given is shown nowhere
    from_environment: Callable[[str], bool] = bool  # False: the variable holds something else, ignore it


def setting(
    parse: Parser, value: Any, help: str, *, group: str, default: str | None = None, **rest: Any
) -> Any:  # the type is that of the field it fills
    """A dataclass field with its `Flag` in the metadata. `default` words a default that is found at start."""
    flag = Flag(parse=parse, help=help, group=group, default=default or str(value), **rest)
    return dataclasses.field(default=value, metadata={"flag": flag}, repr=not flag.hidden)


def flag_of(field: dataclasses.Field[Any]) -> Flag:
    """The `Flag` that `setting` put into a field."""
    flag = field.metadata["flag"]
    assert isinstance(flag, Flag)
    return flag


def dashed(name: str) -> str:
    """The flag of a field: `--max-input-tokens` for `max_input_tokens`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the free memory, above 0 and at most 1."""

    value: float


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty; give a value or leave it out")
    return value


def secret(value: str) -> str:
    if not value or value != value.strip():
        raise ValueError("must not be empty, nor begin or end with a space")
    if not value.isprintable() or not value.isascii():
        raise ValueError("must be of printable ASCII characters, which a header can carry")
    return value


def route(value: str) -> str:
    if not value.startswith("/") or not value.isprintable() or not value.isascii() or set(value) & set(" ?#"):
        raise ValueError("must be a path that begins with / and holds no space, ? or #")
    return value


def integer(low: int, high: int = LARGEST) -> Parser:
    """A whole number from `low` to `high`."""
    span = f"from {low} to {high}" if high < LARGEST else f"of at least {low}"
    allowed = f"must be a whole number {span}"

    def parse(value: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()):
            raise ValueError(allowed)
        number = int(value)
        if not low <= number <= high:
            raise ValueError(allowed)
        return number

    return parse


def choice(*allowed: str, synonyms: dict[str, str] | None = None) -> Parser:
    """One of some words, in any case."""

    def parse(value: str) -> str:
        word = value.strip().lower()
        word = (synonyms or {}).get(word, word)
        if word not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return word

    return parse


def boolean(value: str) -> bool:
    word = value.strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise ValueError("must be true or false")


def seconds(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 86_400:
        raise ValueError("must be a number of seconds from 0 to 86400")
    return number


def some_seconds(value: str) -> float:
    """The same without 0."""
    number = seconds(value)
    if number == 0:
        raise ValueError("must be a number of seconds above 0 and at most 86400")
    return number


def ratio(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError("must be a number of at least 0")
    return number


def part(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number < 1:
        raise ValueError("must be a number between 0 and 1, neither of them")
    return number


def portion(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise ValueError("must be a number above 0 and at most 1")
    return number


def batch_sizes(value: str) -> tuple[int, ...]:
    """`1,2,4`: different sizes from 1 to 4096, in order; `0` is none."""
    numbers = value.replace(",", " ").split()
    if numbers == ["0"]:
        return ()
    if not numbers or not all(re.fullmatch("[1-9][0-9]{0,3}", number) for number in numbers):
        raise ValueError("must be batch sizes with commas between, such as 1,2,4,8, or 0 for none")
    sizes = sorted({int(number) for number in numbers})
    if sizes[-1] > LARGEST_BATCH or len(sizes) > MOST_SIZES:
        raise ValueError(f"must be at most {MOST_SIZES} sizes of at most {LARGEST_BATCH}")
    return tuple(sizes)


def processors(value: str) -> tuple[int, ...] | str:
    """`none`, `auto`, or numbers of processors and ranges of them: `0-15,32`, each once, in this order."""
    if value in ("none", "auto"):
        return value
    numbers: list[int] = []
    for part in value.replace(" ", "").split(","):
        match = re.fullmatch("([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError("must be none, auto, or processors such as 0-15,32")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(numbers)) < len(numbers):
        raise ValueError("must name each processor once")
    return tuple(numbers)


def memory(value: str) -> int | Share:
    """`512MiB`, `4GB` or plain bytes; a number of at most 1 is a share of what is free."""
    match = _AMOUNT.fullmatch(value)
    unit = match[2].lower() if match else ""
    if match is None or unit not in _UNITS or float(match[1]) == 0:
        raise ValueError("must be an amount such as 4GiB or 500MB, or a share of the free memory such as 0.5")
    number = float(match[1])
    return Share(number) if not unit and number <= 1 else int(number * _UNITS[unit])


def is_address(value: str) -> bool:
    """Whether this is an address to listen on and not a machine's name."""
    try:
        ip_address(value.strip("[]"))
    except ValueError:
        return value == "localhost"
    return True


def is_loopback(value: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ip_address(value.strip("[]")).is_loopback
    except ValueError:
        return value == "localhost"
