"""The start that is measured: its model is one, in both forms, and its rows say what the starts said."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmark.servers import Models, NotStarted, Program, Started
from benchmark.startup.cache import forget, read_at_full_speed, resident
from benchmark.startup.model import BUILT_IN, write, write_gguf
from benchmark.startup.run import COLD, FIRST, LARGE, OURS, SMALL, WARM, Results, measure, notes, rows
from textgen.gguf.unpack import unpack
from textgen.models.decoder import Decoder
from textgen.models.load import load_model
from textgen.ops import select_ops
from textgen.parallel import Parallel

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 2100}  # fmt: skip


def load(folder: Path) -> Decoder:
    model = load_model(folder, torch.bfloat16, torch.device("cpu"), Parallel(), select_ops())
    assert isinstance(model, Decoder)
    return model


def table(model: Decoder) -> torch.Tensor:
    assert isinstance(model.embedding.table, torch.Tensor)
    return model.embedding.table


def test_both_forms_of_the_model_load(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", **TINY)
    plain, packed = load(folder), load(unpack(write_gguf(folder, tmp_path / "model.gguf")))
    assert torch.equal(table(plain), table(packed))
    assert torch.equal(plain.layers[1].block.mlp.down.weight.values, packed.layers[1].block.mlp.down.weight.values)  # type: ignore[union-attr]


def test_the_built_in_model_has_heads_of_a_size_of_their_own(tmp_path: Path) -> None:
    values = json.loads((unpack(write_gguf(BUILT_IN, tmp_path / "model.gguf")) / "config.json").read_text())
    assert values["head_dim"] == json.loads((BUILT_IN / "config.json").read_text())["head_dim"]


def test_files_are_let_go_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a" / "folder"
    path.parent.mkdir(parents=True)
    path.write_bytes(os.urandom(1 << 20))
    (tmp_path / "in" / "nowhere").symlink_to("nothing")
    assert read_at_full_speed(path) > 0
    assert resident(path) == 1
    forget([tmp_path / "in"])
    if resident(path) == 1:
        pytest.skip("this file system keeps its files in memory")
    read_at_full_speed(path)
    assert resident(path) == 1


class Scripted(Program):
    """Says what it was told to say."""

    def __init__(self, name: str, starts: Sequence[Started]) -> None:
        self.name, self.roots, self._starts = name, [], list(starts)

    def start(self, models: Models, threads: int, log: Path) -> Started:
        if not self._starts:
            raise NotStarted("it has no more")
        return self._starts.pop(0)


def started(first: float, **phases: float) -> Started:
    return Started(first - 0.5, first, 100.0, phases)


@pytest.fixture
def models(tmp_path: Path) -> Models:
    folder = write(tmp_path / "model", **TINY)
    return Models(folder, write_gguf(folder, tmp_path / "model.gguf"))


def test_rows_are_medians_beside_each_peer(models: Models, tmp_path: Path) -> None:
    phases = {"import": 2.0, "read": 0.5, "place": 1.0}
    # One start that is not counted, then a cold and a warm one in each round.
    ours = Scripted("textgen", [started(value, **phases) for value in (99, 9, 2.5, 8, 2.75, 7, 9)])
    peer = Scripted("vllm", [started(value) for value in (99, 20, 10, 21, 11, 22, 12)])
    for name in (SMALL, LARGE):
        results = Results()
        measure(results, name, models, [Scripted(p.name, p._starts) for p in (ours, peer)], 2, 3, tmp_path / "log")
        results.reading = {(name, COLD): [1.0], (name, WARM): [1.25]}
        found = {(row.case, row.metric, row.peer): row for row in rows(results, {"vllm": "1"})}
        warm, cold = f"{name}, {WARM}", f"{name}, {COLD}"
        mine = found[warm, FIRST, None]
        assert (mine.ours, mine.bar, mine.holds) == ((2.75, "ours < 4", True) if name == SMALL else (2.75, None, None))
        assert found[warm, OURS, None].ours == 0.75
        beside = found[cold, FIRST, "vllm"]
        assert (beside.ours, beside.theirs, beside.holds) == (8, 21, True)
        assert found[warm, "place", None].ours == 1.0
        assert ((warm, "weights in place", "reading the file") in found) == (name == LARGE)
        if name == LARGE:
            assert found[warm, "weights in place", "reading the file"].holds
            assert not found[cold, "weights in place", "reading the file"].holds, "1.5 s where 1.25 are allowed"
            assert not found[warm, FIRST, "reading the file"].holds
    assert results.missing == {}


def test_who_does_not_start_is_told_of_and_left_out(models: Models, tmp_path: Path) -> None:
    results = Results()
    programs = [Scripted("textgen", [started(1.0)] * 7), Scripted("vllm", [started(1.0)] * 2)]
    measure(results, SMALL, models, programs, 2, 3, tmp_path / "log")
    assert results.missing == {f"vllm, {SMALL}": "it has no more"}
    assert f"Not measured: vllm, {SMALL}: it has no more" in notes(results, 2, 3, 0.1)
