"""Typed reading of a model folder's config.json, old and new spellings alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from textgen.models.errors import ModelError
from textgen.models.harmless import harmless


class Config:
    """A JSON object whose values are asked for by name and type. Every refusal is a `ModelError`.

    It remembers what was asked for: what a family does not know is refused in the end, not passed over.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values = values
        self._asked: set[str] = set()
        self._sections: dict[str, Config] = {}
        self.where = where

    def has(self, name: str) -> bool:
        self._asked.add(name)
        return self._values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Whether the file says null, which for some values is not the same as saying nothing."""
        self._asked.add(name)
        return name in self._values and self._values[name] is None

    def ignore(self, *names: str) -> None:
        """Values that the family has and that do not change what it computes."""
        self._asked.update(names)

    def refuse_unknown(self) -> None:
        """Refuse a value that says something and was not asked for, unless it is known to change no numbers."""
        for name, value in self._values.items():
            if name not in self._asked and not harmless(name, value):
                raise ModelError(
                    f"{self.where}: '{name}' is {value!r}, which this model's family does not know; take it out if it "
                    "does not change what the model computes"
                )
        for section in self._sections.values():
            section.refuse_unknown()

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{self.where}: '{name}' must be a positive integer, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(name, default)
        if not _is_positive(value):
            raise ModelError(f"{self.where}: '{name}' must be a positive number, not {value!r}")
        return float(value)  # type: ignore[arg-type]

    def optional(self, name: str) -> float | None:
        """A positive number, None when absent, null or zero."""
        return self.number(name) if self.has(name) and self._values[name] != 0 else None

    def at_least(self, name: str, least: int, default: int | None = None) -> int:
        """An integer that may be zero, or negative."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ModelError(f"{self.where}: '{name}' must be an integer of at least {least}, not {value!r}")
        return value

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """So many positive numbers."""
        value = self._get(name, None)
        if not isinstance(value, list) or len(value) != count or not all(_is_positive(item) for item in value):
            raise ModelError(f"{self.where}: '{name}' must be a list of {count} positive numbers")
        return tuple(float(item) for item in value)

    def integers(self, name: str) -> list[int]:
        """Integers of at least zero; none when absent."""
        value = self._get(name, [])
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise ModelError(f"{self.where}: '{name}' must be a list of integers, not {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: '{name}' must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise ModelError(f"{self.where}: '{name}' must be a string, not {value!r}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelError(f"{self.where}: '{name}' must be a list of strings, not {value!r}")
        return value

    def section(self, name: str) -> Config | None:
        """A nested object, None when absent."""
        self._asked.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ModelError(f"{self.where}: '{name}' must be an object, not {value!r}")
        return self._sections.setdefault(name, Config(value, f"{self.where}: {name}"))

    def require(self, name: str, expected: object) -> None:
        """Refuse any value but the expected one (or none)."""
        self._asked.add(name)
        value = self._values.get(name)
        if value is not None and value != expected:
            raise ModelError(f"{self.where}: '{name}' is {value!r}; only {expected!r} is supported")

    def items(self) -> list[tuple[str, object]]:
        """All values, as they are."""
        self._asked.update(self._values)
        return list(self._values.items())

    def _get(self, name: str, default: object) -> object:
        self._asked.add(name)
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.where} has no '{name}'")
        return value


def read_config(folder: Path) -> Config:
    """The folder's config.json. Raises `ModelError` when it is missing or not a JSON object."""
    path = folder / "config.json"
    try:
        values = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{folder} has no config.json; it is not a model folder in Hugging Face format") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return Config(values)


def _is_positive(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value > 0
