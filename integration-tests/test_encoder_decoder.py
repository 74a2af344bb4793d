"""Encoder-decoder models behind the launcher: prompts go to the encoder, and the decoder is batched like any other."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.api import Api, together
from support.models import END, PAD, copy_tokenizer, vocabulary_size
from support.prompts import words
from support.reference import TIE, Expected, must_match
from support.server import Launcher, Start
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tests.models.test_fallback_encoder import make

pytestmark = pytest.mark.timeout(240)

NEW_TOKENS = 24
FORCED = 17  # a token that BART's config forces as the first
LIMITS = {"block_size": 8, "max_input_tokens": 60, "max_total_tokens": 110, "max_batch_size": 6}


class Truth:
    """What Transformers generates."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text).input_ids)

    def starts(self) -> int:
        """Tokens before those that are ours to generate."""
        return 1 if self.model.generation_config.forced_bos_token_id is None else 2

    @torch.inference_mode()
    def greedy(self, source: list[int], new_tokens: int = NEW_TOKENS, **given: Any) -> Expected:
        made = self.model.generate(
            torch.tensor([source]), max_new_tokens=new_tokens + self.starts() - 1, do_sample=False, num_beams=1,
            output_scores=True, return_dict_in_generate=True, **given,
        )  # fmt: skip
        tokens = made.sequences[0, self.starts() :].tolist()
        best, second = torch.cat(made.scores[self.starts() - 1 :]).topk(2).values.unbind(1)
        ties = torch.nonzero(best - second < TIE).flatten().tolist()
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        return Expected(tuple(tokens), ties[0] if ties else len(tokens), text)

    @torch.inference_mode()
    def logprobs(self, source: list[int], tokens: list[int]) -> list[float]:
        """Of each of `tokens` behind the decoder's start."""
        start = [self.model.generation_config.decoder_start_token_id]
        logits = self.model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([start + tokens])).logits[
            0
        ]
        chosen: list[float] = (
            logits.log_softmax(-1)[: len(tokens)].gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        )
        return chosen


def write(folder: Path, name: str, **changes: Any) -> Path:
    """A random model with the built-in tokenizer, and without a chat template."""
    make(folder, name, vocab_size=vocabulary_size(), pad_token_id=PAD, eos_token_id=END, **changes)
    generation = json.loads((folder / "generation_config.json").read_text())
    forced = {name: changes[name] for name in ("forced_bos_token_id",) if name in changes}
    (folder / "generation_config.json").write_text(json.dumps(generation | forced))
    copy_tokenizer(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "chat_template"}))
    return folder


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "t5", "T5", num_decoder_layers=2)


@pytest.fixture(scope="module")
def truth(t5: Path) -> Truth:
    return Truth(t5)


@pytest.fixture(scope="module")
def server(start_for_module: Start, t5: Path) -> Launcher:
    return start_for_module(model=t5, **LIMITS).wait_ready()


@pytest.fixture(scope="module")
def client(server: Launcher) -> Iterator[Api]:
    made = Api(server.url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    random_ = random.Random(20261122)
    return [words(random_, random_.randint(1, 9)) for _ in range(8)]


def test_many_at_once_and_again_from_the_cache(client: Api, truth: Truth, texts: list[str], server: Launcher) -> None:
    assert "(fallback)" in server.log
    expected = [truth.greedy(truth.encode(text)) for text in texts]
    assert sum(each.decided for each in expected) > 4 * NEW_TOKENS, "ties decide everything"
    for _ in range(2):
        answers = together([functools.partial(client.generate, text, max_new_tokens=NEW_TOKENS) for text in texts])
        for text, answer, each in zip(texts, answers, expected, strict=True):
            must_match(answer.tokens, each, text)
    assert server.metrics().value("textgen_prefix_cache_hit_tokens_total") > 0, "the second time nothing is encoded"


def test_details_are_those_of_the_decoder(client: Api, truth: Truth, texts: list[str]) -> None:
    """The prefill is the decoder's start, and log-probabilities are the model's own."""
    source = truth.encode(texts[0])
    parameters = {"max_new_tokens": 6, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
    said = client.post("/generate", {"inputs": texts[0], "parameters": parameters})["details"]
    assert [(token["id"], token["logprob"]) for token in said["prefill"]] == [(PAD, None)]
    tokens = [token["id"] for token in said["tokens"]]
    assert [token["logprob"] for token in said["tokens"]] == pytest.approx(truth.logprobs(source, tokens), abs=1e-3)
    assert all(row[0]["id"] == token for row, token in zip(said["top_tokens"], tokens, strict=True))
    usage = client.post("/v1/completions", {"model": "m", "prompt": texts[0], "max_tokens": 3, "temperature": 0})
    assert usage["usage"]["prompt_tokens"] == len(source)


def test_streams_stops_and_choices(client: Api, truth: Truth, texts: list[str]) -> None:
    whole = client.generate(texts[1], max_new_tokens=NEW_TOKENS)
    streamed = client.stream(texts[1], max_new_tokens=NEW_TOKENS)
    assert (streamed.tokens, streamed.text) == (whole.tokens, whole.text)
    assert whole.text == truth.tokenizer.decode(
        list(whole.tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
    ), "no space of a text that goes on"
    stop = whole.text[4:7]
    stopped = client.generate(texts[1], max_new_tokens=NEW_TOKENS, stop=[stop])
    assert stopped.text == whole.text[: whole.text.index(stop) + len(stop)]
    body = {"model": "m", "prompt": texts[1], "max_tokens": 8, "n": 3, "temperature": 1.0, "seed": 3}
    first, again = (client.post("/v1/completions", body) for _ in range(2))
    drawn = [choice["text"] for choice in first["choices"]]
    assert drawn == [choice["text"] for choice in again["choices"]] and len(set(drawn)) > 1


def test_penalties_see_the_decoder_alone(client: Api, truth: Truth, texts: list[str]) -> None:
    expected = truth.greedy(truth.encode(texts[2]), repetition_penalty=1.6)
    answer = client.generate(texts[2], max_new_tokens=NEW_TOKENS, repetition_penalty=1.6)
    must_match(answer.tokens, expected, texts[2])


def test_beams(client: Api, truth: Truth, texts: list[str]) -> None:
    source = truth.encode(texts[3])
    made = truth.model.generate(
        torch.tensor([source]), max_new_tokens=6, do_sample=False, num_beams=3, num_return_sequences=3,
        length_penalty=1.0, early_stopping=False,
    )  # fmt: skip
    body = {"model": "m", "prompt": texts[3], "max_tokens": 6, "n": 3, "use_beam_search": True}
    said = client.post("/v1/completions", body)
    expected = [truth.tokenizer.decode(row[1:], skip_special_tokens=True) for row in made.tolist()]
    assert [choice["text"] for choice in said["choices"]] == expected


def test_truncate_cuts_the_input(client: Api, truth: Truth, texts: list[str]) -> None:
    text = " ".join(texts)
    source = truth.encode(text)
    assert len(source) > 60
    expected = truth.greedy(source[-30:])
    must_match(client.generate(text, max_new_tokens=NEW_TOKENS, truncate=30).tokens, expected, text)
    said = client.http.post("/generate", json={"inputs": text})
    assert said.status_code == 422 and "must have less than 60 tokens" in said.json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/v1/completions", {"prompt": "once", "echo": True, "max_tokens": 2}, "`echo`"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "once"}]}, "template"),
    ],
)
def test_what_continues_a_prompt_is_refused(client: Api, path: str, body: dict[str, Any], word: str) -> None:
    said = client.http.post(path, json={"model": "m", **body})
    assert said.status_code == 422, said.text
    assert word in said.text


def test_bart_with_a_forced_token_in_a_small_pool(start: Start, tmp_path: Path, texts: list[str]) -> None:
    """Sequences give way for want of blocks, and are read again."""
    special = {"bos_token_id": 1, "decoder_start_token_id": END, "forced_bos_token_id": FORCED}
    folder = write(tmp_path / "bart", "Bart", encoder_layers=3, tie_word_embeddings=False, **special)
    truth = Truth(folder)
    assert truth.model.generation_config.forced_bos_token_id == FORCED
    expected = [truth.greedy(truth.encode(text), 40) for text in texts]
    # Keys and values of 3 layers and the scratch of 2 for blocks of 8, of which one sequence may need 15.
    blocks = 16 * 8 * 2 * 32 * 4 * (3 + 2)
    launcher = start(model=folder, **{**LIMITS, "max_total_tokens": 96}, kv_memory=blocks).wait_ready()
    client = Api(launcher.url)
    details = {"decoder_input_details": True, "details": True, "max_new_tokens": 2}
    prefill = client.post("/generate", {"inputs": texts[0], "parameters": details})["details"]["prefill"]
    assert [token["id"] for token in prefill] == [END, FORCED]
    answers = together([functools.partial(client.generate, text, max_new_tokens=40) for text in texts])
    for text, answer, each in zip(texts, answers, expected, strict=True):
        must_match(answer.tokens, each, text)
    client.close()


def test_a_step_that_is_too_small_is_refused(start: Start, t5: Path) -> None:
    launcher = start(model=t5, **LIMITS, max_batch_prefill_tokens=64)
    assert launcher.wait() != 0
    assert "--max-batch-prefill-tokens 64 is too few" in launcher.log and "give at least 70" in launcher.log
