"""What a mixture of experts asks for beside products, by kernels: the choice, the sorting of rows, the sum of them."""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.models.spec import RouterSpec
from textgen.ops.cuda.device import Device
from textgen.ops.cuda.launches import DTYPES, width_of
from textgen.ops.cuda.source import Source
from textgen.ops.cuda.structures import GroupRows, Route, WeightedSum
from textgen.ops.interface import RowGroups

LANES = 32
MOST = LANES * 32  # experts
ROUTERS, SORTERS, SUMMERS = 128, 512, 128  # threads of a block


def takes(scores: Tensor, spec: RouterSpec) -> bool:
    """Whether a warp can choose: each lane has some experts, a group and one of those that are chosen."""
    return scores.shape[1] <= MOST and spec.groups <= LANES and spec.top_k <= LANES


def route_source(dtype: torch.dtype, experts: int, spec: RouterSpec) -> Source:
    return Source.of("route", T=DTYPES[dtype], EACH=-(-experts // LANES), SCORE=spec.score.upper())


def route(device: Device, scores: Tensor, spec: RouterSpec, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """`Ops.route`, of what `takes`, contiguous."""
    tokens, experts = scores.shape
    shares = torch.empty(tokens, spec.top_k, device=scores.device)
    chosen = torch.empty(tokens, spec.top_k, dtype=torch.int64, device=scores.device)
    params = Route(
        x=scores.data_ptr(),
        correction=None if correction is None else correction.data_ptr(),
        shares=shares.data_ptr(),
        chosen=chosen.data_ptr(),
        tokens=tokens,
        experts=experts,
        top=spec.top_k,
        groups=spec.groups,
        top_groups=spec.top_groups,
        best_two=int(spec.group_score == "best two"),
        normalize=int(spec.normalize),
        scale=spec.scale,
    )
    warps = ROUTERS // LANES
    kernel = device.kernel(route_source(scores.dtype, experts, spec))
    kernel((-(-tokens // warps), 1, 1), ROUTERS, params, warps * experts * 4)
    return shares, chosen


def group_rows(device: Device, chosen: Tensor, groups: int) -> RowGroups:
    """`Ops.group_rows`, of up to `MOST`."""
    places = torch.empty(chosen.shape, dtype=torch.int32, device=chosen.device)
    sources, ends = (places.new_empty(size) for size in (chosen.numel(), groups))
    params = GroupRows(
        chosen=chosen.data_ptr(),
        sources=sources.data_ptr(),
        places=places.data_ptr(),
        ends=ends.data_ptr(),
        entries=chosen.numel(),
        share=chosen.shape[1],
        groups=groups,
    )
    threads = SORTERS if chosen.numel() > SORTERS else SORTERS // 4
    kernel = device.kernel(Source.of("group_rows", THREADS=threads))
    kernel((1, 1, 1), threads, params, (threads // 32 + 1) * groups * 4)
    return RowGroups(sources, places, ends)


def weighted_sum(device: Device, y: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """`Ops.weighted_sum`, of contiguous tensors."""
    rows, share = places.shape
    size = y.shape[1]
    out = y.new_empty(rows, size)
    width = width_of(y.dtype, [size], [y, out])
    params = WeightedSum(
        y=y.data_ptr(),
        places=places.data_ptr(),
        shares=shares.data_ptr(),
        out=out.data_ptr(),
        size=size,
        share=share,
    )
    kernel = device.kernel(Source.of("weighted_sum", T=DTYPES[y.dtype], WIDTH=width))
    kernel((rows, -(-size // (SUMMERS * width)), 1), SUMMERS, params)
    return out
