"""A GPU for the shard that is this processor: kernels run on the stand-in of `tests/ops/cuda`, and what is queued is
held to the order that a real one asks for.

- A copy to the device is held open until an event behind it is over: whoever writes into its source meanwhile fails.
- A copy to the host shows nonsense until then.
- Captured work is the operations that torch dispatched and the kernels that were launched; a replay makes them again,
  on the same memory. What a capture changed on its way is put back. What asks the host for something fails.
- Each allocation is counted, and one beyond the limit fails.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from textgen.ops.cuda.device import Kernel
from textgen.ops.cuda.source import Source
from textgen.shard.accelerator import CaptureError, Event, Replay

from ..ops.cuda.host_device import HostDevice

NONSENSE = 0xAB
ASK_THE_HOST = {"_local_scalar_dense", "bincount", "equal", "is_nonzero", "masked_select", "nonzero", "_unique2"}
"""Operations that wait for a GPU's numbers: on their way to Python, or to the size of what they give."""


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Recorder(TorchDispatchMode):
    """Operations as they are dispatched, run on the way."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Callable[[], None]] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self.held: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert func.overloadpacket.__name__ not in ASK_THE_HOST, f"a capture would fail: {func} asks the host"
        if func._schema.is_mutable:
            for given, argument in zip(args, func._schema.arguments, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._before.append((given, given.clone()))
        out = func(*args, **kwargs)
        self.held.append((args, kwargs, out))
        if func._schema.is_mutable:
            self.made.append(lambda: func(*args, **kwargs))
        elif not self._is_free(func, tensors((args, kwargs)), tensors(out)):

            def again() -> None:
                for target, value in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                    target.copy_(value)

            self.made.append(again)
        return out

    @staticmethod
    def _is_free(func: Any, given: list[Tensor], out: list[Tensor]) -> bool:
        """A view, or memory without contents."""
        held = {tensor.untyped_storage().data_ptr() for tensor in given}
        return "empty" in func.__name__ or all(tensor.untyped_storage().data_ptr() in held for tensor in out)

    def restore(self) -> None:
        for tensor, value in reversed(self._before):
            tensor.copy_(value)


class StandInKernels(HostDevice):
    """Launches are told to whoever records."""

    recorder: Recorder | None = None

    def kernel(self, source: Source, name: str | None = None) -> Kernel:
        launch = super().kernel(source, name)

        def told(grid: Sequence[int], threads: int, params: ctypes.Structure, shared_bytes: int = 0) -> None:
            if self.recorder is not None:
                kept = type(params).from_buffer_copy(params)
                self.recorder.made.append(lambda: launch(grid, threads, kept, shared_bytes))
            launch(grid, threads, params, shared_bytes)

        return told


class Meter(TorchDispatchMode):
    """Bytes of the tensors that were made while it watched and are there still."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit: int | None = None
        self.peak = self.held = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage()._cdata for tensor in tensors((args, kwargs or {}))}
        for tensor in tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and storage._cdata not in self._storages:
                self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.count()
        self.peak = max(self.peak, self.held)
        if self.limit is not None and self.held > self.limit:
            raise torch.OutOfMemoryError(f"{func} takes {self.held} bytes of {self.limit}")
        return out

    def count(self) -> int:
        self._storages = {key: kept for key, kept in self._storages.items() if not kept[0].expired()}
        self.held = sum(size for _, size in self._storages.values())
        return self.held


class StandInEvent:
    def __init__(self, rng: random.Random, done: Callable[[], None]) -> None:
        self._rng, self._done = rng, done

    def ready(self) -> bool:
        if self._rng.random() < 0.5:
            return False
        self.wait()
        return True

    def wait(self) -> None:
        self._done()


class StandIn:
    """See `Accelerator`."""

    device = torch.device("cpu")
    graph_bytes = 1

    def __init__(self, kernels: StandInKernels, rng: random.Random, meter: Meter | None = None) -> None:
        self.kernels, self._rng, self._meter = kernels, rng, meter
        self._queued: list[Callable[[], None]] = []
        # By address, and kept: a tensor of another kind that came to lie there would be taken for one.
        self._pinned: dict[int, Tensor] = {}
        self.captured = self.replayed = 0
        self.refuses: str | None = None  # to capture
        self._settled = 0

    def pinned(self, size: int) -> Tensor:
        memory = torch.full((size,), NONSENSE, dtype=torch.uint8)
        self._pinned[memory.untyped_storage().data_ptr()] = memory
        return memory

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert target.shape == source.shape and target.dtype == source.dtype
        assert target.is_contiguous() and source.is_contiguous(), "one piece is copied"
        value = source.clone()
        if source.untyped_storage().data_ptr() in self._pinned:
            target.copy_(value)

            def over() -> None:
                assert torch.equal(source, value), "pinned memory was written while a copy read it"
        else:
            assert target.untyped_storage().data_ptr() in self._pinned
            target.view(torch.uint8).fill_(NONSENSE)

            def over() -> None:
                with torch.inference_mode():
                    target.copy_(value)

        self._queued.append(over)

    def record(self) -> Event:
        before = list(self._queued)

        def done() -> None:
            for over in before:
                if over in self._queued:
                    self._queued.remove(over)
                    over()

        return StandInEvent(self._rng, done)

    def capture(self, work: Callable[[], None]) -> Replay:
        if self.refuses is not None:
            raise CaptureError(self.refuses)
        recorder = Recorder()
        self.kernels.recorder = recorder
        try:
            with recorder:
                work()
        finally:
            self.kernels.recorder = None
        recorder.restore()
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            for again in recorder.made:
                again()

        return replay

    def available(self) -> int:
        if self._meter is None or self._meter.limit is None:
            return 1 << 40
        return self._meter.limit - self._meter.count()

    def total(self) -> int:
        return 1 << 40 if self._meter is None or self._meter.limit is None else self._meter.limit

    def settle(self) -> None:
        if self._meter is not None:
            self._settled = self._meter.peak = self._meter.count()

    def peak(self) -> int:
        return 0 if self._meter is None else self._meter.peak - self._settled

    def lost(self, error: BaseException) -> bool:
        return "CUDA error" in str(error)
