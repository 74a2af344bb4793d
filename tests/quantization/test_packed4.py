"""Checkpoints of GPTQ's and AWQ's form: as they are stored, so they are multiplied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.test_decoder import CPU
from tests.models.tiny import make_model
from tests.ops.cpu.test_plan import logits, planned
from tests.seeds import fresh_seed
from textgen.launcher.checkpoint import read_checkpoint
from textgen.models.decoder import Decoder
from textgen.models.errors import ModelError
from textgen.models.load import load_model
from textgen.ops import select_ops
from textgen.ops.cpu.record import record
from textgen.parallel import Parallel
from textgen.quantization.integers import Int4Weight, Int8Format
from textgen.quantization.packed4 import AWQ_ORDER, Int4ZerosWeight

GROUP = 32


def pack(values: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """[rows, columns / 8] int32, four bits each: `order` says which of eight neighbours goes where, lowest first."""
    each = values.view(len(values), -1, 8)[..., list(order)].long()
    return (each << torch.arange(0, 32, 4)).sum(-1).to(torch.int64).view(torch.int32)[:, ::2].contiguous()


def quantized(folder: Path, method: str, symmetric: bool, **changes: object) -> Path:
    """A tiny Llama whose matrices are random numbers of four bits, and beside it the same in float32."""
    torch.manual_seed(seed := fresh_seed())
    make_model(folder, "LlamaForCausalLM", seed, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    tensors, plain = {}, {}
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
        spread = zeros.repeat_interleave(GROUP, 1), scales.float().repeat_interleave(GROUP, 1)
        plain[name] = ((values - spread[0]) * spread[1]).to(weight.dtype)
        base = name.removesuffix(".weight")
        tensors[f"{base}.scales"] = scales.t().contiguous()
        if method == "gptq":
            tensors[f"{base}.qweight"] = pack(values).t().contiguous()
            tensors[f"{base}.qzeros"] = pack(zeros.t().contiguous() - 1)
            tensors[f"{base}.g_idx"] = torch.arange(inputs, dtype=torch.int32) // GROUP
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
def test_what_cannot_be_read_is_refused(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", True, **changes)
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


def test_inputs_in_an_order_of_their_own_are_refused(tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", True, desc_act=True)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("g_idx"))
    tensors[name] = tensors[name].flip(0)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="order of their own"):
        load(tmp_path)


def test_four_bits_do_not_become_others(tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", True)
    with pytest.raises(ModelError, match="leave out --quantize"):
        load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops(), format=Int8Format())
