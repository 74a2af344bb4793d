"""Weights that stay in the mapped file until they are packed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.mapped import resident
from textgen.layers.weight import DenseWeight, LoadContext, Part
from textgen.models.weights import WeightFiles
from textgen.ops.pages import let_go
from textgen.parallel import Parallel
from textgen.quantization.integers import Int4Format, Int4Weight, Int8Format, Int8Weight
from textgen.quantization.stored import ByRows, DeferredFormat, DeferredWeight, StoredFormat, StoredWeight

CPU = torch.device("cpu")


@pytest.fixture
def tensors(tmp_path: Path) -> dict[str, torch.Tensor]:
    made = {name: torch.randn(300, 40).bfloat16() for name in ("a", "b")} | {"wide": torch.randn(8, 40)}
    save_file(made, tmp_path / "model.safetensors")
    return made


def in_file(tensor: torch.Tensor, file: Path) -> bool:
    """Whether it lies in the mapped file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return line.endswith(str(file))
    return False


def test_matrices_are_views_of_the_file_that_outlive_it(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    parts = [Part("a", (300, 40)), Part("b", (300, 40), rows=slice(100, 200))]
    with WeightFiles(tmp_path) as source:
        weight = StoredFormat().load(LoadContext(source, torch.bfloat16, CPU, Parallel()), parts)
    assert isinstance(weight, StoredWeight)
    assert all(in_file(view, tmp_path / "model.safetensors") for view in weight.views)
    expected = torch.cat((tensors["a"], tensors["b"][100:200]))
    assert (weight.outputs, weight.inputs, weight.dtype) == (400, 40, torch.bfloat16)
    found = torch.empty_like(expected)
    for first, rows in weight.stretches(128):
        assert len(rows) <= 128
        found[first : first + len(rows)] = rows
    assert torch.equal(found, expected)
    for view in weight.views:
        let_go(view)
    x = torch.randn(3, 40).bfloat16()
    assert torch.equal(weight.multiply(x, None), DenseWeight(expected).multiply(x, None))
    order = torch.randperm(400)
    assert torch.equal(weight.reordered(order).multiply(x, None), DenseWeight(expected[order]).multiply(x, None))


def test_a_table_that_is_the_head_too_waits_in_the_file(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with WeightFiles(tmp_path) as source:
        context = LoadContext(source, torch.bfloat16, CPU, Parallel())
        table, head = StoredFormat().tied(context, Part("a", (300, 40)))
        converted, dense = StoredFormat().tied(context, Part("wide", (8, 40)))
    assert isinstance(table, torch.Tensor) and isinstance(converted, torch.Tensor)
    assert in_file(table, tmp_path / "model.safetensors")
    assert torch.equal(table, tensors["a"])
    assert isinstance(head, StoredWeight)
    assert head.views == (table,)
    assert not in_file(converted, tmp_path / "model.safetensors")
    assert isinstance(dense, DenseWeight)
    assert dense.values is converted


@pytest.mark.parametrize(
    "part", [Part("wide", (8, 40)), Part("b", (40, 300), transposed=True)], ids=["another type", "the other way round"]
)
def test_what_has_to_be_converted_is_read(part: Part, tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with WeightFiles(tmp_path) as source:
        weight = StoredFormat().load(LoadContext(source, torch.bfloat16, CPU, Parallel()), [part])
    assert isinstance(weight, DenseWeight)
    stored = tensors[part.name].bfloat16()
    assert torch.equal(weight.values, stored.t() if part.transposed else stored)
    assert not in_file(weight.values, tmp_path / "model.safetensors")


def test_what_was_read_is_not_kept_in_memory(tmp_path: Path) -> None:
    stored = torch.randn(2048, 1024).bfloat16()
    save_file({"a": stored}, tmp_path / "model.safetensors")
    into = torch.empty_like(stored)
    with WeightFiles(tmp_path) as source:
        view = source.view(Part("a", (2048, 1024)), torch.bfloat16)
        assert view is not None
        assert torch.equal(view, stored)
        assert resident(tmp_path) >= stored.nbytes // 2
        source.read(Part("a", (2048, 1024)), into)
        assert torch.equal(into, stored)
        assert resident(tmp_path) < stored.nbytes // 8


@pytest.mark.parametrize(("form", "kind"), [(Int8Format(), Int8Weight), (Int4Format(32), Int4Weight)], ids=["8", "4"])
def test_what_becomes_integers_waits_in_the_file(form: ByRows, kind: type, tmp_path: Path) -> None:
    tensors = {name: torch.randn(300, 64).bfloat16() for name in ("a", "b")} | {"wide": torch.randn(300, 64)}
    save_file(tensors, tmp_path / "model.safetensors")
    parts = [Part("a", (300, 64)), Part("b", (300, 64), rows=slice(100, 200))]
    with WeightFiles(tmp_path) as source:
        context = LoadContext(source, torch.bfloat16, CPU, Parallel())
        weight, (table, tied) = DeferredFormat(form).load(context, parts), DeferredFormat(form).tied(context, parts[0])
        converted = DeferredFormat(form).load(context, [Part("wide", (300, 64))])
    x, order = torch.randn(3, 64).bfloat16(), torch.randperm(400)
    assert isinstance(weight, DeferredWeight)
    assert isinstance(tied, DeferredWeight)
    if isinstance(table, torch.Tensor):
        assert torch.equal(table, tensors["a"])
        assert not in_file(table, tmp_path / "model.safetensors"), "it is looked up as long as the model runs"
    else:
        assert kind is Int8Weight and table.head is tied, "it is looked up in the integers"
    assert all(in_file(view, tmp_path / "model.safetensors") for view in (*weight.stored.views, *tied.stored.views))
    made = form.of(torch.cat((tensors["a"], tensors["b"][100:200])))
    assert isinstance(made, kind)
    assert weight.outputs == made.outputs == 400
    assert torch.equal(weight.multiply(x, None), made.multiply(x, None))
    assert torch.equal(weight.reordered(order).multiply(x, None), made.reordered(order).multiply(x, None))
    assert torch.equal(tied.multiply(x, None), form.of(tensors["a"]).multiply(x, None))
    assert isinstance(converted, kind)
    assert torch.equal(converted.multiply(x, None), form.of(tensors["wide"].bfloat16()).multiply(x, None))
