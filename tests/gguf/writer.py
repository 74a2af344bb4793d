"""Random tiny models of Transformers as GGUF files, laid out as llama.cpp's converter lays them out.

Names of tensors are those of the `gguf` package's own map; what the converter turns round is turned round here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..models.tiny import make_model

Arrays = dict[str, "np.ndarray[Any, Any]"]
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.weight")
GRANITE = re.compile(r"model\.layers\.(\d+)\.(\w+)\.input_linear\.(gate|up)")
VECTOR = "shared_expert_gate.weight"  # a matrix of one row, stored as a vector
BOTH = ("experts.gate_up_proj", "experts.gate_up_proj_bias")
HEAD_NORM = re.compile(r"(.+layernorm)\.norms\.(\d+)\.weight")


@dataclass(frozen=True)
class Case:
    """An architecture of llama.cpp and tiny configs of its family in Transformers."""

    architecture: str
    family: str
    changes: tuple[dict[str, Any], ...] = ({},)
    permuted: bool = False  # queries and keys, from halves to neighbours
    one_more: bool = False  # norms are stored with the one that they are short of
    transposed: str = "$^"  # names of matrices stored the other way round
    apart: bool = False  # what makes keys and what makes values out of latents, head by head
    grouped: str = "$^"  # names of matrices with query, key and value by groups
    extra: Callable[[Any], dict[str, Any]] = field(default=lambda _: {})


def write(
    case: Case, folder: Path, kind: Kind = Kind.F32, seed: int = 0, **changes: Any
) -> tuple[PreTrainedModel, Path]:
    """A model, its weights as the file gives them back, and the file. `changes` go over those of the case."""
    made = make_model(folder, case.family, seed, **changes)
    stored = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    rounded = {name: _rounded(case, name, tensor, kind) for name, tensor in stored.items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    reference = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=made.config._attn_implementation,
        experts_implementation="eager",
    ).eval()
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, case.architecture)
    config = made.config
    for key, value in {**_sizes(config), **case.extra(config)}.items():
        _add(writer, f"{case.architecture}.{key}", value)
    vocabulary(writer, config.vocab_size)
    arrays = _renamed(case, config, _laid_out(case, config, stored))
    for name, array in arrays.items():
        add_tensor(writer, name, array, kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return reference, path


def vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Of single characters: the smallest that is one."""
    tokens = ["<s>", "</s>", *(chr(place) for place in range(ord("!"), ord("!") + size - 2))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *(1 for _ in tokens[2:])])
    writer.add_token_merges(['! "'])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray[Any, Any], kind: Kind) -> None:
    array = np.ascontiguousarray(array, np.float32)
    if not _quantized(array, kind):
        writer.add_tensor(name, array)
    else:
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)


def _quantized(array: np.ndarray[Any, Any], kind: Kind) -> bool:
    return kind != Kind.F32 and array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0


def _rounded(case: Case, name: str, tensor: torch.Tensor, kind: Kind) -> torch.Tensor:
    """What is left of a weight once it was stored. Rows may then be reordered: blocks never cross them."""
    turned = tensor.t() if re.search(case.transposed, name) and tensor.dim() == 2 else tensor
    array = np.ascontiguousarray(turned.numpy())
    if not _quantized(array, kind) or name.endswith(VECTOR):
        return tensor
    back = torch.from_numpy(gguf.dequantize(gguf.quantize(array, kind), kind))
    return (back.t() if turned is not tensor else back).contiguous()


def _sizes(config: Any) -> dict[str, Any]:
    """What every architecture states."""
    heads = config.num_attention_heads
    values = {
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None) or heads,
        "context_length": getattr(config, "max_position_embeddings", 256),
        "feed_forward_length": getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
    }
    if getattr(config, "head_dim", None):
        values |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    rope = getattr(config, "rope_parameters", None)
    if rope:
        rope = rope.get("full_attention", rope)
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        values["rope.freq_base"] = float(rope["rope_theta"])
        values["rope.dimension_count"] = int(dim * rope.get("partial_rotary_factor", 1.0))
    for name, key in (
        ("rms_norm_eps", "layer_norm_rms_epsilon"), ("layer_norm_eps", "layer_norm_epsilon"),
        ("layer_norm_epsilon", "layer_norm_epsilon"), ("norm_epsilon", "layer_norm_epsilon"),
        ("norm_eps", "layer_norm_epsilon"),
    ):  # fmt: skip
        if getattr(config, name, None) is not None:
            values[f"attention.{key}"] = float(getattr(config, name))
    return values


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _turned(case: Case, config: Any, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One tensor as the converter lays it out."""
    if re.search(case.transposed, name) and array.ndim == 2:
        array = array.T
    if re.search(case.grouped, name):
        array = _blocks(array, config)
    if case.permuted and (found := re.search(r"\.(q|k)_proj\.", name)):
        heads = config.num_attention_heads if found[1] == "q" else config.num_key_value_heads
        array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    if case.one_more and name.endswith("norm.weight"):
        array = array + 1
    if name.endswith("experts.down_proj"):
        array = array.swapaxes(1, 2)
    return array.reshape(-1) if name.endswith(VECTOR) else array


def _laid_out(case: Case, config: Any, stored: dict[str, torch.Tensor]) -> Arrays:
    """Under the names of Hugging Face still, experts and norms of heads in one tensor each."""
    arrays: Arrays = {}
    stacks: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
    for name, tensor in stored.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = _turned(case, config, name, tensor.numpy())
        if found := EXPERT.fullmatch(name):
            stacks.setdefault(f"{found[1]}.{found[3]}.weight", {})[int(found[2])] = array
        elif found := HEAD_NORM.fullmatch(name):
            stacks.setdefault(f"{found[1]}.weight", {})[int(found[2])] = array
        elif case.apart and "kv_b_proj" in name:
            keys, values = np.split(array.reshape(config.num_attention_heads, -1, array.shape[-1]),
                                    [config.qk_nope_head_dim], axis=1)  # fmt: skip
            arrays |= {name.replace("kv_b", "k_b"): keys.swapaxes(1, 2), name.replace("kv_b", "v_b"): values}
        elif name.endswith("input_linear.weight"):  # Granite's: all gates, then all ups
            stem = name.removesuffix(".weight")
            for part, half in zip(("gate", "up"), np.split(array, 2, axis=-2), strict=True):
                arrays[f"{stem}.{part}"] = half
        elif name.endswith(BOTH):
            arrays |= _apart(name, array)
        else:
            arrays[_suffixed(name)] = array
    for name, parts in stacks.items():
        arrays[name] = np.stack([parts[place] for place in range(len(parts))])
    return arrays


def _suffixed(name: str) -> str:
    """gpt-oss has tensors without an ending, and DeepSeek V3."""
    if name.endswith(("experts.down_proj", "sinks")):
        return f"{name}.weight"
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    return name.replace("experts.down_proj_bias", "experts.down_proj.bias")


def _apart(name: str, array: np.ndarray[Any, Any]) -> Arrays:
    """gpt-oss: a gate's column next to its up's, stored [in, out]; its biases likewise."""
    stem, bias, _ = name.replace("gate_up_proj", "{}_proj").partition("_bias")
    matrices = (array[..., place::2] if bias else array[..., place::2].swapaxes(1, 2) for place in (0, 1))
    end = "bias" if bias else "weight"
    return {f"{stem.format(part)}.{end}": matrix for part, matrix in zip(("gate", "up"), matrices, strict=True)}


def _blocks(array: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    """All queries, then all keys, then all values."""
    heads = config.num_attention_heads
    groups = 1 if getattr(config, "multi_query", False) else heads
    if getattr(config, "new_decoder_architecture", False):
        groups = config.num_kv_heads
    dim = config.hidden_size // heads
    parts = array.reshape(groups, heads // groups + 2, dim, *array.shape[1:])
    split = [parts[:, : heads // groups], parts[:, -2], parts[:, -1]]
    return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in split])


def _renamed(case: Case, config: Any, arrays: Arrays) -> Arrays:
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    renamed: Arrays = {}
    for name, array in arrays.items():
        suffixes = (".weight", ".bias")
        if found := GRANITE.fullmatch(name):
            shared = found[2] == "shared_mlp"
            tensor = "FFN_GATE" if found[3] == "gate" else "FFN_UP"
            kind = gguf.MODEL_TENSOR[f"{tensor}_{'SHEXP' if shared else 'EXP'}"]
            renamed[f"{gguf.TENSOR_NAMES[kind].format(bid=found[1])}.weight"] = array
            continue
        to = names.get_name(name, suffixes) or names.get_name(name.removeprefix("transformer."), suffixes)
        assert to is not None, name
        renamed[to] = array
    return renamed
