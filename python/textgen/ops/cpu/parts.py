"""What the recorder writes down of layers that are more than operations on rows: experts and latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from textgen.layers.experts import Experts
from textgen.layers.latent import LatentAttention
from textgen.layers.weight import DenseWeight
from textgen.ops.cpu.instructions import MixExperts, Move, Multiply, Normalize, RotateAndWrite, Route, Switch
from textgen.ops.cpu.values import Rows, affine_of


@dataclass(frozen=True, slots=True)
class RecordedExperts:
    """In place of `Experts`. Sums of scores stay in float32: rounding in between would only make ties."""

    of: Experts  # what it calls is recorded

    def __call__(self, x: Any) -> Any:
        of, tape, router = self.of, x.tape, self.of.router
        scores = tape.new(of.spec.count, torch.float32)
        chosen = tape.new(router.spec.top_k, torch.int32)
        shares, y = tape.new(router.spec.top_k, torch.float32), tape.new(x.at.width)
        tape.add(Multiply(weight=DenseWeight(router.weight), bias=router.bias, x=x.at, y=scores))
        tape.add(Route(spec=router.spec, correction=router.correction, x=scores, chosen=chosen, shares=shares))
        tape.add(
            MixExperts(
                up=of.up.each, down=of.down.each, up_bias=of.up_bias, down_bias=of.down_bias, kind=of.spec.activation,
                x=x.at, chosen=chosen, shares=shares, y=y,
            )
        )  # fmt: skip
        out = Rows(tape, y, (y.width,))
        if of.shared is None:
            return out
        added: Any = of.shared.mlp(x)
        if of.shared.switch is not None:
            column = tape.new(1, torch.float32)
            tape.add(Multiply(weight=DenseWeight(of.shared.switch), bias=None, x=x.at, y=column))
            tape.add(Switch(s=column, x=added.at))
        return out.add_(added)


@dataclass(frozen=True, slots=True)
class RecordedLatent:
    """In place of `LatentAttention`: queries and the key lie side by side, each a latent and what turns."""

    of: LatentAttention  # what it calls is recorded

    def __call__(self, x: Any, rotation: Any, cache: Any, rows: object, attention: Any) -> Any:
        of, spec, tape = self.of, self.of.spec, x.tape
        heads, rank, plain = len(of.into), spec.kv_rank, spec.plain_dim
        inner, cached = plain + spec.rotated_dim, rank + spec.rotated_dim
        query = self._query(x).at
        both = tape.new((heads + 1) * cached)
        queries, key = both.part(0, heads * cached), both.part(heads * cached, cached)
        for head, into in enumerate(of.into):
            part, to = query.part(head * inner, plain), both.part(head * cached, rank)
            tape.add(Multiply(weight=DenseWeight(into.t().contiguous()), bias=None, x=part, y=to))
        turned, place = query.part(plain, query.width - plain), queries.part(rank, queries.width - rank)
        tape.add(Move(units=heads, width=spec.rotated_dim, x_step=inner, y_step=cached, x=turned, y=place))
        down: Any = of.latent.weight
        tape.add(Multiply(weight=down.weight, bias=of.latent.bias, x=x.at, y=key))
        latent, norm = key.part(0, rank), of.latent_norm
        tape.add(Normalize(affine=affine_of(norm.spec, norm.weight, norm.bias), size=rank, x=latent, y=latent))
        tape.add(
            RotateAndWrite(
                layer=attention.layer, heads=heads, kv_heads=1, head_dim=cached, value_dim=0, first=rank, x=both,
                table=None if rotation is None else rotation.cos,
            )
        )  # fmt: skip
        attended = attention.add(tape, queries, (heads, 1, cached, rank), of.form).at
        values = tape.new(heads * spec.value_dim)
        for head, out_of in enumerate(of.out_of):
            part, to = attended.part(head * rank, rank), values.part(head * spec.value_dim, spec.value_dim)
            tape.add(Multiply(weight=DenseWeight(out_of.t().contiguous()), bias=None, x=part, y=to))
        return of.output(Rows(tape, values, (values.width,)))  # type: ignore[arg-type]

    def _query(self, x: Any) -> Any:
        if self.of.query_latent is not None:
            down, norm = self.of.query_latent
            x = norm(down(x))
        return self.of.query(x)
