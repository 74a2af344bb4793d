"""The decoder against Transformers in float32, with prompts cut in chunks, mixed batches and shuffled blocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from textgen.layers.outputs import outputs_of
from textgen.models.decoder import Decoder, Model, PackedBatch
from textgen.models.load import load_model
from textgen.models.spec import ExpertsSpec
from textgen.ops import SegmentLayout, select_ops
from textgen.parallel import Parallel
from textgen.shard.cache import KvCache, allocate_cache

from ..seeds import fresh_seed
from .families import TINY, longrope
from .tiny import make_model, random_prompt, reference_logits, well_chosen

CPU = torch.device("cpu")
BLOCK, BLOCKS = 4, 128


def load(folder: Path) -> Decoder:
    model = load_model(folder, torch.float32, CPU, Parallel(), select_ops())
    assert isinstance(model, Decoder)
    return model


@dataclass
class Sequence:
    tokens: list[int]
    blocks: list[int]
    done: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)


def run_step(model: Model, cache: KvCache, work: list[tuple[Sequence, int]], tails: list[int] | None = None) -> None:
    """Run the next `length` tokens of each sequence as one packed batch and keep all their logits; with tails those of
    so many of its last ones, and infinity for the others."""
    lengths = np.array([length for _, length in work])
    starts = np.array([sequence.done for sequence, _ in work])
    offsets = np.cumsum(lengths) - lengths
    width = max(len(sequence.blocks) for sequence, _ in work)
    tables = np.array([sequence.blocks + [0] * (width - len(sequence.blocks)) for sequence, _ in work], np.int32)
    layout = SegmentLayout(offsets, starts, lengths, tables, BLOCK)
    positions = [p for (s, n) in work for p in range(s.done, s.done + n)]
    ids = [s.tokens[p] for (s, n) in work for p in range(s.done, s.done + n)]
    rows = [s.blocks[p // BLOCK] * BLOCK + p % BLOCK for (s, n) in work for p in range(s.done, s.done + n)]
    like = model.like
    plans = {window: select_ops().attention(layout, window, like) for window in set(model.spec.windows)}
    outputs = None
    if tails is not None:
        outputs = outputs_of(np.array(tails), layout, model.spec.windows[-1], select_ops(), like)
    batch = PackedBatch(
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        rows=[torch.tensor(rows)] * model.spec.num_layers,
        attention=[plans[window] for window in model.spec.windows],
        outputs=outputs,
    )
    logits = model.logits(model.hidden(batch, cache.layers))
    if outputs is not None:
        logits = logits.new_full((len(ids), logits.shape[1]), torch.inf).index_copy_(0, outputs.rows, logits)
    for (sequence, length), offset in zip(work, offsets.tolist(), strict=True):
        sequence.logits.append(logits[offset : offset + length])
        sequence.done += length


def random_tails(rng: random.Random, lengths: list[int]) -> list[int]:
    """How many last tokens of each segment are asked for: of one at least some."""
    tails = [rng.choice([0, 1, 1, min(2, length), length]) for length in lengths]
    tails[rng.randrange(len(tails))] = 1
    return tails


def asked(logits: torch.Tensor) -> torch.Tensor:
    """[rows] whether `run_step` was asked for a row."""
    return ~logits.isinf().all(dim=-1)


def poisoned_cache(model: Model) -> KvCache:
    """A cache full of NaN: whatever is read before it was written shows."""
    cache = allocate_cache(model.spec, BLOCKS, BLOCK, torch.float32, CPU, Parallel())
    for layer in cache.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    return cache


@pytest.mark.parametrize("draw", range(2))
@pytest.mark.parametrize("architecture", TINY)
@torch.inference_mode()
def test_logits_equal_transformers_in_random_chunks(architecture: str, draw: int, tmp_path: Path) -> None:
    seed = fresh_seed()
    rng = random.Random(seed)
    changes = TINY[architecture].draw(rng)
    print(changes)
    reference = make_model(tmp_path, architecture, seed, **changes)
    model = load(tmp_path)
    cache = poisoned_cache(model)
    free = rng.sample(range(BLOCKS), BLOCKS)
    sequences = []
    for length in [1, 2, 150, *(rng.randrange(1, 60) for _ in range(4))]:
        blocks, free = free[: -(-length // BLOCK)], free[-(-length // BLOCK) :]
        sequences.append(Sequence(random_prompt(rng, length), blocks))
    while waiting := [sequence for sequence in sequences if sequence.done < len(sequence.tokens)]:
        chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
        limits = [min(rng.choice([1, 1, 3, 20, 60]), len(s.tokens) - s.done) for s in chosen]
        tails = random_tails(rng, limits) if draw else None
        run_step(model, cache, list(zip(chosen, limits, strict=True)), tails)
    compared = 0
    for sequence in sequences:
        ours, theirs = torch.cat(sequence.logits), reference_logits(reference, sequence.tokens)
        sure = asked(ours) & (torch.arange(len(ours)) < well_chosen(reference, sequence.tokens))
        torch.testing.assert_close(ours[sure], theirs[sure], rtol=2e-4, atol=2e-4)
        compared += int(sure.sum())
    assert compared > (0 if draw else sum(len(sequence.tokens) for sequence in sequences) // 4)


@pytest.mark.parametrize("architecture", TINY)
@torch.inference_mode()
def test_64_greedy_tokens_equal_transformers(architecture: str, tmp_path: Path) -> None:
    """Each of our tokens is the one that Transformers likes best after those before it, but for ties."""
    seed = fresh_seed()
    rng = random.Random(seed)
    changes = TINY[architecture].draw(rng)
    print(changes)
    reference = make_model(tmp_path, architecture, seed, **changes)
    model = load(tmp_path)
    sequence = Sequence(random_prompt(rng, rng.randrange(1, 30)), list(range(24)))
    cache, prompt = poisoned_cache(model), len(sequence.tokens)
    while len(sequence.tokens) < prompt + 64:
        run_step(model, cache, [(sequence, len(sequence.tokens) - sequence.done)])
        sequence.tokens.append(int(sequence.logits[-1][-1].argmax()))
    sure = max(well_chosen(reference, sequence.tokens[:-1]) - prompt + 1, 0)
    theirs = reference_logits(reference, sequence.tokens[:-1])[prompt - 1 :][:sure]
    chosen = theirs[range(sure), sequence.tokens[prompt:][:sure]]
    torch.testing.assert_close(chosen, theirs.amax(dim=-1), rtol=2e-4, atol=2e-4)


@torch.inference_mode()
def test_copied_blocks_go_on_like_the_original(tmp_path: Path) -> None:
    reference = make_model(tmp_path)
    model = load(tmp_path)
    cache = poisoned_cache(model)
    rng = random.Random(1)
    prompt = random_prompt(rng, 10)
    first = Sequence([*prompt, 1, 2], [5, 3, 9])
    run_step(model, cache, [(first, 10)])
    cache.copy_pages(np.array([[9, 20], [20, 9]]), model.ops)  # the second pair reads what 20 held before: NaN
    assert cache.layers[0].keys[9].isnan().all()
    cache.copy_pages(np.array([[20, 9]]), model.ops)
    second = Sequence([*prompt, 3, 4], [5, 3, 20], done=10)  # shares two full blocks, goes on in the copy
    run_step(model, cache, [(second, 2), (first, 2)])
    theirs = reference_logits(reference, second.tokens)[10:]
    torch.testing.assert_close(second.logits[0], theirs, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(first.logits[1], reference_logits(reference, first.tokens)[10:], rtol=2e-4, atol=2e-4)


LONGROPE = {**longrope(16), "original_max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("architecture", "changes", "length", "max_context"),
    [
        ("Phi3ForCausalLM", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}, 64, 64),
        ("Phi3ForCausalLM", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}, 150, None),
        ("LlamaForCausalLM", {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}, 64, 64),
        ("LlamaForCausalLM", {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}, 150, 150),
    ],
)
@torch.inference_mode()
def test_rotary_forms_that_depend_on_the_longest_sequence(
    architecture: str, changes: dict[str, Any], length: int, max_context: int | None, tmp_path: Path
) -> None:
    reference = make_model(tmp_path, architecture, **changes)
    model = load_model(tmp_path, torch.float32, CPU, Parallel(), select_ops(), max_context)
    assert model.spec.max_positions == 256
    sequence = Sequence(random_prompt(random.Random(3), length), list(range(40)))
    cache = poisoned_cache(model)
    for step in (20, length - 21, 1):
        run_step(model, cache, [(sequence, step)])
    theirs = reference_logits(reference, sequence.tokens)
    torch.testing.assert_close(torch.cat(sequence.logits), theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_stays_near_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    reference = make_model(tmp_path, initializer_range=0.05)
    model = load_model(tmp_path, dtype, CPU, Parallel(), select_ops())
    cache = allocate_cache(model.spec, BLOCKS, BLOCK, dtype, CPU, Parallel())
    sequence = Sequence(random_prompt(random.Random(2), 40), list(range(10)))
    for length in (30, 9, 1):
        run_step(model, cache, [(sequence, length)])
    ours, theirs = torch.cat(sequence.logits), reference_logits(reference, sequence.tokens)
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().max() < 0.05 * theirs.abs().max()


@torch.inference_mode()
def test_copied_blocks_of_latents(tmp_path: Path) -> None:
    """Values lie in the keys: copied once, a source may be the next pair's target."""
    reference = make_model(tmp_path, "DeepseekV3ForCausalLM")
    model = load(tmp_path)
    cache, tokens = poisoned_cache(model), random_prompt(random.Random(4), 12)
    whole = reference_logits(reference, tokens)
    sequence = Sequence(tokens, [5, 3, 9])
    run_step(model, cache, [(sequence, 8)])
    cache.copy_pages(np.array([[5, 3], [3, 20]]), model.ops)  # 20 gets what 3 held, not what it gets
    moved = Sequence(tokens, [3, 20, 9], done=8)
    run_step(model, cache, [(moved, 4)])
    sure = well_chosen(reference, tokens)
    torch.testing.assert_close(moved.logits[0][: max(sure - 8, 0)], whole[8:sure], rtol=2e-4, atol=2e-4)
    assert cache.bytes_per_page == 3 * BLOCK * (24 + 8) * 4


@pytest.mark.parametrize("architecture", TINY)
@torch.inference_mode()
def test_bfloat16_is_within_what_attention_back_ends_of_transformers_differ_by(
    architecture: str, tmp_path: Path
) -> None:
    """As far from float32 as the farther of two of them, and no farther beyond that than they are from each other.

    By the median over positions; with experts by the lowest tenth, for where rounding turned a choice of experts over,
    all are far off, and so is what comes after: of several prompts, since in one it may be the first token's.
    """
    seed = fresh_seed()
    rng = random.Random(seed)
    changes = TINY[architecture].draw(rng)
    print(changes)
    reference = make_model(tmp_path, architecture, seed, **changes)
    model = load_model(tmp_path, torch.bfloat16, CPU, Parallel(), select_ops())
    cache = allocate_cache(model.spec, BLOCKS, BLOCK, torch.bfloat16, CPU, Parallel())
    sequences = [Sequence(random_prompt(rng, 60), list(range(at, at + 15))) for at in (0, 15, 30)]
    for length in (40, 19, 1):
        run_step(model, cache, [(sequence, length) for sequence in sequences])
    prompts = [sequence.tokens for sequence in sequences]
    exact = torch.cat([reference_logits(reference, tokens) for tokens in prompts])
    ours = torch.cat([logits for sequence in sequences for logits in sequence.logits])
    eager, *others = by_back_ends(reference.bfloat16(), prompts)

    share = 0.1 if any(isinstance(layer.mlp, ExpertsSpec) for layer in model.spec.layers) else 0.5

    def distance(left: torch.Tensor, right: torch.Tensor) -> float:
        return float((left - right).norm(dim=-1).quantile(share) / exact.norm(dim=-1).median())

    theirs = [distance(each, exact) for each in (eager, *others)]
    # Back ends differ by half of their error at least, which is what a model that has only one is given.
    apart = distance(eager, others[0]) if others else 0.5 * theirs[0]
    print(f"ours {distance(ours, exact):.4f}, theirs {theirs}, apart {apart:.4f}")
    assert ours.isfinite().all()
    assert distance(ours, exact) <= max(theirs) + apart


def by_back_ends(model: PreTrainedModel, prompts: list[list[int]]) -> list[torch.Tensor]:
    """[all tokens, vocab] float32 each: of Transformers' eager attention, and of torch's own where it is another."""

    def logits() -> torch.Tensor:
        return torch.cat([reference_logits(model, tokens).float() for tokens in prompts])

    model.set_attn_implementation("eager")
    found = [logits()]
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # the model's attention is one that torch does not have
        return found
    other = logits()
    return found if torch.equal(other, found[0]) else [*found, other]
