"""What stands for the weights in a folder that was made for a GGUF file: where each tensor lies."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from textgen.gguf.errors import GgufError

NAME = "gguf.json"


class StoredTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies, and how. `shape` is [rows, …, columns], as torch says it."""

    file: str
    offset: int
    kind: str  # name of the block type
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the last dimension."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # here: other models have no use for it

        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[self.kind]]
        return self.shape[-1] // block * size

    @property
    def nbytes(self) -> int:
        return self.numbers // self.shape[-1] * self.row_bytes


class Index(msgspec.Struct, frozen=True):
    """The model's architecture, in llama.cpp's word, and its tensors by name."""

    architecture: str
    tensors: dict[str, StoredTensor]


def read_index(folder: Path) -> Index | None:
    """None for a folder that was not made for a GGUF file. Raises `GgufError`."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Index)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise GgufError(f"{folder / NAME} cannot be read ({error}); start again from the GGUF file") from None
