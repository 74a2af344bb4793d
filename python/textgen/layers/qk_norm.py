"""Norms of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from textgen.layers.norm import Norm, load_norm, load_stacked_norm
from textgen.layers.weight import LoadContext, Part
from textgen.models.names import LayerNames
from textgen.models.spec import DecoderSpec, QkNormSpec
from textgen.ops import Ops


@dataclass(frozen=True, slots=True)
class QkNorm:
    """`each` norms every head on its own, its weight [heads + kv_heads, head_dim]; `whole` all query and key heads."""

    heads: int
    each: Norm | None = None
    whole: tuple[Norm, Norm] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """x [tokens, heads + kv_heads, head_dim]: the queries, then the keys."""
        if self.each is not None:
            return self.each(x)
        assert self.whole is not None
        parts = (x[:, : self.heads], x[:, self.heads :])
        normed = [norm(part.flatten(1)).view(part.shape) for norm, part in zip(self.whole, parts, strict=True)]
        return torch.cat(normed, dim=1)

    def reordered(self, order: Tensor) -> QkNorm:
        """The same for heads whose numbers come in another order."""
        return replace(
            self,
            each=None if self.each is None else _reordered(self.each, order),
            whole=None if self.whole is None else (_reordered(self.whole[0], order), _reordered(self.whole[1], order)),
        )


def load_qk_norm(context: LoadContext, spec: DecoderSpec, names: LayerNames, ops: Ops) -> QkNorm | None:
    form, parallel = spec.attention.qk_norm, context.parallel
    if form is None:
        return None
    heads = spec.num_heads // parallel.world_size
    if form.over == "all":
        if parallel.world_size > 1:
            raise ValueError(f"a norm over all {spec.num_heads} heads cannot be shared by {parallel.world_size} ranks")
        sizes = (spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim)
        query = load_norm(context, names.query_norm, sizes[0], form.norm, ops)
        return QkNorm(heads, whole=(query, load_norm(context, names.key_norm, sizes[1], form.norm, ops)))
    weights = _head_parts(context, spec, names, form, "weight")
    biases = _head_parts(context, spec, names, form, "bias") if form.norm.bias else []
    norm = load_stacked_norm(context, weights, biases, form.norm, ops)
    shape = (-1, spec.head_dim)
    weight = None if norm.weight is None else norm.weight.view(shape)
    return QkNorm(heads, each=replace(norm, weight=weight, bias=None if norm.bias is None else norm.bias.view(shape)))


def _head_parts(
    context: LoadContext, spec: DecoderSpec, names: LayerNames, form: QkNormSpec, suffix: str
) -> list[Part]:
    """The weights of the rank's query heads, then of its key heads, one row each."""
    parts = []
    for name, heads in ((names.query_norm, spec.num_heads), (names.key_norm, spec.num_kv_heads)):
        mine = range(heads)[context.parallel.share(heads, "attention heads")]
        if form.weights == "rows":
            parts.append(Part(f"{name}.{suffix}", (heads, spec.head_dim), rows=slice(mine.start, mine.stop)))
        else:
            parts += [Part(f"{name.format(head)}.{suffix}", (spec.head_dim,)) for head in mine]
    return parts


def _reordered(norm: Norm, order: Tensor) -> Norm:
    def turn(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.view(-1, len(order))[:, order].view(values.shape)

    return replace(norm, weight=turn(norm.weight), bias=turn(norm.bias))
