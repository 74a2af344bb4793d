"""What `--quantize` and `--kv-cache-dtype` may say, and the bytes that a model then takes.

Without torch: the launcher plans with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textgen.models.spec import DecoderSpec, ExpertsSpec

NAMES = ("int8", "int4")
KV_CACHE = ("auto", "int8", "fp8")
COMPACT_ISAS = ("avx2", "avxvnni", "avx512vnni", "avx512", "amx")
"""Instruction sets with which numbers in bfloat16 take 12 bits."""
BLOCK_BYTES = {
    "Q4_0": 0.5 + 2 / 32, "Q8_0": 1 + 2 / 32, "Q4_K": 2368 / 4096, "Q5_K": 2880 / 4096, "Q6_K": 3392 / 4096,
    "MXFP4": 0.5 + 1 / 32,
}  # fmt: skip
"""Blocks of GGUF files that are multiplied as they are, and the bytes of a number as the kernels have it."""
GPU_BLOCK_BYTES = {
    "Q4_0": 0.5 + 2 / 32, "Q8_0": 1 + 2 / 32, "Q4_K": 0.5 + 4 / 32, "Q5_K": 1 + 2 / 32, "Q6_K": 1 + 2 / 32,
    "MXFP4": 0.5 + 2 / 32,
}  # fmt: skip
"""The same of a GPU's kernels, which have 5 and 6 bits as 8."""
GROUP = 32  # inputs that share a scale of a 4-bit weight

OF_TGI = {"bitsandbytes": "int8", "bitsandbytes-fp4": "int4", "bitsandbytes-nf4": "int4", "eetq": "int8"}
"""Text Generation Inference's names of what is made while loading, and the format of as many bits."""
STORED = ("awq", "compressed-tensors", "fp8", "gptq", "marlin")
"""Its names of what checkpoints are stored in: these are read as they are. Of others fp8 makes 8 bits."""
REFUSED = {"exl2": "checkpoints in EXL2's format are not read; take one in GPTQ's or AWQ's"}
KV_CACHE_OF_OTHERS = {"fp8_e5m2": "use fp8, which is as small and keeps more of each number; or int8, which keeps most"}
"""The same of a cache's types, those of vLLM too."""
KV_CACHE_NAMES = {"fp8_e4m3": "fp8", "fp8_e4m3fn": "fp8"}
"""Other servers' names of types that there are."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A GGUF file's numbers: those in blocks that are multiplied as they are, by type, and those that are not."""

    numbers: Mapping[str, int]
    dense: int


def quantize_name(value: str) -> str:
    """One of `NAMES` or `STORED`. Raises `ValueError` with the end of a sentence that says which there are."""
    word = value.strip().lower()
    return word if word in STORED else _one_of(NAMES, REFUSED, OF_TGI.get(word, word))


def kv_cache_name(value: str) -> str:
    """One of `KV_CACHE`. Raises as `quantize_name`."""
    named = KV_CACHE_NAMES.get(value.strip().lower(), value)
    return _one_of(KV_CACHE, KV_CACHE_OF_OTHERS, named)


def _one_of(names: Sequence[str], refused: Mapping[str, str], value: str) -> str:
    word = value.strip().lower()
    if word in names:
        return word
    why = f" ({refused[word]})" if word in refused else ""
    raise ValueError(f"must be one of {', '.join(names)}{why}")


def weight_bytes(spec: DecoderSpec, parameters: int, size: int, quantize: str | None) -> int:
    """What the weights take: `parameters` numbers of `size` bytes each, but for those that are quantized.

    Embeddings and what chooses experts keep the model's type. A tied head is a quantized copy of the embedding; of 8
    bits, or compact, it is the embedding too, which is looked up in it.
    """
    shared = spec.tied_head and quantize in ("int8", "compact")
    return _weight_bytes(spec, parameters, size, quantize, shared, True)


def _weight_bytes(
    spec: DecoderSpec, parameters: int, size: int, quantize: str | None, shared: bool, experts: bool
) -> int:
    """shared: an embedding is looked up in the head. experts: they are quantized."""
    if quantize is None:
        return parameters * size
    table = spec.vocab_size * (spec.embedding_size or spec.hidden_size)
    kept = (0 if shared else table) + (0 if spec.positions is None else spec.positions.rows * spec.hidden_size)
    for layer in spec.layers:
        if isinstance(layer.mlp, ExpertsSpec):
            neurons = 0 if experts else layer.mlp.intermediate_size
            kept += layer.mlp.count * (3 * neurons + 1) * spec.hidden_size
    kept = min(kept, parameters)
    quantized = parameters - kept + (table if spec.tied_head and not shared else 0)
    return kept * size + int(quantized * BYTES[quantize])


def gpu_weight_bytes(
    spec: DecoderSpec, parameters: int, size: int, quantize: str | None, scaled: int, kernels: bool
) -> int:
    """As `weight_bytes`, on a GPU: nothing is looked up in a head. `scaled` numbers are stored in 8-bit floating point.

    kernels: whether they multiply weights of few bits. Else experts and 8-bit floating point keep the model's type;
    what latent attention makes keys and values of does so anyway.
    """
    if quantize is not None or not scaled or not kernels:
        return _weight_bytes(spec, parameters, size, quantize, False, kernels)
    latent, dense = spec.attention.latent, 0
    if latent is not None:
        dense = len(spec.layers) * spec.num_heads * (latent.plain_dim + latent.value_dim) * latent.kv_rank
    kept = max(scaled - dense, 0)
    return (parameters - kept) * size + int(kept * BYTES["fp8"])


def block_bytes(blocks: Blocks, size: int, kinds: Mapping[str, float] = BLOCK_BYTES) -> int:
    """What the weights of a GGUF file take: blocks as they are multiplied, all others as numbers of `size` bytes.

    kinds: which are, and their bytes.
    """
    packed = sum(count * kinds.get(kind, size) for kind, count in blocks.numbers.items())
    return blocks.dense * size + int(packed)


# Of a number, its share of a scale and a zero point included; those of packed checkpoints at most.
BYTES = {
    "compact": 1.5 + 1 / 16,  # bfloat16, as it is
    "int8": 1 + 4 / 256,
    "int4": 0.5 + 2 / GROUP,
    "fp8": 1 + 4 / 128,
    "packed4": 0.5 + 3 / GROUP,
    "packed8": 1 + 2 / GROUP,
}
