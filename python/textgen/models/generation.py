"""What a model's files say of generating, where the model has an encoder.

Transformers applies it to every call. Here a request says what it wants, and the files say only what belongs to the
model: the tokens that begin and end a text, which the router reads, and the tokens that are never drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from textgen.models.errors import ModelError

FILE, OLDER = "generation_config.json", "config.json"
# What is not applied, and the value that says nothing.
REQUESTS: dict[str, tuple[Any, ...]] = {
    "begin_suppress_tokens": (None, []),
    "diversity_penalty": (None, 0.0),
    "do_sample": (None, False),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "forced_decoder_ids": (None, []),
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1.0),
    "length_penalty": (None, 1.0),
    "max_length": (None, 20),
    "max_new_tokens": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "num_beam_groups": (None, 1),
    "num_beams": (None, 1),
    "repetition_penalty": (None, 1.0),
}


@dataclass(frozen=True, slots=True)
class Generation:
    """where: the file. never: ids that are not drawn. unheeded: `name value` of what is left to requests."""

    where: Path
    never: frozenset[int] = frozenset()
    unheeded: tuple[str, ...] = ()


def read_generation(folder: Path) -> Generation:
    """From `generation_config.json`, or, as older models have it, from `config.json`. Raises `ModelError`."""
    path = folder / FILE if (folder / FILE).is_file() else folder / OLDER
    try:
        values = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path} cannot be read ({error}); download the model again") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} is no JSON object; download the model again")
    words = _lists(values.get("bad_words_ids"))
    ends = set(_ids(values.get("eos_token_id")))
    never = {*_ids(values.get("suppress_tokens")), *(word[0] for word in words if len(word) == 1)} - ends
    unheeded = [f"{name} {values.get(name)}" for name, silent in REQUESTS.items() if values.get(name) not in silent]
    if any(len(word) > 1 for word in words):
        unheeded.append("bad_words_ids of several tokens")
    return Generation(path, frozenset(never), tuple(unheeded))


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool) and each >= 0]


def _lists(value: Any) -> list[list[int]]:
    return [_ids(each) for each in value if isinstance(each, list)] if isinstance(value, list) else []
