"""The names that a family's checkpoints give to the weights of a decoder, and how they lay them out."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Layout:
    """How a checkpoint stores what the decoder fuses.

    qkv: three matrices; one with all queries, all keys, all values ("blocks"); or one with, per key-value head, its
    queries, its key, its value ("grouped"). gate_up: two matrices, or one with the gate first. transposed: linear
    layers are stored [in, out]. experts: matrices for each; or one tensor [experts, out, in] of all gates, one of all
    ups; or both in one [experts, out, in], gate first; or in one [experts, in, out], a gate's column next to its up's.
    """

    qkv: Literal["separate", "blocks", "grouped"] = "separate"
    gate_up: Literal["separate", "fused"] = "separate"
    transposed: bool = False
    experts: Literal["each", "stacks", "stacked", "neighbours"] = "each"


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Names of one layer's modules; `.weight` and `.bias` are added where they are read."""

    attention_norm: str = "input_layernorm"
    attention_post_norm: str = "post_attention_layernorm"
    query: str = "self_attn.q_proj"
    key: str = "self_attn.k_proj"
    value: str = "self_attn.v_proj"
    qkv: str = "self_attn.qkv_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    query_down: str = "self_attn.q_a_proj"
    query_down_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    latent: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    latent_up: str = "self_attn.kv_b_proj"
    output: str = "self_attn.o_proj"
    mlp_norm: str = "post_attention_layernorm"
    mlp_post_norm: str = "post_feedforward_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    gate_up: str = "mlp.gate_up_proj"
    down: str = "mlp.down_proj"
    sinks: str = "self_attn.sinks"
    router: str = "mlp.gate"
    router_correction: str = "mlp.gate.e_score_correction_bias"
    expert_gate: str = "mlp.experts.{}.gate_proj"
    expert_up: str = "mlp.experts.{}.up_proj"
    expert_gate_up: str = "mlp.experts.gate_up_proj"
    expert_down: str = "mlp.experts.{}.down_proj"
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_gate_up: str = "mlp.shared_expert.gate_up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_switch: str = "mlp.shared_expert_gate"
    layout: Layout = field(default_factory=Layout)

    @property
    def shared(self) -> LayerNames:
        """The names of the shared expert, in the places of an MLP's."""
        return replace(
            self, gate=self.shared_gate, up=self.shared_up, gate_up=self.shared_gate_up, down=self.shared_down
        )

    def within(self, prefix: str) -> LayerNames:
        """The same names under a prefix."""
        names = {field.name: getattr(self, field.name) for field in fields(self)}
        changes: dict[str, Any] = {field: prefix + name for field, name in names.items() if isinstance(name, str)}
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Names of a decoder's modules. `layers` is a pattern with `{}` for the layer's number.

    `prefix` stands before all but the head; its first part is the model's name in the model with the head.
    """

    prefix: str = "model."
    embedding: str = "embed_tokens"
    positions: str = "embed_positions"
    embedding_norm: str = "embed_layernorm"
    project_in: str = "project_in"
    project_out: str = "project_out"
    layers: str = "layers.{}."
    final_norm: str = "norm"
    head: str = "lm_head"
    layer: LayerNames = field(default_factory=LayerNames)

    @property
    def bare(self) -> WeightNames:
        """The same in a checkpoint that was saved from the model without its head."""
        return replace(self, prefix=self.prefix.partition(".")[2])

    def full(self, name: str) -> str:
        return self.prefix + name

    def of_layer(self, index: int) -> LayerNames:
        return self.layer.within(self.prefix + self.layers.format(index))
