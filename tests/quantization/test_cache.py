"""Packed weights on disk: a second start maps what the first packed, and gives the same numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.test_decoder import CPU
from tests.models.tiny import make_model
from tests.ops.cpu.test_plan import kernels, logits, planned
from tests.quantization.test_blocks import blocked
from tests.quantization.test_packed import quantized
from tests.seeds import fresh_seed
from textgen.layers.weight import DenseFormat, Part, WeightFormat
from textgen.models.decoder import Decoder
from textgen.models.load import load_model
from textgen.models.weights import WeightFiles
from textgen.ops import select_ops
from textgen.ops.cpu.packing import BF16, COMPACT
from textgen.ops.cpu.record import record
from textgen.parallel import Parallel
from textgen.quantization.blocks import BlockFormat
from textgen.quantization.cache import CachedFormat, WeightsCache, cache_name
from textgen.quantization.formats import COMPACT_ISAS
from textgen.quantization.integers import Int4Format, Int8Format
from textgen.quantization.stored import DeferredFormat, StoredFormat


def load(folder: Path, form: WeightFormat, dtype: torch.dtype = torch.bfloat16) -> Decoder:
    model = load_model(folder, dtype, CPU, Parallel(), select_ops(), format=form)
    assert isinstance(model, Decoder)
    return model


def start(folder: Path, form: WeightFormat, cache: WeightsCache, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a shard does: logits of the plan."""
    made = planned(record(load(folder, CachedFormat(form, cache), dtype)))
    cache.commit()
    return logits(made, 3)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_numbers_that_are_too_far_apart_for_12_bits(architecture: str, tmp_path: Path) -> None:
    """Some matrices stay as they are, and a start that maps all finds each in its own form."""
    folder = tmp_path / "m"
    make_model(folder, architecture, fresh_seed()).to(torch.bfloat16).save_pretrained(folder)
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    for name in sorted(name for name in tensors if name.endswith("proj.weight"))[::2]:
        tensors[name] *= torch.exp2(-torch.randint(0, 60, tensors[name].shape))
    save_file(tensors, path, {"format": "pt"})
    expected = logits(load(folder, StoredFormat()), 3)
    cache = WeightsCache(tmp_path / "cache", "one")
    first = start(folder, StoredFormat(), cache, torch.bfloat16)
    torch.testing.assert_close(first, expected, rtol=0, atol=0.05 * float(expected.abs().max()))
    again = WeightsCache(tmp_path / "cache", "one")
    forms = {packed.form for packed in again._found.values()}
    assert kernels().isa not in COMPACT_ISAS or forms == {BF16, COMPACT}
    assert torch.equal(start(folder, StoredFormat(), again, torch.bfloat16), first)


@pytest.mark.parametrize("form", [StoredFormat(), DeferredFormat(Int8Format()), DeferredFormat(Int4Format(32))])
def test_experts_are_mapped_too(form: WeightFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "m", "Qwen3MoeForCausalLM", fresh_seed(), decoder_sparse_step=1, mlp_only_layers=[])
    first = start(tmp_path / "m", form, WeightsCache(tmp_path / "cache", "one"))
    cache, viewed, view = WeightsCache(tmp_path / "cache", "one"), list[str](), WeightFiles.view

    def noted(files: WeightFiles, part: Part, dtype: torch.dtype) -> torch.Tensor | None:
        viewed.append(part.name)
        return view(files, part, dtype)

    monkeypatch.setattr(WeightFiles, "view", noted)
    assert torch.equal(start(tmp_path / "m", form, cache), first)
    assert not viewed


@pytest.mark.parametrize("form", [DenseFormat(), Int8Format(), Int4Format(32)])
def test_a_second_start_maps_what_the_first_packed(
    form: WeightFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "m", "GPTNeoXForCausalLM", fresh_seed())  # one that turns its outputs round as it loads
    cached = tmp_path / "cache"
    first = start(tmp_path / "m", form, WeightsCache(cached, "one"))
    read: list[str] = []
    plain = WeightFiles.read

    def noted(files: WeightFiles, part: Part, into: torch.Tensor) -> None:
        read.append(part.name)
        plain(files, part, into)

    monkeypatch.setattr(WeightFiles, "read", noted)
    cache = WeightsCache(cached, "one")
    assert cache.mapped
    assert torch.equal(start(tmp_path / "m", form, cache), first)
    assert not [name for name in read if name.endswith(("dense.weight", "query_key_value.weight", "h_to_4h.weight"))]
    assert [path.name for path in cached.iterdir()] == ["one.weights"]


def test_inputs_in_an_order_of_their_own_are_packed_anew(tmp_path: Path) -> None:
    """The file has no place for the order; what has none is kept beside."""
    quantized(tmp_path, "gptq", False, "each", desc_act=True)
    first = start(tmp_path, DenseFormat(), WeightsCache(tmp_path / "cache", "one"))
    cache = WeightsCache(tmp_path / "cache", "one")
    assert cache.mapped
    assert torch.equal(start(tmp_path, DenseFormat(), cache), first)


def test_stacks_of_blocks_are_kept_too(tmp_path: Path) -> None:
    folder, cached = blocked(tmp_path), tmp_path / "cache"
    first = start(folder, BlockFormat(), WeightsCache(cached, "one"))
    cache = WeightsCache(cached, "one")
    assert cache.mapped
    assert torch.equal(start(folder, BlockFormat(), cache), first)


@pytest.mark.parametrize("damage", ["cut", "header", "other"])
def test_a_damaged_file_is_written_anew(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_model(tmp_path / "m", seed=fresh_seed())
    first = start(tmp_path / "m", Int8Format(), cache := WeightsCache(tmp_path / "cache", "one"))
    data = cache.path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    damaged = {"cut": data[: len(data) // 2], "header": data[:8] + b"x" * length + data[8 + length :],
               "other": data.replace(b'"name":"one"', b'"name":"two"')}[damage]  # fmt: skip
    cache.path.write_bytes(damaged)
    again = WeightsCache(tmp_path / "cache", "one")
    assert not again.mapped
    assert "is damaged; it is written anew" in caplog.text
    assert torch.equal(start(tmp_path / "m", Int8Format(), again), first)
    assert cache.path.read_bytes() == data


def test_a_folder_that_cannot_be_written_costs_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tmp_path / "m", seed=fresh_seed())
    (tmp_path / "file").write_text("no folder")
    start(tmp_path / "m", Int8Format(), WeightsCache(tmp_path / "file" / "cache", "one"))
    assert "give --weights-cache another folder" in caplog.text


def test_the_name_changes_with_the_model_and_the_format(tmp_path: Path) -> None:
    make_model(tmp_path / "m", seed=fresh_seed())
    names = [cache_name(tmp_path / "m", "bfloat16", form) for form in (None, "int8")]
    assert names[0] == cache_name(tmp_path / "m", "bfloat16", None)
    path = next((tmp_path / "m").glob("*.safetensors"))
    os.utime(path, ns=(1, 1))
    names.append(cache_name(tmp_path / "m", "bfloat16", None))
    assert len(set(names)) == 3
