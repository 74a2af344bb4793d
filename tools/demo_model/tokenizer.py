"""The tokenizer of the built-in model: byte-level BPE that splits numbers into digits, trained on the same corpus."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.demo_model.corpus import mixture
from tools.demo_model.rendering import TEMPLATE, render

PAD, BOS, END = "<|pad|>", "<|bos|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
SPECIAL = (PAD, BOS, END, *ROLES)
# Not special: they are part of the answer's text, so decoding must keep them.
MARKERS = ("<tool_call>", "</tool_call>")
VOCABULARY_SIZE = 2048
MAX_LENGTH = 2048
# Words with their leading space, runs of punctuation, single digits; every character falls into one of the branches.
_SPLIT = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _texts(seed: int, documents: int) -> Iterator[str]:
    for document in islice(mixture.documents(seed), documents):
        text = render(document, add_end=False)
        for token in (*SPECIAL, *MARKERS):
            text = text.replace(token, "\n")
        yield text


def train(seed: int, documents: int = 20_000) -> Tokenizer:
    """Train the vocabulary on the first ``documents`` documents of the corpus of ``seed``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(MARKERS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, documents), trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B:1",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


def _settings() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": list(ROLES),
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "chat_template": TEMPLATE,
    }


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer files of a Hugging Face model folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_settings(), indent=2) + "\n", encoding="utf-8")
