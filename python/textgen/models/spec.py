"""What a decoder is, as data: sizes, norms and where they stand, attention, rotary forms, MLPs, windows, scalings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from textgen.models.rotary_spec import RotarySpec

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedSilu:
    """gpt-oss: gate * sigmoid(alpha * gate) * (up + 1), the gate at most `limit` and up within ± it."""

    alpha: float
    limit: float


GatedActivation: TypeAlias = Activation | ClampedSilu
Placement: TypeAlias = Literal["before", "after", "both", "sum"]
Residual: TypeAlias = Literal["sequential", "parallel", "parallel-one-norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """A norm over the last dimension. `offset` is added to the stored weight; without `affine` there is no weight."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    affine: bool = True
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QkNormSpec:
    """A norm of queries and keys before the rotation.

    over: "head" norms each head, "all" a token's heads together. weights: one for all heads, each head its own part of
    one tensor, or each head its own tensor (`{}` in the name).
    """

    norm: NormSpec
    over: Literal["head", "all"] = "head"
    weights: Literal["shared", "rows", "tensors"] = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """Latent attention (arXiv 2405.04434): keys and values of all heads are products of one small vector per token.

    Only that vector and a key with the rotated numbers are cached. query_rank: queries too come out of such a vector.
    """

    query_rank: int | None
    kv_rank: int
    plain_dim: int  # of a head's key and query, without rotation
    rotated_dim: int
    value_dim: int
    eps: float = 1e-6  # of the norms of the vectors
    bias: bool = False  # of the products that make the vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """What attention does beyond query, key, value and output."""

    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QkNormSpec | None = None
    soft_cap: float | None = None  # scores become cap * tanh(score / cap)
    clip: float | None = None  # queries, keys and values are clamped to ± this
    slopes: tuple[float, ...] | None = None  # ALiBi (arXiv 2108.12409): per head, times the distance looked back
    latent: LatentSpec | None = None
    sinks: bool = False  # each head has a score that takes its share of the softmax and gives nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) when it is not gated."""

    intermediate_size: int
    bias: bool = False
    activation: Activation = "silu"
    gated: bool = True

    @property
    def width(self) -> int:
        """Numbers between the two products, per token."""
        return self.intermediate_size


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """Which experts a token goes to, and the weights of what they give.

    score: softmax over all experts, over the chosen ones only, or a sigmoid each. With `groups`, only experts of the
    `top_groups` groups with the best experts are chosen. The correction is added to the scores for the choice alone.
    """

    top_k: int
    score: Literal["softmax", "chosen", "sigmoid"] = "softmax"
    normalize: bool = False  # the weights of a token sum up to 1
    bias: bool = False
    correction: bool = False
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["best", "best two"] = "best"
    scale: float = 1.0
    float32: bool = False  # the scores are computed in float32 whatever the model's dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """A mixture of gated MLPs, a few of which see each token, and perhaps one that sees all.

    shared_switch: the shared MLP's output is weighted by the sigmoid of a score.
    """

    count: int
    intermediate_size: int  # of one expert
    router: RouterSpec
    activation: GatedActivation = "silu"
    bias: bool = False
    shared: MlpSpec | None = None
    shared_switch: bool = False

    @property
    def width(self) -> int:
        """Numbers between the two products, per token."""
        return self.router.top_k * self.intermediate_size + (0 if self.shared is None else self.shared.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionSpec:
    """Learned position embeddings: a table of `rows` rows, position p in row p + offset."""

    rows: int
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalings:
    """Constant factors that some families put around parts of the decoder, and the soft cap on its logits."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    logits_soft_cap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What may differ from layer to layer. The window is in tokens, the token itself included (None: no window)."""

    mlp: MlpSpec | ExpertsSpec
    attention_scale: float  # the factor on query · key
    rotary: RotarySpec | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """What memory needs to know of the encoder before a decoder."""

    num_heads: int
    mlp_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """One decoder. Sizes are in elements.

    With an encoder, prompts are the encoder's; the numbers here are the decoder's. Of each token that the encoder has
    read, keys and values of the decoder's attention to it are cached like those of the decoder's own tokens.

    With latent attention there is one key-value head, which all ranks hold, and head_dim is what is cached of a token.

    placement: norms stand before attention and MLP, after them, both, or after the sum with the residual.
    residual: the MLP follows attention, or both read the same x, with a norm each or one for both.
    """

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    attention: AttentionSpec = field(default_factory=AttentionSpec)
    placement: Placement = "before"
    residual: Residual = "sequential"
    positions: PositionSpec | None = None
    embedding_norm: bool = False
    embedding_size: int | None = None  # where embedding and head are narrower and projected from and to hidden_size
    final_norm: bool = True
    tied_head: bool = False
    head_bias: bool = False
    scalings: Scalings = field(default_factory=Scalings)
    encoder: EncoderSpec | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(layer.window for layer in self.layers)

    @property
    def kv_width(self) -> int:
        """Numbers that are cached of a token in one layer, on all ranks together."""
        return self.head_dim if self.attention.latent is not None else 2 * self.num_kv_heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        """Rows of a head that are cached of a token in one layer, each of which has a scale in a cache of integers."""
        return 1 if self.attention.latent is not None else 2 * self.num_kv_heads

    @property
    def mlp_width(self) -> int:
        """The most numbers that an MLP holds between its products, per token."""
        return max(layer.mlp.width for layer in self.layers)

    def varied(self, **values: Sequence[Any]) -> DecoderSpec:
        """The same with fields of the layers replaced, one value per layer."""
        changes = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
        layers = tuple(replace(layer, **change) for layer, change in zip(self.layers, changes, strict=True))
        return replace(self, layers=layers)
