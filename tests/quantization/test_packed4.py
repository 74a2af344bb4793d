"""Checkpoints of GPTQ's and AWQ's form: as they are stored, so they are multiplied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.test_decoder import CPU
from tests.models.tiny import make_model
from tests.ops.cpu.test_plan import TOKENS, logits, planned
from tests.seeds import fresh_seed
from textgen.launcher.checkpoint import read_checkpoint
from textgen.models.decoder import Decoder
from textgen.models.errors import ModelError
from textgen.models.load import load_model
from textgen.ops import select_ops
from textgen.ops.cpu.instructions import Pick
from textgen.ops.cpu.record import record
from textgen.ops.cpu.twin import InterpretedModel
from textgen.parallel import Parallel
from textgen.quantization.blocks import StackedWeight
from textgen.quantization.integers import Int4Weight, Int8Format
from textgen.quantization.ordered import OrderedWeight
from textgen.quantization.packed4 import AWQ_ORDER, Int4ZerosWeight

GROUP = 32
LLAMA, MIXTURE = "LlamaForCausalLM", "Qwen3MoeForCausalLM"


def pack(values: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[rows, columns / 8] int32, four bits each: `order` says which of eight neighbours goes where, lowest first."""
    each = values.view(len(values), -1, 8)[..., list(order)].long()
    return (each << torch.arange(0, 32, 4)).sum(-1).to(torch.int64).view(torch.int32)[:, ::2].contiguous()


def quantized(
    folder: Path, method: str, symmetric: bool, orders: str = "none", architecture: str = LLAMA, **changes: Any
) -> Path:
    """A tiny model whose matrices are random numbers of four bits, and beside it the same in float32.

    orders: whether inputs are in groups of their own: "none", "alike" in all matrices of a size, or in "each".
    """
    torch.manual_seed(seed := fresh_seed())
    mixture = {"moe_intermediate_size": 96, "num_experts": 5, "decoder_sparse_step": 1, "mlp_only_layers": []}
    made = mixture if architecture == MIXTURE else {}
    make_model(folder, architecture, seed, hidden_size=64, intermediate_size=96, num_attention_heads=4, **made)
    tensors, plain, shared = {}, {}, {size: torch.randperm(size) for size in (64, 96)}
    for name, weight in load_file(folder / "model.safetensors").items():
        plain[name] = weight
        if not name.endswith("_proj.weight"):
            tensors[name] = weight
            continue
        outputs, inputs = weight.shape
        values = torch.randint(0, 16, (outputs, inputs))
        zeros = (
            torch.full((outputs, inputs // GROUP), 8) if symmetric else torch.randint(1, 16, (outputs, inputs // GROUP))
        )
        scales = (torch.rand(outputs, inputs // GROUP) * 0.02).half()
        index = torch.arange(inputs, dtype=torch.int32) // GROUP
        if orders != "none":
            index = index[shared[inputs] if orders == "alike" else torch.randperm(inputs)]
        spread = zeros[:, index.long()], scales.float()[:, index.long()]
        plain[name] = ((values - spread[0]) * spread[1]).to(weight.dtype)
        base = name.removesuffix(".weight")
        tensors[f"{base}.scales"] = scales.t().contiguous()
        if method == "gptq":
            tensors[f"{base}.qweight"] = pack(values).t().contiguous()
            tensors[f"{base}.qzeros"] = pack(zeros.t().contiguous() - 1)
            tensors[f"{base}.g_idx"] = index
        else:
            tensors[f"{base}.qweight"] = pack(values.t().contiguous(), AWQ_ORDER)
            tensors[f"{base}.qzeros"] = pack(zeros.t().contiguous(), AWQ_ORDER)
    numbers = folder / "numbers"
    numbers.mkdir()
    for path in folder.glob("*.json"):
        (numbers / path.name).write_text(path.read_text())
    save_file(plain, numbers / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    said = {"quant_method": method, "bits": 4, "group_size": GROUP, **changes}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    return numbers


def load(folder: Path) -> Decoder:
    model = load_model(folder, torch.float32, CPU, Parallel(), select_ops())
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize(("method", "symmetric"), [("gptq", True), ("gptq", False), ("awq", False)])
@torch.inference_mode()
def test_weights_are_those_that_were_stored(method: str, symmetric: bool, tmp_path: Path) -> None:
    numbers = load(quantized(tmp_path, method, symmetric))
    model = load(tmp_path)
    for ours, plain in zip(model.layers, numbers.layers, strict=True):
        weight = ours.block.mlp.down.weight  # type: ignore[union-attr]
        assert isinstance(weight, Int4Weight if symmetric else Int4ZerosWeight)
        x = torch.randn(3, weight.inputs)
        exact = plain.block.mlp.down.weight.multiply(x, None)  # type: ignore[union-attr]
        assert (weight.multiply(x, None) - exact).norm() < 0.02 * exact.norm()
    if isinstance(weight, Int4ZerosWeight):
        torch.testing.assert_close(weight.numbers(), plain.block.mlp.down.weight.values)  # type: ignore[union-attr]
    expected = logits(model, 4)
    missed = (logits(planned(record(model)), 4) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(missed.median()) < 5e-2  # a product gone wrong misses by all of it


@pytest.mark.parametrize(("method", "symmetric"), [("gptq", True), ("gptq", False), ("awq", False)])
@torch.inference_mode()
def test_experts_stay_in_four_bits(method: str, symmetric: bool, tmp_path: Path) -> None:
    """Also where some of them alone need no zero points."""
    numbers, model = load(quantized(tmp_path, method, symmetric, architecture=MIXTURE)), load(tmp_path)
    for ours, plain in zip(model.layers, numbers.layers, strict=True):
        for name in ("up", "down"):
            both = (getattr(cast(Any, each.block).mlp, name).each for each in (ours, plain))
            for weight, exact in zip(*both, strict=True):
                assert isinstance(weight, Int4Weight if symmetric else Int4ZerosWeight)
                x = torch.randn(3, weight.inputs)
                expected = exact.multiply(x, None)
                assert (weight.multiply(x, None) - expected).norm() < 0.02 * expected.norm()
    expected = logits(model, 4)
    missed = (logits(planned(record(model)), 4) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(missed.median()) < 5e-2


@torch.inference_mode()
def test_experts_whose_inputs_are_in_an_order_become_numbers(tmp_path: Path) -> None:
    numbers = load(quantized(tmp_path, "gptq", False, "each", MIXTURE, desc_act=True))
    model = load(tmp_path)
    for ours, plain in zip(model.layers, numbers.layers, strict=True):
        for name in ("up", "down"):
            both = (getattr(cast(Any, each.block).mlp, name).each for each in (ours, plain))
            assert all(torch.equal(one.values, other.values) for one, other in zip(*both, strict=True))
    expected = logits(model, 4)
    missed = (logits(planned(record(model)), 4) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(missed.median()) < 5e-2


def test_experts_of_which_some_have_zero_points_are_of_one_form(tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", False, architecture=MIXTURE)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        if ".experts.3." in name and name.endswith("qzeros"):
            tensors[name] = torch.full_like(tensors[name], 0x77777777)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    of = [each for layer in load(tmp_path).layers for each in cast(Any, layer.block).mlp.up.each]
    assert all(isinstance(weight, Int4ZerosWeight) for weight in of)
    assert (of[3].zeros == 8).all() and not (of[0].zeros == 8).all()


def test_the_launcher_counts_four_bits(tmp_path: Path) -> None:
    numbers = quantized(tmp_path, "gptq", symmetric=False)
    packed, plain = read_checkpoint(tmp_path), read_checkpoint(numbers)
    assert packed.four_bits and not plain.four_bits
    assert plain.parameters < packed.parameters < 1.2 * plain.parameters  # scales are numbers too


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": None}, "'bits' is missing"),
        ({"bits": 8}, "'bits' is 8"),
        ({"group_size": -1}, "'group_size' must be"),
        ({"group_size": 48}, "32, 64 or 128"),
    ],
)
def test_what_cannot_be_read_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", True, **changes)
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("orders", ["alike", "each"])
@torch.inference_mode()
def test_inputs_in_an_order_of_their_own(orders: str, symmetric: bool, tmp_path: Path) -> None:
    """What desc_act leaves: each matrix is multiplied as it is stored, by inputs that are picked in its order."""
    numbers = load(quantized(tmp_path, "gptq", symmetric, orders, desc_act=True))
    model = load(tmp_path)
    pairs: list[tuple[Any, Any]] = []
    for ours, plain in zip(model.layers, numbers.layers, strict=True):
        mlp, exact = cast(Any, ours.block).mlp, cast(Any, plain.block).mlp
        pairs += [(mlp.up.weight, exact.up.weight), (mlp.down.weight, exact.down.weight)]
    for weight, dense in pairs:
        form = StackedWeight if orders == "each" and dense.outputs == 2 * 96 else OrderedWeight
        assert isinstance(weight, form)
        x = torch.randn(3, dense.values.shape[1])
        product = weight.multiply(x, None)
        expected = dense.multiply(x, None)
        assert (product - expected).norm() < 0.02 * expected.norm()
        turned = torch.arange(dense.outputs) if form is StackedWeight else torch.randperm(dense.outputs)
        torch.testing.assert_close(weight.reordered(turned).multiply(x, None), product[:, turned])
    recording = record(model)
    assert sum(isinstance(each, Pick) for each in recording.hidden.instructions) >= 4 * len(model.layers)
    expected = logits(model, 4)
    for made in (InterpretedModel(recording, TOKENS, TOKENS), planned(recording)):
        missed = (logits(made, 4) - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert float(missed.median()) < 5e-2


def test_groups_of_unlike_sizes_are_refused(tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", True, "each", desc_act=True)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("g_idx"))
    tensors[name][:] = 0
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="does not put 32 inputs into each group"):
        load(tmp_path)


def test_four_bits_do_not_become_others(tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", True)
    with pytest.raises(ModelError, match="leave out --quantize"):
        load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops(), format=Int8Format())
