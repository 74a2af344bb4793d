"""Filling in the middle: both sides of the gap reach the model as its family was taught, by every dialect that has a
`suffix`, and an answer ends where the gap does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from support.api import Api
from support.models import END, Tiny, vocabulary_size, write_tiny
from support.reference import Reference, must_match
from support.server import Start
from transformers import AutoTokenizer, PreTrainedTokenizerBase

BEFORE, BEHIND = "The cat sold ", " to the old baker.\n"
TOKENS = 16


@dataclass(frozen=True)
class Family:
    """A family's marks, as its tokenizer has them, and how its authors write a gap."""

    name: str
    seed: int
    form: str
    marks: tuple[str, ...]
    ends: tuple[str, ...]


FAMILIES = (
    Family(
        "qwen-2.5-coder", 31, "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>",
        ("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|file_sep|>"),
        ("<|endoftext|>", "<|fim_pad|>", "<|file_sep|>"),
    ),
    Family(
        "starcoder2", 32, "<fim_prefix>{}<fim_suffix>{}<fim_middle>",
        ("<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<repo_name>", "<file_sep>"),
        ("<|endoftext|>", "<fim_pad>", "<repo_name>", "<file_sep>"),
    ),
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_gap_is_filled(start: Start, tmp_path: Path, family: Family) -> None:
    """As Transformers fills it in, given the text that the family's authors would write."""
    size = vocabulary_size() + len(family.marks)
    folder = write_tiny(Tiny(family.name, family.seed, {"vocab_size": size}), tmp_path)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.add_special_tokens({"additional_special_tokens": list(family.marks)}) == len(family.marks)
    tokenizer.save_pretrained(folder)
    reference = Reference(folder)
    ends = [int(tokenizer.get_vocab()[end]) for end in family.ends]
    prompt = reference.encode(family.form.format(BEFORE, BEHIND))
    expected = reference.greedy_with(prompt, TOKENS, eos_token_id=[END, *ends])

    launcher = start(model=folder, max_total_tokens=128).wait_ready()
    with openai.OpenAI(base_url=f"{launcher.url}/v1", api_key="none", max_retries=0) as client:

        def fill(**more: Any) -> Any:
            return client.completions.create(
                model="m", prompt=BEFORE, suffix=BEHIND, temperature=0, max_tokens=TOKENS, **more
            )

        said = fill(extra_body={"return_token_ids": True})
        assert said.usage.prompt_tokens == len(prompt)
        must_match(said.choices[0].token_ids, expected, family.name)
        if expected.clear:
            assert said.choices[0].text == expected.text
        streamed = "".join(chunk.choices[0].text for chunk in fill(stream=True))
        assert streamed == said.choices[0].text
        # Whichever of the family's marks comes, the gap is filled.
        for end in ends:
            choice = fill(logit_bias={str(end): 100}).choices[0]
            assert (choice.text, choice.finish_reason) == ("", "stop")
        # Without a gap none of them ends a text but the model's own end.
        plain = client.completions.create(
            model="m", prompt=BEFORE, max_tokens=3, temperature=0, logit_bias={str(ends[-1]): 100}
        )
        assert plain.choices[0].finish_reason == "length"

    api = Api(launcher.url)
    options = {"temperature": 0, "num_predict": TOKENS}
    told = api.post(
        "/api/generate", {"model": "m", "prompt": BEFORE, "suffix": BEHIND, "stream": False, "options": options}
    )
    assert (told["prompt_eval_count"], told["response"]) == (len(prompt), said.choices[0].text)
    api.close()
