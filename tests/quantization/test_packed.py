"""Checkpoints of GPTQ's, AWQ's and compressed-tensors' form: as they are stored, so they are multiplied."""

from __future__ import annotations

import json
from dataclasses import replace
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
from textgen.layers.weight import DenseWeight, Weight
from textgen.models.decoder import Decoder
from textgen.models.errors import ModelError
from textgen.models.load import load_model
from textgen.ops import select_ops
from textgen.ops.cpu.instructions import Pick
from textgen.ops.cpu.record import record
from textgen.ops.cpu.twin import InterpretedModel
from textgen.parallel import Parallel
from textgen.quantization.blocks import BlockWeight, StackedWeight
from textgen.quantization.integers import Int4Weight, Int8Format, Int8Weight
from textgen.quantization.ordered import OrderedWeight
from textgen.quantization.packed import Int4ZerosWeight
from textgen.quantization.packed_files import AWQ_ORDER

GROUP = 32
LLAMA, MIXTURE = "LlamaForCausalLM", "Qwen3MoeForCausalLM"


def pack(values: Tensor, bits: int = 4, order: tuple[int, ...] | None = None) -> Tensor:
    """[rows, columns * bits / 32] int32: `order` says which of the neighbours of a word goes where, lowest first."""
    count = 32 // bits
    each = values.reshape(len(values), -1, count)[..., list(order or range(count))].long()
    return (each << torch.arange(0, 32, bits)).sum(-1).to(torch.int64).view(torch.int32)[:, ::2].contiguous()


def stored(
    base: str, method: str, bits: int, values: Tensor, scales: Tensor, zeros: Tensor, index: Tensor | None
) -> dict[str, Tensor]:
    """A matrix as a file has it. values [out, in], scales and zeros [out, groups]; index: the group of each input."""
    if method == "gptq":
        grouped = torch.arange(values.shape[1], dtype=torch.int32) // (values.shape[1] // scales.shape[1])
        return {
            f"{base}.scales": scales.t().contiguous(),
            f"{base}.qweight": pack(values, bits).t().contiguous(),
            f"{base}.qzeros": pack(zeros.t() - 1, bits),
            f"{base}.g_idx": grouped if index is None else index,
        }
    if method == "awq":
        qweight, qzeros = pack(values.t(), bits, AWQ_ORDER), pack(zeros.t(), bits, AWQ_ORDER)
        return {f"{base}.scales": scales.t().contiguous(), f"{base}.qweight": qweight, f"{base}.qzeros": qzeros}
    middle = 1 << (bits - 1)
    if method == "int":
        return {f"{base}.weight": (values - middle).to(torch.int8), f"{base}.weight_scale": scales}
    tensors = {"packed": pack(values, bits), "scale": scales, "shape": torch.tensor(values.shape)}
    if (zeros != middle).any():
        tensors["zero_point"] = pack(zeros.t(), bits).t().contiguous()
    if index is not None:
        tensors["g_idx"] = index
    return {f"{base}.weight_{end}": tensor for end, tensor in tensors.items()}


def quantized(
    folder: Path,
    method: str,
    symmetric: bool,
    orders: str = "none",
    architecture: str = LLAMA,
    bits: int = 4,
    group: int = GROUP,
    **changes: Any,
) -> Path:
    """A tiny model whose matrices are random integers of so many bits, and beside it the same in float32.

    method: "gptq", "awq", or of compressed-tensors' forms "pack" or "int". group: -1 for all inputs. orders: whether
    inputs are in groups of their own: "none", "alike" in all matrices of a size, or in "each".
    """
    middle = 1 << (bits - 1)
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
        values, size = torch.randint(0, 2 * middle, (outputs, inputs)), inputs if group == -1 else group
        groups = outputs, inputs // size
        zeros = torch.full(groups, middle) if symmetric else torch.randint(1, 2 * middle, groups)
        scales = (torch.rand(groups) * 0.16 / middle).half()
        index = torch.arange(inputs, dtype=torch.int32) // size
        if orders != "none":
            index = index[shared[inputs] if orders == "alike" else torch.randperm(inputs)]
        spread = zeros[:, index.long()], scales.float()[:, index.long()]
        plain[name] = ((values - spread[0]) * spread[1]).to(weight.dtype)
        base = name.removesuffix(".weight")
        tensors |= stored(base, method, bits, values, scales, zeros, None if orders == "none" else index)
    numbers = folder / "numbers"
    numbers.mkdir()
    for path in folder.glob("*.json"):
        (numbers / path.name).write_text(path.read_text())
    save_file(plain, numbers / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    said = {"quant_method": method, "bits": bits, "group_size": group, **changes}
    if method in ("pack", "int"):
        said = compressed(f"{method}-quantized", num_bits=bits, symmetric=symmetric, **changes) | changes
        if group != -1:
            said["config_groups"]["group_0"]["weights"] |= {"strategy": "group", "group_size": group}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    return numbers


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """As compressed-tensors says it."""
    said = {"type": "int", "strategy": "channel", "group_size": None, "actorder": None, "dynamic": False,
            "block_structure": None, "observer": "minmax", "observer_kwargs": {}, **weights}  # fmt: skip
    groups = {
        "group_0": {"targets": ["Linear"], "input_activations": None, "output_activations": None, "weights": said}
    }
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"],
            "global_compression_ratio": None, "kv_cache_scheme": None, "quantization_status": "compressed"}  # fmt: skip


def load(folder: Path) -> Decoder:
    model = load_model(folder, torch.float32, CPU, Parallel(), select_ops())
    assert isinstance(model, Decoder)
    return model


FORMS: list[tuple[str, int, int, bool, type[Weight]]] = [
    ("gptq", 4, 32, True, Int4Weight),
    ("gptq", 4, 32, False, Int4ZerosWeight),
    ("gptq", 4, -1, True, Int4Weight),
    ("gptq", 8, 32, True, BlockWeight),
    ("gptq", 8, 32, False, DenseWeight),
    ("gptq", 8, -1, True, Int8Weight),
    ("awq", 4, 32, False, Int4ZerosWeight),
    ("awq", 4, -1, False, Int4ZerosWeight),
    ("pack", 4, 32, True, Int4Weight),
    ("pack", 4, 32, False, Int4ZerosWeight),
    ("pack", 4, -1, True, Int4Weight),
    ("pack", 8, 32, True, BlockWeight),
    ("pack", 8, -1, True, Int8Weight),
    ("int", 8, -1, True, Int8Weight),
]


@pytest.mark.parametrize(("method", "bits", "group", "symmetric", "kind"), FORMS)
@torch.inference_mode()
def test_weights_are_those_that_were_stored(
    method: str, bits: int, group: int, symmetric: bool, kind: type[Weight], tmp_path: Path
) -> None:
    """The least integers too."""
    numbers = load(quantized(tmp_path, method, symmetric, bits=bits, group=group))
    model = load(tmp_path)
    for ours, plain in zip(model.layers, numbers.layers, strict=True):
        for name in ("up", "down"):
            weight, exact = (getattr(cast(Any, each.block).mlp, name).weight for each in (ours, plain))
            assert isinstance(weight, kind)
            stored = weight.values if isinstance(weight, DenseWeight) else cast(Any, weight).numbers()
            torch.testing.assert_close(stored, exact.values)
            x = torch.randn(3, exact.values.shape[1])
            expected = exact.multiply(x, None)
            assert (weight.multiply(x, None) - expected).norm() < 0.02 * expected.norm()
    expected = logits(model, 4)
    missed = (logits(planned(record(model)), 4) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(missed.median()) < 5e-2  # a product gone wrong misses by all of it


@pytest.mark.parametrize(
    ("method", "bits", "group", "symmetric", "kind"), [form for form in FORMS if form[2] == 32 or form[0] == "int"]
)
@torch.inference_mode()
def test_experts_stay_in_few_bits(
    method: str, bits: int, group: int, symmetric: bool, kind: type[Weight], tmp_path: Path
) -> None:
    numbers = load(quantized(tmp_path, method, symmetric, architecture=MIXTURE, bits=bits, group=group))
    model = load(tmp_path)
    for ours, plain in zip(model.layers, numbers.layers, strict=True):
        for name in ("up", "down"):
            both = (getattr(cast(Any, each.block).mlp, name).each for each in (ours, plain))
            for weight, exact in zip(*both, strict=True):
                assert isinstance(weight, kind)
                x = torch.randn(3, exact.values.shape[1])
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


@pytest.mark.parametrize(("method", "bits"), [("gptq", 4), ("awq", 4), ("gptq", 8), ("pack", 4), ("pack", 8)])
def test_the_launcher_counts_integers(method: str, bits: int, tmp_path: Path) -> None:
    numbers = quantized(tmp_path, method, symmetric=False, bits=bits)
    packed, plain = read_checkpoint(tmp_path, bits), read_checkpoint(numbers)
    assert packed.bits == bits and plain.bits is None
    assert plain.parameters <= packed.parameters < 1.2 * plain.parameters  # scales of GPTQ and AWQ are numbers too


def test_the_launcher_counts_integers_one_by_one(tmp_path: Path) -> None:
    """What says how activations were to be quantized is none of the weights."""
    plain = read_checkpoint(quantized(tmp_path, "int", symmetric=True, bits=8, group=-1))
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if tensors[name].dtype == torch.int8]:
        base = name.removesuffix(".weight")
        tensors |= {f"{base}.input_scale": torch.ones(1), f"{base}.input_zero_point": torch.zeros(1, dtype=torch.int8)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert read_checkpoint(tmp_path, 8) == replace(plain, bits=8)
    load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": None}, "'bits' is missing"),
        ({"bits": 3}, "'bits' must be 4 or 8"),
        ({"group_size": 48}, "'group_size' must be 32, 64, 128 or -1"),
    ],
)
def test_what_cannot_be_read_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (compressed("pack-quantized", num_bits=2), "'num_bits' must be 4 or 8"),
        (compressed("pack-quantized", num_bits=4, type="float"), "'type' is 'float'"),
        (compressed("pack-quantized", num_bits=4, strategy="block"), "'strategy' must be tensor, channel or group"),
        (compressed("pack-quantized", num_bits=4, strategy="group"), "no 'group_size'"),
        (compressed("pack-quantized", num_bits=4, strategy="group", group_size=16), "'group_size' must be"),
        (compressed("int-quantized", num_bits=4), "'num_bits' is 4"),
        (compressed("marlin-24", num_bits=4), "not supported yet in the form 'compressed-tensors'"),
        (compressed("pack-quantized", num_bits=4) | {"config_groups": {}}, "0 forms of weights"),
        (compressed("pack-quantized", num_bits=4) | {"sparsity_config": {"format": "x"}}, "'sparsity_config' is"),
    ],
)
def test_what_compressed_tensors_may_not_say(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    quantized(tmp_path, "pack", True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


AUTO_ROUND: dict[str, Any] = {
    "quant_method": "auto-round", "autoround_version": "0.9.2", "data_type": "int", "iters": 200, "sym": True,
    "extra_config": {"lm_head": {"bits": 16}},
}  # fmt: skip


@pytest.mark.parametrize(("method", "packing"), [("gptq", "auto_round:auto_gptq"), ("awq", "auto_round:auto_awq")])
@torch.inference_mode()
def test_auto_round_stores_as_others_do(method: str, packing: str, tmp_path: Path) -> None:
    numbers = load(quantized(tmp_path, method, True, packing_format=packing, **AUTO_ROUND))
    for ours, plain in zip(load(tmp_path).layers, numbers.layers, strict=True):
        weight, exact = (cast(Any, each.block).mlp.down.weight for each in (ours, plain))
        assert isinstance(weight, Int4Weight)
        torch.testing.assert_close(weight.numbers(), exact.values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"packing_format": "auto_round:llm_compressor"}, "not supported yet in the form 'auto-round'"),
        ({"data_type": "mx_fp"}, "'data_type' is 'mx_fp'"),
    ],
)
def test_auto_rounds_other_forms_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    quantized(tmp_path, "gptq", True, **AUTO_ROUND | changes)
    with pytest.raises(ModelError, match=words):
        load(tmp_path)


@torch.inference_mode()
def test_layers_that_a_checkpoint_left_alone_are_dense(tmp_path: Path) -> None:
    """A matrix of several too."""
    numbers = quantized(tmp_path, "pack", True)
    tensors, plain = load_file(tmp_path / "model.safetensors"), load_file(numbers / "model.safetensors")
    kept = [name for name in plain if name.endswith(("k_proj.weight", "down_proj.weight"))]
    for name in kept:
        for end in ("packed", "scale", "shape"):
            del tensors[f"{name}_{end}"]
        tensors[name] = plain[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load(tmp_path)
    block = cast(Any, model.layers[0].block)
    assert isinstance(block.mlp.down.weight, DenseWeight) and isinstance(block.mlp.up.weight, Int4Weight)
    kinds = [type(each) for each in block.attention.qkv.weight.parts]
    assert kinds == [Int4Weight, DenseWeight, Int4Weight]
    expected = logits(load(numbers), 4)
    missed = (logits(model, 4) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(missed.median()) < 5e-2


@pytest.mark.parametrize("orders", ["alike", "each"])
@pytest.mark.parametrize(
    ("method", "bits", "symmetric"), [("gptq", 4, True), ("gptq", 4, False), ("gptq", 8, True), ("pack", 4, True)]
)
@torch.inference_mode()
def test_inputs_in_an_order_of_their_own(method: str, bits: int, symmetric: bool, orders: str, tmp_path: Path) -> None:
    """What desc_act leaves: each matrix is multiplied as it is stored, by inputs that are picked in its order."""
    numbers = load(quantized(tmp_path, method, symmetric, orders, bits=bits))
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
