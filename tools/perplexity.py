"""How well a model predicts text in each form of its weights.

``python -m tools.perplexity [FOLDER] [--documents N]`` prints the perplexity over unseen documents of the built-in
model's corpus, which says little about other models: those want text of their own (``--text FILE``).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

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
FORMS = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8": (torch.bfloat16, Int8Format()),
    "int4, groups of 32": (torch.bfloat16, Int4Format(32)),
    "int4, groups of 64": (torch.bfloat16, Int4Format(64)),
    "int4, groups of 128": (torch.bfloat16, Int4Format(128)),
}


@torch.inference_mode()
def negative_log_likelihood(model: Model, ids: Tensor, counted: Tensor) -> float:
    """The sum over the tokens that count, of which the first is none."""
    count, block = len(ids), 16
    pages = -(-count // block)
    cache = allocate_cache(model.spec, pages, block, model.like.dtype, CPU, Parallel())
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
    for name, (dtype, form) in FORMS.items():
        model = load_model(arguments.folder, dtype, CPU, Parallel(), select_ops(), format=form)
        loss = sum(negative_log_likelihood(model, *document) for document in chosen) / predicted
        print(f"| {name} | {math.exp(loss):.4f} |", flush=True)


if __name__ == "__main__":
    main()
