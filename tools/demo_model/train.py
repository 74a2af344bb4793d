"""Trains the built-in model from a seed: ``python -m tools.demo_model.train --output FOLDER``.

The amount of work is a count of tokens, not of minutes, so that the result does not depend on the machine's speed.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from tools.demo_model import evaluate, tokenizer
from tools.demo_model.batches import Encoder, Example, MicroBatch, micro_batches
from tools.demo_model.corpus import lists, mixture
from tools.demo_model.export import save_configs, save_weights
from tools.demo_model.grafting import graft
from tools.demo_model.induction import start_with_induction_heads
from tools.demo_model.network import Network, Shape

OUTPUT = Path(__file__).parents[2] / "python/textgen/demo/model"
SEED = 20_260
STEP_TOKENS = 1_024
SAVE_SECONDS = 180.0
GRAFT_DOCUMENTS = (50, 200)  # of the mixture, of words to repeat


@dataclass(frozen=True)
class Stage:
    """A part of the training: how many ``tokens``, at which peak rate, over which last share of them it falls."""

    tokens: int
    peak: float
    falling: float

    def rate(self, done: float) -> float:
        """At ``done`` (0 to 1) of the stage: warm up over 3 %, hold, and fall in a straight line."""
        return self.peak * min(1.0, done / 0.03, (1.0 - done) / self.falling)


LANGUAGE = Stage(2_200_000, 2e-3, 0.65)
COPYING = Stage(700_000, 1e-3, 0.7)


def steps(encoder: Encoder, seed: int) -> Iterator[list[Example]]:
    """The documents of each step, endless. Small steps: what is scarce in an hour is not text but corrections."""
    step: list[Example] = []
    size = 0
    for document in mixture.documents(seed):
        step.append(encoder.encode(document))
        size += len(step[-1].tokens)
        if size >= STEP_TOKENS:
            yield step
            step, size = [], 0


def loss_sum(network: Network, batch: MicroBatch) -> Tensor:
    """The summed negative log likelihood of the learned tokens of a batch, in nats."""
    hidden = network(batch.inputs).flatten(0, 1)[batch.places]
    return functional.cross_entropy(network.logits(hidden), batch.targets, reduction="sum")


class Trainer:
    """AdamW over all parameters."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._adam = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=0.01)

    def step(self, examples: list[Example], rate: float) -> float:
        """Learn from one step's documents; returns the mean loss in nats."""
        learned = sum(sum(example.learned[1:]) for example in examples)
        self._network.zero_grad()
        total = 0.0
        for batch in micro_batches(examples, STEP_TOKENS):
            loss = loss_sum(self._network, batch) / learned
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        return total


class Clerk:
    """Shows progress, and saves the weights every few minutes so that a run cut off still leaves a model."""

    def __init__(self, network: Network, output: Path, tokens: int) -> None:
        self._network, self._output = network, output
        self._bar = tqdm(total=tokens, unit="tok", unit_scale=True)
        self._loss: float | None = None
        self._saved = time.monotonic()

    def note(self, tokens: int, loss: float) -> None:
        """Take down one step."""
        self._loss = loss if self._loss is None else 0.98 * self._loss + 0.02 * loss
        self._bar.set_postfix(loss=f"{self._loss:.3f}", refresh=False)
        self._bar.update(tokens)
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the weights."""
        save_weights(self._network, self._output)
        self._saved = time.monotonic()


def learn(stage: Stage, network: Network, encoder: Encoder, seed: int, output: Path) -> None:
    """Train through one stage on the corpus of ``seed`` and save."""
    trainer, clerk, done = Trainer(network), Clerk(network, output, stage.tokens), 0
    for examples in steps(encoder, seed):
        loss = trainer.step(examples, stage.rate(done / stage.tokens))
        size = sum(len(example.tokens) for example in examples)
        done += size
        clerk.note(size, loss)
        if done >= stage.tokens:
            break
    clerk.save()


def graft_texts(encoder: Encoder, seed: int) -> list[list[int]]:
    """The documents on which the grafted heads are fitted."""
    rng, (mixed, repeated) = Random(seed), GRAFT_DOCUMENTS
    documents = [*islice(mixture.documents(seed), mixed), *(lists.echo(rng) for _ in range(repeated))]
    return [encoder.encode(document).tokens for document in documents]


def train(output: Path, seed: int) -> None:
    """Train tokenizer and network, keeping the folder ``output`` loadable from the first minutes on."""
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    vocabulary = tokenizer.train(seed)
    tokenizer.save(vocabulary, output)
    encoder = Encoder(vocabulary)
    network = Network(Shape(vocabulary=vocabulary.get_vocab_size()))
    start_with_induction_heads(network)
    save_configs(network.shape, output)
    learn(LANGUAGE, network, encoder, seed + 1, output)
    network = graft(network, graft_texts(encoder, seed + 2))
    save_configs(network.shape, output)
    learn(COPYING, network, encoder, seed + 2, output)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the built-in model of Textgen, about an hour on 2 cores.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write the model to")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    train(arguments.output, arguments.seed)
    print(evaluate.report(arguments.output))


if __name__ == "__main__":
    main()
