"""The cost of a mask: ours and that of other servers' libraries, along the same walks through the same schemas."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmark.router.parts import BINARY, MODEL

SCHEMAS = Path(__file__).parent / "schemas.json"
END = 2


@dataclass
class Cost:
    """What an engine took, in nanoseconds: for each schema once, and for each token."""

    compile: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)

    def microseconds(self) -> dict[str, float]:
        """A token's mask, computed and moved past, on average and at the worst hundredth; a schema's compilation."""
        token = sorted(self.token)
        return {
            "mask per token, mean": mean(token) / 1e3,
            "mask per token, p99": token[len(token) * 99 // 100] / 1e3,
            "compile, median": median(self.compile) / 1e3,
        }


def ours(model: Path) -> tuple[Cost, list[list[list[int]]]]:
    """Our cost, and the walks: for each schema some, of token ids."""
    line = [str(BINARY), "masks", "--model", str(model), "--schemas", str(SCHEMAS)]
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
    cost, walks = Cost(), []
    for told in map(json.loads, done.stdout.splitlines()):
        cost.compile.append(told["compile_ns"])
        cost.token += [mask + take for mask, take in zip(told["mask_ns"], told["take_ns"], strict=True)]
        walks.append(told["walks"])
    return cost, walks


def token_bytes(model: Path) -> list[bytes]:
    """What each id of a byte-level vocabulary writes; nothing for special tokens."""
    told = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = told["model"]["vocab"]
    special = {token["id"] for token in told["added_tokens"] if token["special"]}
    size = int(json.loads((model / "config.json").read_text())["vocab_size"])
    table = {character: byte for byte, character in enumerate(byte_characters())}
    words = [b""] * size
    for text, number in vocabulary.items():
        if number not in special and number < size:
            words[number] = bytes(table[character] for character in text)
    return words


def byte_characters() -> list[str]:
    """The character that byte-level vocabularies write for each byte: itself where visible, else one beyond 255."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]


def replay(
    walks: list[list[list[int]]], begin: Callable[[str], Callable[[], Callable[[int], bool]]]
) -> tuple[Cost, float]:
    """An engine's cost along the walks, and the part of their tokens that it allowed."""
    cost, taken = Cost(), 0
    for schema, drawn in zip(json.loads(SCHEMAS.read_text()), walks, strict=True):
        began = time.perf_counter_ns()
        matcher = begin(json.dumps(schema))
        cost.compile.append(time.perf_counter_ns() - began)
        for walk in drawn:
            step = matcher()
            for token in walk:
                began = time.perf_counter_ns()
                allowed = step(token)
                if not allowed:
                    break
                cost.token.append(time.perf_counter_ns() - began)
                taken += 1
    return cost, taken / sum(len(walk) for drawn in walks for walk in drawn)


def xgrammar(words: list[bytes], walks: list[list[list[int]]]) -> tuple[Cost, float]:
    """Through its own Python interface, as servers call it."""
    import xgrammar as library

    info = library.TokenizerInfo(words, library.VocabType.RAW, vocab_size=len(words), stop_token_ids=[END])
    compiler = library.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    mask = library.allocate_token_bitmask(1, len(words))

    def begin(schema: str) -> Callable[[], Callable[[int], bool]]:
        grammar = compiler.compile_json_schema(schema)

        def start() -> Callable[[int], bool]:
            matcher = library.GrammarMatcher(grammar)

            def step(token: int) -> bool:
                matcher.fill_next_token_bitmask(mask)
                return bool(matcher.accept_token(token))

            return step

        return start

    return replay(walks, begin)


def outlines(words: list[bytes], walks: list[list[list[int]]]) -> tuple[Cost, float]:
    """The same for outlines-core, which walks an index of all states that it builds beforehand."""
    import numpy as np
    import outlines_core as library
    from outlines_core.json_schema import build_regex_from_schema

    ids: dict[bytes, list[int]] = {}
    for number, word in enumerate(words):
        if word and number != END:
            ids.setdefault(word, []).append(number)
    vocabulary = library.Vocabulary(END, ids)
    mask = np.zeros((len(words) + 31) // 32, dtype=np.int32)

    def begin(schema: str) -> Callable[[], Callable[[int], bool]]:
        index = library.Index(build_regex_from_schema(schema), vocabulary)

        def start() -> Callable[[int], bool]:
            guide = library.Guide(index)

            def step(token: int) -> bool:
                guide.write_mask_into(mask.ctypes.data, mask.size, mask.itemsize)
                if not mask[token // 32] >> token % 32 & 1:
                    return False
                guide.advance(token, return_tokens=False)
                return True

            return step

        return start

    return replay(walks, begin)


def large(folder: Path, tokens: int, seed: int = 7) -> Path:
    """The built-in model's text files with a vocabulary of so many tokens: pairs of earlier ones, again and again."""
    for name in ("tokenizer_config.json", "config.json", "generation_config.json", "chat_template.jinja"):
        if (MODEL / name).exists():
            shutil.copy(MODEL / name, folder / name)
    told: dict[str, Any] = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = told["model"]["vocab"]
    merges: list[Any] = told["model"]["merges"]
    special = {token["content"] for token in told["added_tokens"]}
    fresh = 1 + max([*vocabulary.values(), *(token["id"] for token in told["added_tokens"])])
    # As in vocabularies of models, a word may have a space before, and hardly anything else is long.
    words = [
        text for text in vocabulary if text not in special and text.lstrip("Ġ").isascii() and text.lstrip("Ġ").isalpha()
    ]
    endings = [text for text in words if not text.startswith("Ġ")]
    draw = random.Random(seed)
    while fresh < tokens:
        left, right = draw.choice(words), draw.choice(endings)
        if left + right not in vocabulary and len(left + right) <= 14:
            vocabulary[left + right] = fresh
            fresh += 1
            merges.append([left, right] if isinstance(merges[0], list) else f"{left} {right}")
            words.append(left + right)
    (folder / "tokenizer.json").write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": fresh}))
    return folder


PEERS = {"xgrammar": xgrammar, "outlines-core": outlines}


def peers() -> Iterable[tuple[str, str]]:
    """Names and versions of the libraries that are installed."""
    return [(name, version(name)) for name in PEERS]
