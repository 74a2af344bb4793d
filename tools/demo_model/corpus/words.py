"""The vocabulary the generators draw from."""

from random import Random


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return text.split("|")


GIRLS = _words("Mia Lily Anna Emma Nora Zoe Ruby Clara Alice Maya Sofia Ella Ivy Rosa Lucy Hana Leila Greta Amara Olga")
BOYS = _words("Tom Ben Max Leo Sam Finn Noah Omar Hugo Theo Jack Oscar Milo Ravi Ken Paul Felix Adam Luis Olivier")
ANIMAL_NAMES = _words("Pip Bramble Hazel Rusty Dot Clover Fern Button Willow Pepper Moss Juniper Biscuit Nutmeg Poppy")
ANIMALS = _words(
    "fox rabbit mouse bear owl turtle hedgehog squirrel duck frog cat dog goat sparrow otter badger deer snail bee pony"
)
ADJECTIVES = _words("small kind curious brave quiet clever cheerful shy gentle young")
PLACES = _phrases(
    "a green forest|a quiet village|a house by the sea|a snowy valley|a busy town|a farm on a hill|a sunny meadow|"
    "a little island|a garden full of roses|a cottage near the lake|a stone tower|a harbour with red boats"
)
OBJECTS = _words(
    "lantern key kite map bell box ring drum scarf book basket boat coin button flute hat mirror clock blanket compass"
)
COLOURS = _words("red blue green yellow orange purple white black brown pink golden silver")
FOODS = _words("bread soup cake cheese honey rice pie salad porridge pancakes")
FRUITS = _words("apple pear plum cherry peach lemon banana orange grape mango fig melon")
FRUIT_PLURALS = _words("apples pears plums cherries peaches lemons bananas oranges grapes mangoes figs melons")
THINGS = _words("apples pears books coins shells stones stars pens cards eggs marbles buttons flowers cookies stamps")
CITIES = _words("Paris London Rome Madrid Berlin Vienna Lisbon Oslo Athens Dublin Cairo Tokyo Lima Delhi Boston Prague")
JOBS = _words("baker teacher doctor farmer painter sailor singer writer gardener builder nurse pilot")
WEATHER = _words("sunny cloudy rainy windy snowy foggy")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
WORDS = sorted(
    set(
        ANIMALS
        + OBJECTS
        + FRUITS
        + _words("river stone cloud moon tree leaf rain snow wind fire lamp door road bridge")
    )
)
NUMBER_WORDS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)

_ONSETS = _words("b br c cl d dr f g gr h j k l m n p pr qu r s sh st t tr v w y z")
_VOWELS = _words("a e i o u ai ea oo ou")
_CODAS = ("", "", "l", "n", "r", "s", "t", "ck", "nd", "x")


def coined(rng: Random) -> str:
    """A word that does not exist. Copying such words teaches copying as such, not a list of known words."""
    syllables = rng.randint(2, 3)
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))


def any_name(rng: Random) -> str:
    """A first name, now and then a coined one."""
    return rng.choice(GIRLS + BOYS) if rng.random() < 0.75 else coined(rng).capitalize()


def any_city(rng: Random) -> str:
    """A city, now and then a coined one."""
    return rng.choice(CITIES) if rng.random() < 0.7 else coined(rng).capitalize()
