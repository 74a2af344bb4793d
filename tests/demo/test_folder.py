"""The packaged folder is small, whole, and what any Llama loader expects."""

import json

import torch
from safetensors import safe_open

from textgen.demo import MODEL_FOLDER
from tools.demo_model.evaluate import Model
from tools.demo_model.network import Network, Shape

LIMIT_BYTES = 12 * 1000 * 1000


def test_folder_stays_within_its_size_limit() -> None:
    assert sum(path.stat().st_size for path in MODEL_FOLDER.rglob("*")) <= LIMIT_BYTES


def test_folder_holds_no_left_over_files() -> None:
    assert {path.name for path in MODEL_FOLDER.iterdir()} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_config_describes_a_grouped_tied_llama() -> None:
    config = json.loads((MODEL_FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["head_dim"] in (32, 64)
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["tie_word_embeddings"] is True
    assert config["max_position_embeddings"] == 2048
    assert config["torch_dtype"] == "bfloat16"


def test_weights_are_bfloat16_and_named_as_in_transformers(model: Model) -> None:
    with safe_open(MODEL_FOLDER / "model.safetensors", framework="pt") as weights:
        names = set(weights.keys())
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert names == {name for name, _ in model.network.named_parameters()}


def test_token_ids_agree_between_files(model: Model) -> None:
    config = json.loads((MODEL_FOLDER / "config.json").read_text(encoding="utf-8"))
    generation = json.loads((MODEL_FOLDER / "generation_config.json").read_text(encoding="utf-8"))
    for token, key in (("<|pad|>", "pad_token_id"), ("<|bos|>", "bos_token_id"), ("<|end|>", "eos_token_id")):
        assert config[key] == generation[key] == model.tokenizer.token_to_id(token)
    assert config["vocab_size"] == model.tokenizer.get_vocab_size()


def test_training_network_equals_transformers(model: Model) -> None:
    config = model.network.config
    network = Network(
        Shape(
            vocabulary=config.vocab_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
        )
    )
    network.load_state_dict(model.network.state_dict(), strict=False)
    tokens = torch.randint(0, network.shape.vocabulary, (2, 90), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        ours = network.logits(network(tokens))
        theirs = model.network(input_ids=tokens).logits
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
