"""The headers of GGUF files: metadata, and where each tensor lies. No tensor is read.

The `gguf` package has a reader too; it makes a numpy array of every string of the vocabulary, which takes 15 seconds
and 700 MB for 128,000 tokens. From it we take the types of blocks and their sizes.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from textgen.gguf.errors import GgufError
from textgen.gguf.index import StoredTensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ITEMS = 2**24  # of one array, and of tensors: far more than any vocabulary has
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """All files of a model."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def is_gguf(path: Path) -> bool:
    """Whether the file begins as GGUF files do."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_gguf(path: Path) -> GgufModel:
    """The headers of a file, and of those that go on from it. Raises `GgufError`."""
    metadata, tensors = _read(path)
    count = metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        for other in _others(path, count, metadata):
            more = _read(other)[1]
            if double := more.keys() & tensors.keys():
                raise _damaged(other, f"tensor {min(double)!r} is in another file too")
            tensors |= more
    return GgufModel(path, metadata, tensors)


def _others(path: Path, count: int, metadata: Mapping[str, Any]) -> list[Path]:
    """The other files of a model in several."""
    found = _PART.fullmatch(path.name)
    if found is None or int(found[3]) != count:
        raise GgufError(f"{path} is one of {count} files; give them back their names, NAME-00001-of-{count:05}.gguf")
    if metadata.get("split.no", 0) != 0:
        raise GgufError(f"{path} is not the first of its {count} files; give {found[1]}-00001-of-{count:05}.gguf")
    others = [path.with_name(f"{found[1]}-{number:05}-of-{count:05}.gguf") for number in range(2, count + 1)]
    for other in others:
        if not other.is_file():
            raise GgufError(f"{other} is missing; download the model again")
    return others


def _read(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(path, data).read()
    except OSError as error:
        raise GgufError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # mmap's for an empty file; of bytes that are no text; of numbers that are no kind
        raise _damaged(path, str(error)) from None
    except struct.error:
        raise _damaged(path, "its header is cut off") from None


class _Header:
    """Reads one file from its first byte on."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def read(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        if self._data[:4] != MAGIC:
            raise GgufError(f"{self._path} is no GGUF file; give one, or a folder in Hugging Face format")
        self._at = 4
        version = self._number("I")
        if version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise GgufError(
                f"{self._path} has GGUF version {version}, in little-endian order; only {known} can be served"
            )
        tensors, pairs = self._number("Q"), self._number("Q")
        if max(tensors, pairs) > MAX_ITEMS:
            raise ValueError(f"it says that it has {max(tensors, pairs)} entries")
        metadata = {self._text(): self._value(self._number("I")) for _ in range(pairs)}
        stored = dict(self._tensor() for _ in range(tensors))
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its alignment is {alignment!r}")
        return metadata, dict(self._placed(stored, -(-self._at // alignment) * alignment))

    def _number(self, code: str) -> int:
        value: int = struct.unpack_from("<" + code, self._data, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def _text(self) -> str:
        length = self._number("Q")
        end = self._at + length
        if end > len(self._data):
            raise ValueError("its header is cut off")
        text = self._data[self._at : end].decode("utf-8", "replace")
        self._at = end
        return text

    def _value(self, kind: int, nested: bool = False) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY and not nested:
            item, count = self._number("I"), self._number("Q")
            if count > MAX_ITEMS:
                raise ValueError(f"an array of it has {count} entries")
            if item in _SCALARS:
                code = f"<{count}{_SCALARS[item]}"
                values = list(struct.unpack_from(code, self._data, self._at))
                self._at += struct.calcsize(code)
                return values
            return [self._value(item, nested=True) for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self._number(_SCALARS[kind])

    def _tensor(self) -> tuple[str, tuple[str, tuple[int, ...], int]]:
        name, dimensions = self._text(), self._number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        number = self._number("I")
        kind = next((kind.name for kind in GGMLQuantizationType if kind == number), None)
        if kind is None:
            raise GgufError(
                f"{self._path}: tensor {name!r} has block type {number}, which the installed gguf package does not "
                "know; upgrade it, or give another file of the model"
            )
        return name, (kind, shape, self._number("Q"))

    def _placed(
        self, tensors: Mapping[str, tuple[str, tuple[int, ...], int]], first: int
    ) -> Iterator[tuple[str, StoredTensor]]:
        """The tensors, each checked against its blocks and the file's size."""
        for name, (kind, shape, offset) in tensors.items():
            block = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
            if not all(shape) or shape[-1] % block:
                raise ValueError(f"tensor {name!r} of shape {shape} has no whole blocks of {block} numbers")
            tensor = StoredTensor(str(self._path.absolute()), first + offset, kind, shape)
            if tensor.offset + tensor.nbytes > len(self._data):
                raise ValueError(f"it ends before tensor {name!r} does")
            yield name, tensor


def _damaged(path: Path, why: str) -> GgufError:
    return GgufError(f"{path} is damaged ({why}); download it again")
