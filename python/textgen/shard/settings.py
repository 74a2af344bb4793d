"""The shard's settings: one frozen struct, filled once from the JSON that the launcher passes."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from textgen.shard.errors import ShardError

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Isa: TypeAlias = Literal["portable", "avx2", "avxvnni", "avx512vnni", "avx512", "amx", "neon"]


class ShardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a shard is told. Sizes are in tokens, blocks and sequences."""

    model_dir: str
    dtype: Literal["float32", "bfloat16", "float16"]
    device: Literal["cpu", "cuda"]
    num_blocks: Positive
    block_size: Positive
    max_slots: Positive
    max_batch_tokens: Positive
    max_context: Positive
    # For GPUs, where `num_blocks` are those of use, and the shard finds out how many there can be:
    attention: Literal["auto", "native", "flash-attn", "torch"] = "auto"
    memory_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0  # of the device's memory
    kv_share: Annotated[float, Meta(gt=0, le=1)] = 1.0  # of what is free beside weights, steps and graphs
    least_blocks: Positive = 1  # fewer are of no use
    graphs: tuple[Positive, ...] | None = None  # batch sizes to capture; None: the shard's own, (): none
    deterministic: bool = False  # whether tokens must not depend on the batch
    rank: Annotated[int, Meta(ge=0)] = 0
    world_size: Positive = 1
    max_top_n: Annotated[int, Meta(ge=0)] = 20
    threads: Positive | None = None
    cpus: tuple[Annotated[int, Meta(ge=0)], ...] = ()  # that they are bound to, one each; (): as the system likes
    plan: Literal["auto", "off"] = "auto"
    cpu_isa: Isa | None = None  # None: the best
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = "auto"  # auto: `dtype`
    quantize: Literal["int8", "int4"] | None = None
    weights_cache: str | None = None  # folder of packed weights
    weight_bytes: Annotated[int, Meta(ge=0)] = 0  # that weights will take, made while libraries load; 0: not known
    trust_remote_code: bool = False
    log_json: bool = False
    log_level: Literal["trace", "debug", "info", "warning", "warn", "error"] = "info"
    measure_seconds: Annotated[float, Meta(ge=0)] = 0.0  # at the start, to see how long steps take; 0: none
    mask_timeout: Annotated[float, Meta(gt=0)] = 5.0  # seconds a step waits for its grammar masks, all together
    stuck_after: Annotated[float, Meta(gt=0)] = 300.0  # seconds one step may run before /health says 503

    def __post_init__(self) -> None:
        if self.world_size > 1:
            raise ValueError(f"a model over {self.world_size} shards is not supported yet; set world_size to 1")
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} must be below world_size {self.world_size}")


def parse_settings(text: str) -> ShardSettings:
    """Settings from JSON. Raises `ShardError` with the field at fault."""
    try:
        return msgspec.json.decode(text, type=ShardSettings)
    except msgspec.MsgspecError as error:
        raise ShardError(f"--settings cannot be used: {error}") from None
