"""The generated corpus is a function of its seed and means what it says."""

import json
import re
from itertools import islice
from random import Random

from tools.demo_model.batches import Encoder
from tools.demo_model.corpus import arithmetic, mixture, records, stories, toolcalls
from tools.demo_model.corpus.document import exchange
from tools.demo_model.evaluate import Model
from tools.demo_model.rendering import render

_SUM = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)")
_RESULT = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def test_same_seed_gives_the_same_corpus() -> None:
    first, again, other = (
        [render(document) for document in islice(mixture.documents(seed), 200)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_no_slot_or_choice_is_left_in_the_text() -> None:
    rng = Random(3)
    for _ in range(300):
        assert not re.search(r"[{}\[\]|]", stories.plain(rng).text)
        assert not re.search(r"\ba [aeio]", stories.tell(rng, "secret", stories.character(rng)))


def test_sums_are_right_and_held_out_pairs_stay_out() -> None:
    rng = Random(4)
    for _ in range(300):
        for a, sign, b, result in _SUM.findall(arithmetic.plain(rng).text):
            assert _RESULT[sign](int(a), int(b)) == int(result)
            assert sign == "*" or not arithmetic.is_held_out(int(a), int(b))


def test_records_are_json() -> None:
    rng = Random(5)
    for _ in range(300):
        json.loads(records.question(rng)[1])


def test_tool_calls_name_an_offered_tool_and_its_arguments() -> None:
    rng = Random(6)
    for _ in range(300):
        document = toolcalls.call(rng)
        offered = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in document.tools}
        called = document.messages[1].calls[0]
        assert set(called.arguments) == set(offered[called.name])


def test_only_answers_are_learned(model: Model) -> None:
    example = Encoder(model.tokenizer).encode(exchange("What is Textgen?", "A server."))
    learned = [token for token, is_learned in zip(example.tokens, example.learned, strict=True) if is_learned]
    assert model.tokenizer.decode(learned, skip_special_tokens=False) == "A server.<|end|>"
