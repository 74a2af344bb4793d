"""The parts of the structured-output benchmark that measure nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from benchmark.router.parts import MODEL
from benchmark.structured import masks


def test_every_token_has_its_bytes() -> None:
    words = masks.token_bytes(MODEL)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for text in ('{"name": "Bob"}', "Once upon a time", "é日😀"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(words[number] for number in ids).decode() == text


def test_a_large_vocabulary_is_whole(tmp_path: Path) -> None:
    words = masks.token_bytes(masks.large(tmp_path, 9000))
    assert len(words) == 9000
    written = [word for word in words if word]
    assert len(set(written)) == len(written) > 8900
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 9000
    ids = tokenizer.encode("Once upon a time in Bern", add_special_tokens=False).ids
    assert b"".join(words[number] for number in ids) == b"Once upon a time in Bern"


def test_a_walk_is_followed_as_far_as_it_is_allowed() -> None:
    schemas = 6

    def begin(schema: str) -> Callable[[], Callable[[int], bool]]:
        return lambda: lambda token: token < 3

    cost, allowed = masks.replay([[[1, 2, 3, 1], [1]]] * schemas, begin)
    assert len(cost.token) == 3 * schemas
    assert allowed == 3 / 5
    assert len(cost.compile) == schemas
    assert set(cost.microseconds()) == {"mask per token, mean", "mask per token, p99", "compile, median"}
