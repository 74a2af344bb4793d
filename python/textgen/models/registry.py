"""From a config's architecture to its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from textgen.models.config import Config
from textgen.models.errors import ModelError
from textgen.models.families import (
    bloom,
    cohere,
    deepseek,
    exaone,
    falcon,
    gemma,
    glm,
    gpt,
    llama,
    moe,
    nemotron,
    olmo,
    opt,
    phi,
    qwen,
    stablelm,
    starcoder2,
)
from textgen.models.families.common import Described
from textgen.models.fp8_config import Fp8, read_fp8
from textgen.models.packed_config import Packed, read_packed
from textgen.models.spec import DecoderSpec

FAMILIES: Mapping[str, Callable[[Config], Described]] = MappingProxyType(
    {
        "ArceeForCausalLM": llama.arcee,
        "BloomForCausalLM": bloom.bloom,
        "Cohere2ForCausalLM": cohere.cohere2,
        "CohereForCausalLM": cohere.cohere,
        "DeepseekV2ForCausalLM": deepseek.deepseek_v2,
        "DeepseekV3ForCausalLM": deepseek.deepseek_v3,
        "Exaone4ForCausalLM": exaone.exaone4,
        "FalconForCausalLM": falcon.falcon,
        "GPT2LMHeadModel": gpt.gpt2,
        "GPTBigCodeForCausalLM": gpt.gpt_bigcode,
        "GPTJForCausalLM": gpt.gptj,
        "GPTNeoXForCausalLM": gpt.gpt_neox,
        "Gemma2ForCausalLM": gemma.gemma2,
        "Gemma3ForCausalLM": gemma.gemma3,
        "GemmaForCausalLM": gemma.gemma,
        "Glm4ForCausalLM": glm.glm4,
        "Glm4MoeForCausalLM": glm.glm4_moe,
        "GlmForCausalLM": glm.glm,
        "GptOssForCausalLM": moe.gpt_oss,
        "GraniteForCausalLM": llama.granite,
        "GraniteMoeForCausalLM": moe.granite_moe,
        "GraniteMoeSharedForCausalLM": moe.granite_moe_shared,
        "LlamaForCausalLM": llama.llama,
        "MinistralForCausalLM": llama.ministral,
        "MistralForCausalLM": llama.mistral,
        "MixtralForCausalLM": moe.mixtral,
        "MptForCausalLM": bloom.mpt,
        "NemotronForCausalLM": nemotron.nemotron,
        "OPTForCausalLM": opt.opt,
        "Olmo2ForCausalLM": olmo.olmo2,
        "Olmo3ForCausalLM": olmo.olmo3,
        "OlmoForCausalLM": olmo.olmo,
        "OlmoeForCausalLM": moe.olmoe,
        "Phi3ForCausalLM": phi.phi3,
        "PhiForCausalLM": phi.phi,
        "Qwen2ForCausalLM": qwen.qwen2,
        "Qwen3ForCausalLM": qwen.qwen3,
        "Qwen2MoeForCausalLM": moe.qwen2_moe,
        "Qwen3MoeForCausalLM": moe.qwen3_moe,
        "SeedOssForCausalLM": llama.seed_oss,
        "SmolLM3ForCausalLM": llama.smollm3,
        "StableLmForCausalLM": stablelm.stablelm,
        "Starcoder2ForCausalLM": starcoder2.starcoder2,
    }
)


ALIASES = {"MPTForCausalLM": "MptForCausalLM"}  # as the checkpoints' own code called it
MXFP4 = frozenset({"GptOssForCausalLM"})  # families whose experts may be stored in it


class UnknownArchitecture(ModelError):
    """No family covers the model."""


def describe(config: Config) -> Described:
    """The spec and weight names of a model. Raises `ModelError` with what to change."""
    architectures = [ALIASES.get(name, name) for name in config.texts("architectures")]
    family = next((FAMILIES[name] for name in architectures if name in FAMILIES), None)
    if family is None:
        named = ", ".join(architectures) or "none"
        raise UnknownArchitecture(f"architecture {named} is not supported; supported are {', '.join(FAMILIES)}")
    _check_quantization(config, architectures)
    described = family(config)
    config.refuse_unknown()
    _check(described.spec, config.where)
    return described


def _check_quantization(config: Config, architectures: list[str]) -> None:
    section = config.section("quantization_config")
    if section is None:
        return
    section.ignore("modules_to_not_convert")
    method = section.text("quant_method", "unknown")
    if (method == "mxfp4" and MXFP4 & set(architectures)) or read_fp8(section) or read_packed(section):
        return
    raise ModelError(
        f"{config.where}: quantized weights are not supported yet in the form {method!r}; use the unquantized model"
    )


def scaled_by(config: Config) -> Fp8 | None:
    """How the weights of a model that was described are scaled, where they are 8-bit numbers."""
    section = config.section("quantization_config")
    return None if section is None else read_fp8(section)


def packed_as(config: Config) -> Packed | None:
    """How the weights of a model that was described are packed, where they are integers of 4 or 8 bits."""
    section = config.section("quantization_config")
    return None if section is None else read_packed(section)


def _check(spec: DecoderSpec, where: str) -> None:
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(
            f"{where}: num_attention_heads {spec.num_heads} is not a multiple of num_key_value_heads "
            f"{spec.num_kv_heads}"
        )
    for rotary in {layer.rotary for layer in spec.layers if layer.rotary is not None}:
        if rotary.dim % 2 or rotary.dim > spec.head_dim:
            raise ModelError(
                f"{where}: rotary embedding turns {rotary.dim} of each head's {spec.head_dim} numbers; it must be even "
                "and at most all of them"
            )
