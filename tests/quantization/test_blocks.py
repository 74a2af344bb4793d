"""Blocks of GGUF files multiplied as they are: what is loaded, what is stacked, and the kernels against torch."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any, cast

import gguf
import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.gguf.cases import CASES
from tests.gguf.writer import write
from tests.models.test_decoder import CPU
from tests.ops.cpu.test_plan import TOKENS, kernels, logits, planned
from tests.seeds import fresh_seed
from textgen.gguf.index import NAME, Index, StoredTensor
from textgen.gguf.unpack import unpack
from textgen.launcher.checkpoint import read_checkpoint
from textgen.layers.experts import Experts
from textgen.layers.weight import DenseWeight, ExpertMatrices, LoadContext, Part
from textgen.models.decoder import Decoder
from textgen.models.gguf_source import GgufFiles
from textgen.models.load import load_model
from textgen.ops import select_ops
from textgen.ops.cpu.instructions import Multiply
from textgen.ops.cpu.packing import form_of
from textgen.ops.cpu.record import record
from textgen.ops.cpu.twin import InterpretedModel
from textgen.parallel import Parallel
from textgen.quantization.blocks import KINDS, BlockFormat, BlockWeight, StackedWeight
from textgen.quantization.formats import BLOCK_BYTES, block_bytes

from .test_stored import in_file

WIDTH = 512
GATES = {"blk.0.ffn_gate_exps.weight": "Q5_K"}
SCALES = {"Q6_K": (208,), "Q4_0": (0,), "Q8_0": (0,)}  # where a block's float16 scales lie; of the others (0, 2)


def random_blocks(rng: np.random.Generator, kind: str, rows: int, columns: int) -> np.ndarray:
    """[rows, bytes] whose numbers are small."""
    block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    raw = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    if kind == "MXFP4":
        raw[..., 0] = rng.integers(117, 121, raw.shape[:2])
        return raw.reshape(rows, -1)
    # Of a scale of 63 and 31 steps the K types make thousands.
    factor = 2e-6 if kind in ("Q4_K", "Q5_K", "Q6_K") else 2e-3
    for at in SCALES.get(kind, (0, 2)):
        scales = rng.uniform(0.5 * factor, factor, raw.shape[:2]).astype(np.float16)
        raw[..., at : at + 2] = scales[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def stored(folder: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> GgufFiles:
    path, index, offset = folder / "blocks", {}, 0
    for name, (kind, raw) in tensors.items():
        index[name] = StoredTensor(str(path), offset, kind, (len(raw), WIDTH))
        offset += raw.nbytes
    path.write_bytes(b"".join(raw.tobytes() for _, raw in tensors.values()))
    return GgufFiles(Index("llama", index))


def context(source: GgufFiles) -> LoadContext:
    return LoadContext(source, torch.float32, CPU, Parallel(), BlockFormat())


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_stay_as_they_are(kind: str, tmp_path: Path) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    first, second = random_blocks(rng, kind, 20, WIDTH), random_blocks(rng, kind, 7, WIDTH)
    with stored(tmp_path, {"a": (kind, first), "b": (kind, second)}) as files:
        weight = context(files).weight(Part("a", (20, WIDTH), slice(3, 11)), Part("b", (7, WIDTH)))
        files.refuse_unread()
    assert isinstance(weight, BlockWeight) and weight.mapped
    assert all(in_file(view, tmp_path / "blocks") for view in weight.views), "nothing is in memory twice"
    assert (weight.outputs, weight.inputs, weight.kind) == (15, WIDTH, kind)
    numbers = torch.from_numpy(gguf.dequantize(np.concatenate((first[3:11], second)), Kind[kind]))
    assert torch.equal(weight.numbers(), numbers)
    if kind in ("Q4_0", "Q8_0"):
        values, scales = weight.integers()
        assert torch.equal(values.float() * scales.repeat_interleave(32, 1), numbers)
    x, bias = torch.randn(5, WIDTH), torch.randn(15)
    exact = x @ numbers.t() + bias
    assert (weight.multiply(x, bias) - exact).norm() < 0.02 * exact.norm()
    order = torch.randperm(15)
    assert torch.equal(weight.reordered(order).numbers(), numbers[order])


def test_parts_of_several_types_are_stacked(tmp_path: Path) -> None:
    rng = np.random.default_rng(fresh_seed())
    raw = {
        name: (kind, random_blocks(rng, kind, 16, WIDTH))
        for name, kind in zip("qkv", ("Q4_K", "Q4_K", "Q6_K"), strict=True)
    }
    plain = rng.normal(size=(16, WIDTH)).astype(np.float32)
    with stored(tmp_path, {**raw, "d": ("F32", plain.view(np.uint8))}) as files:
        weight = context(files).weight(*(Part(name, (16, WIDTH)) for name in "qkvd"))
    assert isinstance(weight, StackedWeight)
    first, second, third = weight.parts
    assert isinstance(first, BlockWeight) and isinstance(second, BlockWeight) and isinstance(third, DenseWeight)
    assert (weight.outputs, first.outputs, second.kind) == (64, 32, "Q6_K")
    x, bias = torch.randn(3, WIDTH), torch.randn(64)
    y = weight.multiply(x, bias)
    assert torch.equal(y[:, 32:48], second.multiply(x, bias[32:48]))
    order = torch.cat((torch.randperm(32), 32 + torch.randperm(16), 48 + torch.randperm(16)))
    torch.testing.assert_close(weight.reordered(order).multiply(x, bias[order]), y[:, order])
    with pytest.raises(ValueError, match="within their part"):
        weight.reordered(torch.arange(63, -1, -1))


def test_columns_of_blocks_become_numbers(tmp_path: Path) -> None:
    """A rank's share of the inputs may begin within a block."""
    raw = random_blocks(np.random.default_rng(fresh_seed()), "Q4_K", 4, WIDTH)
    with stored(tmp_path, {"a": ("Q4_K", raw)}) as files:
        weight = context(files).weight(Part("a", (4, WIDTH), columns=slice(100, 200)))
    assert isinstance(weight, DenseWeight)
    assert torch.equal(weight.values, torch.from_numpy(gguf.dequantize(raw, Kind.Q4_K))[:, 100:200])


def blocked(folder: Path, architecture: str = "llama") -> Path:
    """A tiny model out of a GGUF file whose matrices are blocks of many types.

    Gates of the first layer's experts, if there are any, are in other blocks than what they gate.
    """
    mixture: dict[str, Any] = {}
    if "moe" in architecture:
        mixture = {"moe_intermediate_size": 256, "decoder_sparse_step": 1, "mlp_only_layers": []}
    _, path = write(
        CASES[architecture], folder, hidden_size=256, intermediate_size=512, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, num_hidden_layers=2, **mixture,
    )  # fmt: skip
    made = unpack(path)
    index = msgspec.json.decode((made / NAME).read_bytes(), type=Index)
    seed = fresh_seed()
    rng, kinds, offset = np.random.default_rng(seed), random.Random(seed), 0
    tensors = dict(index.tensors)
    blocks = folder / "blocks"
    with blocks.open("wb") as file:
        for name, tensor in index.tensors.items():
            if len(tensor.shape) < 2 or not name.startswith("blk.") or name.endswith("ffn_gate_inp.weight"):
                continue
            kind = "Q6_K" if name.endswith("attn_v.weight") else kinds.choice(list(KINDS))
            kind = GATES.get(name, "Q4_K" if "ffn_gate_exps" in name or "ffn_up_exps" in name else kind)
            raw = random_blocks(rng, kind, math.prod(tensor.shape[:-1]), tensor.shape[-1])
            file.write(raw.tobytes())
            tensors[name] = StoredTensor(str(blocks), offset, kind, tensor.shape)
            offset += raw.nbytes
    (made / NAME).write_bytes(msgspec.json.encode(Index(index.architecture, tensors)))
    return made


def experts_of(model: Decoder) -> list[tuple[ExpertMatrices, ExpertMatrices]]:
    mlps = [cast(Any, layer.block).mlp for layer in model.layers]
    return [(mlp.up, mlp.down) for mlp in mlps if isinstance(mlp, Experts)]


@torch.inference_mode()
def test_experts_are_blocks_too(tmp_path: Path) -> None:
    """But where a file has gates in other blocks than what they gate: then both are numbers."""
    made = blocked(tmp_path, "qwen3moe")
    model = load_model(made, torch.float32, CPU, Parallel(), select_ops(), format=BlockFormat())
    exact = load_model(made, torch.float32, CPU, Parallel(), select_ops())
    assert isinstance(model, Decoder) and isinstance(exact, Decoder)
    kinds = [[{type(each) for each in matrices.each} for matrices in both] for both in experts_of(model)]
    assert kinds == [[{DenseWeight}, {BlockWeight}], [{BlockWeight}, {BlockWeight}]]
    for ours, theirs in zip(experts_of(model), experts_of(exact), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            for weight, numbers in zip(one.each, other.each, strict=True):
                assert isinstance(numbers, DenseWeight)
                made_of = weight.numbers() if isinstance(weight, BlockWeight) else weight.values  # type: ignore[attr-defined]
                torch.testing.assert_close(made_of, numbers.values)
    x, ends, bias = torch.randn(7, 256), torch.tensor([0, 3, 3, 4, 7, 7]), torch.randn(6, 512)
    sources = torch.tensor([3, 1, 0, 2, 6, 6, 5], dtype=torch.int32)
    one, other = experts_of(model)[1][0], experts_of(exact)[1][0]
    expected = other.multiply(x, ends.int(), bias, sources)
    assert (one.multiply(x, ends, bias, sources) - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
@torch.inference_mode()
def test_a_plan_multiplies_blocks_as_torch_does(architecture: str, tmp_path: Path) -> None:
    model = load_model(
        blocked(tmp_path, architecture), torch.float32, CPU, Parallel(), select_ops(), format=BlockFormat()
    )
    assert isinstance(model, Decoder)
    recording, expected = record(model), logits(model, 7)
    for each in (InterpretedModel(recording, TOKENS, TOKENS), planned(recording, threads=2)):
        missed = (logits(each, 7) - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert float(missed.median()) < 5e-2  # a product gone wrong misses by all of it


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_takes_the_bytes_that_the_launcher_plans_with(kind: str) -> None:
    made = random_blocks(np.random.default_rng(1), kind, 32, WIDTH)
    own = kernels()
    _, size = own.memory(own.weight(*form_of(BlockWeight(kind, (torch.from_numpy(made),), WIDTH))))
    assert size == BLOCK_BYTES[kind] * 32 * WIDTH


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
@torch.inference_mode()
def test_the_launcher_counts_blocks_as_they_are_kept(architecture: str, tmp_path: Path) -> None:
    made = blocked(tmp_path, architecture)
    model = load_model(made, torch.float32, CPU, Parallel(), select_ops(), format=BlockFormat())
    assert isinstance(model, Decoder)
    recording, checkpoint = record(model), read_checkpoint(made)
    weights = [
        each.weight
        for program in (recording.hidden, recording.logits)
        for each in program.instructions
        if isinstance(each, Multiply)
    ]
    weights += [one for both in experts_of(model) for matrices in both for one in matrices.each]
    parts = [part for each in weights for part in (each.parts if isinstance(each, StackedWeight) else (each,))]
    own = kernels()
    taken = sum(own.memory(own.weight(*form_of(part)))[1] for part in parts)
    table = model.embedding.table
    assert isinstance(table, torch.Tensor)
    taken += 0 if model.spec.tied_head else table.nbytes
    assert checkpoint.blocks is not None
    planned = block_bytes(checkpoint.blocks, 4)
    assert abs(planned - taken) < 0.02 * taken, "but for norms, and outputs in whole sixteens"
    assert planned < 0.5 * 4 * checkpoint.parameters
