"""The first weights: embeddings large beside what one step changes, and two attention circuits of copying.

A head of the first layer looks at the token before, heads of the second layer for where the present token was that one
(https://arxiv.org/abs/2209.11895). Starting near a form that training finds anyway is mimetic initialization
(https://arxiv.org/abs/2305.09828). Of the circuits the look at the token before lasts; ``grafting`` renews the rest.
"""

import torch
from torch import Tensor

from tools.demo_model.network import Attention, Network

_CONSTANT = 0.5  # of the norm of the rest of an embedding: a coordinate in which every token is alike
_SHARP_PAIRS = 6  # rotary pairs that turn fast enough to tell neighbours apart
_SHARPNESS = 7.0
_EMBEDDING = 0.1  # standard deviation: large beside what one step of the optimizer changes
_WRITE = 0.3
_MATCH = 2.4
_COPY = 0.6
_FINAL = 0.2  # of the final norm: keeps the first scores small


@torch.no_grad()
def start_with_induction_heads(network: Network) -> None:
    """Overwrite parts of a freshly drawn ``network`` (at least two layers)."""
    shape = network.shape
    embedding = network.model.embed_tokens.weight
    embedding.normal_(std=_EMBEDDING)
    network.model.norm.weight.fill_(_FINAL)
    embedding[:, 0] = _CONSTANT * embedding.std() * shape.hidden**0.5
    constant = _CONSTANT * (shape.hidden / (1 + _CONSTANT**2)) ** 0.5
    reading = torch.randn(shape.head_dim, shape.hidden) / shape.hidden**0.5
    reading[:, 0] = 0.0
    writing = torch.linalg.qr(torch.randn(shape.hidden, shape.head_dim)).Q
    writing[0] = 0.0
    first, second = (network.layer(index).self_attn for index in (0, 1))
    _look_back_one(first, constant)
    first.v_proj.weight[: shape.head_dim] = reading
    first.o_proj.weight[:, : shape.head_dim] = _WRITE * writing
    _follow_matches(second, reading, writing)


def _look_back_one(attention: Attention, constant: float) -> None:
    """Head 0 attends to the token before: its query is its key, turned by one position."""
    half = attention.shape.head_dim // 2
    angles = attention.shape.rope_theta ** (-torch.arange(_SHARP_PAIRS) / half)
    query, key = attention.q_proj.weight, attention.k_proj.weight
    query[: 2 * half, 0] = key[: 2 * half, 0] = 0.0
    key[:_SHARP_PAIRS, 0] = _SHARPNESS / constant
    query[:_SHARP_PAIRS, 0] = _SHARPNESS / constant * angles.cos()
    query[half : half + _SHARP_PAIRS, 0] = -_SHARPNESS / constant * angles.sin()


def _follow_matches(attention: Attention, reading: Tensor, writing: Tensor) -> None:
    """The first head of each group matches what was written before against the present token and copies what it finds.

    Only the slow half of the rotary pairs is used, in which nearby and distant places look the same.
    """
    shape = attention.shape
    size, half = shape.head_dim, shape.head_dim // 2
    slow = torch.cat((torch.arange(half // 2, half), torch.arange(half + half // 2, size)))
    for group in range(shape.kv_heads):
        parts = torch.randn(len(slow), size) / size**0.5
        head, keys = group * (shape.heads // shape.kv_heads) * size, group * size
        attention.q_proj.weight[head : head + size] = 0.0
        attention.k_proj.weight[keys : keys + size] = 0.0
        attention.q_proj.weight[head + slow] = _MATCH * 1.4 * parts @ reading
        attention.k_proj.weight[keys + slow] = _MATCH * parts @ writing.T
        copying = torch.linalg.qr(torch.randn(shape.hidden, size)).Q
        copying[0] = 0.0
        attention.v_proj.weight[keys : keys + size] = copying.T
        attention.o_proj.weight[:, head : head + size] = _COPY * copying
