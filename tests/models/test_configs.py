"""Configs as Transformers reads them: what a file leaves out has the same default, and every family is tested."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from textgen.layers.rotary import frequencies
from textgen.models import docs
from textgen.models.config import Config
from textgen.models.errors import ModelError
from textgen.models.families.common import Described
from textgen.models.registry import FAMILIES, describe
from textgen.models.rotary_config import rotary_spec
from textgen.parallel import Parallel
from textgen.shard.cache import allocate_cache

from .families import LINEAR, LLAMA3, SIZES, TINY, YARN, YARN_SCALED, longrope


def read(values: dict[str, Any]) -> Described:
    return describe(Config(values))


def full_config(architecture: str, **changes: Any) -> dict[str, Any]:
    """Every value of the family's tiny config, as plain JSON."""
    tiny = TINY[architecture]
    values = getattr(transformers, f"{tiny.config}Config")(**{**tiny.sizes, **changes}).to_dict()
    return {**values, "architectures": [architecture]}


def test_every_family_is_tested() -> None:
    assert set(TINY) == set(FAMILIES)


@pytest.mark.parametrize("architecture", TINY)
def test_a_value_that_is_left_out_has_the_default_of_transformers(architecture: str) -> None:
    """Each value that is its class's default is taken out in turn: we ask for it, or nothing changes."""
    full = full_config(architecture)
    defaults = getattr(transformers, f"{TINY[architecture].config}Config")().to_dict()
    expected, changed = read(full), []
    for name in full:
        if name in defaults and name not in TINY[architecture].sizes and full[name] == defaults[name]:
            try:
                if read({key: value for key, value in full.items() if key != name}) != expected:
                    changed.append(name)
            except ModelError as error:
                assert "has no" in str(error)
    assert not changed


@pytest.mark.parametrize("architecture", TINY)
def test_a_switch_that_the_family_does_not_know_is_refused(architecture: str) -> None:
    with pytest.raises(ModelError, match="'use_spiral_attention' is True, which this model's family does not know"):
        read({**full_config(architecture), "use_spiral_attention": True})


DYNAMIC = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 1e4}


@pytest.mark.parametrize("length", [100, 256, 257, 1000])
@pytest.mark.parametrize(
    "parameters",
    [
        LINEAR,
        DYNAMIC,
        LLAMA3,
        YARN,
        YARN_SCALED,
        {**YARN, "truncate": False},
        {**YARN, "attention_factor": 1.7},
        {**YARN, "factor": 1.0},
        longrope(16),
        {**longrope(16), "attention_factor": 1.3},
        {**longrope(16), "factor": 4.0},
    ],
    ids=lambda parameters: "-".join(map(str, parameters.values()))[:40],
)
@pytest.mark.parametrize("original", [64, 256])
def test_frequencies_are_those_of_transformers(parameters: dict[str, Any], length: int, original: int) -> None:
    """Theirs for a sequence of a length, ours for a server of sequences of up to that length."""
    if parameters["rope_type"] in ("llama3", "yarn", "longrope"):
        parameters = {**parameters, "original_max_position_embeddings": original}
    values = {**SIZES, "rope_parameters": dict(parameters)}
    config = transformers.LlamaConfig(**values)
    theirs, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=length)
    ours = frequencies(rotary_spec(Config(values), 16), length, torch.device("cpu"))
    torch.testing.assert_close(ours.inverse, theirs)
    assert ours.factor == pytest.approx(factor)


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Olmo3ForCausalLM"])
def test_rotary_forms_by_kind_of_layer_in_the_older_spelling(architecture: str) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    kinds = {"full_attention": {**scaling, "rope_theta": 5e5}, "sliding_attention": {"rope_theta": 5e5}}
    full = full_config(architecture, layer_types=["sliding_attention", "full_attention"] * 2)
    new = read({**full, "rope_parameters": kinds})
    old = {name: value for name, value in full.items() if name != "rope_parameters"}
    local = {"rope_local_base_freq": 5e5} if architecture == "Gemma3ForCausalLM" else {}
    assert read({**old, "rope_scaling": scaling, "rope_theta": 5e5, **local}) == new
    assert len({layer.rotary for layer in new.spec.layers}) == 2


def test_the_draws_of_a_seed_are_its_own() -> None:
    assert TINY["LlamaForCausalLM"].draw(random.Random(7)) == TINY["LlamaForCausalLM"].draw(random.Random(7))


def test_the_documentation_is_up_to_date() -> None:
    written = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert written == docs.page(), "run `make docs-models`"


@pytest.mark.parametrize("architecture", TINY)
def test_the_cache_of_a_spec_is_as_wide_as_it_says(architecture: str) -> None:
    """What the launcher plans with is what the shard allocates."""
    spec = read(full_config(architecture)).spec
    cache = allocate_cache(spec, 3, 4, torch.float32, torch.device("cpu"), Parallel())
    assert cache.bytes_per_page == 4 * spec.kv_width * spec.num_layers * 4


PUBLISHED: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "pretraining_tp": 2, "rope_interleaved": False, "is_llama_config": True, "_attn_implementation_autoset": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "unsloth_fixed": True, "pad_token_id": 4,
        "max_sequence_length": 2048,
    },
    "Qwen2ForCausalLM": {"use_mrope": False, "max_window_layers": 2, "sliding_window": 131072},
    "Qwen3MoeForCausalLM": {"max_window_layers": 48, "output_router_logits": False, "router_aux_loss_coef": 0.001},
    "Phi3ForCausalLM": {
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "interpolate_factor": 1, "full_attn_mod": 1,
        "lm_head_bias": False, "mlp_bias": False, "attention_bias": False, "original_max_position_embeddings": 256,
    },
    "GemmaForCausalLM": {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"},
    "Gemma2ForCausalLM": {
        "hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid", "sliding_window_size": 4096,
    },
    "Gemma3ForCausalLM": {"cache_implementation": "hybrid", "sliding_window_pattern": 6},
    "GPT2LMHeadModel": {
        "n_ctx": 256, "task_specific_params": {"text-generation": {"do_sample": True}}, "summary_type": "cls_index",
    },
    "GPTJForCausalLM": {"rotary": True, "scale_attn_weights": True, "gradient_checkpointing": False},
    "GPTNeoXForCausalLM": {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0.1, "classifier_dropout": 0.1},
    "GPTBigCodeForCausalLM": {
        "attention_softmax_in_fp32": True, "inference_runner": 0, "max_batch_size": None, "validate_runner_input": True,
    },
    "Starcoder2ForCausalLM": {
        "activation_function": "gelu", "attention_softmax_in_fp32": True, "scale_attn_weights": True,
        "norm_type": "layer_norm", "mlp_type": "default",
    },
    "FalconForCausalLM": {"apply_residual_connection_post_layernorm": False, "ff_factor": 4},
    "OPTForCausalLM": {"prefix": "</s>", "activation_dropout": 0.1, "layerdrop": 0.1},
    "BloomForCausalLM": {
        "offset_alibi": 100, "skip_bias_add": True, "masked_softmax_fusion": True, "pretraining_tp": 4,
        "seq_length": 2048, "bias_dropout_fusion": True, "n_inner": None,
    },
    "MptForCausalLM": {
        "architectures": ["MPTForCausalLM"], "init_config": {"name": "kaiming_normal_"}, "init_device": "cpu",
        "tokenizer_name": "EleutherAI/gpt-neox-20b", "verbose": 0,
    },
    "GraniteMoeForCausalLM": {
        "position_embedding_type": "rope", "normalization_function": "rmsnorm", "init_method": "mup",
    },
    "SmolLM3ForCausalLM": {"pretraining_tp": 2, "max_window_layers": 28},
    "DeepseekV2ForCausalLM": {
        "aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1, "moe_layer_freq": 1, "scoring_func": "softmax",
        "topk_method": "greedy", "n_group": 1, "topk_group": 1,
    },
    "DeepseekV3ForCausalLM": {"num_nextn_predict_layers": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "GptOssForCausalLM": {"initial_context_length": 4096, "experts_per_token": 2},
}  # fmt: skip


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_values_that_published_checkpoints_have_are_known(architecture: str) -> None:
    read({**full_config(architecture), **PUBLISHED[architecture]})
