"""Grafts the two attention circuits of copying onto a trained network, as one more group of heads.

New heads of the first layer write down which token stands here and which stood before. A new head of the second layer
looks for the places whose token before was the present token, and makes what stands there more likely. Networks find
such induction heads by themselves (https://arxiv.org/abs/2209.11895), but only after many times the tokens that an hour
allows. All readings are least squares fits on what the trained network does; training goes on afterwards and may change
all of it.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tools.demo_model.network import Network, Shape, rotary_table

_GROUPS = 2
_SHARPNESS = 11.0  # of the look at the token before
_SHARP_PAIRS = 6  # rotary pairs that turn fast enough to tell neighbours apart
_SLOW_FROM = 7  # rotary pairs from here on barely turn within a short text
_MATCH = 2.4
_BOOST = 8.0  # in nats, of a copied token


@dataclass(frozen=True)
class Trace:
    """What a network does on real text: ``[tokens]`` ids, those before them, and the second layer's input."""

    present: Tensor
    before: Tensor
    residual: Tensor
    normed: Tensor
    final_scale: float


@torch.no_grad()
def grow(network: Network) -> Network:
    """The same function with two more groups of heads in each layer, whose outputs are not yet used.

    One of them is spare: Transformers wants a number of heads that divides the width.
    """
    old = network.shape
    more = old.kv_heads + _GROUPS
    shape: Shape = replace(old, heads=old.heads // old.kv_heads * more, kv_heads=more)
    grown = Network(shape)
    state = network.state_dict()
    for name, target in grown.state_dict().items():
        source = state[name]
        if name.endswith("o_proj.weight"):
            target.zero_()
        target[tuple(slice(0, length) for length in source.shape)] = source
    return grown


@torch.no_grad()
def trace(network: Network, texts: list[list[int]]) -> Trace:
    """Run texts of token ids and keep the second layer's input."""
    body = network.model
    parts: list[tuple[Tensor, ...]] = []
    scales = []
    for text in texts:
        tokens = torch.tensor([text])
        cosine, sine = rotary_table(len(text), network.shape)
        residual = network.layer(0)(body.embed_tokens(tokens), cosine, sine)
        normed = network.layer(1).input_layernorm(residual)
        parts.append((tokens[0, 1:], tokens[0, :-1], residual[0, 1:], normed[0, 1:]))
        hidden = residual
        for layer in body.layers[1:]:
            hidden = layer(hidden, cosine, sine)
        scales.append(hidden.pow(2).mean(-1).sqrt().mean())
    present, before, residual, normed = (torch.cat(column) for column in zip(*parts, strict=True))
    return Trace(present, before, residual, normed, float(torch.stack(scales).mean()))


def _damped(gram: Tensor, ridge: float) -> Tensor:
    """A gram matrix with a part of its mean diagonal added, so that it can be solved."""
    return gram + ridge * gram.diagonal().mean() * torch.eye(len(gram))


def _fit(inputs: Tensor, targets: Tensor) -> Tensor:
    """Weights ``W`` that bring ``inputs @ W.T`` close to ``targets``."""
    weights: Tensor = torch.linalg.solve(_damped(inputs.T @ inputs, 1e-3), inputs.T @ targets).T
    return weights


@torch.no_grad()
def graft(network: Network, texts: list[list[int]]) -> Network:
    """A grown copy of ``network`` that copies. ``texts`` are a few hundred documents as token ids."""
    grown = grow(network)
    first = grown.layer(0)
    seen = torch.unique(torch.cat([torch.tensor(text) for text in texts]))
    inputs = first.input_layernorm(grown.model.embed_tokens.weight)
    constant = _fit(inputs[seen], torch.ones(len(seen), 1))[0]
    code = _codes(inputs, seen, constant, network.shape.head_dim)
    _write_codes(grown, _Place(network.shape), constant, code, texts)
    _follow_matches(grown, _Place(network.shape), inputs @ code.T, seen, trace(grown, texts))
    return grown


class _Place:
    """Where the grafted group lies in the stacked projections: rows of keys and values, rows of queries."""

    def __init__(self, old: Shape) -> None:
        self.size = old.head_dim
        self.half = old.head_dim // 2
        self.keys = old.kv_heads * old.head_dim
        self.heads = old.heads * old.head_dim
        self.group = slice(self.keys, self.keys + self.size)
        self.head = slice(self.heads, self.heads + self.size)
        self.next_head = slice(self.heads + self.size, self.heads + 2 * self.size)


def _write_codes(grown: Network, place: _Place, constant: Tensor, code: Tensor, texts: list[list[int]]) -> None:
    """First layer: one head writes the code of the token before, the next that of the present token.

    A query that is the key turned back by one position looks at the token before
    (https://arxiv.org/abs/2104.09864). What is written goes into the directions in which the network says least.
    """
    attention = grown.layer(0).self_attn
    angles = grown.shape.rope_theta ** (-torch.arange(_SHARP_PAIRS) / place.half)
    query, key = attention.q_proj.weight, attention.k_proj.weight
    query[place.head] = query[place.next_head] = 0.0
    key[place.group] = 0.0
    sharp = _SHARPNESS * constant
    key[place.group][:_SHARP_PAIRS] = sharp
    query[place.head][:_SHARP_PAIRS] = angles.cos()[:, None] * sharp
    query[place.head][place.half : place.half + _SHARP_PAIRS] = -angles.sin()[:, None] * sharp
    query[place.next_head][:_SHARP_PAIRS] = sharp
    attention.v_proj.weight[place.group] = code
    said = trace(grown, texts).residual
    quiet = torch.linalg.eigh(torch.cov(said.T)).eigenvectors[:, : 2 * place.size]
    written = slice(place.heads, place.heads + 2 * place.size)
    attention.o_proj.weight[:, written] = quiet * 2 * said.pow(2).mean().sqrt()


def _follow_matches(grown: Network, place: _Place, codes: Tensor, seen: Tensor, facts: Trace) -> None:
    """Second layer: attend to where the code before is the present code, and raise the score of the token there."""
    attention = grown.layer(1).self_attn
    slow = torch.cat((torch.arange(_SLOW_FROM, place.half), torch.arange(place.half + _SLOW_FROM, place.size)))
    query, key = attention.q_proj.weight, attention.k_proj.weight
    query[place.head] = 0.0
    key[place.group] = 0.0
    query[place.heads + slow] = _MATCH * _fit(facts.normed, codes[facts.present][:, : len(slow)])
    key[place.keys + slow] = _MATCH * _fit(facts.normed, codes[facts.before][:, : len(slow)])
    attention.v_proj.weight[place.group] = _fit(facts.normed, codes[facts.present])
    scores = grown.model.embed_tokens.weight * grown.model.norm.weight / facts.final_scale
    gram = _damped(scores[seen].T @ scores[seen], 1e-2)
    wanted = scores[seen].T @ (codes[seen] * _BOOST / place.size)
    attention.o_proj.weight[:, place.head] = torch.linalg.solve(gram, wanted)


def _codes(inputs: Tensor, seen: Tensor, constant: Tensor, size: int) -> Tensor:
    """A reading ``[size, hidden]`` that gives every token a random code of zero mean and unit variance."""
    mean = inputs[seen].mean(0)
    covariance = torch.cov(inputs[seen].T)
    values, vectors = torch.linalg.eigh(covariance)
    whitening = vectors @ torch.diag((values + 1e-3 * values.mean()).rsqrt()) @ vectors.T
    reading = torch.linalg.qr(torch.randn(len(mean), size)).Q.T @ whitening
    centred: Tensor = reading - torch.outer(reading @ mean, constant)
    return centred
