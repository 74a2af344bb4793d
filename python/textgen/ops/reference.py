"""Each operation of a decoder in a few lines of torch: the numbers every faster implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.models.spec import Activation, ClampedSilu, GatedActivation, RouterSpec
from textgen.ops import sampling
from textgen.ops.interface import Attention, CrossLayout, KvScales, RowGroups, SegmentLayout
from textgen.ops.reference_attention import PagedAttention
from textgen.ops.reference_cross import CrossAttention
from textgen.quantization.rows import FP8, copyable, fp8_rows, quantize_rows


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / rms(x) * weight (arXiv 1910.07467) over the last dimension; computed in float32, returned in x's dtype.

    x [..., size]; weight [size] or any shape that broadcasts over x, in x's dtype or float32.
    """
    size = (x.shape[-1],)
    if weight is None or (weight.dim() == 1 and weight.dtype == x.dtype):
        return F.rms_norm(x, size, weight, eps)
    return (F.rms_norm(x.float(), size, None, eps) * weight).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """The norm of x + residual, which `residual` becomes. Both [tokens, size]."""
    return rms_norm(residual.add_(x), weight, eps)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / std * weight + bias (arXiv 1607.06450) over the last dimension; shapes and dtypes as `rms_norm`."""
    size = (x.shape[-1],)
    if weight is None or (weight.dim() == 1 and weight.dtype == x.dtype):
        return F.layer_norm(x, size, weight, bias, eps)
    normed = F.layer_norm(x.float(), size, None, None, eps) * weight
    return (normed if bias is None else normed + bias).to(x.dtype)


def rotary_table(positions: Tensor, inverse_frequencies: Tensor, factor: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """factor * cos and signed factor * sin of each token's angles, each [tokens, 1, dim] in the dtype of `like`.

    positions [tokens] int64, inverse_frequencies [dim / 2] float32. The sine of the first half is negated, so that
    `rotate` is one product with a rolled copy.
    """
    angles = positions[:, None].float() * inverse_frequencies
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return (
        torch.cat((cos, cos), dim=-1).to(like.dtype)[:, None],
        torch.cat((-sin, sin), dim=-1).to(like.dtype)[:, None],
    )


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (arXiv 2104.09864, halves as in GPT-NeoX) of the first `dim` numbers of each head.

    x [tokens, heads, head_dim], tables of `rotary_table`.
    """
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :dim], cos, sin), x[..., dim:]), dim=-1)
    return (x * cos).addcmul_(x.roll(dim // 2, dims=-1), sin)


def activate(x: Tensor, kind: Activation) -> Tensor:
    """The activation of an MLP without a gate, element by element."""
    match kind:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square_()


def activate_gated(gate_up: Tensor, kind: GatedActivation) -> Tensor:
    """activation(gate) * up (arXiv 2002.05202). gate_up [tokens, 2 * intermediate], returns [tokens, intermediate]."""
    gate, up = gate_up.chunk(2, dim=-1)
    if not isinstance(kind, ClampedSilu):
        return activate(gate, kind).mul_(up)
    gate, up = gate.clamp(max=kind.limit), up.clamp(-kind.limit, kind.limit)
    return (gate * torch.sigmoid(gate * kind.alpha)).mul_(up.add_(1))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias. x [..., in], weight [out, in], bias [out]; returns [..., out]."""
    return F.linear(x, weight, bias)


def route(scores: Tensor, spec: RouterSpec, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Shares, float32, and experts, int64, of each token, both [tokens, top_k], the best first.

    scores [tokens, experts], as the router's linear layer gives them; correction [experts] float32.
    """
    scores = scores.float()
    if spec.score != "chosen":
        scores = scores.softmax(dim=-1) if spec.score == "softmax" else scores.sigmoid()
    wished = scores if correction is None else scores + correction
    if spec.groups > 1:
        wished = within_best_groups(wished, spec)
    experts = wished.topk(spec.top_k, dim=-1).indices
    shares = scores.gather(1, experts)
    if spec.score == "chosen":
        shares = shares.softmax(dim=-1)
    if spec.normalize:
        shares = shares / (shares.sum(dim=-1, keepdim=True) + 1e-20)
    return shares * spec.scale, experts


def within_best_groups(scores: Tensor, spec: RouterSpec) -> Tensor:
    """The scores, but those of experts outside the best groups are out of reach."""
    grouped = scores.view(len(scores), spec.groups, -1)
    best = grouped.topk(1 if spec.group_score == "best" else 2, dim=-1).values.sum(dim=-1)
    chosen = best.topk(spec.top_groups, dim=-1).indices
    outside = torch.ones_like(best, dtype=torch.bool).scatter_(1, chosen, False)
    return grouped.masked_fill(outside[:, :, None], -torch.inf).view(scores.shape)


def group_rows(chosen: Tensor, groups: int) -> RowGroups:
    """Sort the groups [rows, share] int64 that rows are in, stably: within a group rows keep their order."""
    entries, order = chosen.flatten().sort(stable=True)
    count = torch.arange(len(order), device=chosen.device)
    places = torch.empty_like(order).scatter_(0, order, count).view(chosen.shape)
    ends = torch.searchsorted(entries, torch.arange(groups, device=chosen.device), right=True, out_int32=True)
    return RowGroups((order // chosen.shape[1]).to(torch.int32), places.to(torch.int32), ends)


def grouped_linear(
    x: Tensor, weights: Tensor, ends: Tensor, biases: Tensor | None = None, sources: Tensor | None = None
) -> Tensor:
    """Each group of rows times a matrix of its own, as `x @ weight.T + bias`.

    x [rows, in], group after group, or with sources [rows] int32 the rows of x that stand there; weights
    [groups, out, in]; biases [groups, out]; ends [groups] int32, the row each group ends before. Sizes of rows are
    multiples of 16 bytes.
    """
    x = x if sources is None else x.index_select(0, sources)
    y = _grouped_product(x, weights, ends)
    if biases is None:
        return y
    group = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True)
    return y.add_(biases.index_select(0, group))


def _grouped_product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    if hasattr(F, "grouped_mm"):
        together: Tensor = F.grouped_mm(x, weights.transpose(1, 2), offs=ends)
        return together
    y, begin = x.new_empty(len(x), weights.shape[1]), 0
    for weight, end in zip(weights, ends.tolist(), strict=True):  # torch before 2.10
        torch.mm(x[begin:end], weight.T, out=y[begin:end])
        begin = end
    return y


def weighted_sum(y: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """[rows, size]: of each row the sum of rows of y, times their shares; in float32, in the order they are named.

    y [n, size]; places [rows, share] int32, rows of y; shares [rows, share] float32.
    """
    total = y.new_zeros(len(places), y.shape[1], dtype=torch.float32)
    for place, share in zip(places.unbind(1), shares.unbind(1), strict=True):
        total.addcmul_(y.index_select(0, place).float(), share[:, None])
    return total.to(y.dtype)


def write_kv(cache: Tensor, rows: Tensor, new: Tensor, scales: Tensor | None = None) -> None:
    """Scatter new keys (or values) into the paged cache.

    cache [blocks, block_size, kv_heads, head_dim]; rows [tokens] int64 = block * block_size + offset;
    new [tokens, kv_heads, head_dim]; scales, of a cache in int8, [blocks, block_size, kv_heads] float32: max|x| / 127
    of each token and head. A cache in FP8 has no scales: see `fp8_rows`.
    """
    if scales is not None:
        new, scale = quantize_rows(new.float())
        scales.view(-1, scales.shape[2]).index_copy_(0, rows, scale[..., 0])
    elif cache.dtype == FP8:
        new = fp8_rows(new)
    copyable(cache).view(-1, *cache.shape[2:]).index_copy_(0, rows, copyable(new))


def rotate_and_write(
    turned: Tensor,
    value: Tensor,
    tables: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    scales: KvScales | None = None,
) -> Tensor:
    """Queries and keys one beside the other, rotated if there are tables of `rotary_table`; keys and values are in the
    cache then, as `write_kv` writes them.

    turned [tokens, heads + kv_heads, head_dim], value [tokens, kv_heads, value_dim].
    """
    if tables is not None:
        turned = rotate(turned, *tables)
    of_keys, of_values = scales or (None, None)
    write_kv(keys, rows, turned[:, -keys.shape[2] :], of_keys)
    write_kv(values, rows, value, of_values)
    return turned


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """cache[targets] = cache[sources]; every source is read before any target is written. Both [m] int64."""
    held = copyable(cache)
    held.index_copy_(0, targets, held.index_select(0, sources))


def attention(layout: SegmentLayout, window: int | None, like: Tensor) -> Attention:
    """The step's attention plan; `window` is how many tokens back a token sees, itself included (None: all)."""
    return PagedAttention(layout, window, like.device)


def cross_attention(layout: CrossLayout, like: Tensor) -> Attention:
    """The step's attention to inputs that an encoder has read: each token sees the whole input of its sequence."""
    return CrossAttention(layout, like.device)


def choose(logits: Tensor, rows: sampling.SamplingRows, largest: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """[rows] int64 token ids from shaped logits [rows, vocab] float32; nobody sums their exp on the way."""
    return sampling.choose(logits, rows, largest), None
