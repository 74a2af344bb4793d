"""What configs say of checkpoints that compressed-tensors wrote, whatever their numbers are."""

from __future__ import annotations

from textgen.models.config import Config
from textgen.models.errors import ModelError

METHOD = "compressed-tensors"


def weights_of_groups(section: Config) -> list[Config]:
    """Of a `quantization_config`, how each of its groups of layers has its weights. Raises `ModelError`."""
    # The cache keeps its own type, whatever type the checkpoint was made to be cached in.
    section.ignore("ignore", "kv_cache_scheme", "quantization_status", "global_compression_ratio", "version")
    groups, found = section.section("config_groups"), []
    for name, _ in groups.items() if groups is not None else ():
        group = groups.section(name) if groups is not None else None
        weights = group.section("weights") if group is not None else None
        if group is None or weights is None:
            raise ModelError(f"{section.where}: 'config_groups' has no weights in '{name}'")
        group.ignore("input_activations", "output_activations", "targets", "format")
        weights.ignore("observer", "observer_kwargs", "dynamic", "actorder", "scale_dtype", "zp_dtype")
        found.append(weights)
    return found
