"""Families that use what Llama does not, in the engine: memory plan, checkpoint, chunks, prefix cache, parity."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.models import BOS, END, PAD, copy_tokenizer, vocabulary_size
from support.prompts import words
from support.reference import Reference, must_match

from tests.models.tiny import make_model
from textgen import LLM, SamplingParams

pytestmark = pytest.mark.timeout(180)

NEW_TOKENS = 16
MAX_TOTAL_TOKENS = 250  # the tiny models have 256 positions
FAMILIES = {
    "GPT2LMHeadModel": {},  # learned positions, matrices stored the other way round
    "BloomForCausalLM": {"n_head": 6},  # ALiBi
    "Gemma2ForCausalLM": {"sliding_window": 20},  # windows on some layers, soft caps
    "GptOssForCausalLM": {},  # experts, sinks
    "DeepseekV3ForCausalLM": {},  # latents in the cache
}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_prompts_that_begin_alike(architecture: str, tmp_path: Path) -> None:
    """All at once in small steps, then again when the cache has their beginnings."""
    folder, random_ = tmp_path / "model", random.Random(20261121)
    tokens = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": END}
    make_model(folder, architecture, 3, vocab_size=vocabulary_size(), **tokens, **FAMILIES[architecture])
    copy_tokenizer(folder)
    reference = Reference(folder)
    beginning = words(random_, 20)
    prompts = [f"{beginning} {words(random_, random_.randint(1, 6))}" for _ in range(6)]
    expected = [reference.greedy(reference.encode(text), NEW_TOKENS) for text in prompts]
    assert sum(truth.decided for truth in expected) > NEW_TOKENS, "ties decide everything"
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    with LLM(
        str(folder), threads=1, block_size=8, max_total_tokens=MAX_TOTAL_TOKENS, max_batch_size=8,
        max_batch_prefill_tokens=48,
    ) as llm:  # fmt: skip
        for _ in range(2):
            outputs = llm.generate(prompts, greedy, use_tqdm=False)
            for text, output, truth in zip(prompts, outputs, expected, strict=True):
                must_match(output.outputs[0].token_ids, truth, text)
