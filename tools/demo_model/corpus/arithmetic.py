"""Sums within a hundred, differences, and the multiplication table up to twelve."""

from random import Random

from tools.demo_model.corpus.document import Document, exchange
from tools.demo_model.corpus.grammar import expand
from tools.demo_model.corpus.words import BOYS, GIRLS, THINGS

_SIGN_NAMES = {"+": "plus", "-": "minus", "*": "times"}
_RESULTS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
_QUESTIONS = (
    "What is {a} {sign} {b}?|What is {a} {sign} {b}?|What is {a} {sign} {b}?|How much is {a} {sign} {b}?|"
    "Calculate {a} {sign} {b}.|{a} {sign} {b}|{a} {sign} {b} =|{a} {sign} {b} = ?|What is {a} {word} {b}?|"
    "Can you work out {a} {sign} {b}?|what's {a} {sign} {b}?|Please compute {a} {sign} {b}.|"
    "How much is {a} {word} {b}?|Solve {a} {sign} {b}."
)


def is_held_out(a: int, b: int) -> bool:
    """Whether sums and differences of this pair are kept out of training, to measure on."""
    return (7 * a + 13 * b) % 10 == 0


def problem(rng: Random, held_out: bool = False) -> tuple[int, str, int, int]:
    """Draw ``(a, sign, b, result)``. Multiplication is a table to learn, so only + and - hold pairs out."""
    while True:
        sign = rng.choice("++--*")
        limit = 12 if sign == "*" else rng.choice((20, 99, 99))
        a, b = rng.randint(0, limit), rng.randint(0, limit)
        if sign == "-" and b > a:
            a, b = b, a
        if sign == "*" or is_held_out(a, b) == held_out:
            return a, sign, b, _RESULTS[sign](a, b)


def question(rng: Random, held_out: bool = False) -> tuple[str, str]:
    """One question and its answer, such as ``What is 2 + 3?`` and ``2 + 3 = 5``."""
    a, sign, b, result = problem(rng, held_out)
    template = rng.choice(_QUESTIONS.split("|"))
    shown = rng.choice(("x", "*")) if sign == "*" else sign
    text = template.format(a=a, b=b, sign=shown, word=_SIGN_NAMES[sign])
    return text, f"{a} {sign} {b} = {result}"


def _word_problem(rng: Random) -> Document:
    a, sign, b, result = problem(rng)
    while sign == "*" or result == 1:
        a, sign, b, result = problem(rng)
    name, things = rng.choice(GIRLS + BOYS), rng.choice(THINGS)
    change = "[gets|finds|buys] {b} more" if sign == "+" else "[loses|gives away|sells] {b}"
    template = "{name} has {a} {things} and " + change + ". How many {things} does {name} have[ now|]?"
    slots = {"name": name, "things": things, "a": str(a), "b": str(b)}
    return exchange(expand(rng, template, slots), f"{a} {sign} {b} = {result}. {name} has {result} {things}.")


def chat(rng: Random) -> Document:
    """A sum asked in a conversation, sometimes as a little word problem."""
    if rng.random() < 0.2:
        return _word_problem(rng)
    return exchange(*question(rng))


def plain(rng: Random) -> Document:
    """A page of sums, one a line."""
    lines = []
    for _ in range(rng.randint(6, 14)):
        a, sign, b, result = problem(rng)
        lines.append(f"{a} {sign} {b} = {result}")
    return Document(text="\n".join(lines))
