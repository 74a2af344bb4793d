"""Models with sliding windows behind the launcher: long texts in a memory that only holds what the windows reach."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.api import Api, together
from support.models import BOS, END, PAD, copy_tokenizer, vocabulary_size
from support.prompts import words
from support.reference import Reference, must_match
from support.server import Start

from tests.models.tiny import make_model

pytestmark = pytest.mark.timeout(180)

NEW_TOKENS = 16
BLOCK, TOTAL = 8, 250  # the tiny models have 256 positions
MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {  # layers of a page; pages of the pool
    # a text of full length has 32 blocks, and as many pages would be needed if all were kept
    "only-windows": ("MistralForCausalLM", {"sliding_window": 12, "num_hidden_layers": 2}, 2, 14),
    # each text keeps 32 pages of the full layer; with those of all windows it would keep 128
    "windows-and-full": (
        "Gemma3ForCausalLM",
        {"sliding_window": 9, "num_hidden_layers": 4, "layer_types": [*["sliding_attention"] * 3, "full_attention"]},
        1,
        90,
    ),
}


def page_bytes(folder: Path, layers: int) -> int:
    """Of a page and of what attention gathers of it at most, float32."""
    config = json.loads((folder / "config.json").read_text())
    row = 2 * config["num_key_value_heads"] * config["head_dim"] * 4
    return int(BLOCK * row * (layers + 2))


@pytest.mark.parametrize("kind", MODELS)
def test_texts_that_only_fit_without_what_no_window_reaches(kind: str, start: Start, tmp_path: Path) -> None:
    """Prompts that begin alike, all at once and again, each far longer than the window."""
    folder, random_ = tmp_path / "model", random.Random(20261122)
    architecture, sizes, layers, pages = MODELS[kind]
    tokens = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": END}
    make_model(folder, architecture, 3, vocab_size=vocabulary_size(), head_dim=16, **tokens, **sizes)
    copy_tokenizer(folder)
    reference = Reference(folder)
    launcher = start(
        model=folder, block_size=BLOCK, max_total_tokens=TOTAL, max_batch_size=4, max_batch_prefill_tokens=32,
        kv_memory=str(pages * page_bytes(folder, layers)),
    ).wait_ready()  # fmt: skip
    client, beginning = Api(launcher.url), words(random_, 40)
    prompts = [f"{beginning} {words(random_, random_.randint(1, 30))}" for _ in range(4)]
    expected = [reference.greedy(reference.encode(text), NEW_TOKENS) for text in prompts]
    assert min(len(reference.encode(text)) for text in prompts) > 40
    assert sum(truth.decided for truth in expected) > NEW_TOKENS, "ties decide everything"
    for _ in range(2):
        answers = together([functools.partial(client.generate, text, max_new_tokens=NEW_TOKENS) for text in prompts])
        for text, answer, truth in zip(prompts, answers, expected, strict=True):
            must_match(answer.tokens, truth, text)
    client.close()
    assert launcher.faults() == []
