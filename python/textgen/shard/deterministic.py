"""What `--deterministic` asks of a GPU: kernels that give a row the same bits in every batch, for all of a model."""

from __future__ import annotations

from textgen.models.decoder import Decoder, Model
from textgen.ops.cuda.attention_kernels import MAX_DIM
from textgen.shard.errors import ShardError
from textgen.shard.settings import ShardSettings


def check_settings(settings: ShardSettings) -> None:
    """Raises `ShardError` for what is multiplied by other kernels."""
    if (quantize := settings.quantize) is not None:
        raise ShardError(f"--deterministic multiplies dense weights alone on a GPU; leave out --quantize {quantize}")


def check_model(model: Model) -> None:
    """Raises `ShardError` where a part of the model is torch's, which chooses its sums by the shapes of a step."""
    spec = model.spec
    lacks = None
    if not isinstance(model, Decoder):
        lacks = "what Transformers runs"
    elif spec.encoder is not None:
        lacks = "encoders"
    elif spec.attention.latent is not None:
        lacks = "latent attention"
    elif spec.head_dim > MAX_DIM or spec.head_dim * model.like.element_size() % 16:
        lacks = f"heads of {spec.head_dim} numbers"
    if lacks is not None:
        raise ShardError(f"--deterministic has no kernels for {lacks} on a GPU; leave it out for this model")
