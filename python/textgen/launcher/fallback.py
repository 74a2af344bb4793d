"""What Transformers says of a model that has no family here, asked in a process of its own: it imports torch.

What it does not have is refused at once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from textgen.models.errors import ModelError
from textgen.models.fallback_config import INSTALL, Facts, installed, refused_at_once
from textgen.models.registry import UnknownArchitecture
from textgen.models.spec import DecoderSpec

SECONDS = 300.0  # imports from a cold disk


def describe_fallback(folder: Path, trust: bool, unknown: UnknownArchitecture) -> DecoderSpec:
    """The model's sizes. Raises `ModelError`."""
    if not installed():
        raise ModelError(f"{unknown}; where Transformers knows it, it runs by that: {INSTALL}")
    refused = refused_at_once(folder, trust)
    if refused is not None:
        raise _refusal(unknown, refused)
    command = [sys.executable, "-m", "textgen.models.fallback_config", str(folder), "trust" if trust else "plain"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True, stdin=subprocess.DEVNULL)
        facts = msgspec.json.decode(done.stdout, type=Facts)
    except subprocess.TimeoutExpired:
        raise ModelError(f"{unknown}; Transformers did not answer within {SECONDS:g} seconds") from None
    except (subprocess.CalledProcessError, msgspec.MsgspecError) as error:
        lines = getattr(error, "stderr", b"").decode(errors="replace").strip().splitlines() or [str(error)]
        raise ModelError(f"{unknown}; Transformers cannot be asked about it ({lines[-1]})") from None
    if facts.refusal is not None:
        raise _refusal(unknown, facts)
    return facts.spec


def _refusal(unknown: UnknownArchitecture, facts: Facts) -> ModelError:
    return ModelError(f"{unknown}; {facts.refusal}" if facts.unknown else str(facts.refusal))
