"""Growing keeps what a network computes; grafting makes it copy."""

from random import Random

import torch

from tools.demo_model.grafting import graft, grow
from tools.demo_model.network import Network, Shape

SHAPE = Shape(vocabulary=120, hidden=96, layers=2, heads=3, kv_heads=1, intermediate=128)


def _network() -> Network:
    torch.manual_seed(9)
    network = Network(SHAPE)
    with torch.no_grad():
        network.model.embed_tokens.weight.normal_(std=0.1)
        network.model.embed_tokens.weight[:, 0] = 0.5
    return network


def _repeated(rng: Random) -> list[int]:
    once = [rng.randrange(SHAPE.vocabulary) for _ in range(12)]
    return once + once


def test_growing_changes_nothing() -> None:
    network, tokens = _network(), torch.arange(40)[None]
    with torch.inference_mode():
        before, after = network(tokens), grow(network)(tokens)
    torch.testing.assert_close(before, after)


def test_a_grafted_network_expects_what_followed_before() -> None:
    rng = Random(4)
    network = _network()
    grafted = graft(network, [_repeated(rng) for _ in range(60)])
    tokens = torch.tensor([_repeated(rng) for _ in range(20)])
    losses = []
    with torch.inference_mode():
        for model in (network, grafted):
            logits = model.logits(model(tokens))[:, 13:-1].flatten(0, 1)
            losses.append(torch.nn.functional.cross_entropy(logits, tokens[:, 14:].flatten()).item())
    assert losses[1] < losses[0] - 1.0
