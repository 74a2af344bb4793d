"""Writes router/src/scheduler/tests/beams.json: what Transformers' beam search finds in a toy model.

    python tests/beams/make_vectors.py

The toy's logits are a hash of all tokens so far. The scheduler's tests compute the same ones
(router/src/scheduler/tests/toy.rs) and must find the same answers.
"""

import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

VECTORS = Path(__file__).parents[2] / "router/src/scheduler/tests/beams.json"
VOCABULARY = 40
SEED = 20261121
CASES = 96
U64 = 2**64 - 1


def extend(context: int, token: int) -> int:
    """SplitMix64 of the context before with the next token."""
    mixed = ((context ^ token) + 0x9E3779B97F4A7C15) & U64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & U64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & U64
    return mixed ^ (mixed >> 31)


def logits_after(tokens: list[int], stop_tokens: list[int], stop_bias: float) -> list[float]:
    """Logits in [0, 4) for every token, those of stop tokens raised."""
    context = 0
    for token in tokens:
        context = extend(context, token)
    return [
        (extend(context, token) >> 40) / 2**22 + (stop_bias if token in stop_tokens else 0.0)
        for token in range(VOCABULARY)
    ]


class Toy(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A model without weights."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, stop_tokens: list[int], stop_bias: float) -> None:
        super().__init__(PretrainedConfig.from_dict({"vocab_size": VOCABULARY}))
        self.stop_tokens, self.stop_bias = stop_tokens, stop_bias
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        """Logits [batch, 1, vocabulary] after each sequence of [batch, length] ids."""
        rows = [logits_after(row, self.stop_tokens, self.stop_bias) for row in input_ids.tolist()]
        return CausalLMOutput(logits=torch.tensor(rows, dtype=torch.float32)[:, None, :])


def search(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of one case, with their scores."""
    prompt, stop_tokens = case["prompt"], case["stop_tokens"]
    toy: Any = Toy(stop_tokens, case["stop_bias"])
    output = toy.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=case["width"],
        num_return_sequences=case["returned"],
        length_penalty=case["length_penalty"],
        early_stopping=case["early_stopping"],
        eos_token_id=stop_tokens or None,
        pad_token_id=VOCABULARY,
        max_new_tokens=case["max_new"],
        do_sample=False,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return [
        {"tokens": [token for token in row[len(prompt) :] if token != VOCABULARY], "score": score}
        for row, score in zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True)
    ]


def random_case(draw: random.Random) -> dict[str, Any]:
    """A search to do; every token of the prompt is one of the vocabulary."""
    width = draw.choice([1, 2, 2, 3, 4, 5, 8])
    stops = draw.choice([0, 1, 1, 1, 2, 3])
    return {
        "prompt": [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 11))],
        "width": width,
        "returned": draw.randint(1, width),
        "length_penalty": draw.choice([1.0, 1.0, 0.0, 0.5, 2.0, -0.5, -1.0]),
        "early_stopping": draw.choice([False, True, "never"]),
        "stop_tokens": draw.sample(range(VOCABULARY), stops),
        "stop_bias": draw.choice([0.0, 1.0, 2.0, 3.0]),
        "max_new": draw.randint(1, 14),
    }


def main() -> None:
    """Writes the file; the same on every run."""
    draw = random.Random(SEED)
    cases = [random_case(draw) for _ in range(CASES)]
    # One beam is no search to Transformers.
    cases = [case | {"answers": search(case)} for case in cases if case["width"] > 1]
    lines = ",\n".join(json.dumps(case) for case in cases)
    VECTORS.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
