"""A decoder, run once over recorded values, becomes two programs: of hidden states, and of the logits of such."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from textgen.layers.cache import LayerCache
from textgen.layers.experts import Experts
from textgen.layers.latent import LatentAttention
from textgen.layers.weight import ExpertMatrices, HeadTable, Weight
from textgen.models.decoder import Decoder, PackedBatch
from textgen.models.spec import DecoderSpec
from textgen.ops import Ops
from textgen.ops.cpu.fuse import fuse
from textgen.ops.cpu.instructions import FindLikeliest, Program, Scale
from textgen.ops.cpu.parts import RecordedExperts, RecordedLatent
from textgen.ops.cpu.values import (
    LayerPlace,
    RecordedAttention,
    RecordedOps,
    RecordedOutputs,
    RecordedWeight,
    Rows,
    Tape,
    TokenNumbers,
)


@dataclass(frozen=True, slots=True)
class Recording:
    """`hidden`: from ids and positions to the rows of outputs after the last layer. `logits`: from such rows to float32
    logits."""

    spec: DecoderSpec
    hidden: Program
    logits: Program


def record(decoder: Decoder) -> Recording:
    """Raises `NotRecorded` with what a plan has no operation for."""
    # Kernels have no activations in float16: such a model's are float32, and its weights and cache stay as they are.
    spec, dtype = decoder.spec, torch.float32 if decoder.like.dtype == torch.float16 else decoder.like.dtype
    double = _double(decoder, decoder.ops)
    return Recording(spec, _hidden(double, Tape(dtype)), _logits(double, Tape(dtype)))


def _hidden(double: Any, tape: Tape) -> Program:
    layers = range(double.spec.num_layers)
    outputs = RecordedOutputs(RecordedAttention(layers[-1], of_outputs=True))
    places: list[Any] = [LayerCache(_any(LayerPlace(at, False)), _any(LayerPlace(at, True))) for at in layers]
    batch = PackedBatch(
        ids=_any(TokenNumbers(tape, False)),
        positions=_any(TokenNumbers(tape, True)),
        rows=[_any(None) for _ in layers],
        attention=[RecordedAttention(layer) for layer in layers],
        outputs=_any(outputs),
    )
    result = double.hidden(batch, places)
    return fuse(Program(tuple(tape.instructions), result.at))


def _logits(double: Any, tape: Tape) -> Program:
    given, scalings = tape.new(double.spec.hidden_size), double.spec.scalings
    x = Rows(tape, given, (given.width,))
    result = double.head(x if double.norm is None else double.norm(x)).at
    result.buffer.dtype = torch.float32  # what samples reads them so: rounding in between would only make ties
    if scalings.logits != 1.0 or scalings.logits_soft_cap is not None:
        tape.add(Scale(factor=scalings.logits, soft_cap=scalings.logits_soft_cap, x=result))
    tape.add(FindLikeliest(x=result))
    return fuse(Program(tuple(tape.instructions), result, given))


def _double(node: Any, ops: Ops) -> Any:
    """The same layers with recording operations and weights."""
    if node is ops:
        return RecordedOps()
    if isinstance(node, tuple):
        return tuple(_double(each, ops) for each in node)
    if isinstance(node, Weight):
        return RecordedWeight(node, node.outputs)
    whole = isinstance(node, Tensor | HeadTable | DecoderSpec | ExpertMatrices)
    if whole or not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {each.name: _double(value, ops) for each in fields(node) if _may_hold(value := getattr(node, each.name))}
    double = replace(node, **changed)
    if isinstance(double, Experts):
        return RecordedExperts(double)
    return RecordedLatent(double) if isinstance(double, LatentAttention) else double


def _may_hold(value: object) -> bool:
    return not isinstance(value, str | int | float | Tensor | DecoderSpec | None)


def _any(value: Any) -> Any:
    return value
