"""Attention whose scores are not only scaled: soft cap, bias by distance, sinks. Scores are float32."""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.ops.interface import AttentionForm

TILE = 2**23  # scores held at a time


def attend_with_form(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, window: int | None, form: AttentionForm
) -> Tensor:
    """Attend from each query to the keys up to its position, `window` of them at most.

    query [n, tokens, heads, dim]; key, value [n, context, kv_heads, dim or value_dim]; positions [n, tokens] of the
    queries among the keys, which stand at 0, 1, 2, ... Returns [n, tokens, heads, value_dim].
    """
    rows, tokens, heads, _ = query.shape
    scores = heads * key.shape[1]  # of one query
    by_rows, step = max(TILE // (scores * tokens), 1), max(TILE // scores, 1)
    tiles = []
    for row in range(0, rows, by_rows):
        of = slice(row, row + by_rows)
        parts = [
            _attend(query[of, at : at + step], key[of], value[of], positions[of, at : at + step], window, form)
            for at in range(0, tokens, step)
        ]
        tiles.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, window: int | None, form: AttentionForm
) -> Tensor:
    rows, tokens, heads, dim = query.shape
    kv_heads = key.shape[2]
    group = (rows, kv_heads, heads // kv_heads)  # the query heads that share a kv head
    q = query.transpose(1, 2).reshape(rows, kv_heads, -1, dim)
    scores = (q @ key.permute(0, 2, 3, 1)).float().view(*group, tokens, -1) * form.scale
    if form.soft_cap is not None:
        scores = torch.tanh(scores / form.soft_cap) * form.soft_cap
    distance = torch.arange(key.shape[1], device=key.device) - positions[:, :, None]  # [n, tokens, context]
    if form.slopes is not None:
        scores = scores + form.slopes.view(1, *group[1:], 1, 1) * distance[:, None, None]
    if form.biases is not None:
        back = (-distance).clamp(0, form.biases.shape[1] - 1)
        scores = scores + form.biases[:, back].transpose(0, 1).reshape(*group, *back.shape[1:])
    hidden = distance > 0
    if window is not None:
        hidden |= distance <= -window
    scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    if form.sinks is not None:
        sinks = form.sinks.view(1, *group[1:], 1, 1).expand(*group, tokens, 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    attended = weights.to(value.dtype).view(rows, kv_heads, -1, key.shape[1]) @ value.transpose(1, 2)
    return attended.view(rows, heads, tokens, -1).transpose(1, 2)
