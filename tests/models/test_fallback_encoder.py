"""Encoder-decoder models by Transformers' own modelling over our paged cache: held against Transformers alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from textgen.models.decoder import EncoderBatch, PackedBatch
from textgen.models.errors import ModelError
from textgen.models.fallback_encoder import EncoderDecoder
from textgen.models.load import load_model
from textgen.ops import CrossLayout, SegmentLayout, select_ops
from textgen.parallel import Parallel
from textgen.shard.cache import KvCache

from ..seeds import fresh_seed
from .test_decoder import BLOCK, BLOCKS, CPU, poisoned_cache

VOCABULARY = 90
T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 48, "max_position_embeddings": 96, "pad_token_id": 1,
    "decoder_start_token_id": 2,
}  # fmt: skip
TESTED: dict[str, dict[str, Any]] = {
    "T5": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "MT5": T5,
    "UMT5": T5,  # a bias of its own in every layer
    "LongT5": {**T5, "local_radius": 5},
    "Bart": BART,
    "MBart": {**BART, "scale_embedding": True},
    "Pegasus": BART,  # positions by sines
    "PegasusX": BART,
    "Marian": BART,
    "M2M100": BART,
    "Blenderbot": BART,
    "BlenderbotSmall": BART,
    "PLBart": BART,
}
CLASSES = {"Marian": "MarianMTModel"}


def make(folder: Path, name: str, **changes: Any) -> PreTrainedModel:
    """A tiny random model in which input and output so far decide: no token wins everywhere."""
    torch.manual_seed(7)
    config = getattr(transformers, f"{name}Config")(**{"vocab_size": VOCABULARY, **TESTED[name], **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, CLASSES.get(name, f"{name}ForConditionalGeneration"))(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "relative_attention_bias" in key:
                parameter.normal_(std=1.0)
            elif parameter.requires_grad:  # sines are not
                tables = any(part in key for part in ("embed", "shared", "lm_head"))
                loud = any(part in key for part in ("out_proj", "fc2"))  # or a token is followed by itself
                std = 0.5 if tables else (5.0 if loud else 1.6) / parameter.shape[1] ** 0.5
                # T5 scales no scores: as in training its queries are small, or a rounding error chooses another key.
                parameter.normal_(std=std / config.d_kv**0.5 if key.endswith(".q.weight") else std)
        model.tie_weights()
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)
    made: PreTrainedModel = model
    return made


def load(folder: Path, dtype: torch.dtype = torch.float32) -> EncoderDecoder:
    model = load_model(folder, dtype, CPU, Parallel(), select_ops())
    assert isinstance(model, EncoderDecoder)
    return model


@dataclass
class Pair:
    """An input, and what the decoder runs; blocks of both."""

    source: list[int]
    tokens: list[int]
    crossed: list[int]
    blocks: list[int]
    done: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)


def rows(blocks: list[int], span: range) -> list[int]:
    return [blocks[position // BLOCK] * BLOCK + position % BLOCK for position in span]


def padded(tables: list[list[int]]) -> Any:
    width = max(map(len, tables))
    return np.array([table + [0] * (width - len(table)) for table in tables], np.int32)


def run_step(model: EncoderDecoder, cache: KvCache, work: list[tuple[Pair, int]]) -> None:
    """The next tokens of each decoder as one packed batch; a pair that is new is encoded in it."""
    lengths, starts = np.array([n for _, n in work]), np.array([pair.done for pair, _ in work])
    offsets = np.cumsum(lengths) - lengths
    layout = SegmentLayout(offsets, starts, lengths, padded([pair.blocks for pair, _ in work]), BLOCK)
    contexts = np.array([len(pair.source) for pair, _ in work])
    cross = CrossLayout(offsets, lengths, contexts, padded([pair.crossed for pair, _ in work]), BLOCK)
    new = [pair for pair, _ in work if pair.done == 0]
    spans = [(pair, range(pair.done, pair.done + n)) for pair, n in work]
    written = [row for pair in new for row in rows(pair.crossed, range(len(pair.source)))]
    batch = PackedBatch(
        ids=torch.tensor([pair.tokens[at] for pair, span in spans for at in span]),
        positions=torch.tensor([at for _, span in spans for at in span]),
        rows=[torch.tensor([row for pair, span in spans for row in rows(pair.blocks, span)])] * model.spec.num_layers,
        attention=[select_ops().attention(layout, None, model.like)] * model.spec.num_layers,
        encoder=EncoderBatch(
            inputs=[torch.tensor(pair.source) for pair in new],
            rows=torch.tensor(written, dtype=torch.int64),
            attention=select_ops().cross_attention(cross, model.like),
        ),
    )
    logits = model.logits(model.hidden(batch, cache.layers))
    for (pair, length), offset in zip(work, offsets.tolist(), strict=True):
        pair.logits.append(logits[offset : offset + length])
        pair.done += length


@pytest.mark.parametrize("name", TESTED)
@torch.inference_mode()
def test_logits_equal_transformers_in_mixed_batches(name: str, tmp_path: Path) -> None:
    """Inputs of several lengths that come at different times, decoders in chunks beside single tokens."""
    reference, rng = make(tmp_path, name), random.Random(fresh_seed())
    model = load(tmp_path)
    cache = poisoned_cache(model)
    free = rng.sample(range(BLOCKS), BLOCKS)

    def blocks(count: int) -> list[int]:
        return [free.pop() for _ in range(-(-count // BLOCK))]

    def text(length: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(length)]

    sizes = [(rng.randint(1, 45), rng.randint(2, 40)) for _ in range(4)]
    pairs = [Pair(text(source), text(own), blocks(source), blocks(own)) for source, own in sizes]
    while waiting := [pair for pair in pairs if pair.done < len(pair.tokens)]:
        chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
        limits = [min(rng.choice([1, 1, 1, 4, 20]), len(each.tokens) - each.done) for each in chosen]
        run_step(model, cache, list(zip(chosen, limits, strict=True)))
    for pair in pairs:
        theirs = reference(
            input_ids=torch.tensor([pair.source]), decoder_input_ids=torch.tensor([pair.tokens]), use_cache=False
        ).logits[0]
        torch.testing.assert_close(torch.cat(pair.logits), theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["T5", "Bart"])
@torch.inference_mode()
def test_half_precision(name: str, tmp_path: Path) -> None:
    reference = make(tmp_path, name)
    model = load(tmp_path, torch.bfloat16)
    from textgen.shard.cache import allocate_cache

    cache = allocate_cache(model.spec, 8, BLOCK, torch.bfloat16, CPU, Parallel())
    pair = Pair([5, 9, 33, 80, 7], [2, 40, 41, 42], [0, 1], [2])
    run_step(model, cache, [(pair, 4)])
    theirs = reference(input_ids=torch.tensor([pair.source]), decoder_input_ids=torch.tensor([pair.tokens])).logits[0]
    assert (pair.logits[0] - theirs).norm() < 0.1 * theirs.norm()


def test_positions_are_what_the_config_has(tmp_path: Path) -> None:
    make(tmp_path / "bart", "Bart")
    make(tmp_path / "t5", "T5")
    bart, t5 = load(tmp_path / "bart").spec, load(tmp_path / "t5").spec
    assert (bart.max_positions, bart.num_layers, bart.num_heads) == (96, 3, 4)
    assert bart.encoder is not None and (bart.encoder.num_heads, bart.encoder.mlp_width) == (2, 40)
    assert (t5.max_positions, t5.num_layers, t5.head_dim) == (2**15, 3, 8), "distances know no end"


@pytest.mark.parametrize(
    ("name", "words"),
    [("ProphetNet", "only 0 of its 2 decoder layers"), ("LED", "its attention is not the common one")],
)
def test_what_cannot_run_is_refused(name: str, words: str, tmp_path: Path) -> None:
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "hidden_size": 32, "max_position_embeddings": 64}
    config = getattr(transformers, f"{name}Config")(**({"vocab_size": 90, **sizes} if name == "ProphetNet" else BART))
    getattr(transformers, f"{name}ForConditionalGeneration")(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=words) as caught:
        load(tmp_path)
    assert "choose another model" in str(caught.value)
