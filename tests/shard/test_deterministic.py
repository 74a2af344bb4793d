"""With `--deterministic` a request on a GPU has the same tokens and log-probabilities, to the last bit, alone and
beside others, however its prompt is cut, and in captured steps."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from textgen.models.errors import ModelError
from textgen.shard.errors import ShardError
from textgen.shard.protocol import Done
from textgen.shard.runner import Runner

from ..models.tiny import make_model, random_prompt
from ..ops.cuda.host_device import COMPILER
from .conftest import RunnerMaker
from .router import Segment, admit, step
from .stand_in import StandIn

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ is missing")

BLOCK, BLOCKS = 4, 24  # of a sequence
TOKENS = 9
PART = 16  # positions of a part of a context, so that there are several


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textgen.ops.cuda.attention.fixed_chunk", lambda _: PART)


@dataclass
class Request:
    slot: int
    prompt: list[int]
    temperature: float
    at: int = 0
    said: list[tuple[bytes, bytes]] = field(default_factory=list)  # a token and its log-probability

    def segment(self, most: int) -> Segment:
        """The next part of the prompt, up to so many tokens, or the token after the last."""
        tokens = self.prompt[self.at : self.at + most]
        count = len(tokens) or 1
        pages = range(-(-self.at // BLOCK), -(-(self.at + count) // BLOCK))
        ends = self.at + count >= len(self.prompt)
        blocks = [self.slot * BLOCKS + page for page in pages]
        segment = Segment(self.slot, self.at, tokens, last=not tokens, sample=ends, blocks=blocks)
        self.at += count
        return segment


def requests_of(rng: random.Random) -> list[Request]:
    lengths = [rng.randint(1, 3), rng.randint(4, 12), rng.randint(20, 50)]
    temperatures = [0.0, 1.0, 0.0]
    return [
        Request(slot, random_prompt(rng, length), temperature)
        for slot, (length, temperature) in enumerate(zip(lengths, temperatures, strict=True))
    ]


def advance(runner: Runner, number: int, parts: list[tuple[Request, int]]) -> None:
    """A step of these requests, each up to so many tokens."""
    segments = [request.segment(most) for request, most in parts]
    (done,) = runner.step(step(number, segments), time.monotonic_ns()).frames
    assert isinstance(done, Done)
    sampled = [request for (request, _), segment in zip(parts, segments, strict=True) if segment.sample]
    for place, request in enumerate(sampled):
        word = slice(4 * place, 4 * place + 4)
        request.said.append((done.tokens[word], done.logprobs[word]))


def seat(runner: Runner, request: Request) -> None:
    assert not runner.admit(
        admit(request.slot, len(request.prompt), temperature=request.temperature, seed=request.slot)
    )


def alone(runner: Runner, requests: list[Request]) -> None:
    """One after the other, whole prompts."""
    number = 0
    for request in requests:
        seat(runner, request)
        while len(request.said) < TOKENS:
            number += 1
            advance(runner, number, [(request, len(request.prompt))])
        runner.step(step(number + 1, [], freed=[request.slot]), 0)


def together(runner: Runner, requests: list[Request], rng: random.Random) -> None:
    """First in batches of random sizes, prompts in random parts; then all in the same batch, which is captured."""
    number = 0
    for request in requests:
        seat(runner, request)
    while waiting := [request for request in requests if len(request.said) < 3]:
        number += 1
        chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
        advance(runner, number, [(request, rng.choice([1, 3, 12, 30])) for request in chosen])
    for _ in range(3, TOKENS):
        number += 1
        advance(runner, number, [(request, 1) for request in requests])


def on_gpu(make_runner: RunnerMaker, folder: Path, **changes: Any) -> Runner:
    settings: dict[str, Any] = {"deterministic": True, "max_batch_tokens": 256, **changes}
    return make_runner(device="cuda", num_blocks=4 * BLOCKS, max_slots=6, model_dir=str(folder), **settings)


@pytest.mark.parametrize(
    ("architecture", "dtype", "layers", "cache"),
    [
        ("PhiForCausalLM", "bfloat16", 2, "fp8"),
        ("LlamaForCausalLM", "float32", 1, "int8"),
        ("Qwen2MoeForCausalLM", "float16", 2, "auto"),
    ],
)
def test_a_request_does_not_depend_on_its_batch(
    make_runner: RunnerMaker,
    gpu: StandIn,
    rng: random.Random,
    architecture: str,
    dtype: str,
    layers: int,
    cache: str,
    tmp_path: Path,
) -> None:
    make_model(tmp_path, architecture, rng.getrandbits(30), num_hidden_layers=layers)
    requests = requests_of(rng)
    beside = [Request(request.slot, request.prompt, request.temperature) for request in requests]
    settings = {"dtype": dtype, "kv_cache_dtype": cache}
    alone(on_gpu(make_runner, tmp_path, **settings), requests)
    captured = gpu.captured
    together(on_gpu(make_runner, tmp_path, **settings), beside, rng)
    assert captured and gpu.captured > captured
    for ours, theirs in zip(requests, beside, strict=True):
        assert ours.said == theirs.said, ours.slot


def test_without_it_a_request_does(make_runner: RunnerMaker, gpu: StandIn, rng: random.Random, tmp_path: Path) -> None:
    """The test above can fail."""
    make_model(tmp_path, "LlamaForCausalLM", rng.getrandbits(30), num_hidden_layers=1)
    requests = requests_of(rng)
    beside = [Request(request.slot, request.prompt, request.temperature) for request in requests]
    settings: dict[str, Any] = {"dtype": "float32", "deterministic": False}
    alone(on_gpu(make_runner, tmp_path, **settings), requests)
    together(on_gpu(make_runner, tmp_path, **settings), beside, rng)
    assert [request.said for request in requests] != [request.said for request in beside]


def test_weights_that_other_kernels_multiply_are_refused(
    make_runner: RunnerMaker, gpu: StandIn, model_folder: Path
) -> None:
    with pytest.raises(ShardError, match="leave out --quantize int8"):
        on_gpu(make_runner, model_folder, quantize="int8")


def test_models_that_torch_multiplies_are_refused(make_runner: RunnerMaker, gpu: StandIn, tmp_path: Path) -> None:
    make_model(tmp_path, "DeepseekV2ForCausalLM")
    with pytest.raises((ShardError, ModelError), match="no kernels for latent attention"):
        on_gpu(make_runner, tmp_path)
