"""Measures a model folder: loss on unseen documents, and greedy answers per skill.

``python -m tools.demo_model.evaluate FOLDER``
"""

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from tools.demo_model.batches import Encoder, micro_batches
from tools.demo_model.corpus import about, arithmetic, facts, lists, mixture, records, toolcalls
from tools.demo_model.corpus.document import Document, Message
from tools.demo_model.rendering import render

SEED = 77_003
QUESTIONS = 200
LOSS_DOCUMENTS = 400
_GROUP = 50


@dataclass(frozen=True)
class Question:
    """A conversation that waits for an answer, and the check of an answer's text."""

    document: Document
    is_right: Callable[[str], bool]


def _exact(question: str, answer: str) -> Question:
    return Question(Document(messages=(Message("user", question),)), lambda text: text == answer)


def _sum(rng: Random) -> Question:
    while True:
        question, answer = arithmetic.question(rng, held_out=True)
        if "*" not in answer:
            return _exact(question, answer)


def _product(rng: Random) -> Question:
    while True:
        question, answer = arithmetic.question(rng)
        if "*" in answer:
            return _exact(question, answer)


def _about(rng: Random) -> Question:
    topic = rng.choice(about.TOPICS)
    return Question(Document(messages=(Message("user", about.ask(rng, topic)),)), lambda text: topic.keyword in text)


def _parses(rng: Random) -> Question:
    def is_json(text: str) -> bool:
        try:
            json.loads(text)
        except ValueError:
            return False
        return True

    return Question(Document(messages=(Message("user", records.question(rng)[0]),)), is_json)


def _tool_call(rng: Random) -> Question:
    whole = toolcalls.call(rng)
    asked = Document(messages=whole.messages[:1], tools=whole.tools)
    prefix = render(asked, add_generation_prompt=True)
    answer = (
        render(Document(messages=whole.messages[:2], tools=whole.tools)).removeprefix(prefix).removesuffix("<|end|>")
    )
    return Question(asked, lambda text: text == answer)


def _tool_answer(rng: Random) -> Question:
    whole = toolcalls.call(rng)
    asked = Document(messages=whole.messages[:-1], tools=whole.tools)
    return Question(asked, lambda text: text == whole.messages[-1].content)


SKILLS: dict[str, Callable[[Random], Question]] = {
    "sums and differences, pairs never trained on": _sum,
    "multiplication table up to 12": _product,
    "short lists: repeat, sort, reverse, count": lambda rng: _exact(*lists.question(rng)),
    "JSON from sentences, every character right": lambda rng: _exact(*records.question(rng)),
    "JSON from sentences, valid JSON": _parses,
    "tool call, name and arguments right": _tool_call,
    "answer from a tool's result": _tool_answer,
    "facts of everyday life": lambda rng: _exact(*facts.question(rng)),
    "questions about Textgen, key word in the answer": _about,
}


class Model:
    """A model folder as Transformers loads it, in float32, for greedy answers."""

    def __init__(self, folder: Path) -> None:
        self.network = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    @torch.inference_mode()
    def complete(self, prompts: list[str], limit: int = 160) -> list[str]:
        """Greedy continuations of prompts that carry their own special tokens."""
        rows = [self.tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
        width = max(len(row) for row in rows)
        inputs = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        out = self.network.generate(input_ids=inputs, attention_mask=mask, max_new_tokens=limit, do_sample=False)
        return [self.tokenizer.decode(row[width:], skip_special_tokens=True) for row in out.tolist()]

    @torch.inference_mode()
    def loss(self, documents: Iterable[Document]) -> float:
        """Mean nats per learned token."""
        encoder = Encoder(self.tokenizer)
        total, count = 0.0, 0
        for batch in micro_batches([encoder.encode(document) for document in documents], 2048):
            logits = self.network(input_ids=batch.inputs).logits.flatten(0, 1)[batch.places]
            total += functional.cross_entropy(logits, batch.targets, reduction="sum").item()
            count += len(batch.targets)
        return total / count


def accuracy(model: Model, skill: str, questions: int, seed: int = SEED) -> float:
    """The share of right greedy answers to seeded questions of a skill."""
    rng = Random(f"{seed} {skill}")
    drawn = [SKILLS[skill](rng) for _ in range(questions)]
    right = 0
    for start in range(0, questions, _GROUP):
        group = drawn[start : start + _GROUP]
        answers = model.complete([render(question.document, add_generation_prompt=True) for question in group])
        right += sum(question.is_right(answer) for question, answer in zip(group, answers, strict=True))
    return right / questions


def report(folder: Path, questions: int = QUESTIONS) -> str:
    """The table of the model card."""
    model = Model(folder)
    loss = model.loss(islice(mixture.documents(SEED), LOSS_DOCUMENTS))
    parameters = sum(parameter.numel() for parameter in model.network.parameters())
    lines = [f"parameters: {parameters:,}", f"loss on {LOSS_DOCUMENTS} unseen documents: {loss:.3f} nats a token", ""]
    lines += [f"| skill ({questions} seeded questions each) | right |", "|---|---|"]
    lines += [f"| {skill} | {accuracy(model, skill, questions):.1%} |" for skill in SKILLS]
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Measure a model folder made by tools.demo_model.train.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    arguments = parser.parse_args()
    print(report(arguments.folder, arguments.questions))


if __name__ == "__main__":
    main()
