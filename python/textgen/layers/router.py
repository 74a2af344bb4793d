"""Which experts a token goes to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.layers.weight import LoadContext, Part, Product
from textgen.models.names import LayerNames
from textgen.models.spec import DecoderSpec, ExpertsSpec, RouterSpec
from textgen.ops import Ops


@dataclass(frozen=True, slots=True)
class Router:
    """Scores by a linear layer that every rank holds whole, and the choice that the spec describes."""

    spec: RouterSpec
    weight: Tensor  # [experts, hidden]
    bias: Tensor | None
    correction: Tensor | None  # [experts] float32
    product: Product = F.linear

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights, float32, and experts, int64, of each token, both [tokens, top_k]."""
        spec = self.spec
        scores = self.product(x.to(self.weight.dtype), self.weight, self.bias).float()
        if spec.score != "chosen":
            scores = scores.softmax(dim=-1) if spec.score == "softmax" else scores.sigmoid()
        wished = scores if self.correction is None else scores + self.correction
        if spec.groups > 1:
            wished = _within_best_groups(wished, spec)
        experts = wished.topk(spec.top_k, dim=-1).indices
        weights = scores.gather(1, experts)
        if spec.score == "chosen":
            weights = weights.softmax(dim=-1)
        if spec.normalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * spec.scale, experts


def _within_best_groups(scores: Tensor, spec: RouterSpec) -> Tensor:
    """The scores, but those of experts outside the best groups are out of reach."""
    grouped = scores.view(len(scores), spec.groups, -1)
    best = grouped.topk(1 if spec.group_score == "best" else 2, dim=-1).values.sum(dim=-1)
    chosen = best.topk(spec.top_groups, dim=-1).indices
    outside = torch.ones_like(best, dtype=torch.bool).scatter_(1, chosen, False)
    return grouped.masked_fill(outside[:, :, None], -torch.inf).view(scores.shape)


def load_router(context: LoadContext, spec: DecoderSpec, experts: ExpertsSpec, names: LayerNames, ops: Ops) -> Router:
    router, count = experts.router, experts.count
    own = context.float32 if router.float32 else context
    correction = context.float32.tensor(Part(names.router_correction, (count,))) if router.correction else None
    return Router(
        spec=router,
        weight=own.tensor(Part(f"{names.router}.weight", (count, spec.hidden_size))),
        bias=own.tensor(Part(f"{names.router}.bias", (count,))) if router.bias else None,
        correction=correction,
        product=ops.linear,
    )
