"""Why a GGUF file cannot be served."""

from __future__ import annotations


class GgufError(Exception):
    """One sentence that names the file and says what to change."""
