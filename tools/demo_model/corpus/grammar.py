"""A two-rule text grammar: ``[a|b]`` picks one branch, ``{name}`` fills a slot."""

import re
from collections.abc import Mapping
from random import Random

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_WRONG_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


def expand(rng: Random, template: str, slots: Mapping[str, object] | None = None) -> str:
    """Expand ``template``: innermost choices first, then slots, then ``a`` to ``an``. Raises KeyError on an unknown slot."""
    while True:
        template, count = _CHOICE.subn(lambda match: rng.choice(match[1].split("|")), template)
        if count == 0:
            break
    return _WRONG_ARTICLE.sub(r"\1n ", template.format_map(slots or {}))


def article(noun: str) -> str:
    """``noun`` with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def capital(text: str) -> str:
    """``text`` with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]


def enumerate_words(words: list[str]) -> str:
    """``a, b and c``. Raises ValueError on an empty list."""
    if not words:
        raise ValueError("enumerate_words needs at least one word")
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"
