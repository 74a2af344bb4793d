"""Encoder-decoder models of Transformers (T5, BART and their kin), run by their own modelling over our paged cache.

The encoder runs once over a sequence's whole input. Its cross-attention keys and values lie in blocks of the same pool
as the decoder's own: the first blocks of a sequence's table. The decoder runs packed segments; three things of it are
replaced: attention, learned or sinusoidal positions (which Transformers counts from the start of a batch) and T5's bias
by distance. Nobody has held such a model against anything, so loading one does.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from textgen.layers.cache import LayerCache
from textgen.models.decoder import PackedBatch
from textgen.models.errors import ModelError
from textgen.models.fallback_parts import Headed, Running, Seen, line, load_whole, must_match
from textgen.models.fallback_trial import agree_together, must_agree
from textgen.models.generation import Generation, read_generation
from textgen.models.spec import DecoderSpec
from textgen.ops import AttentionForm, Ops

log = logging.getLogger(__name__)

NAME = "textgen_paged_encoder_decoder"  # among Transformers' attention functions
NEVER = -1e30  # in the place of a logit; a number, so that nothing that is computed of it is none
PADDING = 1 / 16  # of the tokens of inputs that the encoder reads together
SHORT = 256  # tokens: up to here one pass costs less than several, whatever pads
LOOKED_AT = (4, 7)  # tokens of the decoder and of the encoder, by which a look tells cross-attention from the other


@dataclass(frozen=True, slots=True)
class Distances:
    """In place of a bias by position: [heads, distances] by how many tokens back a key is; the last counts beyond."""

    table: Tensor


@dataclass(slots=True)
class _Encode:
    """The encoder over whole inputs: every token sees every other of its input."""

    real: Tensor | None = None  # [inputs, tokens] which tokens are not there to pad; None: all

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, form: _Asked) -> Tensor:
        if form.mask is not None and form.mask.window is not None:
            raise ModelError("its encoder has a sliding window")
        if form.soft_cap is not None or isinstance(form.bias, Distances):
            raise ModelError("its encoder has another attention than a plain one")
        bias, grouped = form.bias, query.shape[1] != key.shape[1]
        if self.real is not None:
            real = self.real[:, None, None]
            bias = real if bias is None else bias.masked_fill(~real, -torch.inf)
        return scaled_dot_product_attention(
            query, key, value, attn_mask=bias, scale=form.scale, enable_gqa=grouped
        ).transpose(1, 2)


@dataclass(slots=True)
class _Look:
    """A pass of the decoder that finds out what its attention is like. Its numbers mean nothing."""

    own: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by layer: heads, kv heads and sizes
    cross: dict[int, tuple[int, ...]] = field(default_factory=dict)
    crossing: set[int] = field(default_factory=set)  # ids of the modules

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, form: _Asked) -> Tensor:
        crosses = key.shape[2] == LOOKED_AT[1]
        found = self.cross if crosses else self.own
        if module.layer_idx in found:
            raise ModelError(f"layer {module.layer_idx} asks for attention twice")
        found[module.layer_idx] = (query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        if crosses:
            self.crossing.add(id(module))
        else:
            if form.mask is None:
                raise ModelError("a layer of its decoder has no mask")
            if form.mask.window is not None:
                raise ModelError("its decoder has a sliding window")
            form.mask.must_be_causal()
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


@dataclass(slots=True)
class _Step:
    """A step of the decoder over the cache."""

    batch: PackedBatch
    caches: Sequence[LayerCache]
    crossing: set[int]
    ops: Ops

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, form: _Asked) -> Tensor:
        layer: int = module.layer_idx
        cache, encoder = self.caches[layer], self.batch.encoder
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        biases = form.bias.table if isinstance(form.bias, Distances) else None
        asked = AttentionForm(scale=form.scale, soft_cap=form.soft_cap, biases=biases)
        if id(module) not in self.crossing:
            self.ops.write_kv(cache.keys, self.batch.rows[layer], k)
            self.ops.write_kv(cache.values, self.batch.rows[layer], v)
            attended = self.batch.attention[layer](q, k, v, cache.keys, cache.values, asked)
        else:
            assert encoder is not None
            if encoder.inputs:
                self.ops.write_kv(cache.keys, encoder.rows, k)
                self.ops.write_kv(cache.values, encoder.rows, v)
            attended = encoder.attention(q, k, v, cache.keys, cache.values, asked)
        return attended.view(1, *q.shape[:2], v.shape[2])


_running = Running[_Encode | _Look | _Step]("a pass of an encoder or its decoder")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a layer asks of attention beside queries, keys and values."""

    scale: float
    mask: Seen | None
    bias: Any  # a tensor that is added to the scores, or `Distances`
    soft_cap: float | None


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    position_bias: Any = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What Transformers calls in each layer. query, key, value [1, heads, tokens, dim]."""
    running = _running.get()
    if running is None or (attention_mask is not None and not isinstance(attention_mask, Seen)):
        raise ModelError("a layer makes its own mask")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    form = _Asked(scale, attention_mask, position_bias, softcap)
    return running.attend(module, query, key, value, form), None


class _Positions(nn.Module):
    """In the place of a decoder's position embedding: the rows of the step's own positions."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own
        self.table: Tensor | None = None  # [positions, hidden]
        self.noting = False

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        running = _running.get()
        if isinstance(running, _Step) and self.table is not None:
            return self.table.index_select(0, running.batch.positions)[None]
        rows: Tensor = self.own(*args, **kwargs)
        if self.noting:
            raise _Noted(rows.reshape(-1, rows.shape[-1]))
        return rows


class _Noted(Exception):
    """The position embedding of all positions is known; the rest of the pass is of no use."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__("noted")
        self.rows = rows


@dataclass(slots=True, eq=False)
class EncoderDecoder:
    """An encoder-decoder model of Transformers in the place of a `Decoder`."""

    spec: DecoderSpec
    like: Tensor
    ops: Ops
    encoder: Any
    decoder: Any
    headed: Headed
    takes_positions: bool
    padding: int  # id of the token that pads
    crossing: set[int] = field(default_factory=set)
    together: bool = False  # whether the encoder gives the same for inputs in one pass as for each alone
    never: Tensor | None = None  # [tokens] int64: what the model's files keep from being drawn

    def hidden(self, batch: PackedBatch, caches: Sequence[LayerCache]) -> Tensor:
        """See `Model`; encodes the inputs that are new."""
        assert batch.encoder is not None
        states = self.encode(batch.encoder.inputs)
        # One row that nobody reads where there is nothing new: projections of no rows at all have no shape.
        source = torch.cat(states) if states else self.like.new_zeros(1, self.spec.hidden_size)
        with _running.during(_Step(batch, caches, self.crossing, self.ops)):
            return batch.asked(self.decode(batch.ids, source, batch.positions))

    def encode(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """[tokens, hidden] of each whole input. Those of about the same length are read in one pass."""
        states: list[Tensor] = [self.like.new_zeros(0)] * len(inputs)
        for chosen in _alike([len(ids) for ids in inputs]) if self.together else [[at] for at in range(len(inputs))]:
            for at, found in zip(chosen, self.encode_together([inputs[at] for at in chosen]), strict=True):
                states[at] = found
        return states

    def encode_together(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """[tokens, hidden] of each, by one pass."""
        lengths = torch.tensor([len(ids) for ids in inputs], device=self.like.device)
        ids = nn.utils.rnn.pad_sequence(list(inputs), batch_first=True, padding_value=self.padding)
        real = None if len(inputs) == 1 else torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        with _running.during(_Encode(real)):
            out = self.encoder(input_ids=ids, attention_mask=None if real is None else real.long())
        return [states[: len(own)] for states, own in zip(out.last_hidden_state, inputs, strict=True)]

    def decode(self, ids: Tensor, source: Tensor, positions: Tensor) -> Tensor:
        """[tokens, hidden] of the decoder's tokens, whose inputs' states are `source`."""
        given = {"position_ids": positions[None]} if self.takes_positions else {}
        out = self.headed.own_forward(input_ids=ids[None], encoder_hidden_states=source[None], use_cache=False, **given)
        states: Tensor = out.last_hidden_state[0]
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab] float32 from rows of `hidden`."""
        from transformers.modeling_outputs import BaseModelOutput

        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        outputs = BaseModelOutput(last_hidden_state=hidden[None, :1])
        logits = self.headed.logits(hidden, encoder_outputs=outputs, decoder_input_ids=ids)
        return logits if self.never is None else logits.index_fill(1, self.never, NEVER)

    def own_logits(self, ids: Tensor, *source: Tensor) -> Tensor:
        """[tokens, vocab] of the decoder over `ids`, by the model's own attention. `source`: the encoder's input."""
        return self.headed.own_logits(input_ids=source[0][None], decoder_input_ids=ids[None])


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Inputs by their place, in groups that are worth padding."""
    groups: list[list[int]] = []
    taken = 0
    for place in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        if groups:
            padded = lengths[groups[-1][0]] * (len(groups[-1]) + 1)
            if padded <= SHORT or padded - taken - lengths[place] <= PADDING * padded:
                groups[-1].append(place)
                taken += lengths[place]
                continue
        groups.append([place])
        taken = lengths[place]
    return groups


@torch.inference_mode()
def load_encoder_decoder(
    folder: Path, spec: DecoderSpec, dtype: torch.dtype, device: torch.device, ops: Ops, trust: bool
) -> EncoderDecoder:
    """The folder's model in Transformers. Raises `ModelError` when it cannot run so."""
    from transformers import AutoModelForSeq2SeqLM

    whole = load_whole(AutoModelForSeq2SeqLM, folder, dtype, device, NAME, _attention, trust)
    stated = read_generation(folder)
    try:
        encoder, decoder = whole.get_encoder(), whole.get_decoder()
        padding = getattr(whole.config, "pad_token_id", None)
        model = EncoderDecoder(
            spec=spec,
            like=whole.get_input_embeddings().weight,
            ops=ops,
            encoder=encoder,
            decoder=decoder,
            headed=Headed(whole, decoder, NAME),
            takes_positions="position_ids" in inspect.signature(decoder.forward).parameters,
            padding=padding if isinstance(padding, int) else 0,
        )
        _replace_positions(model)
        _replace_biases(decoder)
        model.crossing = _looked_at(model)
        must_agree(model, dtype)
        model.together = agree_together(model, dtype)
    except Exception as error:  # of modelling that was not made for this
        why = line(error) if isinstance(error, ModelError) else f"its attention is not the common one ({line(error)})"
        raise ModelError(
            f"{folder}: Transformers' own modelling of this encoder-decoder model cannot run over a paged cache: "
            f"{why}; choose another model"
        ) from None
    if not model.together:
        log.info("its encoder reads one input at a time: together they would not give the same")
    _heed(model, stated)
    return model


def _heed(model: EncoderDecoder, stated: Generation) -> None:
    """What the model's files say of generating, as far as it is the model's and not the request's to say."""
    never = sorted(token for token in stated.never if token < model.spec.vocab_size)
    if never:
        model.never = torch.tensor(never, device=model.like.device)
        log.info("%s keeps %d tokens from being drawn", stated.where, len(never))
    if stated.unheeded:
        log.info(
            "%s asks for %s: not applied, since a request says what it wants", stated.where, ", ".join(stated.unheeded)
        )


def _replace_positions(model: EncoderDecoder) -> None:
    own = getattr(model.decoder, "embed_positions", None)
    if not isinstance(own, nn.Module):
        return
    positions = _Positions(own)
    model.decoder.embed_positions = positions
    some = 1 if model.padding == 0 else 0  # some count positions by what is no padding
    ids = torch.full((model.spec.max_positions,), some, device=model.like.device)
    positions.noting = True
    try:
        with _running.during(_Look()):
            model.decode(ids, model.like.new_zeros(1, model.spec.hidden_size), torch.arange(len(ids)))
    except _Noted as noted:
        positions.table = noted.rows
    finally:
        positions.noting = False
    if positions.table is None or len(positions.table) != len(ids):
        raise ModelError("it uses its position embedding in a way of its own")


def _replace_biases(decoder: Any) -> None:
    """T5's bias by distance: it is the same for all positions of a pair that are as far apart."""
    for module in decoder.modules():
        if not getattr(module, "has_relative_attention_bias", False):
            continue
        reach = int(module.relative_attention_max_distance) + 1
        # Of one query behind all keys: from the farthest to itself.
        row: Tensor = module.compute_bias(1, reach, past_seen_tokens=reach - 1)[0, :, 0]
        module.compute_bias = _biases(Distances(row.flip(-1).float().contiguous()), module.compute_bias)


def _biases(table: Distances, own: Callable[..., Any]) -> Callable[..., Any]:
    def compute_bias(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) if _running.get() is None else table

    return compute_bias


def _looked_at(model: EncoderDecoder) -> set[int]:
    """The modules that attend across. Raises `ModelError` where the model is not as its config says."""
    spec, device = model.spec, model.like.device
    look, (tokens, source) = _Look(), LOOKED_AT
    ids = torch.ones(tokens, dtype=torch.int64, device=device)
    with _running.during(look):
        states = model.like.new_zeros(source, spec.hidden_size)
        model.decode(ids, states, torch.arange(tokens, device=device))
    must_match(look.own, spec, "decoder layers have attention")
    must_match(look.cross, spec, "decoder layers have cross-attention")
    return look.crossing
