"""The built-in model as a GGUF file: tokenizer, chat template and weights come out of it as they went in."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from support.api import Api
from support.missed import missed
from support.models import BUILT_IN, END
from support.reference import Reference, must_match
from support.server import Start

pytestmark = pytest.mark.timeout(180)

PRE = "starcoder"  # cuts these texts as the built-in tokenizer does
PROMPTS = ("Once upon a time", "The river 2026 ", "  Größe: 東京")


def q4_k(numbers: np.ndarray) -> np.ndarray:
    """Blocks [out, bytes] of numbers [out, in], which the `gguf` package reads but does not write: each 32 inputs
    between their least, or 0, and their largest."""
    groups = numbers.reshape(len(numbers), -1, 8, 32)
    least = np.maximum(-groups.min(-1), 0)
    steps = (groups.max(-1) + least) / 15
    whole = [(each.max(-1, keepdims=True) / 63).astype(np.float16) for each in (steps, least)]
    scale, minimum = (
        np.rint(each / np.maximum(of_all, 1e-7)).clip(0, 63).astype(np.uint8)
        for each, of_all in zip((steps, least), whole, strict=True)
    )
    step, below = ((each * of_all)[..., None] for each, of_all in zip((scale, minimum), whole, strict=True))
    values = np.rint((groups + below) / np.maximum(step, 1e-7)).clip(0, 15).astype(np.uint8)
    first = np.concatenate([each[..., :4] | each[..., 4:] >> 4 << 6 for each in (scale, minimum)], -1)
    rest = scale[..., 4:] & 15 | (minimum[..., 4:] & 15) << 4
    pairs = values[..., ::2, :] | values[..., 1::2, :] << 4
    header = [each.view(np.uint8) for each in whole]
    blocks = np.concatenate([*header, first, rest, pairs.reshape(*pairs.shape[:2], -1)], -1)
    return blocks.reshape(len(numbers), -1)


def write_built_in(path: Path, matrices: Kind = Kind.BF16, down: Kind | None = None) -> Path:
    """As llama.cpp's converter would: in the type that the weights have, or another; the down projections may be in
    one of their own, which is what it does with 192 inputs too."""
    config = json.loads((BUILT_IN / "config.json").read_text())
    text = json.loads((BUILT_IN / "tokenizer.json").read_text())
    settings = json.loads((BUILT_IN / "tokenizer_config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float((config.get("rope_parameters") or config)["rope_theta"]))
    vocab: dict[str, int] = text["model"]["vocab"] | {token["content"]: token["id"] for token in text["added_tokens"]}
    special = {token["content"] for token in text["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    assert [vocab[token] for token in tokens] == list(range(len(tokens)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in text["model"]["merges"]])
    writer.add_bos_token_id(vocab[settings["bos_token"]])
    writer.add_eos_token_id(vocab[settings["eos_token"]])
    writer.add_pad_token_id(vocab[settings["pad_token"]])
    writer.add_add_bos_token(True)
    writer.add_chat_template(settings["chat_template"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(BUILT_IN / "model.safetensors").items():
        array = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else kv_heads
            array = array.reshape(count, 2, dim // 2, -1).swapaxes(1, 2).reshape(array.shape)
        to = names.get_name(name, (".weight", ".bias"))
        assert to is not None
        kind = Kind.F32 if array.ndim == 1 else matrices if "down_proj" not in name else down or matrices
        blocks = q4_k(array) if kind == Kind.Q4_K else gguf.quantize(array, kind)
        writer.add_tensor(to, blocks, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return path


@pytest.mark.usefixtures("stand_in")
def test_blocks_of_a_file_are_multiplied_on_a_gpu(start: Start, tmp_path: Path, built_in_reference: Reference) -> None:
    """The stand-in for one."""
    model = write_built_in(tmp_path / "demo.gguf", Kind.Q8_0, Kind.Q4_K)
    small = {"max_batch_prefill_tokens": 32, "max_total_tokens": 96, "max_batch_size": 2}
    launcher = start(model=model, device="cuda", dtype="bfloat16", **small).wait_ready()
    assert median(missed(launcher.url, built_in_reference, PROMPTS[0])) < 0.1


def test_q4_k_is_read_as_it_was_written() -> None:
    numbers = np.random.default_rng(0).normal(0, 0.05, (5, 512)).astype(np.float32)
    read = gguf.dequantize(q4_k(numbers), Kind.Q4_K)
    assert np.abs(read - numbers).max() < 0.02


def test_the_built_in_model_out_of_a_gguf_file(start: Start, tmp_path: Path, built_in_reference: Reference) -> None:
    launcher = start(model=write_built_in(tmp_path / "demo.gguf"), dtype="float32").wait_ready()
    api = Api(launcher.url)
    for text in PROMPTS:
        tokens = [token["id"] for token in api.post("/tokenize", {"inputs": text})]
        assert tokens == built_in_reference.encode(text), text
        must_match(api.generate(text, max_new_tokens=24).tokens, built_in_reference.greedy(tokens, 24), text)
    messages = [{"role": "user", "content": "What is Textgen?"}]
    prompt = built_in_reference.chat(messages)
    rendered = api.post("/chat_tokenize", {"messages": messages})
    assert [token["id"] for token in rendered["tokenize_response"]] == prompt
    said = api.post("/v1/chat/completions", {"messages": messages, "max_tokens": 40, "temperature": 0})
    expected = built_in_reference.greedy(prompt, 40)
    if expected.clear:
        assert said["choices"][0]["message"]["content"] == expected.text
        assert (said["choices"][0]["finish_reason"] == "stop") == (expected.tokens[-1] == END)
    api.close()
    assert launcher.faults() == []


def test_a_damaged_gguf_file_ends_the_start_with_a_sentence(start: Start, tmp_path: Path) -> None:
    path = write_built_in(tmp_path / "demo.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    launcher = start(model=path)
    assert launcher.wait() == 3
    (line,) = launcher.log.splitlines()
    assert line.startswith(f"error: --model-id {path}: {path} is damaged (it ends before tensor ")
