"""What Transformers' own configuration says of a model that has no family here.

`python -m textgen.models.fallback_config FOLDER` tells it as JSON, for the launcher, which imports neither Transformers
nor torch; what can be refused without asking, `refused_at_once` says.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from textgen.models.config import Config, read_config
from textgen.models.errors import ModelError
from textgen.models.registry import UnknownArchitecture
from textgen.models.spec import DecoderSpec, EncoderSpec, LayerSpec, MlpSpec, NormSpec

INSTALL = "pip install 'textgen-launcher[fallback]'"
MAPPINGS = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES")
OF_ENCODER = ("encoder_heads", "encoder_mlp_width")
RELATIVE = 2**15  # positions of an encoder-decoder model that knows distances only: as many as anybody asks for
UNSTEADY = ("dynamic", "longrope")  # rotary forms that turn cached keys anew when a sequence grows


class Facts(msgspec.Struct, frozen=True):
    """The sizes of a model; or a sentence that says why it cannot be served."""

    vocab_size: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    num_layers: int = 0
    max_positions: int = 0
    encoder_heads: int = 0  # 0: there is no encoder
    encoder_mlp_width: int = 0
    refusal: str | None = None
    unknown: bool = False  # Transformers has no such causal model either

    @property
    def spec(self) -> DecoderSpec:
        """As far as memory is concerned."""
        layer = LayerSpec(mlp=MlpSpec(intermediate_size=self.intermediate_size), attention_scale=1.0)
        return DecoderSpec(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_positions=self.max_positions,
            layers=(layer,) * self.num_layers,
            norm=NormSpec(eps=1e-6),
            encoder=EncoderSpec(num_heads=self.encoder_heads, mlp_width=self.encoder_mlp_width)
            if self.encoder_heads
            else None,
        )


def installed() -> bool:
    """Whether Transformers is."""
    return importlib.util.find_spec("transformers") is not None


def read_fallback(folder: Path, trust: bool) -> DecoderSpec:
    """Raises `ModelError`, `UnknownArchitecture` when there is no such causal model."""
    facts = facts_of(folder, trust)
    if facts.refusal is not None:
        raise (UnknownArchitecture if facts.unknown else ModelError)(facts.refusal)
    return facts.spec


def refused_at_once(folder: Path, trust: bool) -> Facts | None:
    """A refusal that takes no import of Transformers: of most architectures that it does not have either."""
    config = read_config(folder)
    names = ", ".join(config.texts("architectures")) or "none"
    if not installed():
        return Facts(refusal=f"architecture {names} has no family here; to run it by Transformers, {INSTALL}")
    if config.section("quantization_config") is not None:
        return Facts(refusal=f"{config.where}: quantized weights are not supported for architecture {names}")
    refusal = _remote(config.section("auto_map")) if trust else None
    if refusal is not None:
        return Facts(refusal=refusal)
    stated = [_stated(name) for name in MAPPINGS]
    return None if None in stated else _unknown(config, trust, _classes(*(each for each in stated if each)))


def facts_of(folder: Path, trust: bool) -> Facts:
    """Imports Transformers."""
    refused = refused_at_once(folder, trust)
    if refused is not None:
        return refused
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    config = read_config(folder)
    names = ", ".join(config.texts("architectures")) or "none"
    causal, encoded_ones = ([*getattr(modeling_auto, name).items()] for name in MAPPINGS)
    classes = _classes(causal, encoded_ones)
    refused = _unknown(config, trust, classes)
    if refused is not None:
        return refused
    named, remote = set(config.texts("architectures")), trust and config.has("auto_map")
    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    except Exception as error:  # of a library, and of code that came with the model
        return Facts(
            refusal=f"{config.where}: Transformers cannot read it ({str(error).strip().partition(chr(10))[0]})"
        )
    if not remote and not named & classes.get(whole.model_type, set()):
        # Transformers goes by the type and would run another architecture than the one that is named.
        return Facts(
            refusal=f"{config.where}: architecture {names} with model_type {whole.model_type!r} is not supported"
        )
    encoded = bool(whole.is_encoder_decoder) and bool(named & {name for _, name in encoded_ones} or remote)
    if whole.is_encoder_decoder and not encoded:
        return Facts(refusal=f"architecture {names} is the decoder of a model with an encoder alone", unknown=True)
    try:
        facts = _facts(whole.get_text_config(decoder=True), RELATIVE if encoded else 0)
        return _with_encoder(facts, whole) if encoded else facts
    except (AttributeError, TypeError, ValueError) as error:
        return Facts(refusal=f"{config.where}: architecture {names} cannot be run over a paged cache ({error})")


def _unknown(config: Config, trust: bool, classes: dict[str, set[str]]) -> Facts | None:
    """The refusal of an architecture that is none of those."""
    named = set(config.texts("architectures"))
    if (trust and config.has("auto_map")) or any(named & each for each in classes.values()):
        return None
    more = ""
    if config.has("auto_map"):
        more = "; it comes with code of its own, which --trust-remote-code and a pinned --revision would run"
    names = ", ".join(config.texts("architectures")) or "none"
    return Facts(refusal=f"architecture {names} is no language model of Transformers{more}", unknown=True)


def _classes(*mappings: Sequence[tuple[str, Any]]) -> dict[str, set[str]]:
    """The architectures of each model type; a few have several names."""
    classes: dict[str, set[str]] = {}
    for kind, entry in (pair for mapping in mappings for pair in mapping):
        classes.setdefault(kind, set()).update([entry] if isinstance(entry, str) else entry)
    return classes


def _stated(name: str) -> list[tuple[str, Any]] | None:
    """A mapping as Transformers' source states it; None where it is stated in another way than until now."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        return None
    try:
        tree = ast.parse((Path(found.origin).parent / "models" / "auto" / "modeling_auto.py").read_bytes())
    except (OSError, SyntaxError):
        return None
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(args=[pairs])) if target == name:
                try:
                    return [(str(kind), entry) for kind, entry in ast.literal_eval(pairs)]
                except (TypeError, ValueError):
                    return None
    return None


def _remote(auto_map: Config | None) -> str | None:
    """Why code that comes with a model is not run though it is trusted."""
    if auto_map is None:
        return None
    for name, entry in auto_map.items():
        for where in entry if isinstance(entry, list) else [entry]:
            if not isinstance(where, str) or "--" in where:
                return f"{auto_map.where}: '{name}' names code of another repository, which no --revision pins"
    return None


def _with_encoder(facts: Facts, config: Any) -> Facts:
    """`config`: the whole model's."""
    own = config.get_text_config(encoder=True)
    shared = getattr(config, "d_ff", None) or getattr(own, "intermediate_size", None) or 4 * facts.hidden_size
    return msgspec.structs.replace(
        facts,
        intermediate_size=int(getattr(config, "decoder_ffn_dim", None) or shared),
        encoder_heads=int(own.num_attention_heads),
        encoder_mlp_width=int(getattr(config, "encoder_ffn_dim", None) or shared),
    )


def _facts(config: Any, relative: int) -> Facts:
    """`relative`: the positions of a model whose config has none; 0: it must have some."""
    heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
    rope = getattr(config, "rope_parameters", None) or {}
    for form in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if form.get("rope_type") in UNSTEADY:
            raise ValueError(f"its rotary form {form['rope_type']!r} changes with the length of a sequence")
    inner = getattr(config, "intermediate_size", None)
    facts = Facts(
        vocab_size=int(config.vocab_size),
        hidden_size=hidden,
        intermediate_size=int(inner) if isinstance(inner, int) else 4 * hidden,
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        num_layers=int(getattr(config, "num_decoder_layers", None) or config.num_hidden_layers),
        max_positions=int(
            getattr(config, "max_position_embeddings", None) or relative or config.max_position_embeddings
        ),
    )
    sizes = {name: value for name, value in msgspec.structs.asdict(facts).items() if isinstance(value, int)}
    wrong = [name for name, value in sizes.items() if name not in ("unknown", *OF_ENCODER) and value < 1]
    if wrong or heads % facts.num_kv_heads:
        raise ValueError(
            f"{wrong[0] if wrong else 'num_kv_heads'} is {sizes[wrong[0]] if wrong else facts.num_kv_heads}"
        )
    return facts


def main(folder: str, trust: str) -> None:
    try:
        facts = facts_of(Path(folder), trust == "trust")
    except ModelError as error:
        facts = Facts(refusal=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
