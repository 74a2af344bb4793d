"""A random model to start with: a Llama of a billion numbers in bfloat16, as a folder and as a GGUF file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import textgen

BUILT_IN = Path(textgen.__file__).parent / "demo" / "model"
TEXTS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
SIZES = {  # 1.03 billion numbers
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32_768, "max_position_embeddings": 2048,
}  # fmt: skip


def config(**changes: int) -> dict[str, object]:
    """Its config.json."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 1,
        "eos_token_id": 2, **SIZES, **changes,
    }  # fmt: skip


def shapes(values: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of its tensors."""
    sizes = {name: value for name, value in values.items() if isinstance(value, int)}
    tied = bool(values["tie_word_embeddings"])
    hidden, inner, vocab = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    shared = hidden // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        found["lm_head.weight"] = (vocab, hidden)
    for layer in range(sizes["num_hidden_layers"]):
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (shared, hidden),
            "self_attn.v_proj": (shared, hidden), "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        }.items():  # fmt: skip
            found[f"model.layers.{layer}.{name}.weight"] = shape
    return found


def write(folder: Path, **changes: int) -> Path:
    """The folder. The same random numbers over and over: what they are takes no part in how long reading takes."""
    folder.mkdir(parents=True)
    values = config(**changes)
    noise = torch.randn(2**20 + 1, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()

    def tensor(shape: tuple[int, ...]) -> Tensor:
        count = torch.Size(shape).numel()
        return noise.repeat(-(-count // noise.numel()))[:count].view(shape)

    tensors = {name: tensor(shape) for name, shape in shapes(values).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(values))
    for name in TEXTS:
        shutil.copy(BUILT_IN / name, folder / name)
    return folder


def write_gguf(folder: Path, path: Path) -> Path:
    """The folder's weights for llama.cpp. Rows are not permuted, as nobody reads what it says."""
    import gguf

    values = json.loads((folder / "config.json").read_text())
    text = json.loads((folder / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(values["hidden_size"])
    writer.add_block_count(values["num_hidden_layers"])
    writer.add_feed_forward_length(values["intermediate_size"])
    writer.add_head_count(values["num_attention_heads"])
    writer.add_head_count_kv(values["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    head = values.get("head_dim", values["hidden_size"] // values["num_attention_heads"])
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    known = text["model"]["vocab"] | {token["content"]: token["id"] for token in text["added_tokens"]}
    tokens = sorted(known, key=lambda token: int(known[token]))
    tokens += [f"<unused{number}>" for number in range(len(tokens), values["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("starcoder")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([" ".join(pair) for pair in text["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, values["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        to = names.get_name(name, (".weight",))
        assert to is not None, name
        kind = gguf.GGMLQuantizationType.F32 if tensor.dim() == 1 else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(to, gguf.quantize(tensor.float().numpy(), kind), raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return path
