"""Stored weights: safetensors files, one or several by an index, memory mapped and read straight into place."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from textgen.files import read_ahead
from textgen.layers.weight import Part
from textgen.models import fp8
from textgen.models.errors import ModelError
from textgen.models.fp8_config import Fp8
from textgen.ops.pages import let_go
from textgen.quantization.fp8 import Scaled

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F64", "F32", "F16", "BF16")
PIECE = 4 << 20  # bytes copied at a time
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
INTEGERS = {torch.int32: "I32", torch.int8: "I8"}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class WeightFiles:
    """The tensors of a model folder (a `WeightSource`). Every refusal is a `ModelError` of one sentence."""

    def __init__(self, folder: Path, scaled: Fp8 | None = None) -> None:
        self._folder, self._fp8 = folder, scaled
        paths = [folder / name for name in _file_names(folder)]
        self._where = {name: path.name for path in paths for name in _open(path).keys()}  # noqa: SIM118
        self._mapped: tuple[str, Any] | None = None
        self._progress = tqdm(
            total=sum(path.stat().st_size for path in paths),
            desc="loading weights", unit="B", unit_scale=True, leave=False, disable=None,
        )  # fmt: skip

    def __enter__(self) -> WeightFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.close()
        self._mapped = None

    def has(self, name: str) -> bool:
        return name in self._where

    def read(self, part: Part, into: Tensor) -> None:
        stored = self._slice(part.name, part.stored, DTYPES if self._fp8 is None else (*DTYPES, *fp8.DTYPES))
        if stored.get_dtype() in fp8.DTYPES:
            self._read_scaled(part, stored, into)
        else:
            values = stored[part.cut]
            _copy(values, into.t() if part.transposed else into)
        self._progress.update(into.numel() * _bytes(stored.get_dtype()))

    def view(self, part: Part, dtype: torch.dtype) -> Tensor | None:
        """See `ViewSource`."""
        stored = self._slice(part.name, part.stored, DTYPES if self._fp8 is None else (*DTYPES, *fp8.DTYPES))
        if part.transposed or stored.get_dtype() != NAMES.get(dtype):
            return None
        values: Tensor = stored[part.cut]
        return values if values.dim() == 2 and values.stride(1) == 1 else None

    def skip(self, part: Part) -> None:
        if not self.has(part.name):  # what is packed has other names
            return
        stored = self._slice(part.name, part.stored, (*DTYPES, *fp8.DTYPES, *INTEGERS.values()))
        self._progress.update(math.prod(part.kept) * _bytes(stored.get_dtype()))

    def _read_scaled(self, part: Part, stored: Any, into: Tensor) -> None:
        """A matrix of 8-bit numbers, times its scale."""
        name, scale = self._scale(part)
        assert self._fp8 is not None

        def get(rows: slice) -> Tensor:
            values: Tensor = stored[replace(part, rows=rows).cut]
            return values

        try:
            fp8.read_scaled(self._fp8, scale, (part.shape[0], part.shape[1]), (part.rows, part.columns), get, into)
        except ValueError as error:
            raise ModelError(f"{self._folder}: tensor '{name}': {error}") from None

    def scaled(self, part: Part) -> Scaled | None:
        """See `ScaledSource`."""
        stored = self._slice(part.name, part.stored, (*DTYPES, *fp8.DTYPES)) if self._fp8 is not None else None
        if self._fp8 is None or stored is None or stored.get_dtype() not in fp8.DTYPES:
            return None
        name, scale = self._scale(part)
        try:
            found = fp8.group_scales(self._fp8, scale, (part.shape[0], part.shape[1]), (part.rows, part.columns))
        except ValueError as error:
            raise ModelError(f"{self._folder}: tensor '{name}': {error}") from None
        if found is None:
            return None
        values: Tensor = self._slice(part.name, part.stored, fp8.DTYPES)[part.cut]
        self._progress.update(values.nbytes)
        return Scaled(values, *found)

    def _scale(self, part: Part) -> tuple[str, Tensor]:
        """The name and the numbers of what a matrix of 8-bit numbers is multiplied by. Raises `ModelError`."""
        name = next((part.name + suffix for suffix in fp8.SUFFIXES if self.has(part.name + suffix)), None)
        if name is None or len(part.shape) != 2 or part.transposed:
            raise ModelError(f"{self._folder}: tensor '{part.name}' has 8-bit numbers and no scale that is understood")
        scale: Tensor = self._file(self._where[name]).get_tensor(name)
        return name, scale if part.stacked is None or scale.numel() == 1 else scale[part.index]

    def read_bytes(self, name: str, shape: tuple[int, ...], index: int) -> Tensor:
        values: Tensor = self._slice(name, shape, ("U8",))[index]
        self._progress.update(values.numel())
        return values

    def read_integers(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> Tensor:
        """See `IntegerSource`."""
        values: Tensor = self._slice(name, shape, (INTEGERS[dtype],))[:]
        self._progress.update(values.nbytes)
        return values

    def _file(self, name: str) -> Any:
        """Layers lie one after the other, so one file is mapped at a time: what was read of the others is let go."""
        if self._mapped is None or self._mapped[0] != name:
            self._mapped = None
            self._mapped = name, _open(self._folder / name)
            Thread(target=read_ahead, args=(self._folder / name,), daemon=True).start()
        return self._mapped[1]

    def _slice(self, name: str, expected: tuple[int, ...], dtypes: tuple[str, ...]) -> Any:
        file = self._where.get(name)
        if file is None:
            raise ModelError(f"{self._folder} has no tensor '{name}'; the checkpoint does not fit its config.json")
        stored = self._file(file).get_slice(name)
        shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
        if shape != expected:
            raise ModelError(f"{file}: tensor '{name}' has shape {shape}, config.json asks for {expected}")
        if dtype not in dtypes:
            raise ModelError(f"{file}: tensor '{name}' has dtype {dtype}; supported are {', '.join(dtypes)}")
        return stored


def _copy(values: Tensor, into: Tensor) -> None:
    """Of a mapped file no more than a piece is in this process's memory."""
    if values.dim() == 0:
        into.copy_(values)
        return
    rows = max(PIECE * len(values) // max(values.nbytes, 1), 1)
    for piece, place in zip(values.split(rows), into.split(rows), strict=True):
        place.copy_(piece)
        let_go(piece)


def _bytes(dtype: str) -> int:
    return {"F64": 8, "F32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1}.get(dtype, 2)


def _file_names(folder: Path) -> list[str]:
    index = folder / INDEX
    if (folder / SINGLE).exists():
        return [SINGLE]
    if not index.exists():
        raise ModelError(f"{folder} has neither {SINGLE} nor {INDEX}; only safetensors checkpoints can be loaded")
    try:
        names = set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    except OSError as error:
        raise ModelError(f"{index} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{index} is damaged: {error}") from None
    outside = sorted(name for name in names if Path(name).name != name)
    if outside:
        raise ModelError(f"{index} names a file outside its folder: {outside[0]!r}")
    return sorted(names)


def _open(path: Path) -> Any:  # safe_open is an untyped extension class
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; download the model again") from None
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged ({error}); download the model again") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
