"""Settings of Text Generation Inference that this version does not have, refused by name with what to do, and those
that have lost their meaning, which are taken and said to do nothing."""

from __future__ import annotations

from collections.abc import Mapping

from textgen.launcher.flags import dashed
from textgen.launcher.settings import Settings

_LATER = "it is a setting of Text Generation Inference that this version does not have yet; leave it out"

UNAVAILABLE: dict[str, str] = {
    "speculate": _LATER,
    "rope-scaling": "rotary scaling is read from the model's config.json in this version; leave it out",
    "rope-factor": "rotary scaling is read from the model's config.json in this version; leave it out",
    "lora-adapters": _LATER,
    "tokenizer-config-path": "the tokenizer's configuration is read from the model's folder; leave it out",
    "weights-cache-override": "give the folder that holds the weights with --model-id and leave it out",
    "sharded": "one process serves the model in this version; leave it out",
    "shard-uds-path": "router and shard share inherited descriptors, so there is no path to set; leave it out",
    "master-addr": "one process serves the model in this version; leave it out",
    "master-port": "one process serves the model in this version; leave it out",
    "disable-custom-kernels": _LATER,
    "enable-prefill-logprobs": "prompt log-probabilities are always available per request; leave it out",
    "prometheus-port": "metrics are at /metrics of the server's own port; leave it out",
    "ngrok": "tunnels are not part of the server; leave it out",
    "ngrok-authtoken": "tunnels are not part of the server; leave it out",
    "ngrok-edge": "tunnels are not part of the server; leave it out",
    "usage-stats": "no usage statistics are ever sent; leave it out",
    "env": _LATER,
}
"""Flag, without dashes in front, to why it is refused and what to do instead."""

_ALARMING = ("speculate", "lora-adapters")


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """Sentences on variables whose effect somebody would miss; no refusal, they can be meant for other programs."""
    variables = {name.upper().replace("-", "_"): UNAVAILABLE[name] for name in _ALARMING}
    return [f"{name} is set but has no effect: {why}" for name, why in variables.items() if environ.get(name)]


_SUPERSEDED = ("waiting_served_ratio", "max_waiting_tokens")


def superseded(settings: Settings) -> str | None:
    """One sentence on settings that were given and do nothing; `None` when there are none."""
    given = [dashed(name) for name in _SUPERSEDED if getattr(settings, name) is not None]
    if not given:
        return None
    return f"{' and '.join(given)} set nothing here: prompts and answers share every step, and none waits for others"
