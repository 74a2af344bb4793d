"""How byte-level vocabularies cut text into words, by the names of llama.cpp that `tokenizer.ggml.pre` gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Sequence, Split

_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
LLAMA3 = _CL100K % r"\p{N}{1,3}"
QWEN2 = _CL100K % r"\p{N}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%(end)s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%(end)s"
    r"|%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*"
) + _SPACES
GPT4O = _O200K % {"end": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "digits": r"\p{N}{1,3}"}
TEKKEN = _O200K % {"end": "", "digits": r"\p{N}"}
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^ა-ჿ]]+",  # letters with a case: it was drawn up when Georgian had none
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


@dataclass(frozen=True, slots=True)
class Cut:
    """How a vocabulary cuts text. patterns: one after another; none is GPT-2's.

    whole: a word that is a token is not merged together.
    begins: whether a text begins with the token that does so, where the file does not say.
    """

    patterns: str | tuple[str, ...] = ()
    digits: bool = False  # each on its own, before anything else
    composed: bool = False  # characters are composed first (NFC)
    whole: bool = False
    begins: bool = False
    falcon: bool = False

    def steps(self) -> PreTokenizer:
        """As the tokenizers library has them."""
        if self.falcon:
            three = Split(Regex("[0-9][0-9][0-9]"), "isolated")
            return Sequence([Punctuation("contiguous"), ByteLevel(add_prefix_space=False), Digits(False), three])
        if self.patterns:
            patterns = (self.patterns,) if isinstance(self.patterns, str) else self.patterns
            plain = ByteLevel(add_prefix_space=False, use_regex=False)
            return Sequence([*(Split(Regex(pattern), "isolated") for pattern in patterns), plain])
        gpt2 = ByteLevel(add_prefix_space=False)
        return Sequence([Digits(individual_digits=True), gpt2]) if self.digits else gpt2


_LLAMA3, _QWEN2 = Cut(LLAMA3, whole=True, begins=True), Cut(QWEN2, composed=True)
_GPT2, _STARCODER = Cut(), Cut(digits=True)

CUTS: Mapping[str, Cut] = MappingProxyType(
    {
        "bloom": Cut(BLOOM),
        "chatglm-bpe": Cut(LLAMA3),
        "codeshell": _STARCODER,
        "command-r": Cut(digits=True, composed=True),
        "dbrx": Cut(LLAMA3),
        "deepseek-coder": Cut(_DEEPSEEK_CODER),
        "deepseek-llm": Cut(_DEEPSEEK_LLM),
        "deepseek-v3": Cut(_DEEPSEEK_V3),
        "deepseek-r1-qwen": Cut(QWEN2),
        "exaone4": _GPT2,
        "falcon": Cut(falcon=True),
        "falcon3": _LLAMA3,
        "glm4": Cut(LLAMA3),
        "gpt-2": _GPT2,
        "gpt-4o": Cut(GPT4O),
        "llama-bpe": _LLAMA3,
        "llama-v3": _LLAMA3,
        "llama3": _LLAMA3,
        "mpt": _GPT2,
        "olmo": _GPT2,
        "phi-2": _GPT2,
        "pixtral": _LLAMA3,
        "qwen2": _QWEN2,
        "refact": _STARCODER,
        "smaug-bpe": Cut(LLAMA3),
        "smollm": _STARCODER,
        "stablelm2": Cut(QWEN2),
        "starcoder": _STARCODER,
        "tekken": Cut(TEKKEN, whole=True, begins=True),
    }
)
# Older files do not say; the architecture does then.
BY_ARCHITECTURE = {
    "bloom": "bloom",
    "command-r": "command-r",
    "falcon": "falcon",
    "gpt2": "gpt-2",
    "gptneox": "gpt-2",
    "llama": "llama-bpe",
    "mpt": "gpt-2",
    "olmo": "olmo",
    "phi2": "gpt-2",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2",
    "qwen3": "qwen2",
    "qwen3moe": "qwen2",
    "stablelm": "gpt-2",
    "starcoder": "starcoder",
    "starcoder2": "starcoder",
}
