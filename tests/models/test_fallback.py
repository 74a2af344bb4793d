"""Models without a family, by Transformers' own modelling over our paged cache: held against Transformers alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from textgen.models import fallback_config
from textgen.models.errors import ModelError
from textgen.models.fallback import FallbackModel
from textgen.models.load import load_model
from textgen.models.registry import UnknownArchitecture
from textgen.ops import select_ops
from textgen.parallel import Parallel

from .families import PLAIN, SIZES
from .test_decoder import BLOCK, CPU, Sequence, poisoned_cache, run_step
from .tiny import edit_config, random_prompt, reference_logits

HEADS = {"head_dim": 24}
TESTED: dict[str, dict[str, Any]] = {
    "Apertus": {},  # an activation of its own, queries and keys normed
    "Ernie4_5": HEADS,  # neighbours rotated
    "Helium": {},
    "Phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "VaultGemma": {**HEADS, "sliding_window": 7, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0},
}


def make(folder: Path, name: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(5)
    sizes = {**SIZES, "head_dim": 16} if name == "Helium" else SIZES
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{name}Config")(**{**sizes, **special, **changes})
    config._attn_implementation, config._experts_implementation = "eager", "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    made: PreTrainedModel = model
    return made


def load(folder: Path, dtype: torch.dtype = torch.float32, trust: bool = False) -> FallbackModel:
    model = load_model(folder, dtype, CPU, Parallel(), select_ops(), trust_remote_code=trust)
    assert isinstance(model, FallbackModel)
    return model


@pytest.mark.parametrize("name", TESTED)
@torch.inference_mode()
def test_logits_equal_transformers_in_random_chunks(name: str, tmp_path: Path) -> None:
    """Mixed steps, chunks, and a beginning that two sequences share."""
    reference, rng = make(tmp_path, name, **TESTED[name]), random.Random(7)
    model = load(tmp_path)
    cache = poisoned_cache(model)
    beginning = random_prompt(rng, 3 * BLOCK)
    first = Sequence([*beginning, *random_prompt(rng, 40)], list(range(20)))
    second = Sequence([*beginning, *random_prompt(rng, 9)], [0, 1, 2, 30, 31, 32], done=len(beginning))
    others = [
        Sequence(random_prompt(rng, length), [40 + 8 * at + n for n in range(8)]) for at, length in enumerate((1, 30))
    ]
    run_step(model, cache, [(first, len(beginning))])
    sequences = [first, second, *others]
    while waiting := [sequence for sequence in sequences if sequence.done < len(sequence.tokens)]:
        chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
        limits = [min(rng.choice([1, 1, 3, 20]), len(each.tokens) - each.done) for each in chosen]
        run_step(model, cache, list(zip(chosen, limits, strict=True)))
    for sequence in sequences:
        ours = torch.cat(sequence.logits)
        theirs = reference_logits(reference, sequence.tokens)[-len(ours) :]
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


@torch.inference_mode()
def test_windows_are_those_of_the_masks(tmp_path: Path) -> None:
    make(tmp_path, "VaultGemma", **TESTED["VaultGemma"])
    assert load(tmp_path).spec.windows == (7, None, 7)


@torch.inference_mode()
def test_half_precision(tmp_path: Path) -> None:
    reference = make(tmp_path, "Helium", initializer_range=0.05, head_dim=16)
    model = load(tmp_path, torch.bfloat16)
    assert model.like.dtype == torch.bfloat16
    sequence = Sequence(random_prompt(random.Random(2), 20), list(range(5)))
    from textgen.shard.cache import allocate_cache

    cache = allocate_cache(model.spec, 8, BLOCK, torch.bfloat16, CPU, Parallel())
    run_step(model, cache, [(sequence, 20)])
    theirs = reference_logits(reference, sequence.tokens)
    assert (sequence.logits[0] - theirs).abs().max() < 0.05 * theirs.abs().max()


def refusal(folder: Path, **given: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load(folder, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, "only 1 of its 3 layers have attention"),
        ("BioGpt", {}, "its attention cannot be replaced"),
        ("Bert", {}, "a layer looks ahead"),
        ("Helium", {"rope_parameters": {**PLAIN, "rope_type": "dynamic", "factor": 2.0}}, "'dynamic' changes with"),
    ],
)
def test_what_cannot_run_over_a_paged_cache(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = tmp_path
    if name == "Bert":
        config = transformers.BertConfig(**{**SIZES, "pad_token_id": 0})
        transformers.BertLMHeadModel(config).save_pretrained(folder)
    else:
        make(folder, name, **changes)
    assert words in refusal(folder)


def test_a_model_that_keeps_more_than_keys_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is told of all that run beside it: no mask shows that, only a trial does."""
    make(tmp_path, "Helium")
    from transformers.models.helium.modeling_helium import HeliumMLP

    own: Any = HeliumMLP.forward
    monkeypatch.setattr(HeliumMLP, "forward", lambda self, x: own(self, x) + x.mean(dim=1, keepdim=True))
    assert "in chunks it says something else than in one pass" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 8}, "Transformers cannot load the model"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized weights are not supported"),
        ({"num_hidden_layers": 0}, "cannot"),
        ({"hidden_size": "many"}, "Transformers cannot read it"),
    ],
)
def test_configs_that_cannot_be_used(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    make(tmp_path, "Helium", head_dim=16)
    edit_config(tmp_path, changes)
    assert words in refusal(tmp_path)


def test_an_architecture_that_nobody_knows_is_named_with_the_known_ones(tmp_path: Path) -> None:
    make(tmp_path, "Helium")
    edit_config(tmp_path, {"architectures": ["BertForMaskedLM"]})
    with pytest.raises(UnknownArchitecture, match="LlamaForCausalLM.*BertForMaskedLM is no language model"):
        load(tmp_path)


def test_without_transformers_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "Helium")
    monkeypatch.setattr(fallback_config, "installed", lambda: False)
    assert "pip install 'textgen-launcher[fallback]'" in refusal(tmp_path)


CODE = """
from transformers import HeliumConfig, HeliumForCausalLM

class OwnConfig(HeliumConfig):
    model_type = "own"

class OwnForCausalLM(HeliumForCausalLM):
    config_class = OwnConfig
"""
MAP = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with code beside it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = tmp_path / "model"
    make(folder, "Helium")
    (folder / "own.py").write_text(CODE)
    edit_config(folder, {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": MAP})
    return folder


@torch.inference_mode()
def test_code_that_comes_with_a_model_runs_only_when_trusted(own: Path) -> None:
    sentence = refusal(own)
    assert "OwnForCausalLM is no language model of Transformers" in sentence
    assert "--trust-remote-code" in sentence
    model = load(own, trust=True)
    assert type(model.headed.whole).__name__ == "OwnForCausalLM"


def test_code_of_another_repository_is_never_run(own: Path) -> None:
    edit_config(own, {"auto_map": {**MAP, "AutoConfig": "other/repo--own.OwnConfig"}})
    assert "'AutoConfig' names code of another repository" in refusal(own, trust=True)


def test_the_launcher_is_told_in_a_process_of_its_own(tmp_path: Path) -> None:
    from textgen.launcher.fallback import describe_fallback

    make(tmp_path, "VaultGemma", **TESTED["VaultGemma"])
    spec = describe_fallback(tmp_path, False, UnknownArchitecture("unknown"))
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (3, 4, 2, 24)
    assert (spec.vocab_size, spec.max_positions, spec.kv_width) == (101, 256, 96)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["NobodysForCausalLM"]}, "unknown; architecture NobodysForCausalLM is no language model"),
        ({"architectures": ["BertForMaskedLM"]}, "unknown; architecture BertForMaskedLM is no language model"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized weights are not supported"),
    ],
)
def test_what_transformers_has_not_is_refused_at_once(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a process that would import it."""
    from textgen.launcher import fallback

    make(tmp_path, "VaultGemma", **TESTED["VaultGemma"])
    edit_config(tmp_path, changes)
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(ModelError, match=words):
        fallback.describe_fallback(tmp_path, False, UnknownArchitecture("unknown"))


def test_refusing_at_once_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NobodysForCausalLM"]}))
    program = (
        "import pathlib, sys; from textgen.models.fallback_config import refused_at_once; "
        "assert refused_at_once(pathlib.Path(sys.argv[1]), False).unknown; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_what_the_source_states_is_what_transformers_has() -> None:
    """Reading it without importing it."""
    from transformers.models.auto import modeling_auto

    for name in fallback_config.MAPPINGS:
        assert fallback_config._stated(name) == [*getattr(modeling_auto, name).items()]
    assert fallback_config._stated("NO_SUCH_MAPPING") is None
