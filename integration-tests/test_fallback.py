"""A model without a family behind the launcher: Transformers' own modelling, our scheduler, cache and prefixes."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import pytest
from support.api import Api, together
from support.models import BOS, END, PAD, copy_tokenizer, vocabulary_size
from support.prompts import words
from support.reference import Reference, must_match
from support.server import Start

from tests.models.test_fallback import TESTED, make

pytestmark = pytest.mark.timeout(180)

NEW_TOKENS = 64
NAME = "VaultGemma"  # windows shorter than the prompts on some layers, soft caps


def test_prompts_that_begin_alike(start: Start, tmp_path: Path) -> None:
    """All at once in small steps, then again when the cache has their beginnings; 64 tokens of each."""
    folder, random_ = tmp_path / "model", random.Random(20261122)
    tokens = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": END}
    make(folder, NAME, **{**TESTED[NAME], **tokens, "vocab_size": vocabulary_size()})
    copy_tokenizer(folder)
    reference = Reference(folder)
    launcher = start(model=folder, block_size=8, max_total_tokens=250, max_batch_size=8, max_batch_prefill_tokens=48)
    launcher.wait_ready()
    assert "(fallback)" in launcher.log
    client, beginning = Api(launcher.url), words(random_, 20)
    prompts = [f"{beginning} {words(random_, random_.randint(1, 6))}" for _ in range(6)]
    expected = [reference.greedy(reference.encode(text), NEW_TOKENS) for text in prompts]
    assert sum(truth.decided for truth in expected) > NEW_TOKENS, "ties decide everything"
    for _ in range(2):
        answers = together([functools.partial(client.generate, text, max_new_tokens=NEW_TOKENS) for text in prompts])
        for text, answer, truth in zip(prompts, answers, expected, strict=True):
            must_match(answer.tokens, truth, text)
    client.close()
    assert launcher.faults() == []
