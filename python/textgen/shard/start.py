"""From settings to a running shard: load, plan, warm up, say hello, serve."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from textgen._router import reserve_weights
from textgen.gguf.index import NAME as GGUF_INDEX
from textgen.layers.weight import DenseFormat, WeightFormat
from textgen.models.decoder import Decoder, Model
from textgen.models.load import load_model
from textgen.models.spec import DecoderSpec
from textgen.ops import select_ops
from textgen.ops.cpu.model import PlannedModel, PlanSizes, load_planned
from textgen.ops.pages import let_go_of_libraries
from textgen.parallel import Parallel
from textgen.quantization.blocks import BlockFormat
from textgen.quantization.cache import CachedFormat, WeightsCache, cache_name
from textgen.quantization.formats import GROUP
from textgen.quantization.integers import Int4Format, Int8Format
from textgen.quantization.stored import ByRows, DeferredFormat, StoredFormat
from textgen.shard.assembly import assemble, open_accelerator
from textgen.shard.errors import OutOfMemory, ShardError
from textgen.shard.executor import Executor, use_threads
from textgen.shard.link import Link
from textgen.shard.masks import MaskSize
from textgen.shard.measure import measure_steps
from textgen.shard.memory import SharedMemory, WideSize
from textgen.shard.metrics import Metrics
from textgen.shard.ops_app import OpsApp
from textgen.shard.protocol import VERSION, Hello, KvFacts, Limits, MeasuredStep, ModelFacts, Phase
from textgen.shard.runner import Runner
from textgen.shard.settings import ShardSettings
from textgen.shard.warmup import warm_up
from textgen.shard.worker import Worker

if TYPE_CHECKING:
    from textgen.shard.accelerator import Accelerator

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STORED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}  # numbers of the cache
FORMATS: dict[str, ByRows] = {"int8": Int8Format(), "int4": Int4Format(GROUP)}


class Phases:
    """How long each part of starting took."""

    def __init__(self) -> None:
        self.done: list[Phase] = []

    def add(self, name: str, seconds: float) -> None:
        """What there is twice is one phase."""
        seconds += sum(phase.seconds for phase in self.done if phase.name == name)
        self.done = [phase for phase in self.done if phase.name != name]
        self.done.append(Phase(name, round(seconds, 3)))
        log.info("%s: %.2f s", name, seconds)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """A phase within has its time alone."""
        started, others = time.perf_counter(), self._total
        yield
        self.add(name, time.perf_counter() - started - (self._total - others))

    @property
    def _total(self) -> float:
        return sum(phase.seconds for phase in self.done)


def run(settings: ShardSettings, link: socket.socket, memory_fd: int, ops_path: str, import_seconds: float) -> None:
    """Serve until told to stop. Raises `ShardError` and `ModelError`."""
    phases = Phases()
    phases.add("import", import_seconds)
    if settings.device == "cpu":
        with phases.timed("import"):
            let_go_of_libraries()
    use_threads(settings.threads, settings.cpus)
    with phases.timed("place"), _memory_refusals(settings):
        runner = build_runner(settings, memory_fd, phases)
    metrics, frames = Metrics(runner.slots, runner.bounds.num_pages), Link(link)
    executor = Executor(runner, frames, metrics, settings.stuck_after)

    def prepare() -> Hello:
        # The kernels have workers of their own, and two pools that spin would take the cores from each other.
        use_threads(1 if isinstance(runner.model, PlannedModel) else settings.threads, settings.cpus)
        with phases.timed("warm-up"), _memory_refusals(settings):
            warm_up(runner)
        measured: list[MeasuredStep] = []
        if settings.measure_seconds:
            with phases.timed("measuring steps"), _memory_refusals(settings):
                measured = measure_steps(runner, settings.measure_seconds)
        return hello(settings, runner, phases.done, measured)

    Worker(frames, executor, OpsApp(executor, metrics), ops_path).run(prepare)


def _format(settings: ShardSettings, folder: Path, accelerator: Accelerator | None) -> WeightFormat | None:
    """What weights become: what --quantize says, on a GPU packed for its kernels.

    Where kernels may run, blocks of a GGUF file stay as they are unless they are to become others; where a processor's
    may, other numbers stay where they are until they are packed.
    """
    asked = None if settings.quantize is None else FORMATS[settings.quantize]
    in_blocks = (folder / GGUF_INDEX).exists()
    if accelerator is not None:
        from textgen.quantization.kernels import kernel_format  # nothing of it is loaded for a processor

        return kernel_format(asked, accelerator.kernels, accelerator.device, DTYPES[settings.dtype], in_blocks)
    if settings.plan == "off":
        return asked
    if asked is not None:
        return DeferredFormat(asked)
    return BlockFormat() if in_blocks and settings.dtype != "float32" else StoredFormat()


def _cache(settings: ShardSettings, folder: Path) -> WeightsCache | None:
    """Where packed weights are kept, if a plan may use them. Raises `ShardError`."""
    if settings.weights_cache is None or settings.plan == "off" or settings.device != "cpu":
        return None
    try:
        name = cache_name(folder, settings.dtype, settings.quantize, settings.rank, settings.world_size)
    except OSError as error:
        raise ShardError(f"--weights-cache: {error}") from None
    return WeightsCache(Path(settings.weights_cache), name)


def build_runner(settings: ShardSettings, memory_fd: int, phases: Phases | None = None) -> Runner:
    """Model, cache, seats and shared memory as the settings size them. Raises `ModelError` and `ShardError`.

    phases: gets `read`, the checkpoint's part. Where files are mapped their bytes come when they are placed.
    """
    times = phases or Phases()
    dtype, device, accelerator, ops = DTYPES[settings.dtype], torch.device("cpu"), None, select_ops()
    if settings.device == "cuda":
        accelerator, ops = open_accelerator(settings, dtype)
        device = accelerator.device
    parallel = Parallel(settings.rank, settings.world_size)
    folder, trust = Path(settings.model_dir), settings.trust_remote_code
    form = _format(settings, folder, accelerator)
    if fixed := settings.deterministic and accelerator is not None:
        from textgen.shard.deterministic import check_model, check_settings  # a processor has no use for it

        check_settings(settings)
        form = DenseFormat(ops.linear)
    elif settings.deterministic:
        log.warning("--deterministic changes nothing on a processor")
    kept = _cache(settings, folder)
    if kept is not None:
        form = CachedFormat(form or StoredFormat(), kept)

    def load(form: WeightFormat | None = form) -> Model:
        with times.timed("read"):
            return load_model(folder, dtype, device, parallel, ops, settings.max_context, trust, form)

    model = load() if settings.plan == "off" or settings.device != "cpu" else load_planned(load, *_plan(settings))
    if settings.weight_bytes:
        reserve_weights(0)  # what is left, before torch may want it
    if isinstance(form, BlockFormat | CachedFormat | StoredFormat | DeferredFormat) and isinstance(model, Decoder):
        # Only kernels multiply what is packed, torch multiplies numbers faster than blocks, and a file may change.
        model = load(None if settings.quantize is None else FORMATS[settings.quantize])
    elif kept is not None:
        kept.commit()
    if fixed:
        check_model(model)
    wide = WideSize(settings.max_batch_tokens, settings.max_slots, settings.max_top_n)
    memory = SharedMemory(memory_fd, wide, MaskSize(settings.max_slots, model.spec.vocab_size), settings.mask_timeout)
    stored = STORED.get(settings.kv_cache_dtype, dtype)
    return assemble(settings, model, ops, memory, stored, accelerator)


def _plan(settings: ShardSettings) -> tuple[str | None, PlanSizes]:
    """The instruction set of the kernels that was asked for, and the largest step."""
    return settings.cpu_isa, PlanSizes(
        max_tokens=settings.max_batch_tokens,
        max_slots=settings.max_slots,
        max_context=settings.max_context,
        threads=settings.threads or torch.get_num_threads(),
        cpus=settings.cpus,
    )


def hello(settings: ShardSettings, runner: Runner, phases: list[Phase], measured: list[MeasuredStep]) -> Hello:
    spec: DecoderSpec = runner.model.spec
    return Hello(
        version=VERSION,
        rank=settings.rank,
        world_size=settings.world_size,
        model=ModelFacts(spec.vocab_size, spec.max_positions, settings.dtype),
        kv=KvFacts(
            runner.bounds.num_pages, settings.block_size, runner.cache.bytes_per_page, list(runner.groups.windows)
        ),
        limits=Limits(settings.max_slots, settings.max_batch_tokens, settings.max_top_n, runner.asks_for_masks),
        regions=runner.memory.regions,
        phases=phases,
        measured=measured,
    )


@contextmanager
def _memory_refusals(settings: ShardSettings) -> Iterator[None]:
    """Turn torch's several ways to say "no memory" into one."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "alloc" not in str(error) and "out of memory" not in str(error):
            raise
        size = f"{settings.num_blocks} KV blocks of {settings.block_size} tokens"
        where = f"the memory of {settings.device}"
        raise OutOfMemory(f"the model and {size} do not fit {where}; use fewer blocks") from None
