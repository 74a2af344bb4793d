"""Small stories: plain texts that begin anywhere, and stories asked for in a conversation."""

from dataclasses import dataclass
from random import Random

from tools.demo_model.corpus import words
from tools.demo_model.corpus.document import Document, exchange
from tools.demo_model.corpus.grammar import article, capital, expand
from tools.demo_model.corpus.plots import MORALS, OPENINGS, PLOTS, THEMES


@dataclass(frozen=True)
class Character:
    """Somebody in a story: ``kind`` is an animal, girl or boy."""

    name: str
    kind: str
    trait: str
    female: bool

    @property
    def introduced(self) -> str:
        return f"{article(self.trait)} {self.kind} named {self.name}"

    def slots(self, prefix: str = "") -> dict[str, str]:
        """The pronouns, each name under ``prefix``."""
        they, them, their = ("she", "her", "her") if self.female else ("he", "him", "his")
        plain = {"they": they, "them": them, "their": their, "They": capital(they), "Their": capital(their)}
        return {prefix + key: value for key, value in plain.items()}


def character(rng: Random, kind: str | None = None) -> Character:
    """Draw a character, of this ``kind`` when given."""
    kind = kind or rng.choice(("girl", "boy", *rng.sample(words.ANIMALS, 4)))
    female = kind == "girl" or (kind != "boy" and rng.random() < 0.5)
    if kind in ("girl", "boy"):
        name = rng.choice(words.GIRLS if female else words.BOYS)
    else:
        name = rng.choice(words.ANIMAL_NAMES)
    return Character(name, kind, rng.choice(words.ADJECTIVES), female)


def tell(rng: Random, plot: str, hero: Character) -> str:
    """One story of about 150 words, in two or three paragraphs."""
    friend = character(rng)
    while friend.name == hero.name:
        friend = character(rng)
    slots = hero.slots() | friend.slots("f_")
    slots |= {
        "hero": hero.name,
        "hero_is": hero.introduced,
        "trait": rng.choice([trait for trait in words.ADJECTIVES if trait != hero.trait]),
        "friend": friend.name if friend.kind in ("girl", "boy") else f"{friend.name} the {friend.kind}",
        "place": rng.choice(words.PLACES),
        "object": rng.choice(words.OBJECTS),
        "colour": rng.choice(words.COLOURS),
        "food": rng.choice(words.FOODS),
        "food_one": rng.choice(("cake", "pie")),
    }
    sentences = [expand(rng, sentence, slots) for sentence in PLOTS[plot]]
    opening = expand(rng, rng.choice(OPENINGS), slots)
    middle = rng.randint(5, 6)
    paragraphs = [opening, " ".join(sentences[:middle]), " ".join(sentences[middle:])]
    return "\n\n".join(capital(paragraph) for paragraph in paragraphs)


def _introduction(rng: Random) -> str:
    """A few sentences in which somebody speaks of themselves."""
    boy_or_girl = rng.choice((words.GIRLS, words.BOYS))
    name, other = rng.sample(boy_or_girl, 2)
    job = rng.choice(words.JOBS)
    template = (
        "My name is {name} and I [live in {place}|am {job}|come from {city}]. [Every morning|Every day|On "
        "Sundays], I "
        "[eat {food} and read a book|walk along the river|work in my garden|feed the birds]. My [best friend|"
        "neighbour] is "
        "called {other}, and we [like to cook together|play cards in the evening|often go for long walks|sing in a "
        "choir]. "
        "[One day, I want to see the sea|I have a {colour} {object} that I am very proud of|My favourite colour is "
        "{colour}]. "
        "[It is a simple life, but a good one|I am happy here|There is always something to do]."
    )
    return expand(
        rng,
        template,
        {
            "name": name,
            "other": other,
            "place": rng.choice(words.PLACES),
            "job": article(job),
            "city": rng.choice(words.CITIES),
            "food": rng.choice(words.FOODS),
            "colour": rng.choice(words.COLOURS),
            "object": rng.choice(words.OBJECTS),
        },
    )


def plain(rng: Random) -> Document:
    """A story or an introduction without any conversation around it."""
    if rng.random() < 0.1:
        return Document(text=_introduction(rng))
    plot = rng.choice(list(PLOTS))
    text = tell(rng, plot, character(rng))
    if rng.random() < 0.3:
        text = f"{text}\n\nThe moral: {MORALS[plot]}"
    return Document(text=text)


def chat(rng: Random) -> Document:
    """A story on request; the request may name the hero, the kind of hero or the theme."""
    plot = rng.choice(list(PLOTS))
    hero = character(rng)
    ask = "[Tell me|Write|Can you tell me|Please write|I would like|Write me|Please tell me] [a|a short|a little] story"
    about = rng.choice(
        (
            "",
            "",
            " about {kind}",
            " about {kind}",
            " about {kind} named {name}",
            " about {kind} called {name}",
            " about {theme}",
            " with a moral",
            " for [children|my daughter|my son|bedtime]",
        )
    )
    slots = {"kind": article(hero.kind), "name": hero.name, "theme": THEMES[plot]}
    request = expand(rng, ask + about + "[.||!]", slots)
    text = tell(rng, plot, hero)
    if about == " with a moral":
        text = f"{text}\n\nThe moral: {MORALS[plot]}"
    return exchange(request, text)
