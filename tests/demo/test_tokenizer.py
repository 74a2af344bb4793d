"""No text is lost between characters and tokens."""

import secrets
from random import Random

from transformers import PreTrainedTokenizerFast

from tools.demo_model.evaluate import Model

SPECIAL = ("<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
_SURROGATES = range(0xD800, 0xE000)
_RANGES = ((0x00, 0x80), (0x80, 0x800), (0x800, 0x10000), (0x10000, 0x110000))


def _random_text(rng: Random) -> str:
    letters: list[str] = []
    while len(letters) < rng.randint(1, 60):
        code = rng.randrange(*rng.choice(_RANGES))
        if code not in _SURROGATES:
            letters.append(chr(code))
    return "".join(letters)


def test_every_byte_has_a_token(model: Model) -> None:
    alphabet = {token for token in model.tokenizer.get_vocab() if len(token) == 1}
    assert len(alphabet) == 256


def test_random_text_comes_back_unchanged(model: Model) -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    for _ in range(500):
        text = _random_text(rng)
        ids = model.tokenizer.encode(text, add_special_tokens=False).ids
        assert model.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_texts_people_write_come_back_unchanged(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in (
        "",
        " ",
        "  two  spaces ",
        "tab\tand\r\nline\n\n",
        "naïve café 東京 🦊👩‍👩‍👧 e\u0301",
        "don't 3.14 -7",
        "a\x00b",
    ):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids) == text


def test_special_tokens_are_one_token_and_not_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    for token in SPECIAL:
        ids = tokenizer(token, add_special_tokens=False).input_ids
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == ""


def test_tool_call_markers_are_one_token_and_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    for token in ("<tool_call>", "</tool_call>"):
        ids = tokenizer(token, add_special_tokens=False).input_ids
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == token


def test_beginning_of_text_is_added_once(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer("Once upon a time").input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1


def test_digits_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer("90210", add_special_tokens=False).input_ids) == 5
