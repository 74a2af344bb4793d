"""What a refusal must look like, and fields that every route refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from support.raw import RawAnswer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NATIVE = ("/", "/generate", "/generate_stream")
MESSAGES = [{"role": "user", "content": "Hello"}]
# Of the server that `strict_server` is.
LIMIT = 50_000  # bytes of a body
MOST = 300  # tokens of prompt and answer


def refused(answer: RawAnswer, path: str, status: int, error_type: str, *words: str) -> None:
    """The dialect's shape, the class, and a sentence that names what is wrong."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if path.startswith("/v1/"):
        error = body["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
        assert error["code"] == error_type
        sentence = error["message"]
    else:
        assert set(body) == {"error", "error_type"}
        sentence = body["error"]
    assert body["error_type"] == error_type
    clear(sentence, *words)


def clear(sentence: str, *words: str) -> None:
    """One sentence for a person: it names the field, and shows nothing of our insides."""
    assert 8 < len(sentence) < 400, sentence
    assert not re.search(r"[A-Z]\w+Error\(|Some\(|None|0x[0-9a-f]{6}|\.rs:\d|\.py\b|\n", sentence), sentence
    for word in words:
        assert word in sentence, sentence


@dataclass(frozen=True)
class Bad:
    """Parameters and the words that the refusal must have."""

    fields: dict[str, Any]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.fields.items())[:60]


# Out of range on every route; native ones have them in `parameters`.
RANGES = (
    Bad({"temperature": -1}, ("`temperature`", "-1")),
    Bad({"temperature": 1e300}, ("`temperature`",)),
    Bad({"top_p": 2}, ("`top_p`", "2")),
    Bad({"top_p": 0}, ("`top_p`",)),
    Bad({"typical_p": -0.5}, ("`typical_p`",)),
    Bad({"min_p": 1.5}, ("`min_p`", "1.5")),
    Bad({"top_k": -7}, ("`top_k`", "-7")),
    Bad({"repetition_penalty": 0}, ("`repetition_penalty`",)),
    Bad({"frequency_penalty": 2.5}, ("`frequency_penalty`", "2.5")),
    Bad({"presence_penalty": -3}, ("`presence_penalty`", "-3")),
    Bad({"stop": ["a", "b", "c", "d", "e"]}, ("`stop`", "4", "5")),
    Bad({"stop": [""]}, ("`stop`",)),
    Bad({"stop_token_ids": [10**9]}, ("`stop_token_ids`",)),
)
TYPES = (
    Bad({"logit_bias": [1.0]}, ("logit_bias",)),
    Bad({"bad_words": "the"}, ("bad_words",)),
    Bad({"temperature": "hot"}, ("temperature",)),
    Bad({"top_k": 1.5}, ("top_k",)),
    Bad({"seed": "x"}, ("seed",)),
    Bad({"stop": 3}, ("stop",)),
    Bad({"stop": [3]}, ("stop",)),
    Bad({"top_p": []}, ("top_p",)),
    Bad({"stop_token_ids": [-1]}, ("stop_token_ids",)),
)
