"""Which operations a shard on a GPU gets: what `--attention` asks for, checked at the start."""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias

import torch

from textgen.ops import reference
from textgen.ops.cuda.device import CudaDevice, Device, DriverError
from textgen.ops.cuda.flash import FlashMissing, FlashOps, find_flash
from textgen.ops.cuda.nvrtc import CompileError, NvrtcMissing
from textgen.ops.cuda.ops import CudaOps
from textgen.ops.cuda.source import Source
from textgen.ops.interface import Ops

AttentionName: TypeAlias = Literal["auto", "native", "flash-attn", "torch"]

_log = logging.getLogger(__name__)


class OpsMissing(Exception):
    """What was asked for is not to be had here; the message says what to change."""


def choose_ops(
    attention: AttentionName, index: int, dtype: torch.dtype, block_size: int, chunk: int | None = None
) -> tuple[Ops, Device | None]:
    """The operations, and the device of their kernels; no device where torch runs them all. Raises `OpsMissing`.

    chunk: of `CudaOps`; only its kernels can keep bits the same in every batch.
    """
    if chunk is not None and attention in ("torch", "flash-attn"):
        raise OpsMissing(f"--deterministic takes Textgen's own kernels; leave out --attention {attention}")
    if attention == "torch":
        return reference, None
    try:
        device = CudaDevice(index)
        device.kernel(Source.of("sample"))  # the whole way is gone once: compiled, loaded, found
    except (DriverError, NvrtcMissing, CompileError, ValueError) as error:
        if attention == "auto" and chunk is None:
            _log.warning("kernels cannot be compiled for this GPU, torch runs every operation: %s", error)
            return reference, None
        if chunk is not None:
            raise OpsMissing(f"--deterministic: {error}; or leave it out") from None
        raise OpsMissing(f"--attention {attention}: {error}; or use --attention torch") from None
    if attention != "flash-attn":
        return CudaOps(device, chunk), device
    try:
        return FlashOps(device, find_flash(block_size, dtype)), device
    except FlashMissing as error:
        raise OpsMissing(str(error)) from None
