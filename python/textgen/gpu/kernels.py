"""Every kernel against the reference on random shapes. Each check gives the largest error and what is allowed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from textgen.models.spec import GatedActivation, RouterSpec
from textgen.ops import AttentionForm, KvScales, SegmentLayout, reference, sampling
from textgen.ops.cuda.bricks import FOUR_BITS, HALF, Form, Plain, pack, stack
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.flash import FA2_PAGE, Flash, FlashMissing, FlashOps, find_flash
from textgen.ops.cuda.linear import HALVES, Linears
from textgen.ops.cuda.ops import CudaOps
from textgen.ops.cuda.sampling import Masks, Penalties, choose, shape
from textgen.quantization.rows import FP8

WITHIN = {torch.float32: 2e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}
BLOCK = 16

Error: TypeAlias = tuple[float, float]
"""The largest error, relative to 1 and the value, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Case:
    """Where and with what a kernel is tried."""

    rng: random.Random
    kernels: Device
    ops: CudaOps
    there: torch.device
    largest: int  # sizes are drawn up to about this

    def tensor(self, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*size, device=self.there).to(dtype)

    def dtype(self) -> torch.dtype:
        return self.rng.choice(list(WITHIN))


def error(got: Tensor, expected: Tensor) -> float:
    """Infinite where one is no number and the other is."""
    got, expected = got.float(), expected.float()
    same = (got == expected) | (got.isnan() & expected.isnan())
    off = ((got - expected).abs() / (1 + expected.abs())).masked_fill(same, 0)
    return float(off.nan_to_num(nan=float("inf")).max()) if off.numel() else 0.0


def rms_norm(case: Case) -> Error:
    dtype = case.dtype()
    size = case.rng.choice([64, 130, case.largest])
    x, weight = case.tensor(case.rng.randint(1, 40), size, dtype=dtype), case.tensor(size, dtype=dtype)
    return error(case.ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x.float(), weight.float(), 1e-6)), WITHIN[dtype]


def activate_gated(case: Case) -> Error:
    dtype, kinds = case.dtype(), list[GatedActivation](["silu", "gelu", "gelu_tanh"])
    kind = case.rng.choice(kinds)
    x = case.tensor(case.rng.randint(1, 40), 2 * case.rng.choice([33, 64, case.largest]), dtype=dtype)
    return error(case.ops.activate_gated(x, kind), reference.activate_gated(x.float(), kind)), WITHIN[dtype]


def rotate(case: Case) -> Error:
    dtype, dim = case.dtype(), case.rng.choice([32, 64, 128])
    tokens, heads = case.rng.randint(1, 30), case.rng.randint(1, 9)
    x = case.tensor(tokens, heads, dim, dtype=dtype)
    positions = torch.randint(0, 4000, (tokens,), device=case.there)
    inverse = 10000.0 ** (-torch.arange(0, dim, 2, device=case.there) / dim)
    tables = reference.rotary_table(positions, inverse, 1.0, x)
    return error(case.ops.rotate(x, *tables), reference.rotate(x.float(), *(t.float() for t in tables))), WITHIN[dtype]


def write_and_copy(case: Case) -> Error:
    dtype, pages = case.dtype(), case.rng.randint(8, 20)
    cache = case.tensor(pages, BLOCK, 2, 64, dtype=dtype)
    expected = cache.clone()
    count = case.rng.randint(1, pages * BLOCK)
    rows = torch.tensor(case.rng.sample(range(pages * BLOCK), count), device=case.there)
    new = case.tensor(count, 2, 64, dtype=dtype)
    sources, targets = (torch.tensor(case.rng.sample(range(pages), 3), device=case.there) for _ in range(2))
    for ops, held in ((case.ops, cache), (reference, expected)):
        ops.write_kv(held, rows, new)
        ops.copy_blocks(held, sources, targets)
    return error(cache, expected), 0.0


def attention(case: Case) -> Error:
    rng = case.rng
    dim = rng.choice([64, 80, 96, 128, 256])
    return _attention(case, case.dtype(), rng.randint(1, 4), rng.choice([1, 4, 8]), (dim, dim))


def attention_of_8_bits(case: Case) -> Error:
    rng = case.rng
    dim, stored = rng.choice([64, 80, 96, 128, 256]), rng.choice([torch.int8, FP8])
    return _attention(case, case.dtype(), rng.randint(1, 4), rng.choice([1, 4, 8]), (dim, dim), stored)


def latent_attention(case: Case) -> Error:
    rng, dtype = case.rng, case.rng.choice([torch.bfloat16, torch.float16])
    dims, stored = rng.choice([(576, 512), (192, 128)]), rng.choice([None, torch.int8, FP8])
    return _attention(case, dtype, 1, rng.choice([4, 16, 40, 128]), dims, stored)


def flash_attention(case: Case) -> Error:
    """The package `flash_attn`, of either version, in what it is asked for. Infinite where it was not asked."""
    rng, dtype = case.rng, case.rng.choice(HALVES)
    flash = _Asked(find_flash(FA2_PAGE, dtype))
    with_it = replace(case, ops=FlashOps(case.kernels, flash))
    dim = rng.choice([64, 96, 128, 256])
    found, within = _attention(
        with_it,
        dtype,
        rng.randint(1, 4),
        rng.choice([1, 4, 8]),
        (dim, dim),
        block=FA2_PAGE,
        plain=not flash.takes_slopes,
    )
    return (found if flash.asked else float("inf")), within


@dataclass(slots=True)
class _Asked:
    """Another `Flash`, and whether it was asked."""

    flash: Flash
    asked: bool = False

    @property
    def takes_slopes(self) -> bool:
        return self.flash.takes_slopes

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, **rest: Any) -> Tensor:
        self.asked = True
        return self.flash.attend(query, keys, values, **rest)


def _attention(
    case: Case,
    dtype: torch.dtype,
    kv_heads: int,
    share: int,
    dims: tuple[int, int],
    stored: torch.dtype | None = None,
    *,
    block: int = BLOCK,
    plain: bool | None = None,
) -> Error:
    """Over a random layout, in a cache that the kernel of writes fills. dims: numbers of a key and of a value, which is
    in the key where they differ. plain: without sinks, and where it is true without slopes."""
    rng, there, (dim, value_dim) = case.rng, case.there, dims
    heads = kv_heads * share
    lengths = np.array([rng.choice([1, 1, 1, rng.randint(2, 70)]) for _ in range(rng.randint(1, 6))])
    starts = np.array([rng.randint(0, case.largest) for _ in lengths])
    width = -(-int((starts + lengths).max()) // block)
    pages = rng.sample(range(width * len(lengths)), width * len(lengths))
    tables = np.array(pages, np.int32).reshape(len(lengths), width)
    layout = SegmentLayout(np.cumsum(lengths) - lengths, starts, lengths, tables, block)
    form = AttentionForm(
        dim**-0.5,
        soft_cap=rng.choice([None, 30.0]),
        slopes=None if plain else rng.choice([None, torch.rand(heads, device=there)]),
        sinks=rng.choice([None, case.tensor(heads)]) if plain is None else None,
    )
    window, within = rng.choice([None, None, 70]), WITHIN[dtype]
    query = case.tensor(int(lengths.sum()), heads, dim, dtype=dtype)
    caches, scales = [case.tensor(len(pages), block, kv_heads, dim, dtype=dtype) for _ in "kv"], list[Tensor]()
    if stored is not None:
        rows = torch.arange(len(pages) * block, device=there)
        for index, numbers in enumerate(caches):
            caches[index] = torch.empty(numbers.shape, dtype=stored, device=there)
            if stored == torch.int8:
                scales.append(torch.empty(numbers.shape[:3], device=there))
            case.ops.write_kv(caches[index], rows, numbers.flatten(0, 1), scales[-1] if scales else None)
        within *= 4 if scales else 1  # integers times their scale are rounded
    if value_dim != dim:
        caches[1], scales[1:] = caches[0][..., :value_dim], scales[:1]
    held = KvScales(*scales) if scales else None
    new = case.tensor(len(query), kv_heads, dim, dtype=dtype)
    brought = (new, new[..., :value_dim])
    for segment, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        at = np.arange(start, start + length)
        slots = torch.from_numpy(tables[segment, at // block].astype(np.int64) * block + at % block).to(there)
        own = slice(int(layout.offsets[segment]), int(layout.offsets[segment] + length))
        for index, numbers in enumerate(brought[: 1 if value_dim != dim else 2]):
            case.ops.write_kv(caches[index], slots, numbers[own], scales[index] if scales else None)
    got = case.ops.attention(layout, window, query)(query, *brought, caches[0], caches[1], form, held)
    exact = caches if stored is not None else [cache.float() for cache in caches]
    reference_of = reference.attention(layout, window, query)
    expected = reference_of(query.float(), *(x.float() for x in brought), exact[0], exact[1], form, held)  # type: ignore[call-arg,arg-type]
    return error(got, expected), within


def experts(case: Case) -> Error:
    """A choice of experts, a grouped product of few or many rows, and what makes groups and sums of its rows."""
    rng, dtype, share = case.rng, case.dtype(), case.rng.choice([1, 2, 8])
    tokens, groups = rng.choice([1, 4, case.largest // 8, case.largest]), rng.choice([8, 60])
    inputs, outputs = 8 * rng.randint(1, case.largest // 8), rng.randint(1, case.largest)
    scores, spec = case.tensor(tokens, groups), RouterSpec(top_k=share, normalize=True)
    shares, chosen = case.ops.route(scores, spec, None)
    of_shares = error(shares, reference.route(scores, spec, None)[0])
    x, biases = case.tensor(tokens, inputs, dtype=dtype), case.tensor(groups, outputs, dtype=dtype)
    weights = (case.tensor(groups, outputs, inputs) * inputs**-0.5).to(dtype)
    sources, places, ends = case.ops.group_rows(chosen, groups)
    same = zip((sources, places, ends), reference.group_rows(chosen, groups), strict=True)
    wrong = 0.0 if all(torch.equal(ours, theirs) for ours, theirs in same) else float("inf")
    y = case.ops.grouped_linear(x, weights, ends, biases, sources)
    exact = torch.cat(
        [
            x[rows.long()].double() @ weights[group].double().t() + biases[group].double()
            for group, rows in enumerate(sources.tensor_split(ends[:-1].cpu().long()))
        ]
    )
    summed = error(case.ops.weighted_sum(y, places, shares), reference.weighted_sum(y, places, shares))
    return max(wrong, of_shares, error(y, exact), summed), WITHIN[dtype]


def same_bits(case: Case) -> Error:
    """In one order: rows of products alone and beside others, in tiles of other shapes; and tokens beside others, in
    prompts that are cut elsewhere."""
    rng, dtype, fixed = case.rng, case.dtype(), CudaOps(case.kernels, 256)
    rows, inputs, outputs = rng.choice([40, case.largest]), 8 * rng.randint(1, case.largest // 8), rng.randint(1, 300)
    x, weight = case.tensor(rows, inputs, dtype=dtype), case.tensor(outputs, inputs, dtype=dtype)
    whole, at = fixed.linear(x, weight, None), rng.randrange(rows)
    good = all(
        torch.equal(fixed.linear(x[at : at + count], weight, None), whole[at : at + count]) for count in (1, 20, 100)
    )
    length, dim = rng.randint(9, case.largest), 64
    pages = -(-length // BLOCK)
    keys, values = (case.tensor(2 * pages, BLOCK, 2, dim, dtype=dtype) for _ in range(2))
    query = case.tensor(length, 8, dim, dtype=dtype)
    tables, window = np.arange(2 * pages, dtype=np.int32).reshape(2, pages), rng.choice([None, 70])

    def attended(*parts: tuple[int, int]) -> Tensor:
        """The tokens of the sequence from one to before another; of the second part, of another sequence."""
        starts, ends = np.array(parts).T
        lengths, drawn = ends - starts, ends - starts == 1
        layout = SegmentLayout(np.cumsum(lengths) - lengths, starts, lengths, tables[: len(parts)], BLOCK, drawn)
        asked = torch.cat([query[start:end] for start, end in parts])
        form, new = AttentionForm(dim**-0.5), asked[:, :2]
        return fixed.attention(layout, window, keys)(asked, new, new, keys, values, form)

    prompt, cut = attended((0, length)), rng.randint(0, length - 2)
    good &= torch.equal(attended((cut, length), (0, length))[: length - cut], prompt[cut:])
    single = attended((cut, cut + 1))
    good &= torch.equal(attended((cut, cut + 1), (length - 1, length))[:1], single)
    return 0.0 if good else float("inf"), 0.0


def _rows(case: Case, count: int) -> sampling.SamplingRows:
    rng = case.rng

    def column(values: list[float], dtype: Any = np.float32) -> Any:
        return np.array([rng.choice(values) for _ in range(count)], dtype)

    return sampling.SamplingRows(
        temperature=column([0.0]), top_k=column([0], np.int64), top_p=column([1.0]), min_p=column([0.0]),
        typical_p=column([1.0]), repetition=column([1.0, 1.3]), frequency=column([0.0, 0.4]),
        presence=column([0.0, -0.5]), window=column([0], np.int64), seed=column([7], np.uint64),
        position=column([30], np.int64), prompt_len=column([5, 12], np.int64),
    )  # fmt: skip


def sample(case: Case) -> Error:
    """The likeliest token and the normaliser; what is drawn is held against the processor's in the tests."""
    count, vocab = case.rng.randint(1, 30), case.rng.choice([101, 3000, 10 * case.largest])
    logits = case.tensor(count, vocab) * 4
    tokens, normaliser = choose(case.kernels, logits, _rows(case, count))
    wrong = float("inf") if not torch.equal(tokens, logits.argmax(dim=-1)) else 0.0
    return max(wrong, error(normaliser, logits.logsumexp(dim=-1))), 1e-5


def shape_logits(case: Case) -> Error:
    count, vocab = case.rng.randint(1, 6), case.rng.choice([101, 3000])
    logits, rows = case.tensor(count, vocab) * 4, _rows(case, count)
    history = torch.randint(0, vocab, (count, 40), dtype=torch.int32, device=case.there)
    columns = (rows.position, rows.prompt_len, rows.repetition, rows.frequency, rows.presence)
    there = (torch.from_numpy(column).to(case.there) for column in columns)
    penalties = Penalties(history, torch.arange(count, device=case.there), *there)
    bits = torch.randint(0, 256, (count, 4 * -(-vocab // 32)), dtype=torch.uint8)
    masks = Masks(bits.to(case.there).view(torch.int32), torch.ones(count, dtype=torch.int32, device=case.there))
    got = shape(case.kernels, logits, penalties, masks)

    def known(mask: sampling.Mask) -> Tensor:
        return history[torch.from_numpy(mask).to(case.there)].long()

    allowed = sampling.Allowed(np.arange(count), bits.numpy())
    return error(got, sampling.shape(logits, rows, known, allowed)), 1e-5


# Groups and the dtype of scales that weights of each form come with.
FORMS: list[tuple[Form, list[int], torch.dtype]] = [
    ("INT4", [32, 64, 128], torch.float16), ("E2M1", [32], torch.bfloat16), ("INT8", [0], torch.float32),
    ("INT8", [32], torch.float16), ("E4M3", [0, 128], torch.float32),
]  # fmt: skip


def drawn_weight(case: Case, form: Form, group: int, of_scales: torch.dtype, size: tuple[int, int]) -> Plain:
    """size: outputs and inputs, these a multiple of 128. Of `INT4` with zeros: points, or in groups of 32 minima."""
    outputs, inputs = size
    of_groups = (outputs, inputs // (group or inputs))
    four = form in FOUR_BITS
    codes = torch.randint(0, 16 if four else 127, size, dtype=torch.uint8, device=case.there)
    if not four:
        codes += torch.randint_like(codes, 2) * 128
    scales, zeros = (case.tensor(*of_groups) * 0.02).to(of_scales), None
    if form == "INT4" and group == HALF:
        zeros = (case.tensor(*of_groups) * 0.2).to(of_scales)
    elif form == "INT4":
        zeros = torch.randint(0, 17, of_groups, dtype=torch.uint8, device=case.there)
    return Plain(form, codes, scales, zeros, group)


def error_of_product(got: Tensor, x: Tensor, plain: Plain, bias: Tensor | None) -> float:
    """Beside what a sum in float32 is exact to."""
    numbers, x = plain.numbers().double(), x.double()
    expected = x @ numbers.t() + (0 if bias is None else bias.double())
    parts = x.abs() @ numbers.abs().t()
    return error((got.double() - expected) / (expected.abs() + 2**-8 * parts + 1e-3), 0 * expected)


def quantized_linear(case: Case) -> Error:
    """Weights of every form, long rows too, of which blocks have a part each."""
    rng, dtype, (form, groups, of_scales) = case.rng, case.rng.choice(HALVES), case.rng.choice(FORMS)
    rows = rng.choice([1, rng.randint(2, 16), rng.randint(17, 300)])
    size = rng.randint(1, case.largest), 128 * rng.randint(1, max(case.largest // 64, 2))
    plain = drawn_weight(case, form, rng.choice(groups), of_scales, size)
    plain = replace(plain, zeros=rng.choice([plain.zeros, None]))
    x, bias = case.tensor(rows, size[1], dtype=dtype), rng.choice([None, case.tensor(size[0], dtype=dtype)])
    got = Linears.on(case.kernels, case.there).multiply(x, pack(plain), bias)
    return error_of_product(got, x, plain, bias), WITHIN[dtype]


def quantized_experts(case: Case) -> Error:
    """The same of experts' weights: rows sorted by expert, gathered from fewer."""
    rng, dtype, (form, groups, of_scales) = case.rng, case.rng.choice(HALVES), case.rng.choice(FORMS)
    count, tokens = rng.choice([2, 40]), rng.choice([1, 8, case.largest])
    size, group = (rng.randint(1, case.largest), 128 * rng.randint(1, max(case.largest // 256, 1))), rng.choice(groups)
    plains = [drawn_weight(case, form, group, of_scales, size) for _ in range(count)]
    if rng.random() < 0.5:
        plains = [replace(plain, zeros=None) for plain in plains]
    weights = stack(map(pack, plains), count)
    assert weights is not None
    x, biases = case.tensor(tokens, size[1], dtype=dtype), case.tensor(count, size[0], dtype=dtype)
    sources, _, ends = case.ops.group_rows(torch.randint(0, count, (tokens, 2), device=case.there), count)
    got = Linears.on(case.kernels, case.there).multiply_experts(x, weights, ends, biases, sources)
    bounds, worst = [0, *ends.tolist()], 0.0
    for expert, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        given = x.index_select(0, sources[begin:end])
        worst = max(worst, error_of_product(got[begin:end], given, plains[expert], biases[expert]))
    return worst, WITHIN[dtype]


FLASH = "flash_attn"  # where it is installed
CHECKS: dict[str, Callable[[Case], Error]] = {
    "rms_norm": rms_norm,
    "activate": activate_gated,
    "rotary": rotate,
    "rotary as a write, copy_rows": write_and_copy,
    "attention_tiles, attention_decode": attention,
    "the same over 8 bits": attention_of_8_bits,
    "attention_latent": latent_attention,
    "route, group_rows, grouped_linear, weighted_sum": experts,
    "grouped_linear, attention in one order": same_bits,
    "linear_few, linear_tiles": quantized_linear,
    "linear_few, linear_tiles of experts": quantized_experts,
    "sample": sample,
    "shape": shape_logits,
    FLASH: flash_attention,
}


def checks_here() -> list[str]:
    """Those that need nothing which is not installed."""
    try:
        find_flash(FA2_PAGE, torch.bfloat16)
    except FlashMissing:
        return [name for name in CHECKS if name != FLASH]
    return list(CHECKS)
