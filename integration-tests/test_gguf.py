"""The built-in model as a GGUF file: tokenizer, chat template and weights come out of it as they went in."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import gguf
import pytest
from safetensors.torch import load_file
from support.api import Api
from support.missed import missed
from support.models import BUILT_IN, END
from support.reference import Reference, must_match
from support.server import Start

pytestmark = pytest.mark.timeout(180)

PRE = "starcoder"  # cuts these texts as the built-in tokenizer does
PROMPTS = ("Once upon a time", "The river 2026 ", "  Größe: 東京")


def write_built_in(path: Path, matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.BF16) -> Path:
    """As llama.cpp's converter would: in the type that the weights have, or another."""
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
        kind = gguf.GGMLQuantizationType.F32 if array.ndim == 1 else matrices
        writer.add_tensor(to, gguf.quantize(array, kind), raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return path


@pytest.mark.usefixtures("stand_in")
def test_blocks_of_a_file_are_multiplied_on_a_gpu(start: Start, tmp_path: Path, built_in_reference: Reference) -> None:
    """The stand-in for one."""
    model = write_built_in(tmp_path / "demo.gguf", gguf.GGMLQuantizationType.Q8_0)
    small = {"max_batch_prefill_tokens": 32, "max_total_tokens": 96, "max_batch_size": 2}
    launcher = start(model=model, device="cuda", dtype="bfloat16", **small).wait_ready()
    assert median(missed(launcher.url, built_in_reference, PROMPTS[0])) < 0.1


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
