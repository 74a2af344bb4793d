"""Rules between settings: what each of them allows, but not all of them together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from textgen.launcher.errors import SettingsError
from textgen.launcher.flags import dashed, is_loopback

if TYPE_CHECKING:
    from textgen.launcher.settings import Settings


def check_rules(settings: Settings) -> None:
    """Raises `SettingsError`."""
    if settings.trust_remote_code and not re.fullmatch("[0-9a-f]{40}", settings.revision or ""):
        raise SettingsError(
            "--trust-remote-code needs --revision with the 40 hexadecimal digits of a commit: a branch or a tag "
            "can be moved to other code"
        )
    keyed = settings.api_key is not None or settings.api_key_file is not None
    if not keyed and not settings.allow_unauthenticated and not is_loopback(settings.hostname):
        raise SettingsError(
            f"--hostname {settings.hostname} is open to a network, where anybody could call: give --api-key (API_KEY) "
            "or --api-key-file, or allow it with --allow-unauthenticated"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, other = ("--tls-cert", "--tls-key") if settings.tls_key is None else ("--tls-key", "--tls-cert")
        raise SettingsError(f"{given} needs {other}: TLS takes a certificate and the key that belongs to it")
    if settings.num_shard > 1:
        raise SettingsError(f"--num-shard {settings.num_shard} is not supported in this version; leave it out")
    if settings.device == "cpu" and settings.attention != "auto":
        raise SettingsError(f"--attention {settings.attention} is for GPUs; leave it out, or use --device cuda or auto")
    if settings.deterministic and settings.attention in ("flash-attn", "torch"):
        raise SettingsError(
            f"--deterministic takes Textgen's own kernels; leave out it or --attention {settings.attention}"
        )
    _ordered(settings, "max_input_tokens", "max_total_tokens", strict=True)
    _ordered(settings, "max_total_tokens", "max_batch_total_tokens")
    _ordered(settings, "max_batch_prefill_tokens", "max_batch_total_tokens")


def _ordered(settings: Settings, small: str, large: str, *, strict: bool = False) -> None:
    low, high = getattr(settings, small), getattr(settings, large)
    if low is None or high is None or low < high or (low == high and not strict):
        return
    relation = "less than" if strict else "at most"
    raise SettingsError(
        f"{dashed(small)} {low} must be {relation} {dashed(large)} {high}; lower the first or raise the second"
    )
