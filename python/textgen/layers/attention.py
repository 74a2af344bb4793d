"""Self-attention over the paged cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from textgen.layers.cache import LayerCache, Rotation
from textgen.layers.linear import Linear, Output, load_column_linear, load_row_linear
from textgen.layers.qk_norm import QkNorm, load_qk_norm
from textgen.layers.weight import LoadContext, Part
from textgen.models.names import LayerNames
from textgen.models.rotary_spec import RotarySpec
from textgen.models.spec import DecoderSpec, LayerSpec
from textgen.ops import Attention, AttentionForm, Ops


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Query, key and value in one product, norms, rotary, cache write, attention, output."""

    qkv: Linear
    output: Linear
    heads: int  # of this rank
    kv_heads: int
    head_dim: int
    form: AttentionForm
    norm: QkNorm | None
    clip: float | None
    ops: Ops

    def __call__(
        self, x: Tensor, rotation: Rotation | None, cache: LayerCache, rows: Tensor, attention: Attention
    ) -> Tensor:
        """x [tokens, hidden]; rows [tokens] of the cache that the tokens' keys and values go to."""
        qkv = self.qkv(x).view(x.shape[0], -1, self.head_dim)  # [tokens, heads + 2 * kv_heads, head_dim]
        turned, value = qkv[:, : self.heads + self.kv_heads], qkv[:, self.heads + self.kv_heads :]
        if self.norm is not None:
            turned = self.norm(turned)
        if self.clip is not None:
            turned, value = turned.clamp(-self.clip, self.clip), value.clamp(-self.clip, self.clip)
        tables = None if rotation is None else (rotation.cos, rotation.sin)
        turned = self.ops.rotate_and_write(turned, value, tables, cache.keys, cache.values, rows, cache.scales)
        query, key = turned[:, : self.heads], turned[:, self.heads :]
        return self.output(attention(query, key, value, cache.keys, cache.values, self.form, cache.scales))


def load_attention(
    context: LoadContext, spec: DecoderSpec, layer: LayerSpec, names: LayerNames, ops: Ops
) -> SelfAttention:
    dim, parallel, transposed = spec.head_dim, context.parallel, names.layout.transposed
    heads = Output(names.output, spec.num_heads, dim, "attention heads")
    qkv_bias, output_bias = spec.attention.qkv_bias, spec.attention.output_bias
    qkv = load_column_linear(context, _qkv(spec, names), spec.hidden_size, qkv_bias, transposed)
    attention = SelfAttention(
        qkv=qkv,
        output=load_row_linear(context, names.output, spec.hidden_size, heads, output_bias, transposed),
        heads=spec.num_heads // parallel.world_size,
        kv_heads=spec.num_kv_heads // parallel.world_size,
        head_dim=dim,
        form=_form(context, spec, layer, names),
        norm=load_qk_norm(context, spec, names, ops),
        clip=spec.attention.clip,
        ops=ops,
    )
    if layer.rotary is not None and layer.rotary.interleaved:
        return _withhalves(attention, halves(layer.rotary, dim, context.device))
    return attention


def _qkv(spec: DecoderSpec, names: LayerNames) -> list[Output]:
    """Where queries, keys and values are stored."""
    heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    asked, shared = "attention heads", "key-value heads"
    match names.layout.qkv:
        case "separate":
            return [
                Output(names.query, heads, dim, asked),
                Output(names.key, kv_heads, dim, shared),
                Output(names.value, kv_heads, dim, shared),
            ]
        case "blocks":
            ends, total = (heads * dim, (heads + kv_heads) * dim), (heads + 2 * kv_heads) * dim
            return [
                Output(names.qkv, heads, dim, asked, total=total),
                Output(names.qkv, kv_heads, dim, shared, first=ends[0], total=total),
                Output(names.qkv, kv_heads, dim, shared, first=ends[1], total=total),
            ]
        case "grouped":
            group = heads // kv_heads * dim
            stride, total = group + 2 * dim, (heads + 2 * kv_heads) * dim
            return [
                Output(names.qkv, kv_heads, group, shared, first=0, stride=stride, total=total),
                Output(names.qkv, kv_heads, dim, shared, first=group, stride=stride, total=total),
                Output(names.qkv, kv_heads, dim, shared, first=group + dim, stride=stride, total=total),
            ]


def _form(context: LoadContext, spec: DecoderSpec, layer: LayerSpec, names: LayerNames) -> AttentionForm:
    slopes, sinks = None, None
    mine = context.parallel.share(spec.num_heads, "attention heads")
    if spec.attention.sinks:
        sinks = context.float32.tensor(Part(names.sinks, (spec.num_heads,), rows=mine))
    if spec.attention.slopes is not None:
        slopes = torch.tensor(spec.attention.slopes[mine], dtype=torch.float32, device=context.device)
    return AttentionForm(layer.attention_scale, spec.attention.soft_cap, slopes, sinks)


def halves(rotary: RotarySpec, head_dim: int, device: torch.device) -> Tensor:
    """[head_dim]: neighbours that turn together go to the same place of either half; the rest stays."""
    places = torch.arange(head_dim, device=device)
    return torch.cat((places[: rotary.dim : 2], places[1 : rotary.dim : 2], places[rotary.dim :]))


def _withhalves(attention: SelfAttention, order: Tensor) -> SelfAttention:
    """Queries and keys with their numbers in that order: the scores are the same, and one rotation does for all."""
    turned = attention.heads + attention.kv_heads
    within = torch.arange(attention.head_dim, device=order.device)
    orders = torch.cat((order.expand(turned, -1), within.expand(attention.kv_heads, -1)))
    starts = torch.arange(len(orders), device=order.device)[:, None] * attention.head_dim
    norm = None if attention.norm is None else attention.norm.reordered(order)
    return replace(attention, qkv=attention.qkv.reordered((starts + orders).flatten()), norm=norm)
