"""Inputs of an encoder that are read in one pass, and what a model's files say of generating."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import pytest
import torch

from textgen.models.errors import ModelError
from textgen.models.fallback_encoder import NEVER, EncoderDecoder, _alike
from textgen.models.generation import read_generation

from ..seeds import fresh_seed
from .test_decoder import poisoned_cache
from .test_fallback_encoder import TESTED, VOCABULARY, Pair, load, make, run_step
from .tiny import generate


@pytest.mark.parametrize("name", TESTED)
@torch.inference_mode()
def test_inputs_read_together_give_what_each_gives_alone(name: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    model, rng = load(tmp_path), random.Random(fresh_seed())
    assert model.together
    inputs = [
        torch.tensor([rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 60))]) for _ in range(rng.randint(2, 6))
    ]
    for ids, states in zip(inputs, model.encode(inputs), strict=True):
        torch.testing.assert_close(states, model.encode_together([ids])[0], rtol=2e-5, atol=2e-5)


@torch.inference_mode()
def test_an_encoder_that_padding_reaches_reads_one_input_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, "T5")
    own = EncoderDecoder.encode_together

    def leaky(self: EncoderDecoder, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        tried.append(len(inputs))
        return [states + 0.1 * (len(inputs) - 1) for states in own(self, inputs)]

    tried: list[int] = []
    monkeypatch.setattr(EncoderDecoder, "encode_together", leaky)
    with caplog.at_level(logging.INFO):
        model = load(tmp_path)
    assert max(tried) > 1 and "reads one input at a time" in caplog.text
    model.encode([torch.tensor([4, 5]), torch.tensor([6, 7])])
    assert tried[-2:] == [1, 1]


@torch.inference_mode()
def test_a_step_encodes_its_inputs_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = make(tmp_path, "Bart")
    model, passes, own = load(tmp_path), list[int](), EncoderDecoder.encode_together

    def counted(self: EncoderDecoder, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        passes.append(len(inputs))
        return own(self, inputs)

    monkeypatch.setattr(EncoderDecoder, "encode_together", counted)
    pairs = [Pair([5 + at] * (20 + at), [2, 40 + at], list(range(8 * at, 8 * at + 6)), [8 * at + 7]) for at in range(4)]
    run_step(model, poisoned_cache(model), [(pair, 2) for pair in pairs])
    assert passes == [4]
    for pair in pairs:
        theirs = reference(input_ids=torch.tensor([pair.source]), decoder_input_ids=torch.tensor([pair.tokens])).logits
        torch.testing.assert_close(pair.logits[0], theirs[0], rtol=2e-4, atol=2e-4)


def test_which_inputs_are_read_together() -> None:
    assert _alike([]) == []
    assert _alike([7]) == [[0]]
    assert _alike([3, 60, 61, 2]) == [[2, 1, 0, 3]], "short ones whatever pads"
    assert _alike([1000, 990, 100, 995, 98]) == [[0, 3, 1], [2, 4]]
    for lengths in ([random.Random(seed).randint(1, 2000) for _ in range(30)] for seed in range(20)):
        groups = _alike(lengths)
        assert sorted(at for group in groups for at in group) == list(range(30))
        for group in groups:
            padded = len(group) * max(lengths[at] for at in group)
            assert padded <= 256 or padded - sum(lengths[at] for at in group) <= padded / 16


@torch.inference_mode()
def test_what_is_never_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Transformers' own answer, and one token after another here."""
    reference = make(tmp_path, "Marian", decoder_start_token_id=1)
    source = [5, 9, 33, 80, 7]
    made = generate(reference, torch.tensor([source]), max_new_tokens=6, do_sample=False, eos_token_id=None)
    plain = made[0].tolist()
    banned = sorted(set(plain[1:4]))
    stated = {"bad_words_ids": [[token] for token in banned] + [[4, 5]], "suppress_tokens": [3], "num_beams": 6}
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **stated}))
    with caplog.at_level(logging.INFO):
        model = load(tmp_path)
    assert "num_beams 6, bad_words_ids of several tokens: not applied" in caplog.text
    pair = Pair(source, [1], [0, 1], [2, 3])
    cache, ours = poisoned_cache(model), [1]
    for _ in range(6):
        run_step(model, cache, [(pair, 1)])
        row = pair.logits[-1][-1]
        assert all(row[token] == NEVER for token in [*banned, 3])
        best, second = row.topk(2).values.tolist()
        assert best - second > 1e-2, "the margin that equal tokens need"
        ours.append(int(row.argmax()))
        pair.tokens.append(ours[-1])
    theirs = generate(
        reference, torch.tensor([source]), max_new_tokens=6, do_sample=False, eos_token_id=None,
        bad_words_ids=[[token] for token in banned], suppress_tokens=[3],
    )[0].tolist()  # fmt: skip
    assert ours == theirs != plain


@pytest.mark.parametrize(
    ("generation", "config", "never", "unheeded"),
    [
        (None, {"num_beams": 4, "no_repeat_ngram_size": 3}, set(), ("no_repeat_ngram_size 3", "num_beams 4")),
        ({}, {"num_beams": 4, "bad_words_ids": [[1]]}, set(), ()),
        ({"num_beams": 1, "max_length": 20, "do_sample": False}, {}, set(), ()),
        ({"bad_words_ids": [[7], [2]], "eos_token_id": 2}, {}, {7}, ()),
        ({"forced_eos_token_id": [2]}, {}, set(), ("forced_eos_token_id [2]",)),
        ({"suppress_tokens": [1, -2, True, "x"], "bad_words_ids": "no"}, {}, {1}, ()),
    ],
)  # fmt: skip
def test_what_files_say(
    generation: object, config: object, never: frozenset[int], unheeded: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    found = read_generation(tmp_path)
    assert (found.never, found.unheeded) == (never, unheeded)


@pytest.mark.parametrize("text", ["[1]", "{", ""])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        read_generation(tmp_path)
