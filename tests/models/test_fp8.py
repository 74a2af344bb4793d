"""8-bit checkpoints against Transformers with the numbers they stand for, and against its own reading of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, PreTrainedModel

from textgen.launcher.checkpoint import read_checkpoint
from textgen.layers.weight import Part
from textgen.models import fp8
from textgen.models.errors import ModelError
from textgen.models.fp8_config import Fp8
from textgen.models.weights import WeightFiles

from .test_decoder import Sequence, load, poisoned_cache, run_step
from .tiny import edit_config, make_model, random_prompt, reference_logits, well_chosen

WEIGHTS = "model.safetensors"
LEFT = ("embed", "lm_head", "norm", "gate.weight", "correction")  # what such checkpoints leave as it is
BLOCKS = (16, 32)  # divide neither 96 rows nor 24
DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(BLOCKS)}
WHOLE = {"quant_method": "fp8", "activation_scheme": "static"}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}


def compressed(strategy: str, **weights: Any) -> dict[str, Any]:
    """As compressed-tensors writes it."""
    given = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False, **weights}
    group = {"targets": ["Linear"], "weights": given, "input_activations": {"num_bits": 8}}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": group}, "kv_cache_scheme": None}  # fmt: skip


def scaled(tensor: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """8-bit numbers, a scale for each block of that size, and the numbers they stand for: block by block."""
    rows, columns = tensor.shape
    stored = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    back = torch.empty(rows, columns)
    scale = torch.empty(-(-rows // size[0]), -(-columns // size[1]))
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            where = (slice(i * size[0], (i + 1) * size[0]), slice(j * size[1], (j + 1) * size[1]))
            scale[i, j] = tensor[where].abs().max() / 448
            stored[where] = (tensor[where] / scale[i, j]).to(torch.float8_e4m3fn)
            back[where] = stored[where].float() * scale[i, j]
    return stored, scale, back


def pack(folder: Path, section: dict[str, Any]) -> PreTrainedModel:
    """The folder's weights in 8 bits; a model of Transformers that has what they stand for."""
    stored, plain = {}, {}
    block = section.get("weight_block_size")
    strategy = "block" if block else "tensor"
    if section["quant_method"] == "fbgemm_fp8":
        strategy = "channel"
    if section["quant_method"] == "compressed-tensors":
        weights = section["config_groups"]["group_0"]["weights"]
        strategy, block = weights["strategy"], weights.get("block_structure")
    name_of_scale = "_scale_inv" if section.get("weight_block_size") else "_scale"
    for name, tensor in load_file(folder / WEIGHTS).items():
        if tensor.dim() != 2 or any(part in name for part in LEFT):
            stored[name] = plain[name] = tensor
            continue
        rows, columns = tensor.shape
        sizes = {"tensor": (rows, columns), "channel": (1, columns), "block": tuple(block or ())}
        stored[name], scale, plain[name] = scaled(tensor, sizes[strategy])
        stored[name + name_of_scale] = scale.view(()) if strategy == "tensor" else scale
    save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})
    reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager"
    ).eval()
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    edit_config(folder, {"quantization_config": section})
    return reference


@pytest.mark.parametrize(
    ("architecture", "section"),
    [
        ("LlamaForCausalLM", DEEPSEEK),
        ("LlamaForCausalLM", WHOLE),
        ("DeepseekV3ForCausalLM", DEEPSEEK),
        ("Qwen3MoeForCausalLM", DEEPSEEK),
        ("Phi3ForCausalLM", compressed("channel")),
        ("LlamaForCausalLM", compressed("tensor")),
        ("LlamaForCausalLM", FBGEMM),
        ("Qwen3ForCausalLM", compressed("block", block_structure=list(BLOCKS))),
    ],
)
@torch.inference_mode()
def test_logits_are_those_of_the_numbers(architecture: str, section: dict[str, Any], tmp_path: Path) -> None:
    make_model(tmp_path, architecture)
    reference = pack(tmp_path, section)
    model, tokens = load(tmp_path), random_prompt(random.Random(3), 40)
    sequence = Sequence(tokens, list(range(10)))
    cache = poisoned_cache(model)
    for step in (25, 15):
        run_step(model, cache, [(sequence, step)])
    sure = well_chosen(reference, tokens)
    assert sure > 3
    theirs = reference_logits(reference, tokens)[:sure]
    torch.testing.assert_close(torch.cat(sequence.logits)[:sure], theirs, rtol=2e-4, atol=2e-4)


@torch.inference_mode()
def test_transformers_reads_the_same(tmp_path: Path) -> None:
    """Its own dequantizing of such a checkpoint."""
    make_model(tmp_path, intermediate_size=128)
    pack(tmp_path, DEEPSEEK | {"weight_block_size": [32, 32]})
    wish = FineGrainedFP8Config(weight_block_size=(32, 32), dequantize=True)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=wish, dtype=torch.float32).eval()
    tokens = random_prompt(random.Random(4), 12)
    sequence = Sequence(tokens, [2, 0, 1])
    model = load(tmp_path)
    run_step(model, poisoned_cache(model), [(sequence, 12)])
    torch.testing.assert_close(sequence.logits[0], reference_logits(theirs.float(), tokens), rtol=2e-4, atol=2e-4)


def test_slices_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank keeps of a matrix, of one of a stack too, turned some rows at a time."""
    monkeypatch.setattr(fp8, "CHUNK", 100)
    rng = torch.Generator().manual_seed(1)
    parts = [scaled(torch.randn(50, 70, generator=rng), BLOCKS) for _ in range(3)]
    stack = {"e": torch.stack([part[0] for part in parts]), "e_scale_inv": torch.stack([part[1] for part in parts])}
    save_file({"w": parts[0][0], "w_scale_inv": parts[0][1], **stack}, tmp_path / WEIGHTS)
    with WeightFiles(tmp_path, Fp8(BLOCKS)) as source:
        into = torch.empty(13, 20)
        source.read(Part("w", (50, 70), slice(10, 49, 3), slice(25, 45)), into)
        assert torch.equal(into, parts[0][2][10:49:3, 25:45])
        whole = torch.empty(50, 70)
        source.read(Part("e", (50, 70), index=2, stacked=3), whole)
        assert torch.equal(whole, parts[2][2])


def test_the_memory_plan_counts_numbers_and_not_scales(tmp_path: Path) -> None:
    reference = make_model(tmp_path)
    numbers = sum(tensor.numel() for tensor in load_file(tmp_path / WEIGHTS).values())
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    pack(tmp_path, DEEPSEEK)
    found = read_checkpoint(tmp_path)
    assert (found.parameters, found.dtype) == (numbers, "bfloat16")
    assert reference.num_parameters() <= numbers


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (DEEPSEEK | {"weight_block_size": [8, 8]}, "does not fit a matrix"),
        (DEEPSEEK | {"weight_block_size": [8]}, "must be two positive integers"),
        (DEEPSEEK | {"fmt": "e5m2"}, "'fmt' is 'e5m2'"),
        (DEEPSEEK | {"rotation": 3}, "'rotation' is 3"),
        (compressed("group"), "'strategy' must be tensor, channel or block"),
        (compressed("tensor", num_bits=4), "'num_bits' is 4"),
        (compressed("tensor", type="int"), "'type' is 'int'"),
        (
            compressed("tensor") | {"format": "nvfp4-pack-quantized"},
            "not supported yet in the form 'compressed-tensors'",
        ),
        (compressed("tensor") | {"transform_config": {"a": 1}}, "'transform_config' is"),
        ({"quant_method": "exl2", "bits": 4}, "not supported yet in the form 'exl2'"),
    ],
)
def test_what_is_not_understood_is_refused(section: dict[str, Any], words: str, tmp_path: Path) -> None:
    make_model(tmp_path)
    pack(tmp_path, DEEPSEEK)
    edit_config(tmp_path, {"quantization_config": section})
    with pytest.raises(ModelError) as caught:
        load(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scale_that_is_missing(tmp_path: Path) -> None:
    make_model(tmp_path)
    pack(tmp_path, DEEPSEEK)
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors["model.layers.0.mlp.down_proj.weight_scale_inv"]
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(ModelError, match="'model.layers.0.mlp.down_proj.weight' has 8-bit numbers and no scale"):
        load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="has dtype F8_E4M3"):
        load(tmp_path)
