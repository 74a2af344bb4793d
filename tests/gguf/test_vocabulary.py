"""Tokenizers out of GGUF files against Transformers' own reading of them, and what goes with a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from textgen.gguf.errors import GgufError
from textgen.gguf.splits import CUTS
from textgen.gguf.unpack import unpack

CORPUS = [
    "Once upon a time there was a small boat on the river, and nobody knew whose it was.",
    "It's 2026, they'll say: 1234567 words, 3.14 of them SHOUTED; the rest whisper quietly in camelCase.",
    "def main():\n    return [x ** 2 for x in range(10)]\n\n\n# größer, naïve, 東京 и Москва",
] * 3
TEXTS = [
    *CORPUS[:3], "", " ", "  two  spaces   three", "tab\tand\nnewline\r\n", "\n\n", "12345 6", "I'M they'Re",
    "e\u0301te\u0301", "<|end|> in a text", "a/b//c", "🦀 emoji", "[UNK]",
]  # fmt: skip


def write(path: Path, architecture: str, rows: int, keys: dict[str, Any]) -> Path:
    """The least that a file may have."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {"context_length": 64, "embedding_length": 64, "block_count": 1, "feed_forward_length": 64,
             "attention.head_count": 2}  # fmt: skip
    for key, value in sizes.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in keys.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((rows, 64), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return path


def byte_level(**changes: Any) -> dict[str, Any]:
    """A trained byte-level vocabulary: every byte, some merges, two tokens that stand for themselves."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    state = json.loads(tokenizer.to_str())["model"]
    tokens = [*sorted(state["vocab"], key=state["vocab"].get), "<|begin|>", "<|end|>", "<think>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 3) + [3, 3, 4],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
        **changes,
    }


def pieces(**changes: Any) -> dict[str, Any]:
    """A vocabulary as SentencePiece has it: every byte, pieces with scores."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300))
    state = json.loads(tokenizer.to_str())["model"]
    merged = ["".join(pair) for pair in state["merges"]]
    letters = sorted(set(state["vocab"]) - set(merged))
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = list(dict.fromkeys([*head, *merged, *letters]))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(head) + [-float(place) for place in range(len(tokens) - len(head))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - len(head)),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changes,
    }


def unpacked(tmp_path: Path, keys: dict[str, Any], architecture: str = "llama") -> tuple[Path, Tokenizer]:
    path = write(tmp_path / "model.gguf", architecture, len(keys["tokenizer.ggml.tokens"]), keys)
    folder = unpack(path)
    return folder, Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "gpt-4o", "tekken", "dbrx", "gpt-2"])
def test_byte_level_vocabularies_equal_transformers(pre: str, tmp_path: Path) -> None:
    _, ours = unpacked(tmp_path, byte_level(**{"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        # Qwen's own tokenizer composes characters first, which Transformers' reader of these files leaves out.
        whole = text if pre != "qwen2" else text.replace("e\u0301", "é")
        assert ours.encode(text).ids == theirs(whole, add_special_tokens=False).input_ids, text
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == whole


def test_pieces_equal_transformers(tmp_path: Path) -> None:
    keys = pieces(**{"tokenizer.ggml.add_bos_token": False})
    _, ours = unpacked(tmp_path, keys, "phi3")  # whose spaces Transformers treats as we do
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text, add_special_tokens=False).input_ids, text
        assert ours.decode(ours.encode(text).ids) == text


def test_pieces_of_gemma_have_no_space_before_them(tmp_path: Path) -> None:
    keys = pieces(**{"tokenizer.ggml.add_space_prefix": False, "gemma2.attention.sliding_window": 16})
    _, ours = unpacked(tmp_path, keys, "gemma2")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        got = ours.encode(text).ids
        assert got == [1, *theirs(text, add_special_tokens=False).input_ids], text
        assert ours.decode(got) == text


def test_digits_of_starcoder_stand_alone(tmp_path: Path) -> None:
    _, ours = unpacked(tmp_path, byte_level(**{"tokenizer.ggml.pre": "starcoder"}))
    assert ours.encode("in 2026").tokens[-4:] == ["2", "0", "2", "6"]
    assert ours.encode("in 2026").tokens[-5] == "Ġ"


@pytest.mark.parametrize(
    ("keys", "begins", "ends"),
    [
        ({}, True, False),  # as llama 3 does
        ({"tokenizer.ggml.add_bos_token": False}, False, False),
        ({"tokenizer.ggml.add_eos_token": True}, True, True),
        ({"tokenizer.ggml.pre": "qwen2"}, False, False),
        ({"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_bos_token": True}, True, False),
    ],
)
def test_what_texts_begin_and_end_with(keys: dict[str, Any], begins: bool, ends: bool, tmp_path: Path) -> None:
    folder, ours = unpacked(tmp_path, byte_level(**keys))
    tokens = ours.encode("a boat").tokens
    assert (tokens[0] == "<|begin|>", tokens[-1] == "<|end|>") == (begins, ends)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["add_bos_token"], config["add_eos_token"]) == (begins, ends)


def test_special_tokens_template_and_ends(tmp_path: Path) -> None:
    given = byte_level(**{"tokenizer.chat_template": "{{ messages }}"})
    tokens = given["tokenizer.ggml.tokens"]
    tokens.append("<|eot_id|>")  # ends a turn, though the file says so nowhere
    given["tokenizer.ggml.token_type"].append(3)
    folder, ours = unpacked(tmp_path, given)
    end = tokens.index("<|end|>")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages }}"
    assert (config["bos_token"], config["eos_token"]) == ("<|begin|>", "<|end|>")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text())["eos_token_id"] == [end, len(tokens) - 1]
    assert ours.encode("a<|end|>b<think>", add_special_tokens=False).ids.count(end) == 1
    assert ours.decode(ours.encode("a<|end|>b<think>").ids) == "ab<think>"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tokenizer.ggml.model": "t5"}, "kind 't5' are not supported"),
        ({"tokenizer.ggml.pre": "poro-chat"}, "'poro-chat', which is not supported"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "'tokenizer.ggml.eos_token_id' is 9999"),
        ({"llama.rope.scaling.type": "spiral"}, "'llama.rope.scaling.type' is 'spiral'"),
        ({"llama.rope.dimension_count": 16}, "'llama.rope.dimension_count' is 16; it must be 32"),
        ({"llama.attention.value_length": 16}, "'llama.attention.value_length' is 16; it must be 32"),
        ({"llama.attention.q_lora_rank": 16}, "'llama.attention.q_lora_rank' is 16, which is not supported"),
        ({"llama.attention.causal": False}, "'llama.attention.causal' is False"),
    ],
)
def test_what_is_not_known_is_refused(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=words):
        unpacked(tmp_path, byte_level(**keys))


def test_an_unknown_architecture_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="'mamba' is not supported; supported are arcee, bloom, "):
        unpacked(tmp_path, byte_level(), "mamba")


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    keys = byte_level()
    path = write(tmp_path / "model.gguf", "llama", len(keys["tokenizer.ggml.tokens"]) - 1, keys)
    with pytest.raises(GgufError, match="more tokens than rows"):
        unpack(path)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("deepseek-v3", "I'm 12345 東京です, naïve!!", "I|'m| |123|45| |東京です|,| naïve|!!"),
        ("deepseek-coder", "I'm 123 東京, x", "I|'|m| |1|2|3| |東京|,| x"),
        ("deepseek-llm", "I'm 123 東京, Вася ა", "I|'|m| |123| |東京|,| Вася| |ა"),
        ("glm4", "I'M 12345 東京", "I|'M| |123|45| 東京"),
        ("chatglm-bpe", "don't 1234", "don|'t| |123|4"),
        ("exaone4", "don't 1234", "don|'t| 1234"),
    ],
)
def test_how_text_is_cut(pre: str, text: str, pieces: str) -> None:
    """Vocabularies that Transformers does not read: what llama.cpp's expressions of that name say, by hand."""
    cut = CUTS[pre].steps().pre_tokenize_str(text)
    assert "|".join(text[start:end] for _, (start, end) in cut) == pieces
