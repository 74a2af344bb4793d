"""The operations of `Ops` by kernels of `csrc/cuda`; what has no kernel for its shape or dtype is the reference's."""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.models.spec import Activation, GatedActivation, RouterSpec
from textgen.ops import reference
from textgen.ops.cuda import experts, grouped, launches
from textgen.ops.cuda.attention import CudaAttention
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.sampling import choose
from textgen.ops.cuda.structures import Head
from textgen.ops.interface import Attention, CrossLayout, KvScales, RowGroups, SegmentLayout
from textgen.ops.sampling import SamplingRows


class CudaOps:
    """See `Ops`."""

    layer_norm = staticmethod(reference.layer_norm)
    rotary_table = staticmethod(reference.rotary_table)

    def __init__(self, device: Device, chunk: int | None = None) -> None:
        """chunk: what a row gives is to have the same bits in every batch, and contexts are cut into parts of so many
        positions (`fixed_chunk`)."""
        self.device = self._device = device
        self._chunk = chunk

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        if self._takes(x) and _is_weight(weight, x):
            rows, out = _as_rows(x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
            if launches.rms_norm(self._device, rows, weight, eps, out.view(rows.shape), None, None):
                return out
        return reference.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        if self._takes(x) and residual.is_contiguous() and residual.dtype == x.dtype and _is_weight(weight, x):
            rows, out = _as_rows(x), torch.empty_like(residual)
            into = residual.view(rows.shape)
            if launches.rms_norm(self._device, rows, weight, eps, out.view(rows.shape), into, into):
                return out
        return reference.add_rms_norm(x, residual, weight, eps)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tables = _tables(cos, sin)
        if not self._takes(x) or tables is None or tables[0].dtype != x.dtype:
            return reference.rotate(x, cos, sin)
        x, out = _by_token(x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
        width = _rotary_width(x.dtype, [x], tables, [out])
        head = launches.head_of(x, out, None, True)
        launches.rotary(self._device, [head], x.dtype, tables, None, len(x), width)
        return out

    def rotate_and_write(
        self,
        turned: Tensor,
        value: Tensor,
        tables: tuple[Tensor, Tensor] | None,
        keys: Tensor,
        values: Tensor,
        rows: Tensor,
        scales: KvScales | None = None,
    ) -> Tensor:
        halves = None if tables is None else _tables(*tables)
        uniform = (
            value.dtype == turned.dtype
            and keys.dtype == values.dtype
            and (halves is None or halves[0].dtype == turned.dtype)
        )
        known = self._takes(turned) and uniform and (tables is None or halves is not None)
        if not known or not all(map(self._writes, (keys, values), scales or (None, None), (turned, value))):
            return reference.rotate_and_write(turned, value, tables, keys, values, rows, scales)
        turned, value = _by_token(turned), _by_token(value)
        out = None if halves is None else torch.empty(turned.shape, dtype=turned.dtype, device=turned.device)
        result = turned if out is None else out
        heads, (of_keys, of_values) = turned.shape[1] - keys.shape[2], scales or (None, None)
        new, written = None, list[Head]()
        if out is not None:
            new = out[:, heads:]
            written.append(launches.head_of(turned[:, :heads], out[:, :heads], None, True))
        written.append(launches.head_of(turned[:, heads:], new, keys, out is not None, of_keys))
        written.append(launches.head_of(value, None, values, False, of_values))
        width = _rotary_width(turned.dtype, [turned, value], halves, [result, keys, values])
        launches.rotary(self._device, written, turned.dtype, halves, rows, len(turned), width, keys.dtype)
        return result

    def activate(self, x: Tensor, kind: Activation) -> Tensor:
        if not self._takes(x):
            return reference.activate(x, kind)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rows = out.view(-1, x.shape[-1])
        launches.activate(self._device, _contiguous_rows(x.reshape(rows.shape)), kind, False, rows)
        return out

    def activate_gated(self, gate_up: Tensor, kind: GatedActivation) -> Tensor:
        if not self._takes(gate_up) or gate_up.dim() != 2:
            return reference.activate_gated(gate_up, kind)
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        launches.activate(self._device, _contiguous_rows(gate_up), kind, True, out)
        return out

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._chunk is None or not x.numel():
            return reference.linear(x, weight, bias)
        rows = x.reshape(-1, x.shape[-1])
        return grouped.fixed_linear(self._device, rows, weight, bias).view(*x.shape[:-1], -1)

    def route(self, scores: Tensor, spec: RouterSpec, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        if not self._takes(scores) or not experts.takes(scores, spec):
            return reference.route(scores, spec, correction)
        return experts.route(self._device, scores.contiguous(), spec, correction)

    def group_rows(self, chosen: Tensor, groups: int) -> RowGroups:
        if not self._device.holds(chosen) or not chosen.numel() or groups > experts.MOST:
            return reference.group_rows(chosen, groups)
        return experts.group_rows(self._device, chosen.contiguous(), groups)

    def grouped_linear(
        self, x: Tensor, weights: Tensor, ends: Tensor, biases: Tensor | None = None, sources: Tensor | None = None
    ) -> Tensor:
        if not grouped.takes(self._device, x, weights):
            return reference.grouped_linear(x, weights, ends, biases, sources)
        return grouped.multiply(self._device, x, weights, ends, biases, sources)

    def weighted_sum(self, y: Tensor, places: Tensor, shares: Tensor) -> Tensor:
        if not self._takes(y) or not y.is_contiguous() or not places.numel():
            return reference.weighted_sum(y, places, shares)
        return experts.weighted_sum(self._device, y, places.contiguous(), shares.contiguous())

    def write_kv(self, cache: Tensor, rows: Tensor, new: Tensor, scales: Tensor | None = None) -> None:
        if not self._takes(new) or not self._writes(cache, scales, new):
            reference.write_kv(cache, rows, new, scales)
            return
        new = _by_token(new)
        width = _rotary_width(new.dtype, [new], None, [cache])
        head = launches.head_of(new, None, cache, False, scales)
        launches.rotary(self._device, [head], new.dtype, None, rows, len(new), width, cache.dtype)

    def _writes(self, cache: Tensor, scales: Tensor | None, new: Tensor) -> bool:
        """Whether the kernel writes such rows into a cache."""
        known = cache.dtype == new.dtype or cache.dtype in launches.NARROW
        scaled = (scales is not None) == (cache.dtype == torch.int8)
        return known and scaled and cache.is_contiguous() and (scales is None or scales.is_contiguous())

    def copy_blocks(self, cache: Tensor, sources: Tensor, targets: Tensor) -> None:
        if not self._device.holds(cache) or not cache.is_contiguous() or not cache.numel() or not len(sources):
            reference.copy_blocks(cache, sources, targets)
            return
        held = cache.new_empty(len(sources), *cache.shape[1:])
        launches.copy_rows(self._device, cache, held, sources, None, len(sources))
        launches.copy_rows(self._device, held, cache, None, targets, len(sources))

    def attention(self, layout: SegmentLayout, window: int | None, like: Tensor) -> Attention:
        return CudaAttention(self._device, layout, window, like, self._chunk)

    def cross_attention(self, layout: CrossLayout, like: Tensor) -> Attention:
        return reference.cross_attention(layout, like)

    def choose(self, logits: Tensor, rows: SamplingRows, largest: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return choose(self._device, logits, rows)

    def _takes(self, x: Tensor) -> bool:
        return x.dtype in launches.DTYPES and x.numel() > 0 and self._device.holds(x)


def _is_weight(weight: Tensor | None, x: Tensor) -> bool:
    return weight is None or (weight.dim() == 1 and weight.is_contiguous() and weight.dtype in (x.dtype, torch.float32))


def _as_rows(x: Tensor) -> Tensor:
    """[outer, inner, size] whose last dimension is contiguous: a view where the strides allow."""
    x = x if x.dim() == 3 else x.reshape(1, -1, x.shape[-1])
    return x if x.stride(2) == 1 else x.contiguous()


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _by_token(x: Tensor) -> Tensor:
    """[tokens, heads, dim] whose heads lie one behind the other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _tables(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor] | None:
    """[tokens, dim] each; None: not one row a token, as `rotary_table` gives them."""
    if cos.dim() != 3 or cos.shape[1] != 1 or cos.shape != sin.shape:
        return None
    return cos[:, 0].contiguous(), sin[:, 0].contiguous()


def _rotary_width(
    dtype: torch.dtype, heads: list[Tensor], tables: tuple[Tensor, Tensor] | None, others: list[Tensor]
) -> int:
    sizes = [*(x.shape[-1] for x in heads), *(x.stride(0) for x in heads)]
    if tables is not None:
        sizes.append(tables[0].shape[-1] // 2)
    return launches.width_of(dtype, sizes, [*heads, *(tables or ()), *others])
