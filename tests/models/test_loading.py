"""Configs of both spellings, weights in one file or several, and a sentence for everything that is wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from textgen.layers.weight import Part
from textgen.models.config import read_config
from textgen.models.errors import ModelError
from textgen.models.load import load_model
from textgen.models.registry import FAMILIES, UnknownArchitecture, describe
from textgen.models.rotary_spec import LinearScaling, Llama3Scaling, RotarySpec
from textgen.models.weights import WeightFiles
from textgen.ops import select_ops
from textgen.parallel import Parallel

from .families import LLAMA3
from .tiny import edit_config, make_model

WEIGHTS = "model.safetensors"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return load_model(folder, dtype, torch.device("cpu"), Parallel(), select_ops())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_model(tmp_path)
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_old_and_new_rotary_spellings_agree(folder: Path) -> None:
    llama3 = {name: value for name, value in LLAMA3.items() if name not in ("rope_theta", "rope_type")}
    edit_config(folder, {"rope_parameters": LLAMA3})
    new, _ = describe(read_config(folder))
    edit_config(folder, {"rope_theta": 500.0, "rope_scaling": {"type": "llama3", **llama3}}, drop=("rope_parameters",))
    old, _ = describe(read_config(folder))
    assert new == old
    rotary = new.layers[0].rotary
    assert rotary is not None and rotary.theta == 500.0
    assert rotary.scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=32
    )


def test_rotary_defaults(folder: Path) -> None:
    edit_config(folder, {"rope_scaling": None}, drop=("rope_parameters",))
    spec, _ = describe(read_config(folder))
    assert spec.layers[0].rotary == RotarySpec(dim=16, theta=10_000.0)
    edit_config(folder, {"rope_scaling": {"rope_type": "linear", "factor": 2}})
    rotary = describe(read_config(folder)).spec.layers[0].rotary
    assert rotary is not None and rotary.scaling == LinearScaling(factor=2.0)


def test_sharded_weights_equal_a_single_file(folder: Path) -> None:
    whole = load(folder)
    tensors = load_file(folder / WEIGHTS)
    files: dict[str, dict[str, torch.Tensor]] = {"model-1.safetensors": {}, "model-2.safetensors": {}}
    for number, (name, tensor) in enumerate(tensors.items()):
        files[f"model-{number % 2 + 1}.safetensors"][name] = tensor.clone()
    for name, content in files.items():
        save_file(content, folder / name)
    index = {"weight_map": {tensor: name for name, content in files.items() for tensor in content}, "metadata": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / WEIGHTS).unlink()
    split = load(folder)
    assert torch.equal(
        whole.layers[1].block.attention.qkv.weight.values, split.layers[1].block.attention.qkv.weight.values
    )
    assert torch.equal(whole.head.weight.values, split.head.weight.values)

    with WeightFiles(folder) as source:
        for name, tensor in tensors.items():
            into = torch.empty(tensor.shape)
            source.read(Part(name, tuple(tensor.shape)), into)
            assert torch.equal(into, tensor)
            mapped = {
                line.split()[-1]
                for line in Path("/proc/self/maps").read_text().splitlines()
                if f"{folder}/model-" in line
            }
            assert len(mapped) == 1, "memory beside the model: one file of it"

    (folder / "model-2.safetensors").unlink()
    assert "model-2.safetensors is missing" in refusal(folder)


@pytest.mark.parametrize("stored", [torch.float64, torch.float16, torch.bfloat16])
def test_stored_dtypes_are_converted(stored: torch.dtype, folder: Path) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS)
    model = load(folder)
    expected = tensors["model.layers.0.mlp.down_proj.weight"].float()
    assert torch.equal(model.layers[0].block.mlp.down.weight.values, expected)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM"])
def test_a_checkpoint_of_the_bare_model_equals_one_of_the_whole(architecture: str, tmp_path: Path) -> None:
    make_model(tmp_path, architecture, tie_word_embeddings=True)
    whole = load(tmp_path)
    tensors = {name.partition(".")[2]: tensor for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    save_file(tensors, tmp_path / WEIGHTS)
    bare = load(tmp_path)
    weights = [model.layers[2].block.attention.qkv.weight.values for model in (whole, bare)]
    assert torch.equal(*weights)
    assert torch.equal(whole.embedding.table, bare.embedding.table)


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return damage


def cut(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def huge_header(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(struct.pack("<Q", 2**60) + path.read_bytes()[8:])


def unknown_dtype(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"X32"'))


def index_outside(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "elsewhere.safetensors")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def broken_index(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [')


def only_pickles(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


NORM, DOWN = "model.norm.weight", "model.layers.0.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, ["model.safetensors", "damaged", "download"]),
        (huge_header, ["model.safetensors", "damaged", "header too large"]),
        (unknown_dtype, ["model.safetensors", "damaged", "X32"]),
        (lambda folder: (folder / WEIGHTS).write_bytes(b""), ["damaged", "header too small"]),
        (rewrite(lambda t: t.pop(NORM)), ["no tensor", NORM, "config.json"]),
        (rewrite(lambda t: t.update({DOWN: t[DOWN][:, :7].clone()})), [DOWN, "(64, 7)", "(64, 96)"]),
        (rewrite(lambda t: t.update({NORM: t[NORM].to(torch.int8)})), [NORM, "dtype I8"]),
        (index_outside, ["outside its folder", "../elsewhere.safetensors"]),
        (broken_index, ["model.safetensors.index.json is damaged"]),
        (only_pickles, ["neither model.safetensors nor", "only safetensors"]),
        (lambda folder: (folder / "config.json").unlink(), ["no config.json"]),
        (lambda folder: (folder / "config.json").write_text("{"), ["config.json is not valid JSON"]),
        (lambda folder: (folder / "config.json").write_text("[]"), ["JSON object"]),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), ["config.json is not valid JSON"]),
        (lambda folder: (folder / "config.json").write_bytes(b'{"a": "\xff"}'), ["config.json is not valid JSON"]),
    ],
)
def test_damage_is_told_in_one_sentence(damage: Callable[[Path], object], words: list[str], folder: Path) -> None:
    damage(folder)
    sentence = refusal(folder)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "many"}, ["'hidden_size' must be a positive integer", "'many'"]),
        ({"hidden_size": None}, ["no 'hidden_size'"]),
        ({"num_hidden_layers": -1}, ["'num_hidden_layers'"]),
        ({"rms_norm_eps": "small"}, ["'rms_norm_eps' must be a positive number"]),
        ({"tie_word_embeddings": 3}, ["'tie_word_embeddings' must be true or false"]),
        ({"hidden_act": "xielu"}, ["'hidden_act' is 'xielu'", "silu"]),
        ({"num_key_value_heads": 3}, ["not a multiple"]),
        ({"head_dim": 15}, ["must be even"]),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, ["'spiral'", "yarn or longrope"]),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}}, ["'short_factor' must be a list of 8"]),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "alpha": 8}}, ["'alpha' is 8", "does not know"]),
        ({"logit_scale": 0.5}, ["'logit_scale' is 0.5", "does not know", "take it out"]),
        ({"position_embedding_type": "alibi"}, ["'position_embedding_type' is 'alibi'", "does not know"]),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ["no 'factor'"]),
        ({"rope_parameters": 7}, ["'rope_parameters' must be an object"]),
        ({"architectures": "LlamaForCausalLM"}, ["'architectures' must be a list"]),
        ({"quantization_config": {"quant_method": "exl2"}}, ["quantized weights are not supported"]),
    ],
)
def test_wrong_configs_are_told_in_one_sentence(changes: dict[str, Any], words: list[str], folder: Path) -> None:
    edit_config(folder, changes)
    sentence = refusal(folder)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize("architectures", [["GPT5ForCausalLM"], [], None])
def test_an_unknown_architecture_is_named_with_the_known_ones(architectures: list[str] | None, folder: Path) -> None:
    edit_config(folder, {"architectures": architectures})
    with pytest.raises(UnknownArchitecture) as caught:
        load(folder)
    assert all(name in str(caught.value) for name in [*FAMILIES, *(architectures or ["none"])])


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "nowhere")
