"""From a model folder to a decoder that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from textgen.gguf.errors import GgufError
from textgen.gguf.index import read_index
from textgen.layers.weight import DenseFormat, LoadContext, WeightFormat, WeightSource, WrappingFormat
from textgen.models.config import read_config
from textgen.models.decoder import Decoder, Model, load_decoder
from textgen.models.errors import ModelError
from textgen.models.families.common import Described
from textgen.models.fp8_config import Fp8
from textgen.models.registry import UnknownArchitecture, describe, packed_as, scaled_by
from textgen.models.weights import WeightFiles
from textgen.ops import Ops
from textgen.parallel import Parallel
from textgen.quantization.packed import PackedFormat
from textgen.quantization.stored import StoredFormat


def load_model(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    parallel: Parallel,
    ops: Ops,
    max_context: int | None = None,
    trust_remote_code: bool = False,
    format: WeightFormat | None = None,
) -> Model:
    """The model of a folder, in `dtype` on `device`: a decoder of its family, or Transformers' where there is none.

    Raises `ModelError`.

    max_context: the tokens of the longest sequence it is to serve, which some rotary forms depend on (None: as many as
    the model has positions). format: what the matrices of linear layers become (None: they stay as they are).
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    config = read_config(folder)
    try:
        described = describe(config)
    except UnknownArchitecture as unknown:
        if format is not None and not _as_stored(format):
            raise ModelError(
                f"{unknown}; what Transformers runs cannot be quantized, so leave out --quantize"
            ) from None
        return _fallback(folder, dtype, device, parallel, ops, trust_remote_code, unknown)

    if (packed := packed_as(config)) is not None:
        format = _in_few_bits(PackedFormat(packed), format)

    def context(source: WeightSource) -> LoadContext:
        return LoadContext(source, dtype, device, parallel, format or DenseFormat())

    return _load(folder, described, scaled_by(config), context, ops, max_context)


def _in_few_bits(packed: PackedFormat, format: WeightFormat | None) -> WeightFormat:
    """Stored integers stay as they are. Raises `ModelError` where they were to become others."""
    if format is None or isinstance(format, StoredFormat):
        return packed
    if isinstance(format, WrappingFormat) and _as_stored(format):
        return format.around(packed)
    raise ModelError("the checkpoint is in few bits already; leave out --quantize and --deterministic")


def _as_stored(format: WeightFormat) -> bool:
    """Whether its numbers are the checkpoint's, and only where they are kept is said."""
    return isinstance(format.inner if isinstance(format, WrappingFormat) else format, DenseFormat)


def _fallback(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    parallel: Parallel,
    ops: Ops,
    trust: bool,
    unknown: UnknownArchitecture,
) -> Model:
    """A model without a family, by Transformers."""
    from textgen.models.fallback import load_fallback  # its imports are of no use to other models

    if parallel.world_size > 1:
        raise ModelError(f"{unknown}; what Transformers runs cannot be shared by ranks")
    try:
        return load_fallback(folder, dtype, device, ops, trust)
    except UnknownArchitecture as error:
        raise UnknownArchitecture(f"{unknown}; {error}") from None


def _load(
    folder: Path,
    described: Described,
    scaled: Fp8 | None,
    context: Callable[[WeightSource], LoadContext],
    ops: Ops,
    max_context: int | None,
) -> Decoder:

    def decoder(source: WeightSource, described: Described) -> Decoder:
        spec, names = described
        if not source.has(f"{names.full(names.embedding)}.weight"):
            names = names.bare
        try:
            return load_decoder(spec, names, context(source), max_context or spec.max_positions, ops)
        except ValueError as error:
            raise ModelError(f"{error}; use another number of shards") from None

    try:
        index = read_index(folder)
    except GgufError as error:
        raise ModelError(str(error)) from None
    if index is not None:
        from textgen.models.gguf_source import GgufFiles, described_for  # other models have no use for its libraries

        with GgufFiles(index) as packed:
            made = decoder(packed, described_for(index, described))
            if context(packed).parallel.world_size == 1:  # a rank may have no use for a bias that another adds
                packed.refuse_unread()
            return made
    with WeightFiles(folder, scaled) as source:
        return decoder(source, described)
