"""A program in torch, operation after operation: the plain twin of what the kernels do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from textgen.layers.cache import LayerCache
from textgen.layers.weight import DenseWeight, HeadTable, Table, Weight
from textgen.models.decoder import PackedBatch
from textgen.ops import reference
from textgen.ops.cpu.instructions import (
    Activate,
    Activated,
    ActivateGated,
    AddRows,
    Affine,
    Attend,
    Before,
    Clamp,
    Embed,
    FindLikeliest,
    Gated,
    Instruction,
    MixExperts,
    Move,
    Multiply,
    Normalize,
    Pick,
    Program,
    RotaryTable,
    RotateAndWrite,
    Route,
    Scale,
    Switch,
    TakeOutputs,
    View,
)
from textgen.ops.cpu.layout import Layout, lay_out


class Interpreter:
    """Runs a program for up to `max_rows` rows, in memory laid out as the kernels have it."""

    def __init__(self, program: Program, max_rows: int) -> None:
        self._program, self._layout = program, lay_out(program, max_rows)
        self._arena = torch.zeros(self._layout.size, dtype=torch.uint8)

    @property
    def layout(self) -> Layout:
        return self._layout

    def run(
        self,
        rows: int,
        given: Tensor | None = None,
        batch: PackedBatch | None = None,
        caches: Sequence[LayerCache] = (),
    ) -> Tensor:
        """The result's rows, which lie in the arena until the next run."""
        step = _Step(self, rows, batch, caches)
        if self._program.given is not None and given is not None:
            step.at(self._program.given).copy_(given)
        for each in self._program.instructions:
            step.do(each)
        return step.at(self._program.result)

    def view(self, at: View, rows: int) -> Tensor:
        """[rows, width], in place."""
        place, dtype = self._layout.places[at.buffer], at.buffer.dtype
        first = place.offset // dtype.itemsize + at.first
        return self._arena.view(dtype).as_strided((rows, at.width), (place.stride, 1), first)


class _Step:
    def __init__(self, of: Interpreter, rows: int, batch: PackedBatch | None, caches: Sequence[LayerCache]) -> None:
        self._of, self._rows, self._batch, self._caches = of, rows, batch, caches
        self._outputs = rows if batch is None or batch.outputs is None else len(batch.outputs.rows)

    def at(self, view: View) -> Tensor:
        return self._of.view(view, self._outputs if view.buffer.of_outputs else self._rows)

    @property
    def batch(self) -> PackedBatch:
        assert self._batch is not None
        return self._batch

    def do(self, each: Instruction) -> None:  # noqa: C901 - one case for each operation
        match each:
            case Embed():
                index = self.batch.positions if each.by_position else self.batch.ids
                y = self.at(each.y)
                rows = _looked_up(each.table, index + each.offset, y.dtype) * each.factor
                y.copy_(y + rows if each.add else rows)
            case Normalize():
                self.at(each.y).copy_(_norm(self.at(each.x), each.affine, each.size))
            case AddRows():
                x = self.at(each.x).add_(self.at(each.y), alpha=each.factor)
                if each.z is not None and each.affine is not None:
                    self.at(each.z).copy_(_norm(x, each.affine, x.shape[-1]))
            case Multiply():
                x, y = _before(self.at(each.x), each.before), self.at(each.y)
                product = _product(each.weight, x, each.bias)
                y.copy_(y + product if each.add else product)
            case RotaryTable():
                y = self.at(each.y)
                cos, sin = reference.rotary_table(self.batch.positions, each.inverse, each.factor, y)
                half = len(each.inverse)
                y.copy_(torch.cat((cos[:, 0, :half], sin[:, 0, half:]), dim=-1))
            case RotateAndWrite():
                self._rotate_and_write(each)
            case Attend():
                self.at(each.y).copy_(self._attend(each))
            case TakeOutputs():
                self.at(each.y).copy_(self.batch.asked(self.at(each.x)))
            case Activate():
                self.at(each.y).copy_(reference.activate(self.at(each.x), each.kind))
            case ActivateGated():
                self.at(each.y).copy_(reference.activate_gated(self.at(each.x), each.kind))
            case Clamp():
                self.at(each.y).copy_(self.at(each.x).clamp(each.low, each.high))
            case Scale():
                x = self.at(each.x).mul_(each.factor)
                if each.soft_cap is not None:
                    x.div_(each.soft_cap).tanh_().mul_(each.soft_cap)
            case Move():
                run = torch.arange(each.width)
                from_, to = (torch.arange(each.units)[:, None] * step + run for step in (each.x_step, each.y_step))
                self.at(each.y)[:, to.flatten()] = self.at(each.x)[:, from_.flatten()]
            case Pick():
                self.at(each.y).copy_(self.at(each.x)[:, each.order])
            case Switch():
                self.at(each.x).mul_(torch.sigmoid(self.at(each.s)))
            case Route():
                self._route(each)
            case MixExperts():
                self._mix(each)
            case FindLikeliest():
                pass  # beside the result, which is what is compared
            case _:
                raise NotImplementedError(type(each).__name__)

    def _rotate_and_write(self, each: RotateAndWrite) -> None:
        x = self.at(each.x)
        turned = (each.heads + each.kv_heads) * each.head_dim
        heads = _split(x[:, :turned], each.head_dim)
        if each.table is not None:
            cos, sin = self.at(each.table)[:, None].chunk(2, dim=-1)
            tables = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
            heads[..., each.first :] = reference.rotate(heads[..., each.first :], *tables)
        cache, rows = self._caches[each.layer], self.batch.rows[each.layer]
        new = [(cache.keys, heads[:, each.heads :], cache.key_scales)]
        if each.value_dim:
            new.append((cache.values, _split(x[:, turned:], each.value_dim), cache.value_scales))
        for stored, numbers, scales in new:
            reference.write_kv(stored, rows, numbers if scales is not None else numbers.to(stored.dtype), scales)

    def _attend(self, each: Attend) -> Tensor:
        cache, rows = self._caches[each.layer], self.batch.rows[each.layer]
        query = _split(self.at(each.x), each.head_dim)
        if cache.scales is None:
            query = query.to(cache.keys.dtype)
        key, value = (stored.view(-1, *stored.shape[2:])[rows] for stored in (cache.keys, cache.values))
        outputs = self.batch.outputs if each.y.buffer.of_outputs else None
        attend = self.batch.attention[each.layer] if outputs is None else outputs.attend
        return attend(query, key, value, cache.keys, cache.values, each.form, cache.scales)

    def _route(self, each: Route) -> None:
        shares, chosen = reference.route(self.at(each.x), each.spec, each.correction)
        self.at(each.shares).copy_(shares)
        self.at(each.chosen).copy_(chosen)

    def _mix(self, each: MixExperts) -> None:
        x, shares = self.at(each.x), self.at(each.shares)
        total = torch.zeros(len(x), each.y.width)
        for place, experts in enumerate(self.at(each.chosen).t().tolist()):
            for row, expert in enumerate(experts):
                up_bias, down_bias = (None if bias is None else bias[expert] for bias in (each.up_bias, each.down_bias))
                inner = _product(each.up[expert], x[row : row + 1], up_bias)
                inner = reference.activate_gated(inner, each.kind)
                total[row] += shares[row, place] * _product(each.down[expert], inner, down_bias)[0]
        self.at(each.y).copy_(total)


def _looked_up(table: Table, index: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(table, HeadTable):
        return table.rows(index, dtype)
    return F.embedding(index, table).to(dtype)


def _product(weight: Weight, x: Tensor, bias: Tensor | None) -> Tensor:
    """Where x and a dense weight differ in type, as the wider of both."""
    bias = None if bias is None else bias.to(x.dtype)
    if isinstance(weight, DenseWeight) and weight.values.dtype != x.dtype:
        return F.linear(x.float(), weight.values.float(), None if bias is None else bias.float())
    return weight.multiply(x, bias)


def _before(x: Tensor, before: Before | None) -> Tensor:
    match before:
        case None:
            return x
        case Affine():
            return _norm(x, before, x.shape[-1])
        case Activated(kind):
            return reference.activate(x, kind)
        case Gated(kind):
            return reference.activate_gated(x, kind)


def _norm(x: Tensor, affine: Affine, size: int) -> Tensor:
    spec, units = affine.spec, _split(x, size)
    if spec.kind == "rms":
        normed = reference.rms_norm(units, affine.weight, spec.eps)
    else:
        normed = reference.layer_norm(units, affine.weight, affine.bias, spec.eps)
    return normed.flatten(1)


def _split(x: Tensor, size: int) -> Tensor:
    """[rows, units, size]."""
    return x.view(len(x), -1, size)
