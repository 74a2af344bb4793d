"""The built-in model: a small chat model in the package, so that a machine without a network shows sensible output."""

from pathlib import Path

MODEL_FOLDER = Path(__file__).parent / "model"
"""The packaged Hugging Face model folder; see its ``README.md`` for what it is and is not."""
