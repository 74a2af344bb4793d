"""The MLP, gated or plain."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from textgen.layers.linear import Linear, Output, load_column_linear, load_row_linear
from textgen.layers.weight import LoadContext
from textgen.models.names import LayerNames
from textgen.models.spec import DecoderSpec, MlpSpec
from textgen.ops import Ops


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(activation(up(x))); gated, `up` is gate and up in one product."""

    spec: MlpSpec
    up: Linear
    down: Linear
    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        activate = self.ops.activate_gated if self.spec.gated else self.ops.activate
        return self.down(activate(self.up(x), self.spec.activation))


def load_mlp(context: LoadContext, spec: DecoderSpec, mlp: MlpSpec, names: LayerNames, ops: Ops) -> Mlp:
    size, transposed = mlp.intermediate_size, names.layout.transposed
    neurons = Output(names.down, size, what="MLP neurons")
    return Mlp(
        spec=mlp,
        up=load_column_linear(context, _inward(mlp, names), spec.hidden_size, mlp.bias, transposed),
        down=load_row_linear(context, names.down, spec.hidden_size, neurons, mlp.bias, transposed),
        ops=ops,
    )


def _inward(mlp: MlpSpec, names: LayerNames) -> list[Output]:
    """Where gate and up are stored."""
    size, what = mlp.intermediate_size, "MLP neurons"
    if not mlp.gated:
        return [Output(names.up, size, what=what)]
    if names.layout.gate_up == "fused":
        return [Output(names.gate_up, size, what=what, first=first, total=2 * size) for first in (0, size)]
    return [Output(names.gate, size, what=what), Output(names.up, size, what=what)]
