"""Token embedding and the head that turns hidden states into logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.layers.linear import Linear
from textgen.layers.norm import Norm, load_norm
from textgen.layers.weight import LoadContext, Part, Table, Weight
from textgen.models.names import WeightNames
from textgen.models.spec import DecoderSpec
from textgen.ops import Ops
from textgen.parallel import Parallel


@dataclass(frozen=True, slots=True)
class Positions:
    """Learned embeddings of positions, [rows, hidden]."""

    table: Tensor
    offset: int

    def __call__(self, positions: Tensor) -> Tensor:
        return F.embedding(positions + self.offset, self.table)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of a table [vocab, hidden] by token id, scaled, widened, with positions, normed: as the family has it.

    Every rank holds all of it: looking up costs nothing.
    """

    table: Table
    scale: float = 1.0
    project: Linear | None = None
    positions: Positions | None = None
    norm: Norm | None = None

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """[tokens, hidden], a new tensor. ids, positions [tokens] int64."""
        x = F.embedding(ids, self.table)  # type: ignore[arg-type]  # a head's table answers to it
        if self.scale != 1.0:
            x.mul_(self.scale)
        if self.project is not None:
            x = self.project(x)
        if self.positions is not None:
            x.add_(self.positions(positions))
        return x if self.norm is None else self.norm(x)


@dataclass(frozen=True, slots=True)
class Head:
    """Logits of hidden states. `gather`: the ranks share out the vocabulary and put their parts side by side."""

    weight: Weight
    bias: Tensor | None = None
    gather: Parallel | None = None
    project: Linear | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self.project is not None:
            x = self.project(x)
        logits = self.weight.multiply(x, self.bias)
        return logits if self.gather is None else self.gather.all_gather(logits)


def load_embedding(
    context: LoadContext, spec: DecoderSpec, names: WeightNames, ops: Ops
) -> tuple[Embedding, Weight | None]:
    """And the head's weight, where it is tied."""
    hidden, width = spec.hidden_size, spec.embedding_size or spec.hidden_size
    part = Part(f"{names.full(names.embedding)}.weight", (spec.vocab_size, width))
    table, head = context.format.tied(context, part) if spec.tied_head else (context.tensor(part), None)
    positions = None
    if spec.positions is not None:
        rows = context.tensor(Part(f"{names.full(names.positions)}.weight", (spec.positions.rows, hidden)))
        positions = Positions(rows, spec.positions.offset)
    embedding = Embedding(
        table=table,
        scale=float(
            torch.tensor(spec.scalings.embedding, dtype=table.dtype)
        ),  # rounded as the checkpoint's own code rounds it
        project=_projection(context, names.full(names.project_in), hidden, width),
        positions=positions,
        norm=load_norm(context, names.full(names.embedding_norm), hidden, spec.norm, ops)
        if spec.embedding_norm
        else None,
    )
    return embedding, head


def load_head(context: LoadContext, spec: DecoderSpec, names: WeightNames, tied: Weight | None) -> Head:
    """tied: that of the embedding's table. A vocabulary that ranks cannot share evenly is held whole by each."""
    width = spec.embedding_size or spec.hidden_size
    project = _projection(context, names.full(names.project_out), width, spec.hidden_size)
    if tied is not None:
        return Head(tied, project=project)
    parallel, vocab = context.parallel, spec.vocab_size
    shared = parallel.world_size > 1 and vocab % parallel.world_size == 0
    rows = parallel.share(vocab, "tokens") if shared else slice(None)
    weight = context.weight(Part(f"{names.head}.weight", (vocab, width), rows=rows))
    bias = context.tensor(Part(f"{names.head}.bias", (vocab,), rows=rows)) if spec.head_bias else None
    return Head(weight, bias, parallel if shared else None, project)


def _projection(context: LoadContext, name: str, outputs: int, inputs: int) -> Linear | None:
    """Between the width of the embedding and that of the layers, where they differ."""
    if outputs == inputs:
        return None
    return Linear(context.weight(Part(f"{name}.weight", (outputs, inputs))))
