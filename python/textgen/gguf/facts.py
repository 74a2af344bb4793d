"""Typed reading of a GGUF file's metadata. What nobody asks for is refused in the end, not passed over."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from textgen.gguf.errors import GgufError
from textgen.gguf.file import GgufModel

# What says nothing that changes a logit.
HARMLESS = frozenset({"vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "mm.tokens_per_image"})
ABSENT = (None, 0, 0.0, False, "", "none")
THETA = 10_000.0  # where the file names none


class Facts:
    """The values `ARCHITECTURE.key` of a file, by key."""

    def __init__(self, model: GgufModel, architecture: str) -> None:
        self.model, self._prefix = model, f"{architecture}."
        self._asked: set[str] = set()

    def get(self, key: str) -> Any:
        """None when the file does not say. A list of equal values, one for each layer, is that value."""
        self._asked.add(key)
        value = self.model.metadata.get(self._prefix + key)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.refusal(key, "one value for all layers")
            value = value[0]
        return value

    def required(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise GgufError(f"{self.model.path} has no '{self._prefix}{key}'; download it again or choose another file")
        return value

    def integer(self, key: str) -> int:
        value = self.required(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refusal(key, "a positive integer")
        return value

    def optional_number(self, key: str) -> float | None:
        value = self.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self.refusal(key, "a number")
        return value

    def by_layer(self, key: str) -> list[bool] | None:
        """A switch of each layer. The file has them all, or a number: every so manieth layer is off."""
        self._asked.add(key)
        value, layers = self.model.metadata.get(self._prefix + key), self.layers
        match value:
            case None:
                return None
            case [*each] if len(each) >= layers:
                return [bool(one) for one in each[:layers]]
            case int() if value > 0 and not isinstance(value, bool):
                return [(layer + 1) % value != 0 for layer in range(layers)]
        raise self.refusal(key, f"a list of {layers} values or a positive integer")

    def has(self, tensor: str) -> bool:
        return tensor in self.model.tensors

    @property
    def layers(self) -> int:
        """Without those behind the last, which draft tokens."""
        drafting = self.get("nextn_predict_layers") or 0
        layers = self.integer("block_count") - drafting
        if layers < 1:
            raise self.refusal("nextn_predict_layers", "less than the blocks")
        return layers

    @property
    def heads(self) -> int:
        return self.integer("attention.head_count")

    @property
    def kv_heads(self) -> int:
        return self.heads if self.get("attention.head_count_kv") is None else self.integer("attention.head_count_kv")

    @property
    def head_dim(self) -> int:
        dim = self.get("attention.key_length") or self.integer("embedding_length") // self.heads
        if self.get("attention.value_length") not in (None, dim):
            raise self.refusal("attention.value_length", f"{dim}, as many as of a key")
        return int(dim)

    def refusal(self, key: str, wanted: str) -> GgufError:
        value = self.model.metadata.get(self._prefix + key)
        return GgufError(f"{self.model.path}: '{self._prefix}{key}' is {value!r}; it must be {wanted}")

    def floats(self, tensor: str) -> list[float] | None:
        """A small tensor of float32, where there is one."""
        stored = self.model.tensors.get(tensor)
        if stored is None:
            return None
        if stored.kind != "F32" or len(stored.shape) != 1:
            raise GgufError(f"{stored.file}: tensor '{tensor}' must be float32; download it again")
        with Path(stored.file).open("rb") as file:
            file.seek(stored.offset)
            return list(struct.unpack(f"<{stored.numbers}f", file.read(stored.nbytes)))

    def refuse_unknown(self) -> None:
        """Refuse a value that says something and that nobody asked for."""
        for name, value in self.model.metadata.items():
            key = name.removeprefix(self._prefix)
            if key != name and key not in self._asked | HARMLESS and value not in ABSENT:
                shown = value if not isinstance(value, list) else f"a list of {len(value)}"
                raise GgufError(
                    f"{self.model.path}: '{name}' is {shown!r}, which is not supported for this architecture; give the "
                    "model in Hugging Face format"
                )
