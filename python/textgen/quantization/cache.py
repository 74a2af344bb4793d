"""Packed weights on disk: what a start packed is mapped by the next one, which then reads nothing of them.

One file for each model and format: eight bytes with the length of a header in JSON, the header, and
each packed weight at the beginning of a page. Its name is a hash of all that decides what is in it: the source's files
(names, sizes, times of change), its configuration, dtype, format and the layout's version. The packed form is the same
for every instruction set.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from textgen.layers.weight import (
    ExpertMatrices,
    HeadTable,
    LoadContext,
    Numbered,
    Part,
    SeparateMatrices,
    Tied,
    Weight,
    WeightFormat,
)
from textgen.quantization.blocks import StackedWeight
from textgen.quantization.ordered import OrderedWeight
from textgen.quantization.stored import looks_up

log = logging.getLogger(__name__)

VERSION = 3  # of what is packed, and how: rises when `csrc/cpu/src/weight.cpp` changes it
PAGE = mmap.PAGESIZE
FILES = ("*.safetensors", "*.json", "*.gguf")


class Packed(msgspec.Struct, frozen=True):
    """A packed weight in the file: what `weight_map` takes."""

    form: int
    outputs: int
    inputs: int
    group: int
    offset: int
    nbytes: int


class _Header(msgspec.Struct, frozen=True):
    version: int
    name: str
    weights: dict[str, Packed]


class PackedMemory(Protocol):
    """A weight that was packed: where it lies, and what it is."""

    def packed_form(self) -> tuple[int, int, int, int]:
        """Form, outputs, inputs, group."""
        ...

    def packed_bytes(self) -> memoryview: ...


def cache_name(folder: Path, *facts: object) -> str:
    """Of the file for a model folder. Raises `OSError`."""
    digest = hashlib.sha256(repr((VERSION, facts)).encode())
    paths = sorted({path.resolve() for pattern in FILES for path in folder.glob(pattern)})
    index = folder / "gguf.json"
    if index.exists():  # the file whose tensors it names lies elsewhere
        tensors = msgspec.json.decode(index.read_bytes())["tensors"].values()
        paths = sorted({*paths, *(Path(tensor["file"]) for tensor in tensors)})
    for path in paths:
        stat = path.stat()
        digest.update(repr((path.name, stat.st_size, stat.st_mtime_ns)).encode())
    digest.update((folder / "config.json").read_bytes())
    return digest.hexdigest()[:32]


class WeightsCache:
    """The file of one name in a folder, mapped where it is there and whole; else it is written by `commit`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._found: dict[str, Packed] = {}
        self._data: NDArray[np.uint8] | None = None
        self._made: dict[str, PackedMemory] = {}
        self._open()

    @property
    def path(self) -> Path:
        return self._folder / f"{self._name}.weights"

    @property
    def mapped(self) -> bool:
        return self._data is not None

    def parts(self, key: str) -> list[str] | None:
        """The keys of the weights that a load under this key made; None where the file has none."""
        found = sorted({known.partition("@")[0] for known in self._found if _base(known) == key})
        return found or None

    def get(self, key: str) -> tuple[Packed, NDArray[np.uint8]]:
        """A weight and its bytes in the mapped file, which nobody may write. Raises `KeyError`."""
        assert self._data is not None
        packed = self._found[key]
        return packed, self._data[packed.offset : packed.offset + packed.nbytes]

    def outputs(self, key: str) -> int:
        """Of any of the orders in which the weight is there."""
        return next(packed.outputs for known, packed in self._found.items() if known.partition("@")[0] == key)

    def add(self, key: str, packed: PackedMemory) -> None:
        self._made[key] = packed

    def commit(self) -> None:
        """Write what was packed, whole or not at all. A disk that refuses costs a line in the log and nothing else."""
        made, self._made = self._made, {}
        if not made:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(made)
        except OSError as error:
            log.warning(
                "weights cache: %s cannot be written (%s); give --weights-cache another folder", self.path, error
            )

    def _write(self, made: dict[str, PackedMemory]) -> None:
        weights, offset = {}, 0
        for key, packed in made.items():
            size = packed.packed_bytes().nbytes
            weights[key] = Packed(*packed.packed_form(), offset, size)
            offset += -(-size // PAGE) * PAGE
        first = PAGE
        while True:  # the header's length depends on the offsets that it has
            moved = {key: msgspec.structs.replace(each, offset=each.offset + first) for key, each in weights.items()}
            header = msgspec.json.encode(_Header(VERSION, self._name, moved))
            needed = -(-(8 + len(header)) // PAGE) * PAGE
            if needed <= first:
                break
            first = needed
        descriptor, part = tempfile.mkstemp(dir=self._folder, prefix=f"{self._name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(len(header).to_bytes(8, "little") + header)
                for key, packed in made.items():
                    file.seek(moved[key].offset)
                    file.write(packed.packed_bytes())
                file.truncate(first + offset)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise
        log.info("weights cache: wrote %s (%.0f MB)", self.path, (first + offset) / 1e6)

    def _open(self) -> None:
        try:
            data = np.memmap(self.path, np.uint8, "r")
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("weights cache: %s cannot be read (%s); it is written anew", self.path, error)
            return
        try:
            length = int.from_bytes(data[:8].tobytes(), "little")
            header = msgspec.json.decode(data[8 : 8 + min(length, len(data))].tobytes(), type=_Header)
        except msgspec.MsgspecError:
            header = None
        whole = header is not None and all(
            each.offset > 0 and each.offset % PAGE == 0 and each.offset + each.nbytes <= len(data)
            for each in header.weights.values()
        )
        if header is None or not whole or (header.version, header.name) != (VERSION, self._name):
            log.warning("weights cache: %s is damaged; it is written anew", self.path)
            return
        self._data, self._found = data, header.weights
        log.info("weights cache: mapped %s (%.0f MB)", self.path, len(data) / 1e6)


@dataclass(frozen=True, slots=True)
class MappedWeight:
    """A weight of the cache: only kernels can multiply it."""

    cache: WeightsCache = field(repr=False)
    key: str
    outputs: int

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError("packed weights are multiplied by kernels alone")

    def reordered(self, order: Tensor) -> MappedWeight:
        return MappedWeight(self.cache, _ordered(self.key, order), self.outputs)


@dataclass(frozen=True, slots=True)
class KeptWeight:
    """A weight that goes to the cache once it is packed."""

    cache: WeightsCache = field(repr=False)
    key: str
    weight: Weight

    @property
    def outputs(self) -> int:
        return self.weight.outputs

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self.weight.multiply(x, bias)

    def reordered(self, order: Tensor) -> KeptWeight:
        return KeptWeight(self.cache, _ordered(self.key, order), self.weight.reordered(order))


@dataclass(frozen=True, slots=True)
class CachedFormat(WeightFormat):
    """What another format makes, by way of the cache."""

    inner: WeightFormat
    cache: WeightsCache

    def around(self, inner: WeightFormat) -> CachedFormat:
        return CachedFormat(inner, self.cache)

    def load(self, context: LoadContext, parts: Sequence[Part]) -> Weight:
        key = _key(parts)
        if (mapped := self._mapped(key)) is None:
            return self._kept(key, self.inner.load(context, parts))
        for part in parts:
            context.source.skip(part)
        return mapped

    def load_experts(self, context: LoadContext, experts: Sequence[Sequence[Part]]) -> ExpertMatrices | None:
        keys = [_key(parts) for parts in experts]
        if (mapped := self._all_mapped(keys)) is None:
            return self._all_kept(keys, self.inner.load_experts(context, experts))
        for part in (part for parts in experts for part in parts):
            context.source.skip(part)
        return mapped

    def keep_experts(
        self, context: LoadContext, experts: Mapping[str, Callable[[], Numbered]]
    ) -> ExpertMatrices | None:
        keys = [f"kept {name}" for name in experts]
        return self._all_mapped(keys) or self._all_kept(keys, self.inner.keep_experts(context, experts))

    def of(self, values: Tensor) -> Weight:
        return self.inner.of(values)

    def tied(self, context: LoadContext, part: Part) -> Tied:
        key = "tied " + _key([part])
        if (mapped := self._mapped(key)) is not None:
            if not looks_up(self.inner):
                return Tied(context.tensor(part), mapped)
            context.source.skip(part)
            return Tied(HeadTable(mapped, part.shape, context.dtype), mapped)
        table, head = self.inner.tied(context, part)
        return Tied(table, self._kept(key, head))

    def _mapped(self, key: str) -> Weight | None:
        known = self.cache.parts(key)
        if known is None:
            return None
        found = [MappedWeight(self.cache, each, self.cache.outputs(each)) for each in known]
        return found[0] if len(found) == 1 else StackedWeight(tuple(found))

    def _all_mapped(self, keys: Sequence[str]) -> SeparateMatrices | None:
        found = [weight for key in keys if (weight := self._mapped(key)) is not None]
        return SeparateMatrices(found) if len(found) == len(keys) else None

    def _all_kept(self, keys: Sequence[str], matrices: ExpertMatrices | None) -> SeparateMatrices | None:
        if matrices is None:
            return None
        return SeparateMatrices([self._kept(key, weight) for key, weight in zip(keys, matrices.each, strict=True)])

    def _kept(self, key: str, weight: Weight) -> Weight:
        if self.cache.mapped:  # a file is whole or not there: what it lacks is not kept
            return weight
        if any(isinstance(part, OrderedWeight) for part in _parts(weight)):
            return weight  # the file has no place for an order of inputs
        if isinstance(weight, StackedWeight):
            parts = [KeptWeight(self.cache, f"{key}#{at:03}", each) for at, each in enumerate(weight.parts)]
            return StackedWeight(tuple(parts))
        return KeptWeight(self.cache, key, weight)


def _parts(weight: Weight) -> Sequence[Weight]:
    return weight.parts if isinstance(weight, StackedWeight) else (weight,)


def _key(parts: Sequence[Part]) -> str:
    return ";".join(f"{part.name},{part.index},{part.rows},{part.columns},{part.transposed}" for part in parts)


def _base(key: str) -> str:
    """Of a key, without its number in a stack and its orders."""
    return key.partition("@")[0].partition("#")[0]


def _ordered(key: str, order: Tensor) -> str:
    return f"{key}@{hashlib.sha256(order.numpy().tobytes()).hexdigest()[:16]}"
