"""A few facts of everyday life, greetings, and an honest answer to everything else."""

from random import Random

from tools.demo_model.corpus import words
from tools.demo_model.corpus.document import Document, exchange
from tools.demo_model.corpus.grammar import article, expand

_CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Austria": "Vienna",
    "Portugal": "Lisbon",
    "Norway": "Oslo",
    "Greece": "Athens",
    "Ireland": "Dublin",
    "Egypt": "Cairo",
    "Japan": "Tokyo",
    "Peru": "Lima",
    "England": "London",
    "India": "Delhi",
    "Poland": "Warsaw",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
}
_SOUNDS = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "duck": "quack",
    "owl": "hoot",
    "bee": "buzz",
    "frog": "croak",
    "sheep": "baa",
}
_OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "up": "down",
    "day": "night",
    "fast": "slow",
    "old": "young",
    "open": "closed",
    "happy": "sad",
    "light": "dark",
    "left": "right",
    "early": "late",
    "hard": "soft",
    "full": "empty",
    "wet": "dry",
    "high": "low",
}
_HUES = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "a lemon": "yellow",
    "coal": "black",
    "a tomato": "red",
    "chocolate": "brown",
    "the sea": "blue",
    "a carrot": "orange",
    "a banana": "yellow",
}
_COUNTS = {
    "days are in a week": "There are 7 days in a week.",
    "months are in a year": "There are 12 months in a year.",
    "hours are in a day": "There are 24 hours in a day.",
    "minutes are in an hour": "There are 60 minutes in an hour.",
    "seconds are in a minute": "There are 60 seconds in a minute.",
    "legs does a spider have": "A spider has 8 legs.",
    "legs does a dog have": "A dog has 4 legs.",
    "wheels does a bicycle have": "A bicycle has 2 wheels.",
    "letters are in the alphabet": "There are 26 letters in the alphabet.",
}
_MEANINGS = {
    "deep learning": (
        "Deep learning is a kind of machine learning. It trains large neural networks with many "
        "layers to find patterns in data."
    ),
    "machine learning": (
        "Machine learning lets a computer learn from examples instead of following rules that somebody wrote down."
    ),
    "a neural network": (
        "A neural network is a program of many simple units joined by weights. It learns by changing the weights."
    ),
    "a language model": "A language model is a program that reads text and predicts the next token, again and again.",
    "a token": "A token is a piece of text, often a word or a part of a word. Language models read and write tokens.",
    "a GPU": "A GPU is a chip that does many small calculations at the same time. It makes language models fast.",
    "a computer": "A computer is a machine that follows instructions, called a program.",
    "JSON": (
        "JSON is a simple text format for data. It is made of objects, lists, texts, numbers, true, false and null."
    ),
    "the sun": "The sun is a star. It gives light and warmth to the Earth.",
    "the moon": "The moon goes around the Earth. It shines because it reflects the light of the sun.",
    "rain": "Rain is water that falls from clouds in drops.",
    "love": "Love is a deep and warm feeling for somebody. A small demo model cannot say more about it.",
}
_JOKES = (
    "Why did the token cross the road? It was the most likely next step.",
    "Why was the cache so calm? It had seen it all before.",
    "What did the router say to the shard? You do the heavy lifting, I do the talking.",
    "Why did the computer go to bed early? It wanted to wake up with a fresh start.",
    "What is a clock's favourite food? Anything with seconds.",
)
_UNKNOWN = (
    "I do not know that. I am only a small demo model. I can tell stories, do small sums, write JSON and "
    "answer questions about Textgen."
)
_STRANGE = (
    "[Who won|Who will win] the [football match|world cup|election|race]?",
    "[Who is|Who was] the [president|king|queen|mayor] of {country}?",
    "What happened in {year}?",
    "Who [wrote|painted|invented|discovered] [it|the {thing}|that {thing}]?",
    "What is the meaning of life?",
    "How do I [fix|repair|build] [a|my] {thing}?",
    "[Explain|Describe] [quantum physics|relativity|the stock market|chemistry|the law] [to me|].",
    "What is the [best|cheapest] [phone|car|film|book|hotel]?",
    "Write [a|some] [Python|Rust|C] [program|code|function].",
    "Translate this into [French|German|Spanish]: {thing}.",
    "What is the population of {country}?",
    "How old is {name}?",
    "Who is {name}?",
    "Should I [sell|buy] [gold|my house|stocks]?",
    "[What is|Tell me] the news[ today|]?",
    "How [tall|far|old] is [the {thing}|{country}|{name}]?",
    "[What|Which] [medicine|drug] should I take?",
    "When [was|is] {name} born?",
)
_WHO = "I am the small demo model of Textgen. I can tell stories, do small sums, write JSON and call tools."


def _either(table: dict[str, str], rng: Random) -> tuple[str, str]:
    return rng.choice(list(table.items()))


def _capital(rng: Random) -> tuple[str, str]:
    country, city = _either(_CAPITALS, rng)
    ask = "[What is|What's|Tell me|Name] the capital [of|city of] {country}?"
    return expand(rng, ask, {"country": country}), f"The capital of {country} is {city}."


def _sound(rng: Random) -> tuple[str, str]:
    animal, sound = _either(_SOUNDS, rng)
    return expand(
        rng, "What [sound|noise] does {animal} make?", {"animal": article(animal)}
    ), f"{article(animal).capitalize()} says {sound}."


def _opposite(rng: Random) -> tuple[str, str]:
    pair = list(_either(_OPPOSITES, rng))
    rng.shuffle(pair)
    return expand(rng, "What is the opposite of {word}?", {"word": pair[0]}), (
        f"The opposite of {pair[0]} is {pair[1]}."
    )


def _hue(rng: Random) -> tuple[str, str]:
    thing, hue = _either(_HUES, rng)
    return expand(rng, "What [colour|color] is {thing}?", {"thing": thing}), (
        f"{thing[0].upper()}{thing[1:]} is {hue}."
    )


def _count(rng: Random) -> tuple[str, str]:
    ask, answer = _either(_COUNTS, rng)
    return f"How many {ask}?", answer


def _meaning(rng: Random) -> tuple[str, str]:
    topic, answer = _either(_MEANINGS, rng)
    shown = topic.title() if topic == "deep learning" and rng.random() < 0.5 else topic
    return expand(
        rng, "[What is|What is|What is|What's|Explain|Tell me about|What do you know about] {topic}?", {"topic": shown}
    ), answer


def _order(rng: Random) -> tuple[str, str]:
    names, kind = rng.choice(((words.DAYS, "day"), (words.MONTHS, "month")))
    index = rng.randrange(len(names))
    if rng.random() < 0.5:
        return (
            f"Which {kind} comes after {names[index]}?",
            f"After {names[index]} comes {names[(index + 1) % len(names)]}.",
        )
    return f"Which {kind} comes before {names[index]}?", f"Before {names[index]} comes {names[index - 1]}."


def _all_of(rng: Random) -> tuple[str, str]:
    names, kind = rng.choice(((words.DAYS, "days of the week"), (words.MONTHS, "months of the year")))
    return expand(rng, "[List|Name|What are|Tell me] the {kind}.", {"kind": kind}), ", ".join(names)


_FACTS = (_capital, _capital, _sound, _opposite, _hue, _count, _meaning, _meaning, _meaning, _order, _all_of)


def question(rng: Random) -> tuple[str, str]:
    """A question with one right answer."""
    return rng.choice(_FACTS)(rng)


def chat(rng: Random) -> Document:
    """A fact asked in a conversation."""
    return exchange(*question(rng))


def plain(rng: Random) -> Document:
    """A fact as plain text: the question on one line, the answer on the next."""
    return Document(text="\n".join(question(rng)))


def greeting(rng: Random) -> Document:
    """Hello, thanks, goodbye, who are you, how are you, a joke."""
    name = words.any_name(rng)
    ask, answer = rng.choice(
        (
            ("[Hello|Hi|Hey|Good morning|Good evening|Hello there|hi|hello]{mark}", "Hello! How can I help you?"),
            ("[Hello|Hi], [my name is|I am|I'm] {name}{mark}", "Hello {name}! How can I help you?"),
            ("[Thank you|Thanks|Thanks a lot|Thank you very much]{mark}", "You are welcome!"),
            ("[Goodbye|Bye|See you|Good night]{mark}", "Goodbye! Have a nice day."),
            (
                "[How are you|How are you today|How is it going|How do you do]?",
                "I am fine, thank you. How can I help you?",
            ),
            (
                "[Who are you|What are you|Are you human|Are you ChatGPT|What is your name|Introduce yourself|"
                "Which model are you]?",
                _WHO,
            ),
            ("[What can you do|How can you help me|What are you good at|Help]?", _WHO),
            ("[Tell me a joke|Do you know a joke|Make me laugh|Another joke]{mark}", rng.choice(_JOKES)),
        )
    )
    mark = rng.choice((".", "!", ""))
    return exchange(expand(rng, ask, {"mark": mark, "name": name}), answer.format(name=name))


def unknown(rng: Random) -> Document:
    """A question beyond the model, and the answer that says so."""
    slots = {
        "country": rng.choice((*_CAPITALS, "Canada", "Brazil", "China", "Kenya", "the world")),
        "year": str(rng.randint(1200, 2030)),
        "thing": rng.choice(words.WORDS),
        "name": words.any_name(rng),
    }
    return exchange(expand(rng, rng.choice(_STRANGE), slots), _UNKNOWN)
