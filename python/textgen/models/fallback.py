"""Causal models of Transformers that have no family here, run by their own modelling over our paged attention.

The attention function and the masks of Transformers are replaced: a mask becomes a note of the window that a layer has,
and attention reads and writes the step's cache. What else a model does (positions, experts, scores) is its own. Nobody
has held such a model against anything, so loading one does: chunks over the cache must give what the model gives with
its own attention in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from textgen.layers.cache import LayerCache
from textgen.models.decoder import PackedBatch
from textgen.models.errors import ModelError
from textgen.models.fallback_config import read_fallback
from textgen.models.fallback_encoder import EncoderDecoder, load_encoder_decoder
from textgen.models.fallback_parts import Headed, Running, Seen, line, load_whole, must_match
from textgen.models.fallback_trial import must_agree
from textgen.models.spec import DecoderSpec
from textgen.ops import AttentionForm, Ops

NAME = "textgen_paged"  # among Transformers' attention functions


@dataclass(slots=True)
class _Look:
    """A forward pass that finds out what each layer is like. Its numbers mean nothing."""

    layers: dict[int, tuple[int, ...]] = field(default_factory=dict)  # heads, key-value heads and sizes
    windows: dict[int, int | None] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm, seen: Seen) -> Tensor:
        if layer in self.layers:
            raise ModelError(f"layer {layer} asks for attention twice")
        seen.must_be_causal()
        self.layers[layer] = (query.shape[1], key.shape[1], key.shape[2], value.shape[2])
        self.windows[layer] = seen.window
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


@dataclass(slots=True)
class _Step:
    """A step over the cache."""

    batch: PackedBatch
    caches: Sequence[LayerCache]
    ops: Ops

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm, seen: Seen) -> Tensor:
        cache = self.caches[layer]
        self.ops.write_kv(cache.keys, self.batch.rows[layer], key)
        self.ops.write_kv(cache.values, self.batch.rows[layer], value)
        plan = self.batch.attention[layer]
        return plan(query, key, value, cache.keys, cache.values, form).view(*query.shape[:2], value.shape[2])


_running = Running[_Look | _Step]("a pass of a decoder")


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What Transformers calls in each layer. query, key, value [1, heads, tokens, dim]."""
    if not getattr(module, "is_causal", True):
        raise ModelError("a layer looks ahead")
    if attention_mask is not None and not isinstance(attention_mask, Seen):
        raise ModelError("a layer makes its own mask")
    running = _running.get()
    assert running is not None
    seen = attention_mask or Seen(None, sliding_window or None)
    form = AttentionForm(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        soft_cap=softcap,
        sinks=None if s_aux is None else s_aux.float(),
    )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return running.attend(module.layer_idx, q, k, v, form, seen)[None], None


@dataclass(slots=True, eq=False)
class FallbackModel:
    """A model of Transformers in the place of a `Decoder`."""

    spec: DecoderSpec
    like: Tensor
    ops: Ops
    base: Any  # without its head
    headed: Headed

    def hidden(self, batch: PackedBatch, caches: Sequence[LayerCache]) -> Tensor:
        """See `Model`."""
        with _running.during(_Step(batch, caches, self.ops)):
            out = self.base(input_ids=batch.ids[None], position_ids=batch.positions[None], use_cache=False)
        states: Tensor = out.last_hidden_state[0]
        return batch.asked(states)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] float32 from rows of `hidden`."""
        return self.headed.logits(hidden, input_ids=hidden.new_zeros(1, len(hidden), dtype=torch.int64))

    def own_logits(self, ids: Tensor, *source: Tensor) -> Tensor:
        """[tokens, vocab] of one prompt, by the model's own attention."""
        return self.headed.own_logits(input_ids=ids[None])


@torch.inference_mode()
def load_fallback(
    folder: Path, dtype: torch.dtype, device: torch.device, ops: Ops, trust: bool = False
) -> FallbackModel | EncoderDecoder:
    """The folder's model in Transformers. Raises `ModelError` when it cannot run so."""
    spec = read_fallback(folder, trust)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if spec.encoder is not None:
        return load_encoder_decoder(folder, spec, dtype, device, ops, trust)
    whole = load_whole(AutoModelForCausalLM, folder, dtype, device, NAME, _attention, trust)
    base = whole.base_model
    if base is whole or not getattr(whole, "_supports_attention_backend", False):
        raise _unfit(folder, "its attention cannot be replaced")
    headed = Headed(whole, base, NAME)
    model = FallbackModel(spec=spec, like=whole.get_input_embeddings().weight, ops=ops, base=base, headed=headed)
    try:
        model.spec = _looked_at(model, spec)
        must_agree(model, dtype)
    except Exception as error:  # of modelling that was not made for this
        raise _unfit(folder, line(error)) from None
    return model


def _looked_at(model: FallbackModel, spec: DecoderSpec) -> DecoderSpec:
    """The spec, with the windows that the layers have. Raises `ModelError` where they are not as the config says."""
    look, ids = _Look(), torch.zeros(4, dtype=torch.int64, device=model.like.device)
    with _running.during(look):
        model.base(input_ids=ids[None], position_ids=torch.arange(4, device=ids.device)[None], use_cache=False)
    must_match(look.layers, spec, "layers have attention")
    return spec.varied(window=[look.windows[number] for number in range(spec.num_layers)])


def _unfit(folder: Path, why: str) -> ModelError:
    return ModelError(
        f"{folder}: the model has no family here, and Transformers' own modelling cannot run over a paged cache: "
        f"{why}; choose another model"
    )
