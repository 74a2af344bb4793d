"""What the families' readers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from textgen.models.config import Config
from textgen.models.errors import ModelError
from textgen.models.names import WeightNames
from textgen.models.rotary_spec import DynamicScaling, RotarySpec
from textgen.models.spec import Activation, DecoderSpec, LayerSpec, MlpSpec, NormSpec

FULL, SLIDING = "full_attention", "sliding_attention"

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


class Described(NamedTuple):
    """A model as its config describes it."""

    spec: DecoderSpec
    names: WeightNames


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def sizes(
    config: Config,
    hidden: str = "hidden_size",
    layers: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
    kv_heads: str | None = "num_key_value_heads",
    head_dim: int | None = None,
    own_head_dim: bool = False,
) -> Sizes:
    """Read by the family's names. own_head_dim: the config may give heads a size, `head_dim` where it does not."""
    width, count = config.integer(hidden), config.integer(heads)
    dim = head_dim or max(width // count, 1)
    if own_head_dim:
        dim = config.integer("head_dim", dim)
    else:
        config.require("head_dim", dim)
    shared = count if kv_heads is None else config.integer(kv_heads, count)
    return Sizes(width, config.integer(layers), count, shared, dim)


def decoder(
    config: Config,
    size: Sizes,
    *,
    mlp: MlpSpec,
    norm: NormSpec,
    max_positions: int,
    rotary: RotarySpec | None = None,
    scale: float | None = None,
    tied: bool = False,
    **changes: Any,
) -> DecoderSpec:
    """A decoder whose layers are all alike. tied: what the family does when the config does not say."""
    if rotary is not None and isinstance(rotary.scaling, DynamicScaling):
        max_positions = int(max_positions * rotary.scaling.factor)
    layer = LayerSpec(mlp=mlp, attention_scale=scale or size.head_dim**-0.5, rotary=rotary)
    return DecoderSpec(
        vocab_size=config.integer("vocab_size"),
        hidden_size=size.hidden,
        num_heads=size.heads,
        num_kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        max_positions=max_positions,
        layers=(layer,) * size.layers,
        norm=norm,
        tied_head=config.flag("tie_word_embeddings", tied),
        **changes,
    )


def activation(config: Config, name: str, default: str) -> Activation:
    """The MLP's activation by one of the names Transformers gives it."""
    value = config.text(name, default)
    if value not in _ACTIVATIONS:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise ModelError(f"{config.where}: '{name}' is {value!r}; supported are {known}")
    return _ACTIVATIONS[value]


def layer_kinds(config: Config, default: Sequence[str]) -> list[str]:
    """`layer_types`, one of full_attention and sliding_attention for each layer."""
    kinds = config.texts("layer_types") or list(default)
    if len(kinds) != len(default) or not set(kinds) <= {FULL, SLIDING}:
        raise ModelError(
            f"{config.where}: 'layer_types' must name {FULL} or {SLIDING} for each of {len(default)} layers"
        )
    return kinds


def every(pattern: int, layers: int) -> list[str]:
    """Sliding windows, but for every `pattern`-th layer."""
    return [SLIDING if (layer + 1) % pattern else FULL for layer in range(layers)]


def windows(kinds: Sequence[str], window: int | None) -> list[int | None]:
    """The window of each layer."""
    return [window if kind == SLIDING else None for kind in kinds]


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The slopes of the ALiBi paper (arXiv 2108.12409), for numbers of heads that are no power of two too."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4.0 * (head + 1) / power) for head in range(0, 2 * (heads - power), 2)]
    return tuple(slopes + between)
