"""A mixture of experts: tokens sorted by expert, then one grouped product for all experts.

Nothing of it asks the host, but where each expert's matrix is a weight of its own, and each token's sum has its own
order: a step can be captured, and gives the same twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from textgen.layers.expert_weights import load_expert_biases, load_expert_weights
from textgen.layers.mlp import Mlp, load_mlp
from textgen.layers.router import Router, load_router
from textgen.layers.weight import ExpertMatrices, LoadContext, Part
from textgen.models.names import LayerNames
from textgen.models.spec import DecoderSpec, ExpertsSpec
from textgen.ops import Ops
from textgen.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Shared:
    """The expert that sees every token; `switch` [1, hidden] scores how much of it a token takes."""

    mlp: Mlp
    switch: Tensor | None
    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        y = self.mlp(x)
        return y if self.switch is None else y.mul_(torch.sigmoid(self.ops.linear(x, self.switch, None)))


@dataclass(frozen=True, slots=True)
class Experts:
    """Every rank holds its neurons of all experts."""

    spec: ExpertsSpec
    router: Router
    up: ExpertMatrices  # [2 * neurons, hidden], gates first
    down: ExpertMatrices  # [hidden, neurons]
    up_bias: Tensor | None  # [experts, 2 * neurons]
    down_bias: Tensor | None  # [experts, hidden], of one rank
    shared: Shared | None
    reduce: Parallel
    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden]."""
        weights, chosen = self.router(x)
        ops, (sources, places, ends) = self.ops, self.ops.group_rows(chosen, self.spec.count)
        inner = self.up.multiply(x, ends, self.up_bias, sources)
        inner = ops.activate_gated(inner, self.spec.activation)
        y = self.down.multiply(inner, ends, self.down_bias)
        out = self.reduce.all_reduce(ops.weighted_sum(y, places, weights))
        return out if self.shared is None else out.add_(self.shared(x))


def load_experts(context: LoadContext, spec: DecoderSpec, experts: ExpertsSpec, names: LayerNames, ops: Ops) -> Experts:
    up, down = load_expert_weights(context, spec.hidden_size, experts, names, ops)
    up_bias, down_bias = load_expert_biases(context, spec.hidden_size, experts, names, up.outputs)
    return Experts(
        spec=experts,
        router=load_router(context, spec, experts, names, ops),
        up=up,
        down=down,
        up_bias=up_bias,
        down_bias=down_bias,
        shared=_load_shared(context, spec, experts, names, ops),
        reduce=context.parallel,
        ops=ops,
    )


def _load_shared(
    context: LoadContext, spec: DecoderSpec, experts: ExpertsSpec, names: LayerNames, ops: Ops
) -> Shared | None:
    if experts.shared is None:
        return None
    mlp = load_mlp(context, spec, experts.shared, names.shared, ops)
    part = Part(f"{names.shared_switch}.weight", (1, spec.hidden_size))
    return Shared(mlp, context.tensor(part) if experts.shared_switch else None, ops)
