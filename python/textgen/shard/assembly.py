"""A runner of its parts: on a processor as the settings size it, on a GPU as its memory does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch

from textgen.models.decoder import Model
from textgen.models.groups import group_layers
from textgen.ops import Ops
from textgen.parallel import Parallel
from textgen.shard.batch import Bounds
from textgen.shard.cache import KvCache, allocate_cache
from textgen.shard.errors import ShardError
from textgen.shard.memory import SharedMemory
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.slots import Slots

if TYPE_CHECKING:  # nothing of it is loaded for a processor
    from textgen.shard.accelerator import Accelerator
    from textgen.shard.pipeline import Pipeline

Attach: TypeAlias = "Callable[[KvCache, Slots], Pipeline | None]"
Make: TypeAlias = "Callable[[int, Attach | None], Runner]"


def open_accelerator(settings: ShardSettings, dtype: torch.dtype) -> tuple[Accelerator, Ops]:
    """The GPU, and the operations that --attention asks for. Raises `ShardError`."""
    if not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built for processors"
        raise ShardError(
            f"--device cuda: torch {torch.__version__} {built} and finds no GPU that it can use; see nvidia-smi, "
            "update NVIDIA's driver, install another build of torch, or use --device cpu"
        )
    from textgen.ops.cuda.choice import OpsMissing, choose_ops
    from textgen.shard.accelerator import CudaAccelerator

    try:
        ops, kernels = choose_ops(settings.attention, 0, dtype, settings.block_size, chunk_of(settings))
    except OpsMissing as error:
        raise ShardError(str(error)) from None
    return CudaAccelerator(0, settings.memory_fraction, kernels), ops


def chunk_of(settings: ShardSettings) -> int | None:
    """Into parts of how many positions contexts are cut where nothing may depend on the batch; None: as suits it."""
    from textgen.ops.cuda.attention import fixed_chunk

    return fixed_chunk(settings.max_context) if settings.deterministic else None


def assemble(
    settings: ShardSettings,
    model: Model,
    ops: Ops,
    memory: SharedMemory,
    stored: torch.dtype,
    accelerator: Accelerator | None,
) -> Runner:
    """Cache, seats and runner. stored: dtype of the cache. Raises `ShardError`."""
    groups = group_layers(model.spec.windows, settings.max_context)
    encoder, device = model.spec.encoder is not None, model.like.device
    parallel = Parallel(settings.rank, settings.world_size)

    def make(pages: int, attach: Attach | None = None) -> Runner:
        bounds = Bounds(
            vocab_size=model.spec.vocab_size,
            num_pages=pages,
            max_slots=settings.max_slots,
            max_batch_tokens=settings.max_batch_tokens,
            max_context=settings.max_context,
            max_top_n=settings.max_top_n,
            block_size=settings.block_size,
            encoder=encoder,
        )
        spare = 0 if accelerator is None else 1
        cache = allocate_cache(model.spec, pages, settings.block_size, stored, device, parallel, groups, spare)
        slots = Slots(settings.max_slots, settings.max_context, settings.block_size, device, groups.windows, encoder)
        pipeline = None if attach is None else attach(cache, slots)
        lost = None if accelerator is None else accelerator.lost
        return Runner(model, cache, groups, slots, bounds, memory, ops, pipeline, lost)

    return make(settings.num_blocks) if accelerator is None else _by_memory(settings, model, memory, accelerator, make)


def _by_memory(
    settings: ShardSettings, model: Model, memory: SharedMemory, accelerator: Accelerator, make: Make
) -> Runner:
    """The runner with as many pages as there is memory for. Raises `OutOfMemory`."""
    from textgen.shard.decode import DecodeSteps, default_sizes
    from textgen.shard.graphs import MOST, Graphs
    from textgen.shard.pipeline import Pipeline
    from textgen.shard.trial import fit_pages

    spec, groups = model.spec, group_layers(model.spec.windows, settings.max_context)
    follows = accelerator.kernels is not None and spec.encoder is None
    budget = 0

    def attach(cache: KvCache, slots: Slots) -> Pipeline | None:
        if not follows:
            return None
        given = settings.graphs or ()
        sizes = sorted({*given, *(size for size in default_sizes(settings.max_slots) if size > max(given, default=0))})
        graphs = Graphs(accelerator, budget)
        captured, chunk = settings.graphs, chunk_of(settings)
        steps = DecodeSteps(model, cache, groups, slots, accelerator, sizes, graphs, captured, chunk)
        return Pipeline(steps, slots, memory.masks.timeout)

    most = MOST if follows and settings.graphs != () else 0
    with torch.inference_mode():
        fit = fit_pages(accelerator, settings, most, lambda pages: make(pages, attach))
        budget = fit.graphs
        return make(fit.pages, attach)
