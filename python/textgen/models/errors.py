"""Why a model cannot be loaded."""

from __future__ import annotations


class ModelError(Exception):
    """The model folder cannot be served: one sentence that names the file and the remedy."""
