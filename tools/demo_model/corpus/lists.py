"""Small jobs on short lists and words: repeat, sort, reverse, count, pick, spell."""

from collections.abc import Callable
from random import Random

from tools.demo_model.corpus import words
from tools.demo_model.corpus.document import Document, exchange
from tools.demo_model.corpus.grammar import expand


def _items(rng: Random, low: int = 3, high: int = 5) -> list[str]:
    source = rng.choice((words.FRUITS, words.ANIMALS, words.COLOURS, words.WORDS, words.OBJECTS))
    return rng.sample(source, rng.randint(low, high))


def _repeat(rng: Random, longest: int = 5) -> tuple[str, str]:
    length = rng.randint(1, longest)
    known = rng.random()
    said = " ".join(rng.choice(words.WORDS) if rng.random() < known else words.coined(rng) for _ in range(length))
    return expand(rng, "[Repeat after me|Please repeat|Say|Repeat|Copy this]: {said}", {"said": said}), said


def _sort_words(rng: Random) -> tuple[str, str]:
    items = _items(rng, 3, 4)
    ask = "[Sort these words|Sort|Put in alphabetical order|Sort alphabetically]: {items}"
    return expand(rng, ask, {"items": ", ".join(items)}), ", ".join(sorted(items))


def _sort_numbers(rng: Random) -> tuple[str, str]:
    numbers = rng.sample(range(1, 100), rng.randint(3, 5))
    ask = "[Sort these numbers|Sort|Put these numbers in order|Sort the numbers]: {items}"
    return expand(rng, ask, {"items": ", ".join(map(str, numbers))}), ", ".join(map(str, sorted(numbers)))


def _reverse(rng: Random) -> tuple[str, str]:
    items = _items(rng)
    ask = "[Reverse this list|Reverse|Write this list backwards]: {items}"
    return expand(rng, ask, {"items": ", ".join(items)}), ", ".join(reversed(items))


def _bullets(rng: Random) -> tuple[str, str]:
    items = _items(rng)
    ask = "[Make a bullet list of|Write as a bullet list|Turn this into a list]: {items}"
    return expand(rng, ask, {"items": ", ".join(items)}), "\n".join(f"- {item}" for item in items)


def _pick(rng: Random) -> tuple[str, str]:
    items = _items(rng)
    place, item = rng.choice((("first", items[0]), ("last", items[-1]), ("second", items[1])))
    ask = "[What is|Which is|Give me] the {place} word[ of| in]: {items}"
    return expand(rng, ask, {"place": place, "items": ", ".join(items)}), item


def _count(rng: Random) -> tuple[str, str]:
    end = rng.randint(3, 20)
    numbers = list(range(1, end + 1))
    if rng.random() < 0.3:
        numbers.reverse()
    ask = f"Count from {numbers[0]} to {numbers[-1]}."
    return ask, ", ".join(map(str, numbers))


def _how_many(rng: Random) -> tuple[str, str]:
    items = _items(rng, 2, 6)
    ask = "How many [words|items] are in this list: {items}?"
    return expand(rng, ask, {"items": ", ".join(items)}), str(len(items))


def _upper(rng: Random) -> tuple[str, str]:
    said = " ".join(rng.choice(words.WORDS) for _ in range(rng.randint(1, 3)))
    return expand(rng, "[Write in capital letters|Write in upper case]: {said}", {"said": said}), said.upper()


def _name_some(rng: Random) -> tuple[str, str]:
    kind, source = rng.choice(
        (
            ("fruits", words.FRUITS),
            ("animals", words.ANIMALS),
            ("colours", words.COLOURS),
            ("colors", words.COLOURS),
            ("cities", words.CITIES),
            ("jobs", words.JOBS),
            ("girls' names", words.GIRLS),
        )
    )
    number = rng.randint(2, 6)
    ask = "[Name|List|Give me|Tell me|Write] {number} {kind}."
    shown = rng.choice((str(number), words.NUMBER_WORDS[number]))
    return expand(rng, ask, {"number": shown, "kind": kind}), "\n".join(
        f"{index}. {item}" for index, item in enumerate(rng.sample(source, number), 1)
    )


EXACT: tuple[Callable[[Random], tuple[str, str]], ...] = (
    _repeat,
    _sort_numbers,
    _sort_words,
    _reverse,
    _bullets,
    _pick,
    _count,
    _how_many,
    _upper,
)


def question(rng: Random) -> tuple[str, str]:
    """A job with one right answer."""
    return rng.choice(EXACT)(rng)


def chat(rng: Random) -> Document:
    """A job on a list, or a wish for a list with many right answers."""
    return exchange(*(_name_some(rng) if rng.random() < 0.1 else question(rng)))


def echo(rng: Random) -> Document:
    """Words to repeat, up to sixteen: copying is what half of the other skills are made of."""
    return exchange(*_repeat(rng, 16))
