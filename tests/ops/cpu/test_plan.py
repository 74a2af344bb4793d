"""The decoder as a plan: the same numbers as the reference path, by the interpreter in torch and by the kernels."""

from __future__ import annotations

import gc
import os
import random
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.models.families import TINY
from tests.models.test_decoder import BLOCK, BLOCKS, CPU, Sequence, asked, load, random_tails, run_step
from tests.models.test_fallback import make
from tests.models.tiny import make_model, random_prompt
from tests.seeds import fresh_rng, fresh_seed
from textgen.layers.router import Router
from textgen.layers.weight import DenseFormat, HeadTable, Weight, WeightFormat
from textgen.models.decoder import Decoder, Model
from textgen.models.errors import ModelError
from textgen.models.load import load_model
from textgen.ops import reference, select_ops
from textgen.ops.cpu.instructions import Affine, Multiply, Program
from textgen.ops.cpu.layout import lay_out
from textgen.ops.cpu.library import Kernels
from textgen.ops.cpu.model import PlannedModel, PlanSizes, load_planned
from textgen.ops.cpu.record import Recording, record
from textgen.ops.cpu.twin import InterpretedModel
from textgen.parallel import Parallel
from textgen.quantization import integers
from textgen.quantization.cache import CachedFormat, WeightsCache
from textgen.quantization.integers import Int4Format, Int8Format
from textgen.quantization.stored import ByRows, DeferredFormat, StoredFormat
from textgen.shard.cache import KvCache, allocate_cache

TOKENS, SLOTS = 120, 70
# The tokens of four sequences in each step. With few of them tiles too have x in integers for weights in groups.
CHUNKS = ((40, 1, 30, 1), (29, 7, 1, 0), (1, 1, 2, 0))
FEW = ((10, 2, 10, 1), (10, 2, 10, 0), (10, 2, 10, 0), (10, 2, 3, 0), (10, 1, 0, 0), (10, 0, 0, 0), (10, 0, 0, 0))
CLEAR = 2e-5  # where two experts' scores are nearer, sums in another order may choose the other


def kernels() -> Kernels:
    library = os.environ.get("TEXTGEN_CPU_LIBRARY")  # of `make -C csrc/cpu`, as the kernels' own tests take it
    return Kernels(None, None if library is None else Path(library))


def planned(recording: Recording, threads: int = 1) -> PlannedModel:
    sizes = PlanSizes(max_tokens=TOKENS, max_slots=SLOTS, max_context=256, threads=threads)
    model = PlannedModel(recording, kernels(), sizes)
    model.pack()
    return model


def drawn(architecture: str, folder: Path, dtype: torch.dtype, form: WeightFormat | None = None) -> Decoder:
    seed = fresh_seed()
    changes = TINY[architecture].draw(random.Random(seed))
    print(changes)
    make_model(folder, architecture, seed, **changes)
    model = load_model(folder, dtype, CPU, Parallel(), select_ops(), format=form)
    assert isinstance(model, Decoder)
    return model


def poisoned(model: Model, dtype: torch.dtype | None = None) -> KvCache:
    """A cache full of NaN, or of integers with such scales: whatever is read before it was written shows."""
    cache = allocate_cache(model.spec, BLOCKS, BLOCK, dtype or model.like.dtype, CPU, Parallel())
    for layer in cache.layers:
        for stored in layer.stored:
            stored.fill_(torch.nan if stored.is_floating_point() else 0)
    return cache


@torch.inference_mode()
def logits(
    model: Model,
    seed: int,
    dtype: torch.dtype | None = None,
    steps: tuple[tuple[int, ...], ...] = CHUNKS,
    some: bool = False,
) -> torch.Tensor:
    """Of all tokens of four sequences that run in chunks and side by side in shuffled blocks. some: of some of them;
    the other rows are infinite."""
    rng, cache = random.Random(seed), poisoned(model, dtype)
    blocks = rng.sample(range(BLOCKS), BLOCKS)
    sequences = [Sequence(random_prompt(rng, n), blocks[20 * i : 20 * i + 20]) for i, n in enumerate((70, 9, 33, 1))]
    for lengths in steps:
        tails = random_tails(rng, [n for n in lengths if n]) if some else None
        run_step(model, cache, [(s, n) for s, n in zip(sequences, lengths, strict=True) if n], tails)
        for sequence in sequences:
            sequence.logits = [part.clone() for part in sequence.logits]  # a plan writes over what it gave
    return torch.cat([part for sequence in sequences for part in sequence.logits])


def apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """How far rows are from those that they should be, as a share of their length; the middle one of all. A row of
    zeros, which a padding token alone has, is as long as none.
    """
    return float(((mine - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-9)).median())


def clear_logits(decoder: Decoder, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> tuple[int, torch.Tensor]:
    """A seed for `logits` with which no expert is chosen by a hair, and the logits."""
    route, gaps = Router.__call__, [0.0]

    def watched(router: Router, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spec, wished = router.spec, torch.nn.functional.linear(x.float(), router.weight.float(), router.bias)
        if spec.score != "chosen":
            wished = wished.softmax(dim=-1) if spec.score == "softmax" else wished.sigmoid()
        if router.correction is not None:
            wished = wished + router.correction
        if spec.groups > 1:
            best = wished.view(len(x), spec.groups, -1).topk(1 if spec.group_score == "best" else 2, dim=-1).values
            gaps.append(gap(best.sum(dim=-1), spec.top_groups))
            wished = reference.within_best_groups(wished, spec)
        gaps.append(gap(wished, spec.top_k))
        return route(router, x)

    def gap(wished: torch.Tensor, chosen: int) -> float:
        """Between the last that is chosen and the first that is not."""
        best = wished.sort(dim=-1, descending=True).values
        return float((best[:, chosen - 1] - best[:, chosen]).min()) if chosen < best.shape[1] else 1.0

    with monkeypatch.context() as patch:
        patch.setattr(Router, "__call__", watched)
        while min(gaps) < CLEAR:
            gaps[:] = [1.0]
            seed = rng.randrange(2**32)
            expected = logits(decoder, seed)
    return seed, expected


@pytest.mark.parametrize("architecture", TINY)
def test_every_family_gives_the_same_logits(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = drawn(architecture, tmp_path, torch.float32)
    recording = record(decoder)
    seed, expected = clear_logits(decoder, fresh_rng(), monkeypatch)
    bound = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(logits(InterpretedModel(recording, TOKENS, TOKENS), seed), expected, rtol=0, atol=bound)
    check_layout(recording.hidden)
    ours = logits(planned(recording, threads=2), seed)
    torch.testing.assert_close(ours, expected, rtol=0, atol=bound)
    for model in (InterpretedModel(recording, TOKENS, TOKENS), planned(recording, threads=2)):
        of_some = logits(model, seed, some=True)
        rows = asked(of_some)
        assert 0 < rows.sum() < len(rows)
        torch.testing.assert_close(of_some[rows], expected[rows], rtol=0, atol=bound)
    # Greedy tokens are the same wherever one token is better by more than the bound.
    best = expected.topk(2, dim=-1)
    sure = best.values[:, 0] - best.values[:, 1] > 2 * bound
    assert sure.sum() > len(sure) // 2
    assert torch.equal(ours.argmax(dim=-1)[sure], best.indices[sure, 0])


def check_layout(program: Program) -> None:
    """No two buffers share a byte while both hold something that is still read."""
    layout, live = lay_out(program, TOKENS), []
    uses: dict[object, list[int]] = {}
    for index, each in enumerate(program.instructions):
        for _, view in each.operands():
            uses.setdefault(view.buffer, []).append(index)
    uses[program.result.buffer].append(len(program.instructions))
    for buffer, places in uses.items():
        place = layout.places[buffer]  # type: ignore[index]
        size = place.stride * 4 * TOKENS
        assert place.offset % 64 == 0
        assert place.offset + size <= layout.size
        live.append((place.offset, place.offset + size, min(places), max(places)))
    for number, (begin, end, first, last) in enumerate(live):
        for other_begin, other_end, other_first, other_last in live[:number]:
            apart = end <= other_begin or other_end <= begin
            assert apart or last < other_first or other_last < first


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM", "GPT2LMHeadModel"])
def test_half_precision_is_as_near_to_float32_as_the_reference(
    architecture: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    decoder = drawn(architecture, tmp_path, dtype)
    exact, seed = logits(load(tmp_path), 5), 5
    errors = [
        float((logits(model, seed) - exact).norm(dim=-1).median() / exact.norm(dim=-1).median())
        for model in (decoder, planned(record(decoder)))
    ]
    assert errors[1] < max(1.5 * errors[0], 0.01), errors


# Experts that are stored each on its own, as stacks, and with gates beside what they gate.
SOME = ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "GraniteMoeSharedForCausalLM", "GptOssForCausalLM"]


@pytest.mark.parametrize("architecture", SOME)
@pytest.mark.parametrize("form", [Int8Format(), Int4Format(32)])
def test_quantized_weights_multiply_alike(architecture: str, form: WeightFormat, tmp_path: Path) -> None:
    """A number that is rounded the other way makes a step in what follows: by the median it is as good as equal."""
    decoder = drawn(architecture, tmp_path, torch.float32, form)
    recording = record(decoder)
    steps = FEW if isinstance(form, Int4Format) and kernels().isa == "amx" else CHUNKS
    expected = {seed: logits(decoder, seed, steps=steps) for seed in (6, 7, 8)}
    for model in (InterpretedModel(recording, TOKENS, TOKENS), planned(recording)):
        assert median(apart(logits(model, seed, steps=steps), right) for seed, right in expected.items()) < 1e-2
    float32 = logits(load(tmp_path), 6, steps=steps)
    assert apart(expected[6], float32) > 1e-3, "nothing was quantized"


@pytest.mark.parametrize("architecture", SOME)
def test_products_of_many_rows_in_four_bits_lose_no_more(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Than 1.5 times what the reference does, which has activations in eight bits: where tiles are used they are in
    bfloat16."""
    decoder = drawn(architecture, tmp_path, torch.float32, Int4Format(32))
    model = planned(record(decoder))
    found = {seed: (logits(model, seed), logits(decoder, seed)) for seed in (6, 7, 8)}
    monkeypatch.setattr(integers, "multiply_groups", lambda x, numbers, group, bias: F.linear(x, numbers, bias))
    exact = {seed: logits(decoder, seed) for seed in found}
    ours, theirs = (median(apart(each[i], exact[seed]) for seed, each in found.items()) for i in range(2))
    assert 0 < ours < 1.5 * theirs, (ours, theirs)


@pytest.mark.parametrize("architecture", SOME)
@pytest.mark.parametrize("form", [Int8Format(), Int4Format(32)])
def test_weights_quantized_while_they_are_packed_are_the_same(architecture: str, form: ByRows, tmp_path: Path) -> None:
    decoder = drawn(architecture, tmp_path, torch.float32, form)
    expected = logits(planned(record(decoder)), 6)
    deferred = load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops(), format=DeferredFormat(form))
    assert isinstance(deferred, Decoder)
    assert torch.equal(logits(planned(record(deferred), threads=2), 6), expected)


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM", "GptOssForCausalLM", "DeepseekV3ForCausalLM"]
)
def test_a_cache_of_integers_is_read_alike(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the median, as quantized weights; and it is not far from a cache of floats."""
    decoder = drawn(architecture, tmp_path, torch.float32)
    recording = record(decoder)
    seed, floats = clear_logits(decoder, fresh_rng(), monkeypatch)
    expected = logits(decoder, seed, torch.int8)
    for model in (InterpretedModel(recording, TOKENS, TOKENS), planned(recording, threads=2)):
        assert apart(logits(model, seed, torch.int8), expected) < 5e-3
    assert 1e-5 < apart(expected, floats) < 0.1, "nothing was quantized, or too much lost"


def test_a_block_of_llama_is_six_operations(tmp_path: Path) -> None:
    """Norms and the activation are parts of the products that take them in; so is the last norm one of the head's."""
    make_model(tmp_path)
    recording = record(load(tmp_path))
    program = recording.hidden
    block = "Multiply RotateAndWrite Attend Multiply Multiply Multiply".split()
    last = ["TakeOutputs", *block]
    assert [type(each).__name__ for each in program.instructions] == ["Embed", "RotaryTable", *block * 2, *last]
    before = [type(each.before).__name__ for each in program.instructions if isinstance(each, Multiply)]
    assert before == ["Affine", "NoneType", "Affine", "Gated"] * 3
    (head,) = (each for each in recording.logits.instructions if isinstance(each, Multiply))
    assert isinstance(head.before, Affine) and head.x == recording.logits.given
    assert sum(each.add for each in program.instructions if isinstance(each, Multiply)) == 2 * 3
    widths = {each.y.buffer.width for each in program.instructions if isinstance(each, Multiply)}
    layout = lay_out(program, 1)
    assert layout.size < 4 * 4 * max(widths), "layers share memory"


@pytest.mark.parametrize("kind", ["read", "in the file", "in the file, and kept"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_table_that_is_the_head_too_is_in_memory_once(tied: bool, kind: str, tmp_path: Path) -> None:
    make_model(tmp_path, tie_word_embeddings=tied)
    form: WeightFormat = DenseFormat() if kind == "read" else StoredFormat()
    if kind.endswith("kept"):
        form = CachedFormat(form, WeightsCache(tmp_path / "cache", "one"))
    decoder = load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops(), format=form)
    assert isinstance(decoder, Decoder)
    table = weakref.ref(decoder.embedding.table)
    model = planned(record(decoder))
    expected = logits(decoder, 7)
    torch.testing.assert_close(logits(model, 7), expected, rtol=0, atol=2e-5 * float(expected.abs().max()))
    del decoder
    gc.collect()
    assert (table() is None) == tied
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(), "nothing of the model stays in its file"


@pytest.mark.parametrize("form", [Int8Format(), DeferredFormat(Int8Format())])
def test_a_table_is_looked_up_in_a_head_of_eight_bits(form: WeightFormat, tmp_path: Path) -> None:
    """By the reference, by the kernels, and by kernels that map what others have packed: all the same numbers."""
    folder = tmp_path / "model"
    make_model(folder, tie_word_embeddings=True)

    def decoder() -> Decoder:
        cached = CachedFormat(form, WeightsCache(tmp_path / "cache", "one"))
        made = load_model(folder, torch.float32, CPU, Parallel(), select_ops(), format=cached)
        assert isinstance(made, Decoder)
        return made

    first = decoder()
    table = first.embedding.table
    assert isinstance(table, HeadTable) and table.dtype == first.like.dtype
    ids = torch.randint(0, table.shape[0], (3, 5))
    exact = load_model(folder, torch.float32, CPU, Parallel(), select_ops())
    assert isinstance(exact, Decoder) and isinstance(exact.embedding.table, Tensor)
    numbers = exact.embedding.table[ids]
    error = (table.rows(ids, torch.float32) - numbers).abs().amax(dim=-1)
    assert (error <= numbers.abs().amax(dim=-1) / 253).all()
    expected = logits(first, 7)
    model = planned(record(first))
    torch.testing.assert_close(logits(model, 7), expected, rtol=0, atol=2e-2 * float(expected.abs().max()))
    del first, table, exact
    gc.collect()
    assert str(folder) not in Path("/proc/self/maps").read_text(), "nothing of the model stays in its file"
    mapped = decoder()
    assert isinstance(mapped.embedding.table, HeadTable)
    assert torch.equal(logits(planned(record(mapped)), 7), logits(model, 7))


def test_the_likeliest_tokens_are_found_beside_the_logits(tmp_path: Path) -> None:
    make_model(tmp_path)
    model = planned(record(load(tmp_path)), threads=2)
    hidden = torch.randn(SLOTS, model.spec.hidden_size)
    values = model.logits(hidden[:5])
    found = model.likeliest()
    assert found is not None
    assert torch.equal(found.tokens, values.argmax(dim=-1))
    torch.testing.assert_close(found.normaliser, values.logsumexp(dim=-1))
    model.logits(torch.cat((hidden, hidden)))  # in parts, of which only the last is known
    assert model.likeliest() is None


@dataclass(frozen=True)
class _Unheard:
    """A form of weight that no kernel multiplies."""

    of: Weight

    @property
    def outputs(self) -> int:
        return self.of.outputs

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.of.multiply(x, bias)

    def reordered(self, order: torch.Tensor) -> _Unheard:
        return _Unheard(self.of.reordered(order))


def test_what_has_no_kernel_is_run_by_the_reference(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_model(tmp_path)
    decoder = load(tmp_path)
    assert isinstance(decoder, Decoder)
    decoder = replace(decoder, head=replace(decoder.head, weight=_Unheard(decoder.head.weight)))
    sizes = PlanSizes(max_tokens=TOKENS, max_slots=SLOTS, max_context=256, threads=1)
    with caplog.at_level("INFO"):
        assert load_planned(lambda: decoder, None, sizes) is decoder
    assert "plan: off, because of this: there is no operation for weights of the form _Unheard" in caplog.text


def test_a_machine_without_the_kernels_is_served_by_the_reference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tmp_path)
    sizes = PlanSizes(max_tokens=TOKENS, max_slots=SLOTS, max_context=256, threads=1)
    with caplog.at_level("INFO"):
        model = load_planned(lambda: load(tmp_path), "abacus", sizes)
    assert isinstance(model, Decoder)
    assert "abacus" in caplog.text


def test_a_fault_of_the_recorder_costs_no_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path)
    sizes = PlanSizes(max_tokens=TOKENS, max_slots=SLOTS, max_context=256, threads=1)
    monkeypatch.setattr("textgen.ops.cpu.model.record", lambda decoder: decoder.nothing)
    model = load_planned(lambda: load(tmp_path), None, sizes)
    assert isinstance(model, Decoder)
    assert "recording the model failed" in caplog.text and "has no attribute 'nothing'" in caplog.text


def test_a_cache_of_packed_weights_keeps_no_model_of_transformers_from_starting(tmp_path: Path) -> None:
    """There is none of theirs to keep. To quantize them is refused."""
    make(tmp_path / "m", "Helium")
    cache = WeightsCache(tmp_path / "cache", "one")
    for form, refused in ((DenseFormat(), False), (Int8Format(), True)):
        with pytest.raises(ModelError, match="cannot be quantized") if refused else nullcontext():
            kept = CachedFormat(form, cache)
            assert not isinstance(
                load_model(tmp_path / "m", torch.float32, CPU, Parallel(), select_ops(), format=kept), Decoder
            )
