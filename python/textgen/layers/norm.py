"""Norms over the last dimension."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from textgen.layers.weight import LoadContext, Part
from textgen.models.spec import NormSpec
from textgen.ops import Ops


@dataclass(frozen=True, slots=True)
class Norm:
    """x / rms(x) * weight, or (x - mean) / std * weight + bias. The weight's last dimension is the normed one."""

    spec: NormSpec
    weight: Tensor | None
    bias: Tensor | None
    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        if self.spec.kind == "rms":
            return self.ops.rms_norm(x, self.weight, self.spec.eps)
        return self.ops.layer_norm(x, self.weight, self.bias, self.spec.eps)

    def of_sum(self, x: Tensor, added: Tensor) -> Tensor:
        """Of x + added, which x becomes."""
        if self.spec.kind == "rms":
            return self.ops.add_rms_norm(added, x, self.weight, self.spec.eps)
        return self(x.add_(added))


def load_norm(context: LoadContext, name: str, size: int, spec: NormSpec, ops: Ops) -> Norm:
    """A norm of `size` numbers."""
    return load_stacked_norm(context, [Part(f"{name}.weight", (size,))], [Part(f"{name}.bias", (size,))], spec, ops)


def load_stacked_norm(context: LoadContext, weights: list[Part], biases: list[Part], spec: NormSpec, ops: Ops) -> Norm:
    """A norm whose weight (and bias, where it has one) is stored in parts.

    A weight with an offset is kept in float32: 1 + w rounded to half precision would lose most of w.
    """
    if not spec.affine:
        return Norm(spec, None, None, ops)
    weight = context.float32.tensor(*weights) + spec.offset if spec.offset else context.tensor(*weights)
    return Norm(spec, weight, context.tensor(*biases) if spec.bias else None, ops)
