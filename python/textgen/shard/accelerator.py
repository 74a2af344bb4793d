"""A GPU as the shard sees it beside its tensors: queued copies, events, captured work, and its memory.

Everything is queued in one order. The host looks at a result only after the event that was recorded behind it, and
writes into pinned memory only after the event behind the copy that reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from textgen.ops.cuda.device import Device, DriverError

Replay: TypeAlias = Callable[[], None]

GRAPH_BYTES = 4 << 20  # what the driver keeps for a graph of some hundred launches, generously


class CaptureError(Exception):
    """Work cannot be captured: it asks the host for something on its way, or the driver refuses."""


class Event(Protocol):
    """A place in the order of what is queued."""

    def ready(self) -> bool:
        """Whether all before it is done."""
        ...

    def wait(self) -> None: ...


class Accelerator(Protocol):
    """See the module."""

    @property
    def device(self) -> torch.device: ...

    @property
    def kernels(self) -> Device | None:
        """Where kernels run; None where torch runs every operation, and nothing is captured."""
        ...

    @property
    def graph_bytes(self) -> int:
        """Memory that one captured graph takes beside what its work takes."""
        ...

    def pinned(self, size: int) -> Tensor:
        """[size] uint8 of the host's memory that copies read and write while the host goes on."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy between pinned memory and the device; sizes and dtypes are the same."""
        ...

    def record(self) -> Event:
        """An event behind all that is queued."""
        ...

    def capture(self, work: Callable[[], None]) -> Replay:
        """What the work queues, without running it. It has run before. Raises `CaptureError`."""
        ...

    def available(self) -> int:
        """Bytes that this process may still take as it is. After `settle`, nothing is kept for later."""
        ...

    def total(self) -> int:
        """Bytes that this process may take if nobody else had any."""
        ...

    def settle(self) -> None:
        """Give back what is kept for later, and measure peaks from here on."""
        ...

    def peak(self) -> int:
        """Bytes taken at most, beyond those taken at `settle`."""
        ...

    def lost(self, error: BaseException) -> bool:
        """Whether nothing will run on the device any more after such an error."""
        ...


class CudaAccelerator:
    """The GPU that torch calls `cuda:index`. fraction: of its memory, which this process may have."""

    graph_bytes = GRAPH_BYTES

    def __init__(self, index: int, fraction: float, kernels: Device | None) -> None:
        self.device, self.kernels = torch.device("cuda", index), kernels
        self._fraction = fraction
        self._pool: Any = None
        self._reserved = 0
        if fraction < 1:
            torch.cuda.set_per_process_memory_fraction(fraction, self.device)

    def pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: Tensor, source: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def record(self) -> Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return _CudaEvent(event)

    def capture(self, work: Callable[[], None]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        except Exception as error:
            raise CaptureError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
        return graph.replay

    def available(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return int(min(free, int(total * self._fraction) - (total - free)))

    def total(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[1] * self._fraction)

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self._reserved = torch.cuda.memory_reserved(self.device)

    def peak(self) -> int:
        return int(torch.cuda.max_memory_reserved(self.device) - self._reserved)

    def lost(self, error: BaseException) -> bool:
        if isinstance(error, torch.OutOfMemoryError):
            return False
        of_driver = isinstance(error, DriverError) and "OUT_OF_MEMORY" not in str(error)
        return of_driver or isinstance(error, getattr(torch, "AcceleratorError", ())) or "CUDA error" in str(error)


class _CudaEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def ready(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()
