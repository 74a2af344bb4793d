"""A Llama that says one text, whatever it is asked: each token's embedding points at the next token alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from support.models import BOS, BUILT_IN, END, MAX_POSITIONS, PAD, save, vocabulary_size

# No byte of it comes twice, so that a token alone says what follows, and its characters are one to four bytes long.
TEXT = "é日Ж😀Β The cat sold 7 small box."


@dataclass(frozen=True)
class Script:
    """The model's folder, the tokens it says and, when it never ends, says again and again."""

    folder: Path
    tokens: tuple[int, ...]
    text: str


def write_script(folder: Path, *, ends: bool, text: str = TEXT, marks: Sequence[str] = ()) -> Script:
    """`ends`: with the end-of-sequence token after the text; else the text begins anew. `marks`: special tokens."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(BUILT_IN)
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    assert len(set(tokens)) == len(tokens), f"a token of {text!r} comes twice: {tokens}"
    said = [*tokens, END] if ends else tokens
    hidden = 64
    assert len(said) < hidden
    model = LlamaForCausalLM(_config(hidden, vocabulary_size() + len(marks)))
    _teach(model, said, hidden)
    save(model, folder)
    if marks:
        tokenizer.save_pretrained(folder)
    return Script(folder, tuple(said), text)


def _config(hidden: int, vocab_size: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=MAX_POSITIONS, pad_token_id=PAD,
        bos_token_id=BOS, eos_token_id=END, tie_word_embeddings=False,
    )  # fmt: skip


@torch.no_grad()
def _teach(model: LlamaForCausalLM, said: list[int], hidden: int) -> None:
    """Direction i of the hidden state means "said[i] was said"; the last one means "nothing of it was"."""
    nothing = hidden - 1
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding.zero_()
    head.zero_()
    embedding[:, nothing] = 1.0
    for place, token in enumerate(said):
        embedding[token] = 0.0
        embedding[token, place] = 1.0
        head[token, place - 1 if place else nothing] = 3.0
    head[said[0], len(said) - 1] = 3.0
    layer = model.model.layers[0]
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
