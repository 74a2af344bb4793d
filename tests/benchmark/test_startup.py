"""The start that is measured: its model is one, in both forms, and its rows say what the runs said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmark.startup.model import write, write_gguf
from benchmark.startup.run import read_at_full_speed, rows
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


def test_both_forms_of_the_model_load(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", **TINY)
    plain, packed = load(folder), load(unpack(write_gguf(folder, tmp_path / "model.gguf")))
    assert torch.equal(plain.embedding.table, packed.embedding.table)
    assert torch.equal(plain.layers[1].block.mlp.down.weight.values, packed.layers[1].block.mlp.down.weight.values)  # type: ignore[union-attr]
    assert read_at_full_speed(folder / "model.safetensors") > 0


def test_rows_are_medians_beside_each_peer() -> None:
    ours = [
        {"ready": value, "first token": 1.0, "peak": 100.0, "shard load": 2.0, "plan": 0.5} for value in (9.0, 3.0, 4.0)
    ]
    theirs = [{"ready": 8.0, "first token": 1.0, "peak": 50.0, "import": 3.0, "load": 5.0}]
    found = rows({"textgen": ours, "transformers": theirs}, [1.0, 1.5, 9.0], {"transformers": "5"}, 3_000_000_000)
    by_metric = {row.metric: row for row in found}
    ready = by_metric["ready, after the start"]
    assert (ready.ours, ready.theirs, ready.holds) == (4.0, 8.0, True)
    weights = by_metric["weights in place"]
    assert (weights.ours, weights.holds) == (1.5, False)
    assert weights.theirs == pytest.approx(2.0)
    assert by_metric["plan"].ours == 0.5
