"""Models out of GGUF files against Transformers with the same weights, and every type of block."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from tests.mapped import resident
from textgen.gguf.architectures import ARCHITECTURES
from textgen.gguf.errors import GgufError
from textgen.gguf.index import Index, StoredTensor
from textgen.gguf.unpack import unpack
from textgen.layers.weight import Part
from textgen.models import gguf_source
from textgen.models.errors import ModelError
from textgen.models.gguf_source import GgufFiles

from ..models.families import LLAMA3, TINY, longrope
from ..models.test_decoder import Sequence, load, poisoned_cache, run_step
from ..models.tiny import random_prompt, reference_logits, well_chosen
from .cases import CASES
from .writer import Case, write

DRAWS = [(name, number) for name, case in CASES.items() for number in range(len(case.changes))]
PLAIN = (Kind.F64, Kind.F32, Kind.F16, Kind.BF16, Kind.I8, Kind.I16, Kind.I32, Kind.I64)
ONLY_INSIDE = ("Q8_1", "Q8_K", "Q1_0")  # what activations are packed in, and what the package has no reader of
KINDS = [kind for kind in Kind if kind not in PLAIN and kind.name not in ONLY_INSIDE]


def compare(case: Case, folder: Path, kind: Kind = Kind.F32, **changes: Any) -> None:
    """Logits of two sequences in chunks and mixed steps."""
    reference, path = write(case, folder, kind, **changes)
    model = load(unpack(path))
    rng = random.Random(1)
    one, two = (Sequence(random_prompt(rng, length), list(range(at, at + 12))) for at, length in ((0, 37), (12, 9)))
    cache = poisoned_cache(model)
    for work in ([(one, 20)], [(one, 10), (two, 8)], [(one, 7), (two, 1)]):
        run_step(model, cache, work)
    for sequence in (one, two):
        sure = well_chosen(reference, sequence.tokens)
        assert sure
        theirs = reference_logits(reference, sequence.tokens)[:sure]
        torch.testing.assert_close(torch.cat(sequence.logits)[:sure], theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("name", "number"), DRAWS)
@torch.inference_mode()
def test_logits_equal_transformers(name: str, number: int, tmp_path: Path) -> None:
    compare(CASES[name], tmp_path, **CASES[name].changes[number])


def test_every_architecture_is_tested() -> None:
    assert {case.architecture for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", Kind.F16),
        ("llama", Kind.BF16),
        ("llama", Kind.Q8_0),
        ("gpt2", Kind.Q8_0),
        ("llama", Kind.Q4_0),
        ("qwen2moe", Kind.Q5_1),
    ],
)
@torch.inference_mode()
def test_packed_weights_give_the_logits_of_what_was_packed(name: str, kind: Kind, tmp_path: Path) -> None:
    compare(CASES[name], tmp_path, kind)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"head_dim": 24}),
        ("gemma2", {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 40}),
        ("gpt2", {"n_positions": 1024}),
        ("bloom", {"n_head": 6}),
        ("nemotron", {"head_dim": 16}),
    ],
)
@torch.inference_mode()
def test_transformers_reads_the_same_out_of_the_file(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Its own reader of GGUF files: what we take the layout of the file to be is not only our own belief."""
    _, path = write(CASES[name], tmp_path, **changes)
    attention = TINY[CASES[name].family].attention
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, attn_implementation=attention).eval()
    model, tokens = load(unpack(path)), random_prompt(random.Random(2), 12)
    sequence = Sequence(tokens, [2, 0, 1])
    run_step(model, poisoned_cache(model), [(sequence, 12)])
    torch.testing.assert_close(sequence.logits[0], reference_logits(theirs, tokens), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_type_of_block(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, by several threads, whole rows and parts of them, one tensor of a stack."""
    monkeypatch.setattr(gguf_source, "CHUNK", 3 * 512)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 60, (2, 20, 512 // block * size), dtype=np.uint8)  # small: no scale is infinite
    path = tmp_path / "blocks"
    path.write_bytes(b"before" + raw.tobytes())
    tensor = StoredTensor(str(path), len(b"before"), kind.name, (2, 20, 512))
    expected = torch.from_numpy(gguf.dequantize(raw[1], kind))
    assert expected.unique().numel() > 4
    with GgufFiles(Index("llama", {"w": tensor})) as files:
        whole, cut = torch.empty(20, 512), torch.empty(7, 100, dtype=torch.bfloat16)
        files.read(Part("w", (20, 512), index=1, stacked=2), whole)
        files.read(Part("w", (20, 512), slice(5, 12), slice(100, 200), index=1, stacked=2), cut)
        files.refuse_unread()
    assert torch.equal(whole, expected)
    assert torch.equal(cut, expected[5:12, 100:200].bfloat16())


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F16])
def test_what_was_read_is_not_kept_in_memory(kind: Kind, tmp_path: Path) -> None:
    rows, size = 2048, gguf.GGML_QUANT_SIZES[kind][1] * 1024 // gguf.GGML_QUANT_SIZES[kind][0]
    path = tmp_path / "blocks"
    path.write_bytes(bytes(rows * size))
    part = Part("w", (rows, 1024))
    with GgufFiles(Index("llama", {"w": StoredTensor(str(path), 0, kind.name, (rows, 1024))})) as files:
        files.read(part, torch.empty(rows, 1024))
        assert resident(tmp_path) < rows * size // 8
        assert (files.read_blocks(part) is None) == (kind.name == "F16")
        assert resident(tmp_path) < rows * size // 8


def test_a_type_of_block_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    path.write_bytes(bytes(1000))
    tensor = StoredTensor(str(path), 0, "I8", (4, 32))
    with GgufFiles(Index("llama", {"w": tensor})) as files, pytest.raises(ModelError, match="type I8 cannot be read"):
        files.read(Part("w", (4, 32)), torch.empty(4, 32))


@torch.inference_mode()
def test_llama_3_has_its_frequencies_in_a_tensor(tmp_path: Path) -> None:
    """As the converter writes them: how much slower each turns, for the decoder to divide by."""
    reference, path = write(CASES["llama"], tmp_path, rope_parameters=LLAMA3)
    plain = 1.0 / cast(float, LLAMA3["rope_theta"]) ** (torch.arange(0, 16, 2) / 16)
    divisors = (plain / reference.model.rotary_emb.inv_freq).numpy()
    assert divisors.max() > 2
    _with_tensors(path, {"rope_freqs.weight": divisors})
    model, tokens = load(unpack(path)), random_prompt(random.Random(4), 60)
    sequence = Sequence(tokens, list(range(15)))
    run_step(model, poisoned_cache(model), [(sequence, 60)])
    torch.testing.assert_close(sequence.logits[0], reference_logits(reference, tokens), rtol=2e-4, atol=2e-4)


@torch.inference_mode()
def test_long_rope_has_its_factors_in_tensors(tmp_path: Path) -> None:
    rope = {**longrope(16), "original_max_position_embeddings": 64}
    reference, path = write(
        CASES["phi3"], tmp_path, rope_parameters=rope, original_max_position_embeddings=64, sliding_window=None
    )
    factors = {
        f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32) for name in ("short", "long")
    }
    keys = {
        "phi3.rope.scaling.type": "longrope",
        "phi3.rope.scaling.original_context_length": 64,
        "phi3.rope.scaling.attn_factor": float(reference.model.rotary_emb.attention_scaling),
    }
    _with_tensors(path, factors, keys)
    model, tokens = load(unpack(path)), random_prompt(random.Random(4), 100)
    sequence = Sequence(tokens, list(range(25)))
    run_step(model, poisoned_cache(model), [(sequence, 100)])
    torch.testing.assert_close(sequence.logits[0], reference_logits(reference, tokens), rtol=2e-4, atol=2e-4)


def _with_tensors(path: Path, tensors: dict[str, Any], keys: dict[str, Any] | None = None) -> None:
    """The file once more, with more in it."""
    old = gguf.GGUFReader(path)
    architecture = old.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path.with_name("more.gguf"), architecture)
    for name, entry in old.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kinds = entry.types
            writer.add_key_value(name, entry.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for name, value in (keys or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(name, value)  # type: ignore[operator]
    for tensor in old.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    path.with_name("more.gguf").replace(path)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ("blk.0.attn_q.bias_of_another_kind", "'blk.0.attn_q.bias_of_another_kind' is not part of this architecture"),
        ("blk.3.attn_norm.weight", "'blk.3.attn_norm.weight' is not part of"),
    ],
)
def test_a_tensor_nobody_knows_is_refused(tensor: str, words: str, tmp_path: Path) -> None:
    _, path = write(CASES["llama"], tmp_path)
    _with_tensors(path, {tensor: np.zeros(8)})
    with pytest.raises(ModelError, match=words):
        load(unpack(path))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    _, path = write(CASES["llama"], tmp_path)
    folder = unpack(path)
    index = json.loads((folder / "gguf.json").read_text())
    del index["tensors"]["output_norm.weight"]
    (folder / "gguf.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="no tensor 'output_norm.weight'"):
        load(folder)


@torch.inference_mode()
def test_blocks_that_draft_tokens_are_left_out(tmp_path: Path) -> None:
    """They stand behind the last layer and have names of their own and names as any layer has."""
    reference, path = write(CASES["glm4moe"], tmp_path, use_qk_norm=True)
    _with_tensors(path, {"blk.3.nextn.eh_proj.weight": np.zeros((64, 128)), "blk.3.attn_norm.weight": np.zeros(64)})
    model, tokens = load(unpack(path)), random_prompt(random.Random(2), 12)
    assert model.spec.num_layers == 3
    sequence = Sequence(tokens, [2, 0, 1])
    run_step(model, poisoned_cache(model), [(sequence, 12)])
    sure = well_chosen(reference, tokens)
    theirs = reference_logits(reference, tokens)
    torch.testing.assert_close(sequence.logits[0][:sure], theirs[:sure], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("deepseek2", "expert_gating_func", 3, "must be 1, a softmax, or 2, a sigmoid"),
        ("deepseek2", "attention.key_length_mla", 8, "more than the 8 numbers that are rotated"),
        ("glm4moe", "expert_gating_func", 1, "must be 2, a sigmoid"),
        ("glm4moe", "nextn_predict_layers", 4, "must be less than the blocks"),
        ("exaone4", "attention.sliding_window_pattern", [True, False], "a list of 4 values or a positive integer"),
        ("olmoe", "nextn_predict_layers", 3, "must be less than the blocks"),
    ],
)
def test_what_an_architecture_does_not_know_is_refused(
    name: str, key: str, value: Any, words: str, tmp_path: Path
) -> None:
    case = CASES[name]
    stated = {"attention.sliding_window": 9, key: value} if name == "exaone4" else {key: value}
    _, path = write(replace(case, extra=lambda c: {**case.extra(c), **stated}), tmp_path, **case.changes[0])
    with pytest.raises(GgufError, match=words):
        unpack(path)


def test_latent_keys_without_values_are_named(tmp_path: Path) -> None:
    _, path = write(CASES["deepseek2"], tmp_path, topk_method="greedy", q_lora_rank=None)
    folder = unpack(path)
    index = json.loads((folder / "gguf.json").read_text())
    del index["tensors"]["blk.0.attn_v_b.weight"]
    (folder / "gguf.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"no tensor 'blk.0.attn_v_b.weight' of a matrix for each head"):
        load(folder)
