"""A mixture of experts: tokens sorted by expert, then one grouped product for all experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from textgen.layers.expert_weights import load_expert_biases, load_expert_weights
from textgen.layers.mlp import Mlp, load_mlp
from textgen.layers.router import Router, load_router
from textgen.layers.weight import LoadContext, Part
from textgen.models.names import LayerNames
from textgen.models.spec import DecoderSpec, ExpertsSpec
from textgen.ops import Ops
from textgen.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Shared:
    """The expert that sees every token; `switch` [1, hidden] scores how much of it a token takes."""

    mlp: Mlp
    switch: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.mlp(x)
        return y if self.switch is None else y.mul_(torch.sigmoid(x @ self.switch.t()))


@dataclass(frozen=True, slots=True)
class Experts:
    """Every rank holds its neurons of all experts."""

    spec: ExpertsSpec
    router: Router
    up: Tensor  # [experts, 2 * neurons, hidden], gates first
    down: Tensor  # [experts, hidden, neurons]
    up_bias: Tensor | None  # [experts, 2 * neurons]
    down_bias: Tensor | None  # [experts, hidden], of one rank
    shared: Shared | None
    reduce: Parallel
    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden]."""
        weights, chosen = self.router(x)
        experts, order = chosen.flatten().sort(stable=True)
        tokens = order // self.spec.router.top_k
        ends = torch.bincount(experts, minlength=self.spec.count).cumsum(0).to(torch.int32)
        inner = _plus(self.ops.grouped_linear(x.index_select(0, tokens), self.up, ends), self.up_bias, experts)
        inner = self.ops.activate_gated(inner, self.spec.activation)
        y = _plus(self.ops.grouped_linear(inner, self.down, ends), self.down_bias, experts)
        y.mul_(weights.flatten().index_select(0, order)[:, None].to(y.dtype))
        out = self.reduce.all_reduce(torch.zeros_like(x).index_add_(0, tokens, y))
        return out if self.shared is None else out.add_(self.shared(x))


def _plus(y: Tensor, bias: Tensor | None, experts: Tensor) -> Tensor:
    return y if bias is None else y.add_(bias.index_select(0, experts))


def load_experts(context: LoadContext, spec: DecoderSpec, experts: ExpertsSpec, names: LayerNames, ops: Ops) -> Experts:
    up, down = load_expert_weights(context, spec.hidden_size, experts, names)
    up_bias, down_bias = load_expert_biases(context, spec.hidden_size, experts, names)
    return Experts(
        spec=experts,
        router=load_router(context, spec, experts, names),
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
    return Shared(mlp, context.tensor(part) if experts.shared_switch else None)
