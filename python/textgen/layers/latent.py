"""Latent attention (arXiv 2405.04434), its products with the latent moved out of the sum over the context.

A head's key is `into @ latent` beside the rotated numbers that all heads share, its value `out_of @ latent`. So a query
is multiplied by `into` once and then meets the latents as they are cached, and the result is multiplied by `out_of`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from textgen.layers.attention import halves
from textgen.layers.cache import LayerCache, Rotation
from textgen.layers.linear import Linear, Output, load_column_linear, load_row_linear
from textgen.layers.norm import Norm, load_norm
from textgen.layers.weight import LoadContext
from textgen.models.names import LayerNames
from textgen.models.spec import DecoderSpec, LatentSpec, LayerSpec, NormSpec
from textgen.ops import Attention, AttentionForm, Ops
from textgen.parallel import Parallel


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Queries of this rank's heads; the latent is the same on every rank."""

    spec: LatentSpec
    query: Linear
    query_latent: tuple[Linear, Norm] | None  # what the query is made from, when not from x itself
    latent: Linear
    latent_norm: Norm
    into: Tensor  # [heads, plain_dim, kv_rank]
    out_of: Tensor  # [heads, kv_rank, value_dim]
    output: Linear
    form: AttentionForm
    ops: Ops

    def __call__(
        self, x: Tensor, rotation: Rotation | None, cache: LayerCache, rows: Tensor, attention: Attention
    ) -> Tensor:
        """x [tokens, hidden]; rows [tokens] of the cache that the tokens' latents go to."""
        query, key = self._query(x, rotation), self._key(x, rotation)
        self.ops.write_kv(cache.keys, rows, key, cache.key_scales)
        value = key[..., : self.spec.kv_rank]
        attended = attention(query, key, value, cache.keys, cache.values, self.form, cache.scales)
        heads = attended.view(len(attended), -1, self.spec.kv_rank).transpose(0, 1)
        return self.output((heads @ self.out_of).transpose(0, 1).flatten(1))

    def _query(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """[tokens, heads, kv_rank + rotated_dim]."""
        if self.query_latent is not None:
            down, norm = self.query_latent
            x = norm(down(x))
        query = self.query(x).view(len(x), len(self.into), -1)
        plain, turned = query[..., : self.spec.plain_dim], query[..., self.spec.plain_dim :]
        in_latent = (plain.transpose(0, 1) @ self.into).transpose(0, 1)
        return torch.cat((in_latent, self._rotate(turned, rotation)), dim=-1)

    def _key(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """[tokens, 1, kv_rank + rotated_dim]."""
        down = self.latent(x)[:, None]
        latent, turned = down[..., : self.spec.kv_rank], down[..., self.spec.kv_rank :]
        return torch.cat((self.latent_norm(latent), self._rotate(turned, rotation)), dim=-1)

    def _rotate(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        return x if rotation is None else self.ops.rotate(x, rotation.cos, rotation.sin)


def load_latent_attention(
    context: LoadContext, spec: DecoderSpec, layer: LayerSpec, names: LayerNames, ops: Ops
) -> LatentAttention:
    latent, heads, what = spec.attention.latent, spec.num_heads, "attention heads"
    assert latent is not None
    norm, parallel = NormSpec(eps=latent.eps), context.parallel
    key_value = latent.plain_dim + latent.value_dim
    keys = Output(names.latent_up, heads, latent.plain_dim, what, 0, key_value, heads * key_value)
    values = Output(names.latent_up, heads, latent.value_dim, what, latent.plain_dim, key_value, heads * key_value)
    into, out_of = (context.tensor(*part.parts("weight", parallel, latent.kv_rank)) for part in (keys, values))
    query, query_latent = _load_query(context, spec, latent, names, ops)
    down = _load_whole(context, names.latent, latent.kv_rank + latent.rotated_dim, spec.hidden_size, latent.bias)
    if layer.rotary is not None and layer.rotary.interleaved:
        order = halves(layer.rotary, latent.rotated_dim, context.device)
        query = query.reordered(_behind(latent.plain_dim, order, heads // parallel.world_size))
        down = down.reordered(_behind(latent.kv_rank, order, 1))
    inner = Output(names.output, heads, latent.value_dim, what)
    return LatentAttention(
        spec=latent,
        query=query,
        query_latent=query_latent,
        latent=down,
        latent_norm=load_norm(context, names.latent_norm, latent.kv_rank, norm, ops),
        into=into.view(-1, latent.plain_dim, latent.kv_rank),
        out_of=out_of.view(-1, latent.value_dim, latent.kv_rank).transpose(1, 2).contiguous(),
        output=load_row_linear(context, names.output, spec.hidden_size, inner, spec.attention.output_bias),
        form=AttentionForm(layer.attention_scale),
        ops=ops,
    )


def _load_query(
    context: LoadContext, spec: DecoderSpec, latent: LatentSpec, names: LayerNames, ops: Ops
) -> tuple[Linear, tuple[Linear, Norm] | None]:
    size, rank = latent.plain_dim + latent.rotated_dim, latent.query_rank
    if rank is None:
        heads = Output(names.query, spec.num_heads, size, "attention heads")
        return load_column_linear(context, [heads], spec.hidden_size, bias=False), None
    heads = Output(names.query_up, spec.num_heads, size, "attention heads")
    norm = load_norm(context, names.query_down_norm, rank, NormSpec(eps=latent.eps), ops)
    down = _load_whole(context, names.query_down, rank, spec.hidden_size, latent.bias)
    return load_column_linear(context, [heads], rank, bias=False), (down, norm)


def _load_whole(context: LoadContext, name: str, outputs: int, inputs: int, bias: bool) -> Linear:
    """A linear layer that every rank holds whole."""
    alone = replace(context, parallel=Parallel())
    return load_column_linear(alone, [Output(name, outputs)], inputs, bias)


def _behind(kept: int, order: Tensor, units: int) -> Tensor:
    """In each unit, the first numbers as they are and then the others in that order."""
    one = torch.cat((torch.arange(kept, device=order.device), order + kept))
    return (torch.arange(units, device=order.device)[:, None] * len(one) + one).flatten()
