"""Weights of few bits as a GPU has them: whatever form they come in, the products are those of the numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models import test_fp8
from tests.models.test_decoder import CPU
from tests.models.test_mxfp4 import packed_model
from tests.models.tiny import make_model
from tests.ops.cpu.test_plan import logits
from tests.ops.cuda.conftest import BUILT
from tests.ops.cuda.host_device import COMPILER, HostDevice
from tests.seeds import fresh_seed
from textgen.launcher.checkpoint import read_checkpoint
from textgen.layers.expert_weights import GroupedMatrices
from textgen.layers.experts import Experts
from textgen.layers.weight import DenseWeight, ExpertMatrices, LoadContext, Part, Tied, Weight, WeightFormat
from textgen.models.decoder import Decoder
from textgen.models.load import load_model
from textgen.models.weights import WeightFiles
from textgen.ops import select_ops
from textgen.ops.cuda.bricks import Kind
from textgen.parallel import Parallel
from textgen.quantization.blocks import BlockWeight, StackedWeight
from textgen.quantization.formats import BYTES, GPU_BLOCK_BYTES
from textgen.quantization.fp8 import Fp8Weight
from textgen.quantization.integers import Int4Format, Int8Format, Int8Weight
from textgen.quantization.k_blocks import k_integers
from textgen.quantization.kernels import KernelExperts, KernelWeight, kernel_format, plain_of
from textgen.quantization.ordered import OrderedWeight
from textgen.quantization.packed import Int4ZerosWeight

from .test_blocks import WIDTH, blocked, random_blocks, stored
from .test_packed import MIXTURE, quantized

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ is missing")
BF16 = torch.bfloat16


@pytest.fixture
def rng() -> random.Random:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return random.Random(seed)


@pytest.fixture
def device(rng: random.Random) -> HostDevice:
    return HostDevice(rng.getrandbits(64), BUILT)


class Given(WeightFormat):
    """A format that makes what it is given."""

    def __init__(self, weight: Weight) -> None:
        self._weight = weight

    def load(self, context: LoadContext, parts: Any) -> Weight:
        return self._weight

    def of(self, values: Tensor) -> Weight:
        return self._weight

    def tied(self, context: LoadContext, part: Part) -> Tied:
        return Tied(context.tensor(part), self._weight)


def on_gpu(weight: Weight, device: HostDevice) -> Weight:
    return kernel_format(Given(weight), device, CPU, BF16).of(torch.empty(0))


def weights(rng: random.Random) -> dict[str, tuple[Weight, Tensor]]:
    """Weights, and their numbers."""
    inputs = 64 * rng.randint(1, 3)
    eight = Int8Format().of(torch.randn(rng.randint(1, 70), inputs))
    four = Int4Format(rng.choice([32, 64])).of(torch.randn(rng.randint(1, 70), inputs))
    pairs = torch.randint(0, 256, (33, inputs // 2), dtype=torch.uint8)
    groups = (33, inputs // 32)
    zeros = Int4ZerosWeight(pairs, torch.rand(groups).half(), torch.randint(0, 17, groups).to(torch.uint8), 32)
    order = torch.randperm(inputs)
    eighths = torch.randn(40, inputs).to(torch.float8_e4m3fn)
    fp8 = Fp8Weight(eighths, torch.rand(40, inputs // 64), 64)
    numbers = eight.values.float() * eight.scales[:, None]  # type: ignore[attr-defined]
    group = four.unpacked(slice(None)).view(four.outputs, -1, four.group)  # type: ignore[attr-defined]
    fours = (group * four.scales.float()[..., None]).flatten(1)  # type: ignore[attr-defined]
    return {
        "int8": (eight, numbers),
        "int4": (four, fours),
        "zeros": (zeros, zeros.numbers()),
        "order": (OrderedWeight(zeros, order), zeros.numbers()[:, order.argsort()]),
        "stack": (StackedWeight((eight, four, DenseWeight(fours.to(BF16)))), torch.cat((numbers, fours, fours))),
        "fp8": (fp8, fp8.numbers()),
    }


@pytest.mark.parametrize("kind", ["int8", "int4", "zeros", "order", "stack", "fp8"])
def test_products_are_those_of_the_numbers(rng: random.Random, device: HostDevice, kind: str) -> None:
    weight, numbers = weights(rng)[kind]
    made = on_gpu(weight, device)
    assert made.outputs == len(numbers)
    x, bias = torch.randn(2, rng.randint(1, 9), numbers.shape[1]).to(BF16), torch.randn(len(numbers)).to(BF16)
    expected = x.float() @ numbers.t() + bias.float()
    near = 2**-7 * float(expected.abs().mean())
    torch.testing.assert_close(made.multiply(x, bias).float(), expected, rtol=2**-7, atol=near)
    assert {"linear_few", "linear_tiles"} & set(device.launches)
    launched = len(device.launches)
    wide = made.multiply(x.float(), bias.float()) if kind != "stack" else expected  # a dense part has its dtype
    torch.testing.assert_close(wide, expected, rtol=1e-4, atol=1e-3)
    assert len(device.launches) == launched, "no kernel multiplies float32"
    if kind != "stack":
        order = torch.randperm(len(numbers))
        turned = made.reordered(order).multiply(x, bias[order])
        assert torch.equal(turned, made.multiply(x, bias)[..., order])


def test_inputs_that_fill_no_16_bytes_are_multiplied_by_torch(rng: random.Random, device: HostDevice) -> None:
    made = on_gpu(Int8Format().of(torch.randn(5, 12)), device)
    assert isinstance(made, KernelWeight)
    x = torch.randn(3, 12).to(BF16)
    expected = x.float() @ made.bricks.plain().numbers().t()
    torch.testing.assert_close(made.multiply(x, None).float(), expected, rtol=2**-7, atol=2**-7)
    assert device.launches == []


def test_what_no_kernel_knows_is_dense(rng: random.Random, device: HostDevice, tmp_path: Path) -> None:
    """A code that is no number, groups of another size, and -128 where there are no groups."""
    values = torch.randn(8, 96).to(torch.float8_e4m3fn)
    broken = values.clone()
    broken[3, 5] = float("nan")
    make_model(tmp_path)
    least = Int8Weight(torch.full((8, 40), -128, dtype=torch.int8), torch.ones(8))
    for weight in (Fp8Weight(broken, torch.ones(8, 1), 0), Fp8Weight(values, torch.ones(8, 2), 48), least):
        with WeightFiles(tmp_path) as source:
            context = LoadContext(source, BF16, CPU, Parallel())
            made = kernel_format(Keeps(weight), device, CPU, BF16).load(context, [])
        assert isinstance(made, DenseWeight)
        torch.testing.assert_close(made.values, weight.numbers().to(BF16), equal_nan=True)


class Keeps(Given):
    def of(self, values: Tensor) -> Weight:
        return DenseWeight(values)


def both(folder: Path, numbers: Path, device: HostDevice, inner: WeightFormat | None = None) -> tuple[Decoder, Decoder]:
    """The model as a GPU has it, and dense from the other folder."""
    format = kernel_format(inner, device, CPU, BF16)
    ours = load_model(folder, BF16, CPU, Parallel(), select_ops(), format=format)
    theirs = load_model(numbers, BF16, CPU, Parallel(), select_ops())
    assert isinstance(ours, Decoder) and isinstance(theirs, Decoder)
    return ours, theirs


def assert_alike(ours: Decoder, theirs: Decoder) -> None:
    """Up to what bfloat16 rounds: a product gone wrong misses by all of it."""
    expected = logits(theirs, 4).float()
    missed = (logits(ours, 4).float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(missed.median()) < 5e-2


@pytest.mark.parametrize(
    ("method", "bits", "group", "orders"),
    [
        ("gptq", 4, 32, "alike"),
        ("gptq", 4, 32, "each"),
        ("gptq", 8, 32, "each"),
        ("awq", 4, 32, "none"),
        ("pack", 4, -1, "none"),
        ("int", 8, -1, "none"),
    ],
)
@torch.inference_mode()
def test_checkpoints_of_integers(
    device: HostDevice, method: str, bits: int, group: int, orders: str, tmp_path: Path
) -> None:
    numbers = quantized(tmp_path, method, method != "awq", orders, bits=bits, group=group)
    ours, theirs = both(tmp_path, numbers, device)
    assert_alike(ours, theirs)
    assert "linear_few" in device.launches


def expert_matrices(model: Decoder) -> list[ExpertMatrices]:
    mlps = [cast(Any, layer.block).mlp for layer in model.layers]
    return [matrices for mlp in mlps if isinstance(mlp, Experts) for matrices in (mlp.up, mlp.down)]


def assert_experts(ours: Decoder, theirs: Decoder, form: str) -> None:
    """The numbers that each stands for, in that form."""
    made, exact = expert_matrices(ours), expert_matrices(theirs)
    assert made and len(made) == len(exact)
    for matrices, dense in zip(made, exact, strict=True):
        assert isinstance(matrices, KernelExperts) and matrices.bricks.form == form
        for one, other in zip(matrices.each, dense.each, strict=True):
            assert isinstance(one, KernelWeight) and isinstance(other, DenseWeight)
            numbers = one.bricks.plain().numbers()
            torch.testing.assert_close(numbers.to(BF16), other.values, rtol=2**-7, atol=0)


@pytest.mark.parametrize(("method", "bits"), [("awq", 4), ("pack", 4), ("gptq", 8)])
@torch.inference_mode()
def test_experts_in_few_bits(device: HostDevice, method: str, bits: int, tmp_path: Path) -> None:
    """One product multiplies all of them."""
    numbers = quantized(tmp_path, method, method == "gptq", "none", MIXTURE, bits=bits)
    if method == "gptq":
        without_128(tmp_path, numbers)
    ours, theirs = both(tmp_path, numbers, device)
    assert_experts(ours, theirs, "INT4" if bits == 4 else "INT8")
    assert_alike(ours, theirs)
    assert "grouped_linear" not in device.launches


def without_128(folder: Path, numbers: Path, some: str = "") -> None:
    """Of 8 bits the least one more, in tensors with that in their names."""
    tensors, plain = (load_file(each / "model.safetensors") for each in (folder, numbers))
    for name in [name for name in plain if some in name and name.endswith("_proj.weight")]:
        words = tensors.get(name.replace(".weight", ".qweight"))  # of GPTQ; of others there are integers
        if words is None:
            values, scales = tensors[name].clamp_(min=-127), tensors[f"{name}_scale"]
        else:
            stored = words.view(torch.uint8).clamp_(min=1)
            values = stored.view(-1, words.shape[1], 4).transpose(1, 2).flatten(0, 1).t() - 128.0
            scales = tensors[name.replace(".weight", ".scales")].t().repeat_interleave(32, dim=1)
        plain[name] = (values.float() * scales.float()).to(plain[name].dtype).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, numbers / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize(("method", "group"), [("int", -1), ("gptq", 32)])
@torch.inference_mode()
def test_experts_in_8_bits_with_minus_128(
    device: HostDevice, method: str, group: int, some: bool, tmp_path: Path
) -> None:
    """In all of them or in some alone, they are of one form."""
    numbers = quantized(tmp_path, method, True, "none", MIXTURE, bits=8, group=group)
    if some:
        without_128(tmp_path, numbers, ".experts.1.")
    ours, theirs = both(tmp_path, numbers, device)
    for made in expert_matrices(ours):
        assert isinstance(made, KernelExperts) and made.bricks.kind == Kind("INT8", 32, BF16, None)
    assert_alike(ours, theirs)


@torch.inference_mode()
def test_experts_whose_inputs_are_in_an_order_become_numbers(device: HostDevice, tmp_path: Path) -> None:
    numbers = quantized(tmp_path, "gptq", True, "each", MIXTURE)
    ours, theirs = both(tmp_path, numbers, device)
    for made, dense in zip(expert_matrices(ours), expert_matrices(theirs), strict=True):
        assert isinstance(made, GroupedMatrices) and isinstance(dense, GroupedMatrices)
        assert torch.equal(made.values, dense.values)
    assert_alike(ours, theirs)


@pytest.mark.parametrize("bits", [4, 8])
@torch.inference_mode()
def test_experts_quantized_while_loading(device: HostDevice, bits: int, tmp_path: Path) -> None:
    make_model(tmp_path, MIXTURE, hidden_size=64, moe_intermediate_size=96, decoder_sparse_step=1, mlp_only_layers=[])
    inner = Int4Format(32) if bits == 4 else Int8Format()
    ours, theirs = both(tmp_path, tmp_path, device, inner)
    for made, exact in zip(expert_matrices(ours), expert_matrices(theirs), strict=True):
        assert isinstance(made, KernelExperts)
        for one, other in zip(made.each, exact.each, strict=True):
            plain = plain_of(inner.of(cast(Any, other).values), CPU)
            assert plain is not None and torch.equal(cast(Any, one).bricks.plain().codes, plain.codes)


@torch.inference_mode()
def test_neurons_that_fill_no_16_bytes_are_numbers_with_more_of_them(device: HostDevice, tmp_path: Path) -> None:
    make_model(tmp_path, MIXTURE, moe_intermediate_size=36, decoder_sparse_step=1, mlp_only_layers=[])
    ours, theirs = both(tmp_path, tmp_path, device, Int8Format())
    for made, exact in zip(expert_matrices(ours), expert_matrices(theirs), strict=True):
        assert isinstance(made, GroupedMatrices) and isinstance(exact, GroupedMatrices)
        assert torch.equal(made.values, exact.values)


@torch.inference_mode()
def test_experts_in_mxfp4(device: HostDevice, tmp_path: Path) -> None:
    packed_model(tmp_path, fresh_seed())
    ours, theirs = both(tmp_path, tmp_path, device)
    assert_experts(ours, theirs, "E2M1")
    assert_alike(ours, theirs)


def allowed(kind: str, numbers: Tensor, blocks: BlockWeight | None = None) -> Any:
    """How far the kernels' numbers may be from a file's."""
    if kind == "Q4_K":  # scales and minima are rounded to float16
        minima = None if blocks is None else k_integers(kind, blocks.blocks).minima
        assert minima is not None
        return 2**-11 * (numbers.abs() + 2 * minima.repeat_interleave(32, dim=1))
    if kind in ("Q5_K", "Q6_K"):  # half a step of 8 bits, whose scale is rounded too
        largest = numbers.unflatten(1, (-1, 32)).abs().amax(dim=-1)
        return (largest / 252).repeat_interleave(32, dim=1) + 2**-24
    return 0


@pytest.mark.parametrize("kind", GPU_BLOCK_BYTES)
@torch.inference_mode()
def test_blocks_of_files(
    device: HostDevice, rng: random.Random, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textgen.quantization.kernels.STRETCH", rng.choice([1, 7 * WIDTH, 1 << 24]))
    raw = random_blocks(np.random.default_rng(rng.getrandbits(32)), kind, 40, WIDTH)
    other = random_blocks(np.random.default_rng(1), "Q8_0", 8, WIDTH)
    if kind == "Q8_0":
        raw = np.where(raw.view(np.int8) == -128, 7, raw).astype(np.uint8)
    numbers = torch.from_numpy(gguf.dequantize(raw, GGMLQuantizationType[kind]))
    with stored(tmp_path, {"a": (kind, raw), "b": ("Q8_0", other)}) as files:
        context = LoadContext(files, BF16, CPU, Parallel(), kernel_format(None, device, CPU, BF16, blocks=True))
        one = context.weight(Part("a", (40, WIDTH)))
        two = context.weight(Part("a", (40, WIDTH)), Part("b", (8, WIDTH)))
    assert isinstance(one, KernelWeight) and two.outputs == 48
    assert isinstance(two, KernelWeight if kind == "Q8_0" else StackedWeight)
    got = one.bricks.plain().numbers()
    within = allowed(kind, numbers, BlockWeight(kind, (torch.from_numpy(raw),), WIDTH))
    assert ((got - numbers).abs() <= within).all()
    assert one.nbytes <= 64 * WIDTH * GPU_BLOCK_BYTES[kind]


@torch.inference_mode()
def test_rows_with_an_integer_of_minus_128_are_scaled_anew(rng: random.Random) -> None:
    """In groups, or dense."""
    for inputs in (32 * rng.randint(1, 5), 40):
        weight = Int8Weight(torch.randint(-127, 128, (9, inputs)).to(torch.int8), torch.rand(9))
        plain = plain_of(weight, CPU)
        assert plain is not None and plain.group == 0
        torch.testing.assert_close(plain.numbers(), weight.numbers())
        weight.values[rng.randrange(9), rng.randrange(inputs)] = -128
        plain = plain_of(weight, CPU)
        assert (plain is None) == (inputs == 40)
        if plain is not None:
            assert plain.group == 32
            assert ((plain.numbers() - weight.numbers()).abs() <= allowed("Q6_K", weight.numbers())).all()


@torch.inference_mode()
def test_an_integer_of_minus_128_has_its_neighbours_scaled() -> None:
    raw = random_blocks(np.random.default_rng(fresh_seed()), "Q8_0", 3, WIDTH)
    raw[1, 40] = 128
    numbers = torch.from_numpy(gguf.dequantize(raw, GGMLQuantizationType.Q8_0))
    plain = plain_of(BlockWeight("Q8_0", (torch.from_numpy(raw),), WIDTH), CPU)
    assert plain is not None
    assert ((plain.numbers() - numbers).abs() <= allowed("Q6_K", numbers)).all()


@pytest.mark.parametrize(("kind", "at"), [("Q4_K", 0), ("Q4_K", 2), ("Q8_0", 0)])
def test_scales_that_float16_has_not(kind: str, at: int) -> None:
    """They are numbers of the model's dtype then, or none."""
    raw = random_blocks(np.random.default_rng(fresh_seed()), kind, 3, WIDTH)
    largest = np.float16(np.inf) if kind == "Q8_0" else np.finfo(np.float16).max
    raw[1, at : at + 2] = np.array([largest]).view(np.uint8)
    raw[1, 4:16] = 63  # six bits of each scale and minimum
    assert plain_of(BlockWeight(kind, (torch.from_numpy(raw),), WIDTH), CPU) is None


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
@torch.inference_mode()
def test_models_in_blocks_of_many_types(device: HostDevice, architecture: str, tmp_path: Path) -> None:
    made = blocked(tmp_path, architecture)
    format = kernel_format(None, device, CPU, BF16, blocks=True)
    ours = load_model(made, BF16, CPU, Parallel(), select_ops(), format=format)
    theirs = load_model(made, BF16, CPU, Parallel(), select_ops())
    assert isinstance(ours, Decoder) and isinstance(theirs, Decoder)
    assert_alike(ours, theirs)


@pytest.mark.parametrize(
    "section",
    [
        test_fp8.DEEPSEEK,
        test_fp8.WHOLE,
        test_fp8.compressed("channel"),
        test_fp8.compressed("block", block_structure=[64, 64]),
    ],
    ids=["blocks of 32 inputs", "whole", "by output", "blocks of 64"],
)
@torch.inference_mode()
def test_checkpoints_in_8_bit_floating_point(device: HostDevice, section: dict[str, Any], tmp_path: Path) -> None:
    """They stay in 8 bits, and what they stand for is what is read elsewhere."""
    make_model(tmp_path)
    test_fp8.pack(tmp_path, section)
    ours, theirs = both(tmp_path, tmp_path, device)
    for layer, dense in zip(ours.layers, theirs.layers, strict=True):
        weight = layer.block.mlp.up.weight  # type: ignore[union-attr]
        assert isinstance(weight, KernelWeight) and weight.bricks.form == "E4M3"
        plain = weight.bricks.plain().numbers()
        torch.testing.assert_close(plain.to(BF16), dense.block.mlp.up.weight.values)  # type: ignore[union-attr]
    assert read_checkpoint(tmp_path).scaled == sum(
        weight.numel() for weight in load_file(tmp_path / "model.safetensors").values() if weight.itemsize == 1
    )
    assert isinstance(ours.head.weight, DenseWeight)
    assert_alike(ours, theirs)
    assert "linear_few" in device.launches


def test_without_kernels_numbers_are_as_they_were_read(tmp_path: Path) -> None:
    make_model(tmp_path)
    test_fp8.pack(tmp_path, test_fp8.WHOLE)
    format = kernel_format(None, None, CPU, BF16)
    model = load_model(tmp_path, BF16, CPU, Parallel(), select_ops(), format=format)
    assert isinstance(model, Decoder)
    assert isinstance(model.layers[0].block.mlp.up.weight, DenseWeight)  # type: ignore[union-attr]


def test_bytes_of_a_number_are_what_is_held(rng: random.Random, device: HostDevice) -> None:
    """What the launcher plans with, against what is packed."""
    groups = (512, 8)
    fp8 = Fp8Weight(torch.randn(512, 1024).to(torch.float8_e4m3fn), torch.rand(groups), 128)
    fine = (512, 32)
    pairs = torch.randint(0, 256, (512, 512), dtype=torch.uint8)
    zeros = Int4ZerosWeight(pairs, torch.rand(fine).half(), torch.randint(0, 17, fine).to(torch.uint8), 32)
    values = torch.randn(512, 1024)
    for name, weight in (
        ("int8", Int8Format().of(values)), ("int4", Int4Format(32).of(values)), ("packed4", zeros), ("fp8", fp8),
    ):  # fmt: skip
        made = on_gpu(weight, device)
        assert isinstance(made, KernelWeight)
        assert made.nbytes <= 512 * 1024 * BYTES[name]


@torch.inference_mode()
def test_latent_attention_has_its_outputs_in_another_order(device: HostDevice, tmp_path: Path) -> None:
    make_model(tmp_path, "DeepseekV3ForCausalLM")
    test_fp8.pack(tmp_path, test_fp8.DEEPSEEK)
    ours, theirs = both(tmp_path, tmp_path, device)
    assert isinstance(ours.layers[0].block.attention.output.weight, KernelWeight)
    assert_alike(ours, theirs)
