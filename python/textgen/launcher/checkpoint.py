"""What a checkpoint holds, from the headers of its safetensors files alone: no tensor is read."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from textgen.gguf.errors import GgufError
from textgen.gguf.index import Index, read_index
from textgen.launcher.errors import ModelError
from textgen.quantization.formats import BLOCK_BYTES, Blocks

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_JSON = 100 * 2**20  # bytes of a header or index: the format's own bound
DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
SCALED = {"F8_E4M3": 1, "F8_E5M2": 1}  # turned into numbers of the server's type
SIZES = {**DTYPES, "I32": 4, "I64": 8}  # bytes; 1 of the others
SCALES = ("_scale", "_scale_inv")  # ends of the names of what they are multiplied by
INTEGERS = {
    "I8": {".weight": 8, ".input_zero_point": 0},
    "I32": {
        ".qweight": 32, ".qzeros": 0, ".g_idx": 0,
        ".weight_packed": 32, ".weight_zero_point": 0, ".weight_g_idx": 0,
    },
    "I64": {".weight_shape": 0},
}  # fmt: skip
"""Bits of weights in a number of GPTQ's, AWQ's and compressed-tensors' tensors, by data type and end of name."""
PACKED = {"_blocks": 2, "_scales": 0}  # numbers in a byte of what MXFP4 stores, by the end of a tensor's name
TABLE = "token_embd.weight"
NUMBERS = (TABLE, "position_embd.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "attn_kv_b.weight")
"""Ends of the names of matrices in GGUF files that become numbers of the model's type, whatever blocks they are in."""
_NAMES = {"F64": "float32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_Size = Annotated[int, Meta(ge=0)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How many numbers are stored, and in which data type most of them are; how many bits packed integers have.

    scaled: how many are in 8-bit floating point.
    blocks: of a GGUF file, and one with MXFP4, what its matrices are where they are multiplied as stored.
    """

    parameters: int
    dtype: str
    bits: int | None = None
    blocks: Blocks | None = None
    scaled: int = 0


def read_checkpoint(folder: Path, bits: int = 4) -> Checkpoint:
    """Add up the headers. bits: of packed integers, as the configuration says. Raises `ModelError` naming the file that
    is missing or damaged."""
    try:
        index = read_index(folder)
    except GgufError as error:
        raise ModelError(str(error)) from None
    if index is not None:
        return _packed(index)
    counts: dict[str, int] = {}
    weights = 0  # integers
    for path in _files(folder):
        for name, tensor in _tensors(path):
            if name.endswith(SCALES):
                continue
            if tensor.dtype in INTEGERS:
                weights += math.prod(tensor.shape) * INTEGERS[tensor.dtype][_integers(name, tensor.dtype)] // bits
                continue
            numbers = math.prod(tensor.shape) * (1 if tensor.dtype in DTYPES | SCALED else PACKED[_end(name)])
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + numbers
    plain = [dtype for dtype in counts if dtype in DTYPES]
    if not plain or not sum(counts.values()):
        raise ModelError(f"{folder} holds no weights; download the model again")
    dtype = _NAMES[max(plain, key=lambda name: counts[name])]
    scaled = sum(counts.get(name, 0) for name in SCALED)
    parameters, pairs = sum(counts.values()) + weights, counts.get("U8", 0)
    blocks = Blocks({"MXFP4": pairs}, parameters - pairs) if pairs else None
    return Checkpoint(parameters, dtype, bits=bits if weights else None, blocks=blocks, scaled=scaled)


def _packed(index: Index) -> Checkpoint:
    """Of GGUF files. Where most numbers are packed in blocks, bfloat16 holds them as well as any."""
    counts: dict[str, int] = {}
    for tensor in index.tensors.values():
        counts[tensor.kind] = counts.get(tensor.kind, 0) + tensor.numbers
    dtype = _NAMES.get(max(counts, key=lambda kind: counts[kind]), "bfloat16")
    return Checkpoint(sum(counts.values()), dtype, blocks=_blocks(index))


def _blocks(index: Index) -> Blocks | None:
    """None where nothing is multiplied in blocks."""
    of_kinds: dict[str, int] = {}
    dense = 0
    for name, tensor in index.tensors.items():
        known = tensor.kind in BLOCK_BYTES and (len(tensor.shape) == 2 or _experts_alike(index, name))
        # A table that is the head too is there twice: rows of numbers are looked up, and blocks multiplied.
        head = name == TABLE and "output.weight" not in index.tensors
        if known and (head or not name.endswith(NUMBERS)):
            of_kinds[tensor.kind] = of_kinds.get(tensor.kind, 0) + tensor.numbers
        if not known or name.endswith(NUMBERS):
            dense += tensor.numbers
    return Blocks(of_kinds, dense) if of_kinds else None


def _experts_alike(index: Index, name: str) -> bool:
    """Whether it is a stack of experts' matrices, and gates are in the blocks of what they gate."""
    if not name.endswith("_exps.weight"):
        return False
    both = [name.replace(old, new) for old, new in (("_gate_", "_up_"), ("_up_", "_gate_"))]
    return all(index.tensors[each].kind == index.tensors[name].kind for each in both if each in index.tensors)


def _end(name: str) -> str:
    return name[-len("_blocks") :]


def _integers(name: str, dtype: str) -> str:
    """Which of `INTEGERS` ends the name of a tensor of that data type."""
    return next((end for end in INTEGERS.get(dtype, ()) if name.endswith(end)), "")


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights, of a GGUF file's folder those. Raises as `read_checkpoint`."""
    index = read_index(folder)
    return _files(folder) if index is None else sorted({folder / tensor.file for tensor in index.tensors.values()})


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.exists():
        raise ModelError(
            f"{folder} has neither {SINGLE} nor {INDEX}; only safetensors checkpoints can be served, convert it first"
        )
    try:
        if index.stat().st_size > MAX_JSON:
            raise ModelError(f"{index} is larger than {MAX_JSON} bytes; download the model again")
        names = set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    except OSError as error:
        raise ModelError(f"{index} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{index} is damaged ({error}); download the model again") from None
    outside = sorted(name for name in names if Path(name).name != name)
    if outside:
        raise ModelError(f"{index} names a file outside its folder: {outside[0]!r}; download the model again")
    return [folder / name for name in sorted(names)]


def _tensors(path: Path) -> Iterator[tuple[str, _Tensor]]:
    """The tensors of one file, each checked against its own shape and the file's size."""
    entries, data = _header(path)
    for name, raw in entries.items():
        if name == "__metadata__":
            continue
        try:
            tensor = msgspec.json.decode(raw, type=_Tensor)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(path, f"tensor {name!r}: {error}") from None
        packed = (tensor.dtype == "U8" and _end(name) in PACKED) or _integers(name, tensor.dtype)
        if tensor.dtype not in DTYPES | SCALED and not packed:
            raise ModelError(
                f"{path}: tensor {name!r} has data type {tensor.dtype}; supported are {', '.join(DTYPES)}, "
                "so give an unquantized model"
            )
        begin, end = tensor.data_offsets
        if end - begin != math.prod(tensor.shape) * SIZES.get(tensor.dtype, 1):
            raise _damaged(path, f"tensor {name!r}: its length and its shape disagree")
        if end > data:
            raise _damaged(path, f"it ends before tensor {name!r} does")
        yield name, tensor


def _header(path: Path) -> tuple[dict[str, msgspec.Raw], int]:
    """The header's entries, undecoded, and how many bytes of tensors follow it."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else None
            if length is None or length > min(size - 8, MAX_JSON):
                raise _damaged(path, "its header is cut off")
            header = file.read(length)
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; download the model again") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return msgspec.json.decode(header, type=dict[str, msgspec.Raw]), size - 8 - length
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, f"its header: {error}") from None


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(f"{path} is damaged ({why}); download the model again")
