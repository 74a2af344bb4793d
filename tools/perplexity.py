"""How well a model predicts text in each form of its weights, and with a cache of integers.

``python -m tools.perplexity [FOLDER] [--documents N]`` prints the perplexity over unseen documents of the built-in
model's corpus, which says little about other models: those want text of their own (``--text FILE``).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from textgen.layers.weight import WeightFormat
from textgen.models.decoder import Model, PackedBatch
from textgen.models.load import load_model
from textgen.ops import SegmentLayout, select_ops
from textgen.parallel import Parallel
from textgen.quantization.integers import Int4Format, Int8Format
from textgen.shard.cache import allocate_cache
from tools.demo_model.batches import Encoder
from tools.demo_model.corpus import mixture

BUILT_IN = Path(__file__).parent.parent / "python" / "textgen" / "demo" / "model"
SEED = 77_004  # of documents that training has not seen
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Form:
    """What a model is loaded as."""

    dtype: torch.dtype
    weights: WeightFormat | None = None
    cache: torch.dtype | None = None  # None: `dtype`


FORMS = {
    "float32": Form(torch.float32),
    "float32, cache in int8": Form(torch.float32, cache=torch.int8),
    "bfloat16": Form(torch.bfloat16),
    "bfloat16, cache in int8": Form(torch.bfloat16, cache=torch.int8),
    "int8": Form(torch.bfloat16, Int8Format()),
    "int4, groups of 32": Form(torch.bfloat16, Int4Format(32)),
    "int4, groups of 64": Form(torch.bfloat16, Int4Format(64)),
    "int4, groups of 128": Form(torch.bfloat16, Int4Format(128)),
}


@torch.inference_mode()
def negative_log_likelihood(model: Model, ids: Tensor, counted: Tensor, dtype: torch.dtype) -> float:
    """The sum over the tokens that count, of which the first is none; dtype: of the cache."""
    count, block = len(ids), 16
    pages = -(-count // block)
    cache = allocate_cache(model.spec, pages, block, dtype, CPU, Parallel())
    zero, length = np.zeros(1, np.int64), np.array([count])
    layout = SegmentLayout(zero, zero, length, np.arange(pages, dtype=np.int32)[None], block)
    places = torch.arange(count)
    batch = PackedBatch(
        ids=ids,
        positions=places,
        rows=[places] * model.spec.num_layers,
        attention=[select_ops().attention(layout, window, model.like) for window in model.spec.windows],
    )
    logits = model.logits(model.hidden(batch, cache.layers))[:-1]
    return float(torch.nn.functional.cross_entropy(logits[counted[1:]], ids[1:][counted[1:]], reduction="sum"))


def load_form(folder: Path, form: Form) -> Model:
    return load_model(folder, form.dtype, CPU, Parallel(), select_ops(), format=form.weights)


def documents(file: Path | None, tokenizer: Tokenizer, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens, and which of them count: in conversations of the corpus the assistant's, which can be known."""
    if file is None:
        encoder = Encoder(tokenizer)
        for example in map(encoder.encode, mixture.documents(SEED)):
            yield torch.tensor(example.tokens[:length]), torch.tensor(example.learned[:length])
        return
    ids = torch.tensor(tokenizer.encode(file.read_text(), add_special_tokens=False).ids)
    for part in torch.split(ids, length):
        yield part, torch.arange(len(part)) > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=BUILT_IN)
    parser.add_argument("--text", type=Path, help="a file of plain text; without it, the built-in model's corpus")
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--length", type=int, default=512, help="most tokens of a document")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    chosen = list(islice(documents(arguments.text, tokenizer, arguments.length), arguments.documents))
    predicted = sum(int(counted[1:].sum()) for _, counted in chosen)
    print(f"{len(chosen)} documents, {predicted} tokens predicted")
    for name, form in FORMS.items():
        model, cache = load_form(arguments.folder, form), form.cache or form.dtype
        loss = sum(negative_log_likelihood(model, *document, cache) for document in chosen) / predicted
        print(f"| {name} | {math.exp(loss):.4f} |", flush=True)


if __name__ == "__main__":
    main()
