"""Writes `docs/models.md` from the families: `python -m textgen.models.docs > docs/models.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from textgen.gguf.architectures import ARCHITECTURES
from textgen.models.registry import FAMILIES

_INTRODUCTION = """\
# Models

<!-- Generated from python/textgen/models/families by `make docs-models`; edit the docstrings there. -->

A model is served when its `config.json` names one of these architectures. A family is data: its config becomes a
`DecoderSpec`, and one decoder runs every spec.
"""

_TESTED = """\
## What is tested of each

With two configs drawn at random from the family's own switches, each with random weights, in float32 against
Transformers:

- the logits of every position, within 2e-4, with prompts cut in chunks at random, mixed batches, and windows shorter
  than the text;
- 64 greedy tokens;
- the default of every value that a config may leave out;
- the logits of two tensor-parallel ranks, where ranks can share the model: norms over all heads together cannot be.

A family without these tests fails `tests/models`. A value of `config.json` that a family does not know is refused with
a sentence that names it, unless it says nothing (null, false, 0) or is known to change no numbers.

## Fallback: every other causal model

An architecture without a family here is run by Transformers' own modelling, where it has one, with attention over our
paged cache: continuous batching, chunked prompts, prefix cache and streaming work as for a family, and the log says
"fallback". It needs `pip install 'textgen-launcher[fallback]'`. Nobody has tested such a model here, so a start does:
its masks must be causal or sliding windows, and two sequences in chunks over the cache must give the logits that the
model gives in one pass with its own attention. What cannot pass is refused with a sentence: models with a state beside
keys and values (Mamba, convolutions, linear attention), with rotary forms that change while a sequence grows, or whose
attention cannot be replaced. Held against Transformers in `tests/models/test_fallback.py`: Apertus,
ERNIE 4.5, Helium, Phi-3.5-MoE and VaultGemma.

`--trust-remote-code` runs the code that comes with a model, for architectures that Transformers does not have; it is
off, and asks for `--revision` with a full commit.

## Encoder-decoder models

They run by the fallback too, where Transformers knows them for sequences to sequences and their attention can be
replaced. A prompt is the encoder's input, read at once, and those of a step that are about as long in one pass where
that gives the same; the decoder runs over the paged cache like any other. Held against Transformers in
`tests/models/test_fallback_encoder.py`: T5 (and Flan-T5), mT5, UMT5, LongT5, BART, mBART, Pegasus, PEGASUS-X, Marian,
M2M100 (and NLLB), Blenderbot and its small form, PLBart. Refused are LED, BigBird-Pegasus, ProphetNet, MVP and FSMT,
whose modelling has an attention of its own. By default an input and its output have 2048 tokens together at most
(`--max-total-tokens`), and a step has room for the longest input.

## GGUF files

`--model-id FILE.gguf` serves what llama.cpp's tools write, in these architectures: {gguf}.

Configuration, tokenizer (byte-level and SentencePiece's) and chat template come out of the file; of a model in several
parts, give the first. Every type of block that the `gguf` package can read becomes numbers of the server's `--dtype`,
some rows at a time, but for those that [processors](cpu.md#which-format-the-weights-have) and [GPUs](gpu.md#serving)
multiply as they are. What a file says and the architecture does not know is refused, metadata and tensors alike; layers
behind the last that only draft tokens are left out. Each architecture is held against Transformers as above
(`tests/gguf`).

## 8-bit and 4-bit checkpoints

Weights in 8-bit floating point (`quant_method` `fp8`, by blocks as DeepSeek's and Qwen's or whole matrices;
`compressed-tensors` in the formats `float-quantized` and `naive-quantized`, by matrix, row or block; and `fbgemm_fp8`,
by row) become numbers of the server's `--dtype` as they are read: they take the memory of the unquantized model. On a
GPU they stay in 8 bits (scales by blocks of 32 inputs or a multiple of 64). gpt-oss may have MXFP4 for its experts,
which is multiplied as it is.

So are integers: 4 bits of AWQ, 4 and 8 of GPTQ (AutoRound's in either form too), and `compressed-tensors` in the
formats `pack-quantized` (4 and 8) and `int-quantized` (8), with a scale for 32, 64 or 128 inputs, for each output or
for all. 8 bits with zero points become numbers of `--dtype`. How activations were to be quantized changes nothing: a
processor makes 8 bits of them row by row (or group by group), a GPU leaves them as they are. Which experts become
numbers of `--dtype` on a GPU nevertheless, [its page](gpu.md#serving) says. Any other method (bitsandbytes) is refused
by its name.

## Rotary forms

`default`, `linear`, `dynamic`, `llama3`, `yarn` and `longrope`. Two of them change with the length of a sequence. Keys
stay in the cache as they were rotated, so a server chooses once, for the longest sequence that it serves: `longrope`
takes its long factors when `--max-total-tokens` is beyond the original context, else its short ones; `dynamic` grows
its base likewise.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_families(), "", _TESTED.replace("{gguf}", _gguf())])


def _gguf() -> str:
    return ", ".join(f"`{name}`" for name in ARCHITECTURES)


def _families() -> Iterator[str]:
    yield from ("| architecture | what it is |", "| --- | --- |")
    for name in sorted(FAMILIES, key=str.lower):
        said = (FAMILIES[name].__doc__ or "").partition(": ")[2] or "the plain form."
        yield f"| `{name}` | {' '.join(said.split())} |"


if __name__ == "__main__":
    sys.stdout.write(page())
