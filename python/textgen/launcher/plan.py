"""Fills in what the settings leave open, from the model and the machine, and words it for router and shard."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from textgen import __version__
from textgen.launcher.errors import SettingsError
from textgen.launcher.flags import Share, dashed
from textgen.launcher.hardware import Hardware
from textgen.launcher.memory import MemoryPlan, Needs, plan_gpu, plan_memory
from textgen.launcher.model import Model
from textgen.launcher.settings import Settings
from textgen.models.groups import group_layers
from textgen.models.spec import DecoderSpec
from textgen.quantization.formats import (
    COMPACT_ISAS,
    GPU_BLOCK_BYTES,
    STORED,
    block_bytes,
    gpu_weight_bytes,
    weight_bytes,
)

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
MOST_ENCODED = 2048  # the same of a model with an encoder, which reads its whole input in one step
MOST_TOKENS = 8192  # --max-total-tokens when nobody says: memory for longer contexts is given on request only
GPU_STEP_TOKENS = 4096
THREAD_TOKENS = 256  # of a CPU's step: who comes waits for the one that runs, so it must not take long
CPU_STEP_TOKENS = (512, 2048)  # at least and at most, whatever the threads
CPU_STREAM_TOKENS = (
    8  # of prompts, for each stream of a CPU's step: on a GPU a prompt's token takes far less time than a stream's
)
MOST_SLOTS = 256
PROCESSES = 640 * 2**20  # three processes' code and heaps, torch's share by far the largest
GPU_PROCESS = 512 * 2**20  # CUDA's context, cuBLAS, loaded kernels
LOGIT_COPIES = 4  # logits, their filtered copy, probabilities, sorted values; float32
ENCODER_COPIES = 3  # an encoder's bias by position, its scores and probabilities: heads * tokens * tokens each
BLOCK_SIZES = (16, 64)  # positions, at least and at most, when nobody says
BLOCK_BYTES = 32 * 1024  # of a layer, that memory is read in: processors read less at a lower rate
PADDING = 2  # attention groups sequences of similar length: a gathered context is at most twice the real one

MOST_HTTP_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One start, decided: nothing in it is open any more."""

    settings: Settings
    model: Model
    dtype: str
    max_input_tokens: int
    max_total_tokens: int
    max_batch_tokens: int
    max_slots: int
    threads: int | None
    cpus: tuple[int, ...]  # that the threads are bound to, or none
    http_threads: int
    memory: MemoryPlan
    memory_available: int  # bytes, when it was made
    block_size: int  # positions
    sequence_blocks: int  # the fewest that are of use
    weight_bytes: int  # that kernels copy weights into; 0: none, or nobody knows

    def router_settings(self, *, listen: bool = True) -> str:
        """JSON for `textgen._router.Router`. listen: whether it is a server; else only this process calls it."""
        settings = self.settings
        same = (
            "port", "grpc_port",
            "max_concurrent_requests", "max_best_of", "max_choices", "max_stop_sequences",
            "max_logit_bias", "max_bad_words", "watermark_gamma", "watermark_delta",
            "max_top_n_tokens", "max_batch_total_tokens", "max_client_batch_size", "payload_limit",
            "validation_workers", "api_key", "api_key_file", "cors_allow_origin",
            "vertex_predict_route", "vertex_health_route",
            "tls_cert", "tls_key", "tls_handshake_timeout", "max_tls_handshakes",
            "otlp_endpoint", "otlp_protocol", "otlp_service_name", "otlp_headers", "otlp_queue_size",
            "target_itl_ms", "prefix_caching", "stream_buffer",
            "response_store_bytes", "response_store_time", "async_tools_timeout",
            "slow_reader_timeout", "max_connections", "header_timeout",
            "max_shard_failures", "shard_step_timeout",
            "max_queue_size", "max_queue_tokens", "max_requests_per_key", "max_tokens_per_key", "max_request_timeout",
            "priority_ageing", "max_passes", "longest_prefix_first",
            "tool_call_parser", "reasoning_parser", "compute_type",
            "disable_grammar_support", "grammar_compile_timeout_ms", "grammar_max_bytes", "grammar_cache_mb",
        )  # fmt: skip
        values: dict[str, Any] = {name: getattr(settings, name) for name in same}
        return json.dumps(
            values
            | {
                "hostname": settings.hostname if listen else None,
                "model_dir": str(self.model.folder),
                "model_id": self.model.name,
                "model_sha": self.model.commit or settings.revision,
                "model_dtype": self.dtype,
                "model_device_type": settings.device,
                "version": __version__,
                "max_input_tokens": self.max_input_tokens,
                "max_total_tokens": self.max_total_tokens,
                "max_batch_prefill_tokens": self.max_batch_tokens,
                "max_batch_size": self.max_slots,
                "max_prefill_per_stream": self.stream_tokens,
                "http_threads": self.http_threads,
            }
        )

    @property
    def stream_tokens(self) -> int:
        """Of prompts, in a step for each stream; 0: no limit."""
        asked = self.settings.max_prefill_per_stream
        return asked if asked is not None else CPU_STREAM_TOKENS if self.settings.device == "cpu" else 0

    @property
    def measure_ms(self) -> int:
        """What measuring steps may take at the start."""
        asked = self.settings.measure_steps_ms
        return asked if asked is not None else MEASURE_MS if self.settings.target_itl_ms is not None else 0

    def shard_settings(self) -> str:
        """JSON for `python -m textgen.shard --settings`."""
        settings = self.settings
        return json.dumps(
            {
                "model_dir": str(self.model.folder),
                "dtype": self.dtype,
                "device": settings.device,
                "rank": 0,
                "world_size": 1,
                "num_blocks": self.memory.num_blocks,
                "block_size": self.block_size,
                "max_slots": self.max_slots,
                "max_batch_tokens": self.max_batch_tokens,
                "max_context": self.max_total_tokens,
                "max_top_n": max(settings.max_top_n_tokens, OPENAI_TOP_LOGPROBS, BEAM_TOKENS * settings.max_choices),
                "threads": self.threads,
                "cpus": self.cpus,
                "attention": settings.attention,
                "memory_fraction": settings.cuda_memory_fraction,
                "kv_share": settings.kv_memory.value if isinstance(settings.kv_memory, Share) else 1.0,
                "least_blocks": self.sequence_blocks,
                "graphs": settings.cuda_graphs,
                "deterministic": settings.deterministic,
                "plan": settings.plan,
                "cpu_isa": settings.cpu_isa,
                "kv_cache_dtype": settings.kv_cache_dtype,
                "quantize": settings.quantize,
                "weights_cache": settings.weights_cache,
                "weight_bytes": self.weight_bytes,
                "measure_seconds": self.measure_ms / 1000,
                "trust_remote_code": settings.trust_remote_code,
                "log_json": settings.json_output,
                "log_level": settings.log_level,
            }
        )


MEASURE_MS = 1000  # where somebody waits for what is found
OPENAI_TOP_LOGPROBS = 20  # chat requests may ask for so many, whatever --max-top-n-tokens says of native ones
BEAM_TOKENS = 4  # a beam search looks at so many tokens for each beam where a model has three ways to end


def make_plan(settings: Settings, model: Model, hardware: Hardware) -> Plan:
    """Decide everything. Raises `SettingsError` and `MemoryPlanError`."""
    settings = _with_format(_with_device(settings, hardware), model)
    _refuse_formats(settings, model)
    dtype = _dtype(settings, model, hardware)
    max_total, max_input = _lengths(settings, model)
    threads, cpus = _threads(settings, hardware)
    step = settings.max_batch_prefill_tokens or _step_tokens(settings, threads)
    slots = settings.max_batch_size or min(settings.max_concurrent_requests, MOST_SLOTS, step)
    block_size = _block_size(settings, model.spec, dtype)
    if model.spec.encoder is not None:
        step = _encoding_step(settings, max_input, step, slots, block_size)
    if slots > step:
        raise SettingsError(
            f"--max-batch-size {slots} must be at most --max-batch-prefill-tokens {step}: each running sequence takes "
            "a token of every step; lower the first or raise the second"
        )
    if settings.device == "cuda" and settings.attention == "flash-attn" and dtype == "float32":
        raise SettingsError("--attention flash-attn takes bfloat16 and float16; give --dtype, or another --attention")
    needs = _needs(settings, model, dtype, max_total, step, slots, block_size, hardware)
    return Plan(
        settings=settings,
        model=model,
        dtype=dtype,
        max_input_tokens=max_input,
        max_total_tokens=max_total,
        max_batch_tokens=step,
        max_slots=slots,
        threads=threads,
        cpus=cpus,
        # On a processor the kernels want the cores, and each thread that wakes takes one away from them.
        http_threads=max(1, min(MOST_HTTP_THREADS, hardware.cores // (2 if settings.device == "cpu" else 1))),
        memory=_memory(settings, needs, hardware),
        memory_available=hardware.memory_available,
        block_size=block_size,
        sequence_blocks=needs.sequence_blocks,
        # A cache of packed weights is mapped, once it is there.
        weight_bytes=needs.weights if _planned(settings, model, hardware) and not settings.weights_cache else 0,
    )


def _step_tokens(settings: Settings, threads: int) -> int:
    """Tokens of a step when nobody says: at least one for each of the sequences that are asked for."""
    least, most = CPU_STEP_TOKENS
    tokens = min(max(THREAD_TOKENS * threads, least), most) if settings.device == "cpu" else GPU_STEP_TOKENS
    tokens = max(tokens, settings.max_batch_size or 0)
    return min(tokens, settings.max_batch_total_tokens or tokens)


def _with_format(settings: Settings, model: Model) -> Settings:
    """What becomes of weights, where a form was named that checkpoints are stored in. Raises `SettingsError`."""
    asked, checkpoint = settings.quantize, model.checkpoint
    if asked not in STORED:
        return settings
    if checkpoint.bits is not None or checkpoint.blocks is not None or checkpoint.scaled:
        return dataclasses.replace(settings, quantize=None)
    if asked == "fp8":
        return dataclasses.replace(settings, quantize="int8")
    raise SettingsError(
        f"--quantize {asked} is for checkpoints that are stored so, and this one has numbers of {checkpoint.dtype}; "
        "give int8 or int4, which are made while loading, or leave it out"
    )


def _refuse_formats(settings: Settings, model: Model) -> None:
    """Raises `SettingsError` for forms of weights and cache that this model or device has not."""
    for name in ("quantize", "kv_cache_dtype") if model.fallback else ():
        if (asked := getattr(settings, name)) not in (None, "auto"):
            raise SettingsError(f"{dashed(name)} {asked} is not there for a model that Transformers runs; leave it out")
    if settings.device == "cpu" and settings.kv_cache_dtype == "fp8":
        raise SettingsError(
            "--kv-cache-dtype fp8 is there for --device cuda alone; use int8, which is as small and keeps more of each "
            "number"
        )


def _with_device(settings: Settings, hardware: Hardware) -> Settings:
    """The settings with the device that `auto` stands for. Raises `SettingsError`."""
    if settings.device == "cuda" and hardware.gpu is None:
        raise SettingsError(f"--device cuda: {hardware.no_gpu}")
    if settings.device == "auto":
        settings = dataclasses.replace(
            settings,
            device="cpu" if hardware.gpu is None else "cuda",
            attention="auto" if hardware.gpu is None else settings.attention,
        )
    return settings


def _threads(settings: Settings, hardware: Hardware) -> tuple[int, tuple[int, ...]]:
    """How many threads compute, and the processors that they are bound to. Raises `SettingsError`."""
    bind = settings.cpu_bind
    if bind == "none":
        return settings.threads or hardware.cores, ()
    cpus = hardware.processors if isinstance(bind, str) else bind
    count = settings.threads or (hardware.cores if isinstance(bind, str) else len(cpus))
    if count > len(cpus):
        raise SettingsError(
            f"--threads {count} cannot be bound to {len(cpus)} processors one each; lower it, or give --cpu-bind more"
        )
    if outside := sorted(set(cpus) - set(hardware.allowed)):
        raise SettingsError(
            f"--cpu-bind names processor {outside[0]}, which this process may not use; it may use "
            f"{', '.join(map(str, hardware.allowed))}"
        )
    return count, tuple(cpus[:count])


def _encoding_step(settings: Settings, max_input: int, step: int, slots: int, block_size: int) -> int:
    """Tokens of a step that has room for a whole input, in whole blocks, beside a token of every other sequence."""
    least = -(-max_input // block_size) * block_size + slots
    if settings.max_batch_prefill_tokens is not None and step < least:
        raise SettingsError(
            f"--max-batch-prefill-tokens {step} is too few: this model's encoder reads an input of up to "
            f"{max_input} tokens at once, beside {slots} sequences that run; give at least {least}, or lower "
            "--max-input-tokens or --max-batch-size"
        )
    return max(step, least)


def _dtype(settings: Settings, model: Model, hardware: Hardware) -> str:
    if settings.dtype != "auto":
        return settings.dtype
    stored = model.checkpoint.dtype
    native = settings.device == "cuda" or (stored == "bfloat16" and hardware.bfloat16)
    return stored if native or _planned(settings, model, hardware) else "float32"


def _planned(settings: Settings, model: Model, hardware: Hardware) -> bool:
    """Whether kernels run the model, which multiply 16-bit numbers on every processor that they are for."""
    return settings.device == "cpu" and settings.plan != "off" and hardware.kernels and not model.fallback


def _lengths(settings: Settings, model: Model) -> tuple[int, int]:
    positions = model.spec.max_positions
    max_total = settings.max_total_tokens
    if max_total is None:
        most = MOST_TOKENS if model.spec.encoder is None else MOST_ENCODED
        max_total = min(positions, most, settings.max_batch_total_tokens or most)
        if settings.max_input_tokens is not None:
            max_total = min(positions, max(max_total, settings.max_input_tokens + 1))
    if max_total > positions:
        raise SettingsError(f"--max-total-tokens {max_total} is more than the model's {positions} positions; lower it")
    max_input = settings.max_input_tokens or max_total - 1
    if max_input >= max_total:
        raise SettingsError(
            f"--max-input-tokens {max_input} must be less than --max-total-tokens, which is {max_total} for this "
            f"model; use at most {max_total - 1}"
        )
    return max_total, max_input


def _weights(settings: Settings, model: Model, dtype: str, hardware: Hardware) -> int:
    """Bytes of them as they are kept."""
    checkpoint, size = model.checkpoint, BYTES[dtype]
    stored = checkpoint.blocks if settings.quantize is None and dtype != "float32" else None
    if settings.device != "cpu":
        kernels = settings.attention != "torch" and dtype != "float32" and not settings.deterministic
        if stored is not None and kernels:
            return block_bytes(stored, size, GPU_BLOCK_BYTES)
        form = settings.quantize or (None if checkpoint.bits is None else f"packed{checkpoint.bits}")
        return gpu_weight_bytes(model.spec, checkpoint.parameters, size, form, checkpoint.scaled, kernels)
    if stored is not None and _planned(settings, model, hardware):
        return block_bytes(stored, size)
    form = settings.quantize or {None: None, 4: "int4", 8: "packed8"}[checkpoint.bits]
    isa = settings.cpu_isa or "avx2"  # or a better one
    if form is None and dtype == "bfloat16" and isa in COMPACT_ISAS and _planned(settings, model, hardware):
        form = "compact"
    return weight_bytes(model.spec, checkpoint.parameters, size, form)


def _row_bytes(settings: Settings, spec: DecoderSpec, dtype: str) -> int:
    """Of keys and values of one token in one layer, as the cache has them."""
    if settings.kv_cache_dtype == "fp8":
        return spec.kv_width
    if settings.kv_cache_dtype == "int8":
        return spec.kv_width + spec.kv_rows * 4  # integers, and a float32 scale for each head
    return spec.kv_width * BYTES[dtype]


def _block_size(settings: Settings, spec: DecoderSpec, dtype: str) -> int:
    """Blocks lie scattered once a server has worked for a while. Small ones share prefixes best; on a processor, which
    asks ahead for what follows in memory, they are as long as it takes to be read at the rate of what lies in order."""
    size, most = BLOCK_SIZES
    if settings.block_size is not None:
        return settings.block_size
    if settings.device == "cpu":
        while size < most and size * _row_bytes(settings, spec, dtype) < BLOCK_BYTES:
            size *= 2
    return size


def _needs(
    settings: Settings, model: Model, dtype: str, max_total: int, step: int, slots: int, block_size: int,
    hardware: Hardware,
) -> Needs:  # fmt: skip
    spec, size = model.spec, BYTES[dtype]
    gathered_row, row = spec.kv_width * size, _row_bytes(settings, spec, dtype)
    attention = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    wide = 4 * spec.hidden_size + 2 * attention + 3 * spec.mlp_width
    workspace = step * wide * size + slots * spec.vocab_size * 4 * LOGIT_COPIES + step * max_total * (1 + size)
    # Input and output end in blocks of their own, and the decoder starts with a token or two.
    spare = 2 if spec.encoder is not None else 0
    if spec.encoder is not None:
        scores = spec.encoder.num_heads * max_total * max_total * size * ENCODER_COPIES
        workspace += scores + max_total * 2 * spec.encoder.mlp_width * size
    full = (max_total + spare * block_size) * slots
    useful = min(full, settings.max_batch_total_tokens or full)
    groups = group_layers(spec.windows, max_total)
    blocks = -(-max_total // block_size)
    pages = groups.sequence_pages(max_total, block_size, step)
    gathered = blocks if groups.full else pages // groups.windowed  # of these, by one layer
    return Needs(
        weights=_weights(settings, model, dtype, hardware),
        processes=PROCESSES,
        workspace=workspace,
        block=block_size * row * groups.page_layers,
        scratch=-(-block_size * gathered_row * PADDING * gathered // pages),
        block_size=block_size,
        max_total_tokens=max_total,
        useful_blocks=-(-useful // block_size) * len(groups.windows),
        sequence_blocks=pages + (1 + spare) * len(groups.windows),
        groups=len(groups.windows),
    )


def _memory(settings: Settings, needs: Needs, hardware: Hardware) -> MemoryPlan:
    if settings.device == "cpu":
        return plan_memory(needs, hardware.memory_available, hardware.memory_limit, settings.kv_memory)
    assert hardware.gpu is not None
    there = dataclasses.replace(needs, processes=GPU_PROCESS, workspace=0, scratch=0)
    return plan_gpu(there, hardware.gpu, settings.cuda_memory_fraction, settings.kv_memory)
