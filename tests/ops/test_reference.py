"""The reference operations against even plainer ones, on random layouts."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.activations import ACT2FN

from textgen.models.spec import Activation, ClampedSilu
from textgen.ops import AttentionForm, CrossLayout, SegmentLayout, reference, reference_scores

from ..seeds import fresh_seed

BLOCK = 4


def fresh_rng() -> random.Random:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return random.Random(seed)


def naive_attention(
    query: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None, form: AttentionForm
) -> Tensor:
    """Token by token, head by head. query [tokens, heads, dim]; keys, values [context, kv_heads, dim or value_dim]."""
    tokens, heads, _ = query.shape
    share = heads // keys.shape[1]
    out = torch.empty(tokens, heads, values.shape[-1])
    for token in range(tokens):
        end = start + token + 1
        begin = 0 if window is None else max(0, end - window)
        for head in range(heads):
            k, v = keys[begin:end, head // share], values[begin:end, head // share]
            scores = (k @ query[token, head]) * form.scale
            if form.soft_cap is not None:
                scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
            if form.slopes is not None:
                scores = scores - form.slopes[head] * (start + token - torch.arange(begin, end))
            if form.biases is not None:
                back = start + token - torch.arange(begin, end)
                scores = scores + form.biases[head, back.clamp(max=form.biases.shape[1] - 1)]
            weights = scores.exp()
            rest = 0.0 if form.sinks is None else form.sinks[head].exp()
            out[token, head] = (weights / (weights.sum() + rest)) @ v
    return out


def forms(heads: int) -> dict[str, AttentionForm]:
    return {
        "plain": AttentionForm(0.3),
        "soft cap": AttentionForm(0.3, soft_cap=1.5),
        "slopes": AttentionForm(0.3, slopes=torch.rand(heads)),
        "sinks": AttentionForm(0.3, sinks=torch.randn(heads)),
        "biases": AttentionForm(1.0, biases=torch.randn(heads, 9)),
        "all": AttentionForm(0.7, 2.0, torch.rand(heads), torch.randn(heads), torch.randn(heads, 6)),
    }


@pytest.mark.parametrize("window", [None, 1, 5, 70])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("kind", forms(1))
@pytest.mark.parametrize("tile", [2**23, 100])
def test_attention_on_random_layouts(
    kind: str, window: int | None, heads: int, kv_heads: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single tokens of very different contexts and chunks, in any order, over shuffled blocks and a cache of NaN."""
    rng = fresh_rng()
    monkeypatch.setattr(reference_scores, "TILE", tile)
    form, value_dim = forms(heads)[kind], rng.choice([8, 5])
    starts, lengths = [], []
    for _ in range(rng.randint(1, 9)):
        starts.append(rng.choice([0, 0, 3, 17, 150]))
        lengths.append(rng.choice([1, 1, 1, 2, 13]))
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    blocks = [-(-end // BLOCK) for end in ends]
    free = rng.sample(range(sum(blocks) + 5), sum(blocks) + 5)
    tables = np.full((len(starts), max(blocks)), free.pop(), np.int32)
    for row, count in enumerate(blocks):
        tables[row, :count] = [free.pop() for _ in range(count)]
    shape = (sum(blocks) + 5, BLOCK, kv_heads)
    cache_k, cache_v = torch.full((*shape, 8), torch.nan), torch.full((*shape, value_dim), torch.nan)
    queries, new_k, new_v, expected = [], [], [], []
    for row, (start, length, end) in enumerate(zip(starts, lengths, ends, strict=True)):
        q, k, v = torch.randn(length, heads, 8), torch.randn(end, kv_heads, 8), torch.randn(end, kv_heads, value_dim)
        positions = np.arange(end)
        rows = torch.from_numpy(tables[row, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK)
        reference.write_kv(cache_k, rows, k)
        reference.write_kv(cache_v, rows, v)
        queries.append(q)
        new_k.append(k[start:])
        new_v.append(v[start:])
        expected.append(naive_attention(q, k, v, start, window, form))
    column = np.array(lengths)
    layout = SegmentLayout(np.cumsum(column) - column, np.array(starts), column, tables, BLOCK)
    attention = reference.attention(layout, window, cache_k)
    packed = torch.cat(queries)
    out = attention(packed, torch.cat(new_k), torch.cat(new_v), cache_k, cache_v, form)
    torch.testing.assert_close(out, torch.cat(expected).flatten(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
@pytest.mark.parametrize("most", [1, 5])
def test_cross_attention_on_random_layouts(heads: int, kv_heads: int, most: int) -> None:
    """Every token sees the whole input of its sequence; what lies behind it in the last block is NaN."""
    rng = fresh_rng()
    count = rng.randint(2, 9)
    lengths = [rng.choice([1, 1, most]) for _ in range(count)]
    contexts = [rng.choice([1, 3, 20, 150]) for _ in range(count)]
    width = -(-max(contexts) // BLOCK)
    tables = np.array(rng.sample(range(count * width), count * width), np.int32).reshape(count, width)
    cache_k, cache_v = (torch.full((count * width, BLOCK, kv_heads, 8), torch.nan) for _ in range(2))
    queries, expected = [], []
    for row, (length, context) in enumerate(zip(lengths, contexts, strict=True)):
        q, k, v = torch.randn(length, heads, 8), torch.randn(context, kv_heads, 8), torch.randn(context, kv_heads, 8)
        positions = np.arange(context)
        rows = torch.from_numpy(tables[row, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK)
        reference.write_kv(cache_k, rows, k)
        reference.write_kv(cache_v, rows, v)
        queries.append(q)
        form = AttentionForm(0.3)
        expected.append(torch.cat([naive_attention(each[None], k, v, context - 1, None, form) for each in q]))
    column = np.array(lengths)
    layout = CrossLayout(np.cumsum(column) - column, column, np.array(contexts), tables, BLOCK)
    packed = torch.cat(queries)
    nothing = packed.new_zeros(1, kv_heads, 8)
    out = reference.cross_attention(layout, packed)(packed, nothing, nothing, cache_k, cache_v, AttentionForm(0.3))
    torch.testing.assert_close(out, torch.cat(expected).flatten(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rest", [0, 6])
def test_rotation_is_a_complex_product(rest: int) -> None:
    fresh_rng()
    x, positions = torch.randn(5, 3, 16 + rest), torch.tensor([0, 1, 7, 100, 4000])
    frequencies = torch.rand(8)
    cos, sin = reference.rotary_table(positions, frequencies, 1.25, x)
    turns = torch.polar(torch.full((5, 8), 1.25), positions[:, None] * frequencies)[:, None]
    turned = torch.complex(x[..., :8], x[..., 8:16]) * turns
    expected = torch.cat((turned.real, turned.imag, x[..., 16:]), -1)
    torch.testing.assert_close(reference.rotate(x, cos, sin), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", ["own dtype", "float32", "per head", "none"])
def test_norms_compute_in_float32(dtype: torch.dtype, weight: str) -> None:
    fresh_rng()
    x = (torch.randn(6, 3, 64) * 300 + 100).to(dtype)
    shape, kind = ((3, 64), dtype) if weight == "per head" else ((64,), torch.float32 if weight == "float32" else dtype)
    w, b = (None, None) if weight == "none" else (torch.randn(shape).to(kind), torch.randn(shape).to(kind))
    wide, factor = x.double(), 1.0 if w is None else w.double()
    rms = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * factor
    centred = wide - wide.mean(-1, keepdim=True)
    layer = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * factor + (0.0 if b is None else b)
    for ours, expected in ((reference.rms_norm(x, w, 1e-5), rms), (reference.layer_norm(x, w, b, 1e-5), layer)):
        assert ours.dtype == dtype
        tolerance = 1e-4 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


ACTIVATIONS: dict[Activation, str] = {  # ours to the names of Transformers
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_are_transformers(kind: Activation) -> None:
    fresh_rng()
    gate, up = torch.randn(3, 10), torch.randn(3, 10)
    theirs = ACT2FN[ACTIVATIONS[kind]](gate)
    torch.testing.assert_close(reference.activate(gate, kind), theirs)
    torch.testing.assert_close(reference.activate_gated(torch.cat((gate, up), -1), kind), theirs * up)


def test_the_activation_of_gpt_oss() -> None:
    fresh_rng()
    gate, up = torch.randn(3, 10) * 5, torch.randn(3, 10) * 5
    limited, level = gate.minimum(torch.tensor(4.0)), up.minimum(torch.tensor(4.0)).maximum(torch.tensor(-4.0))
    expected = limited / (1 + (-1.702 * limited).exp()) * (level + 1)
    ours = reference.activate_gated(torch.cat((gate, up), -1), ClampedSilu(alpha=1.702, limit=4.0))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("has_one", [True, False], ids=["torch's", "of torch before 2.10"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_are_one_product_a_group(
    dtype: torch.dtype, has_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of any size, none among them."""
    rng = fresh_rng()
    if not has_one:
        monkeypatch.delattr(torch.nn.functional, "grouped_mm", raising=False)
    counts = [0, *(rng.choice([0, 1, 3, 17]) for _ in range(6)), 2]
    x, weights = torch.randn(sum(counts), 24, dtype=dtype), torch.randn(len(counts), 40, 24, dtype=dtype)
    ours = reference.grouped_linear(x, weights, torch.tensor(counts).cumsum(0).to(torch.int32))
    parts = [part @ weight.t() for part, weight in zip(x.split(counts), weights, strict=True)]
    torch.testing.assert_close(ours, torch.cat(parts))


def test_copied_blocks_are_read_before_any_is_written() -> None:
    cache = torch.arange(6.0).view(6, 1, 1, 1).repeat(1, BLOCK, 2, 3)
    reference.copy_blocks(cache, torch.tensor([0, 1, 4]), torch.tensor([1, 2, 4]))
    assert cache[:, 0, 0, 0].tolist() == [0, 0, 1, 3, 4, 5]
