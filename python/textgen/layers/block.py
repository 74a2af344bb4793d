"""A block: attention and MLP, with norms and residuals where the family has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from textgen.layers.attention import SelfAttention, load_attention
from textgen.layers.cache import LayerCache, Rotation
from textgen.layers.experts import Experts, load_experts
from textgen.layers.latent import LatentAttention, load_latent_attention
from textgen.layers.mlp import Mlp, load_mlp
from textgen.layers.norm import Norm, load_norm
from textgen.layers.outputs import Outputs
from textgen.layers.weight import LoadContext
from textgen.models.names import LayerNames
from textgen.models.spec import DecoderSpec, LayerSpec, MlpSpec
from textgen.ops import Attention, Ops

Residual: TypeAlias = tuple[Tensor, Tensor | None]
"""Both [tokens, hidden]: what is still to be added to the first waits for the norm that reads the sum."""


@dataclass(frozen=True, slots=True)
class Norms:
    """Around one part of a block: on what goes in, on what comes out, on its sum with the residual."""

    before: Norm | None = None
    after: Norm | None = None
    of_sum: Norm | None = None

    def enter(self, x: Tensor, added: Tensor | None) -> Tensor:
        """What the part takes. x becomes x + added, in one pass with its norm."""
        if self.before is not None:
            return self.before(x) if added is None else self.before.of_sum(x, added)
        return x if added is None else x.add_(added)

    def leave(self, x: Tensor, y: Tensor, factor: float) -> Residual:
        """x + factor * y; x is overwritten."""
        y = y if self.after is None else self.after(y)
        if self.of_sum is None and factor == 1:
            return x, y
        x = x.add_(y, alpha=factor)
        return x if self.of_sum is None else self.of_sum(x), None


@dataclass(frozen=True, slots=True)
class Block:
    """x + attention(x), then x + mlp(x); `parallel`: both of the same x."""

    attention: SelfAttention | LatentAttention
    mlp: Mlp | Experts
    attention_norms: Norms
    mlp_norms: Norms | None  # None: parallel, and the MLP takes what attention takes
    parallel: bool
    factor: float  # on what is added to the residual

    def __call__(
        self,
        residual: Residual,
        rotation: Rotation | None,
        cache: LayerCache,
        rows: Tensor,
        attention: Attention,
        outputs: Outputs | None = None,
    ) -> Residual:
        """The residual's tensors are overwritten. outputs: the tokens that it goes on with, which are those of what it
        gives; None: all."""
        norms, (x, added) = self.attention_norms, residual
        normed = norms.enter(x, added)
        if outputs is not None:
            x = outputs.take(x)
        attend = attention if outputs is None else outputs.attend
        attended = self.attention(normed, rotation, cache, rows, attend)
        if self.parallel:
            if self.mlp_norms is not None:
                normed = self.mlp_norms.enter(x, None)
            elif outputs is not None:
                normed = outputs.take(normed)
            return norms.leave(x, attended.add_(self.mlp(normed)), self.factor)
        x, added = norms.leave(x, attended, self.factor)
        norms = self.mlp_norms or norms
        return norms.leave(x, self.mlp(norms.enter(x, added)), self.factor)


def load_block(context: LoadContext, spec: DecoderSpec, layer: LayerSpec, names: LayerNames, ops: Ops) -> Block:
    attention_names = (names.attention_norm, names.attention_post_norm)
    mlp_names = (names.mlp_norm, names.mlp_post_norm)
    shared = spec.residual == "parallel-one-norm"
    load = load_attention if spec.attention.latent is None else load_latent_attention
    return Block(
        attention=load(context, spec, layer, names, ops),
        mlp=load_mlp(context, spec, layer.mlp, names, ops)
        if isinstance(layer.mlp, MlpSpec)
        else load_experts(context, spec, layer.mlp, names, ops),
        attention_norms=_load_norms(context, spec, attention_names, ops),
        mlp_norms=None if shared else _load_norms(context, spec, mlp_names, ops),
        parallel=spec.residual != "sequential",
        factor=spec.scalings.residual,
    )


def _load_norms(context: LoadContext, spec: DecoderSpec, names: tuple[str, str], ops: Ops) -> Norms:
    before, after = names

    def load(name: str) -> Norm:
        return load_norm(context, name, spec.hidden_size, spec.norm, ops)

    match spec.placement:
        case "before":
            return Norms(before=load(before))
        case "after":
            return Norms(after=load(after))
        case "both":
            return Norms(before=load(before), after=load(after))
        case "sum":
            return Norms(of_sum=load(before))
