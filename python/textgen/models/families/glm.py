"""GLM, GLM-4 and the GLM-4.5 mixtures."""

from __future__ import annotations

from dataclasses import replace

from textgen.models.config import Config
from textgen.models.families.common import Described, activation, decoder, sizes
from textgen.models.families.deepseek import NAMES as DEEPSEEK
from textgen.models.families.deepseek import corrected_router, sparse
from textgen.models.families.llama import base
from textgen.models.names import LayerNames, Layout, WeightNames
from textgen.models.rotary_config import rotary_spec
from textgen.models.spec import AttentionSpec, DecoderSpec, MlpSpec, NormSpec, QkNormSpec

GLM = WeightNames(layer=LayerNames(layout=Layout(gate_up="fused")))
GLM4 = replace(
    GLM,
    layer=replace(GLM.layer, attention_post_norm="post_self_attn_layernorm", mlp_post_norm="post_mlp_layernorm"),
)


def glm(config: Config) -> Described:
    """GlmForCausalLM: half of each head rotated, neighbour with neighbour."""
    return Described(_base(config), GLM)


def glm4(config: Config) -> Described:
    """Glm4ForCausalLM: GLM with norms before and after attention and MLP."""
    return Described(replace(_base(config), placement="both"), GLM4)


def glm4_moe(config: Config) -> Described:
    """Glm4MoeForCausalLM: half of each head rotated, DeepSeek V3's experts."""
    spec, bias = base(config, eps=1e-5, rotary=False), config.flag("attention_bias", False)
    norm = QkNormSpec(norm=spec.norm) if config.flag("use_qk_norm", False) else None
    rotary = rotary_spec(config, spec.head_dim, part=0.5)
    router = corrected_router(config, groups=1, top_groups=1, scale=1.0)
    config.ignore("num_nextn_predict_layers", "num_mtp_layers")  # layers that draft tokens, which are not loaded
    spec = replace(spec, attention=AttentionSpec(qkv_bias=bias, qk_norm=norm))
    spec = sparse(config, spec, router, shared=1, first=1)
    return Described(spec.varied(rotary=[rotary] * spec.num_layers), DEEPSEEK)


def _base(config: Config) -> DecoderSpec:
    size = sizes(config, head_dim=128, own_head_dim=True)
    return decoder(
        config,
        size,
        mlp=MlpSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=activation(config, "hidden_act", "silu"),
        ),
        norm=NormSpec(eps=config.number("rms_norm_eps", 1.5625e-07)),
        rotary=rotary_spec(config, size.head_dim, part=0.5, interleaved=True),
        max_positions=config.integer("max_position_embeddings", 131072),
        attention=AttentionSpec(qkv_bias=config.flag("attention_bias", True)),
    )
