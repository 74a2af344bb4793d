"""A recorded decoder as a `Model` that the interpreter runs: what the kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from textgen.layers.cache import LayerCache
from textgen.models.decoder import PackedBatch
from textgen.models.spec import DecoderSpec
from textgen.ops.cpu.instructions import Embed
from textgen.ops.cpu.interpret import Interpreter
from textgen.ops.cpu.record import Recording


class InterpretedModel:
    """See `Model`; what a method returns is overwritten by its next call."""

    def __init__(self, recording: Recording, max_tokens: int, max_rows: int) -> None:
        self.spec: DecoderSpec = recording.spec
        self.like = next(each.table for each in recording.hidden.instructions if isinstance(each, Embed)).new_empty(0)
        self._hidden = Interpreter(recording.hidden, max_tokens)
        self._logits = Interpreter(recording.logits, max_rows)

    def hidden(self, batch: PackedBatch, caches: Sequence[LayerCache]) -> Tensor:
        return self._hidden.run(len(batch.ids), batch=batch, caches=caches)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits.run(len(hidden), given=hidden)
