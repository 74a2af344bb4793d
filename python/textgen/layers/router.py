"""Which experts a token goes to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from textgen.layers.weight import LoadContext, Part
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
    ops: Ops

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights, float32, and experts, int64, of each token, both [tokens, top_k]."""
        scores = self.ops.linear(x.to(self.weight.dtype), self.weight, self.bias)
        return self.ops.route(scores, self.spec, self.correction)


def load_router(context: LoadContext, spec: DecoderSpec, experts: ExpertsSpec, names: LayerNames, ops: Ops) -> Router:
    router, count = experts.router, experts.count
    own = context.float32 if router.float32 else context
    correction = context.float32.tensor(Part(names.router_correction, (count,))) if router.correction else None
    return Router(
        spec=router,
        weight=own.tensor(Part(f"{names.router}.weight", (count, spec.hidden_size))),
        bias=own.tensor(Part(f"{names.router}.bias", (count,))) if router.bias else None,
        correction=correction,
        ops=ops,
    )
