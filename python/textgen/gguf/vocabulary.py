"""A tokenizer out of a GGUF file's vocabulary, built with Hugging Face's library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE

from textgen.gguf.errors import GgufError
from textgen.gguf.file import GgufModel
from textgen.gguf.splits import BY_ARCHITECTURE, CUTS, Cut

KEY = "tokenizer.ggml."
CONTROL, USER_DEFINED = 3, 4  # types of tokens
SPACE = "\u2581"
MAX_PIECE = 128  # characters of a piece that merges are looked for in: longer ones are no words
# What ends a turn where the file names only the token that ends a text.
ENDS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <|eom_id|> <|END_OF_TURN_TOKEN|> "
    "<EOT> <|user|>".split()
) - {"<|user|>"}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer, names of special tokens by what Hugging Face calls them, and ids."""

    tokenizer: Tokenizer
    names: dict[str, str]
    begin: int | None
    ends: list[int]
    add_begin: bool
    add_end: bool
    template: str | None


def vocabulary_of(model: GgufModel, architecture: str) -> Vocabulary:
    """Raises `GgufError` for a vocabulary of a kind that is not supported."""
    data, kind = model.metadata, model.metadata.get(f"{KEY}model")
    tokens = data.get(f"{KEY}tokens")
    if not isinstance(tokens, list) or not tokens:
        raise GgufError(f"{model.path} has no vocabulary; give the model in Hugging Face format")
    if kind == "gpt2":
        cut = _cut(model, architecture)
        tokenizer, begins = _byte_level(model, tokens, cut), cut.begins
    elif kind == "llama":
        tokenizer, begins = _pieces(model, tokens, by_place=architecture.startswith("gemma")), True
    else:
        raise GgufError(
            f"{model.path}: tokenizers of kind {kind!r} are not supported; supported are gpt2 and llama, so give the "
            "model in Hugging Face format"
        )
    types = data.get(f"{KEY}token_type") or []
    _mark(tokenizer, tokens, types)
    ids = {name: _id(model, f"{name}_token_id", tokens) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    add_begin = bool(data.get(f"{KEY}add_bos_token", begins)) and ids["bos"] is not None
    add_end = bool(data.get(f"{KEY}add_eos_token", False)) and ids["eos"] is not None
    first, last = (ids[name] if wanted else None for name, wanted in (("bos", add_begin), ("eos", add_end)))
    _frame(tokenizer, tokens, first, last)
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ends = {place for name in ("eos", "eot", "eom") if (place := ids[name]) is not None}
    ends |= {place for place, type_ in enumerate(types) if type_ == CONTROL and tokens[place] in ENDS}
    return Vocabulary(
        tokenizer=tokenizer,
        names={into: tokens[place] for into, name in named.items() if (place := ids[name]) is not None},
        begin=ids["bos"],
        ends=sorted(ends),
        add_begin=add_begin,
        add_end=add_end,
        template=_template(data.get("tokenizer.chat_template")),
    )


def _template(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _id(model: GgufModel, name: str, tokens: Sequence[str]) -> int | None:
    value = model.metadata.get(KEY + name)
    if value is None or (isinstance(value, int) and value in (-1, 2**32 - 1)):
        return None
    if not isinstance(value, int) or not 0 <= value < len(tokens):
        raise GgufError(f"{model.path}: '{KEY}{name}' is {value!r}, which is no token; download it again")
    return value


def _cut(model: GgufModel, architecture: str) -> Cut:
    name = model.metadata.get(f"{KEY}pre", "default")
    if name == "default":
        name = BY_ARCHITECTURE.get(architecture, name)
    if name not in CUTS:
        raise GgufError(
            f"{model.path}: it cuts text into words by {name!r}, which is not supported; supported are "
            f"{', '.join(CUTS)}, so give the model in Hugging Face format"
        )
    return CUTS[name]


def _byte_level(model: GgufModel, tokens: list[str], cut: Cut) -> Tokenizer:
    merges = model.metadata.get(f"{KEY}merges")
    if not isinstance(merges, list):
        raise GgufError(f"{model.path} has no '{KEY}merges'; download it again")
    vocab = {token: place for place, token in enumerate(tokens)}
    # A space within a token is written as another character, so the one space parts the two.
    pairs = [(left, right) for left, _, right in (str(merge).partition(" ") for merge in merges)]
    known = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab and pair[0] + pair[1] in vocab]
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=known, ignore_merges=cut.whole))
    if cut.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = cut.steps()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(model: GgufModel, tokens: list[str], by_place: bool) -> Tokenizer:
    """SentencePiece's BPE. by_place: the order of the vocabulary is that of the merges, else the scores say it."""
    data = model.metadata
    scores = data.get(f"{KEY}scores")
    if not by_place and (not isinstance(scores, list) or len(scores) != len(tokens)):
        raise GgufError(f"{model.path} has no score for each token; download it again")
    spelled = [SPACE * len(token) if " " in token and not token.strip(" ") else token for token in tokens]
    vocab = {token: place for place, token in enumerate(spelled)}
    ranks: Sequence[float] = range(len(spelled)) if by_place else [-score for score in scores or ()]
    unknown = _id(model, "unknown_token_id", tokens)
    tokenizer = Tokenizer(
        BPE(
            vocab=vocab,
            merges=_merges(vocab, ranks),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = bool(data.get(f"{KEY}add_space_prefix", True))
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixed else spaces
    joined = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*joined, decoders.Strip(" ", 1, 0)] if prefixed else joined)
    return tokenizer


def _merges(vocab: dict[str, int], ranks: Sequence[float]) -> list[tuple[str, str]]:
    """Each way to put a piece together out of two others; what comes first in rank is merged first."""
    found = []
    for piece, place in vocab.items():
        if len(piece) > MAX_PIECE:
            continue
        ways = [
            (vocab[piece[:cut]], vocab[piece[cut:]], piece[:cut], piece[cut:])
            for cut in range(1, len(piece))
            if piece[:cut] in vocab and piece[cut:] in vocab
        ]
        found += [(ranks[place], left, right, first, second) for left, right, first, second in ways]
    found.sort(key=lambda way: way[:3])
    return [(first, second) for _, _, _, first, second in found]


def _mark(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Tokens that stand for themselves: they are found in a text before it is cut."""
    added = [
        AddedToken(token, normalized=False, special=type_ == CONTROL)
        for token, type_ in zip(tokens, types, strict=False)
        if type_ in (CONTROL, USER_DEFINED) and token and tokenizer.token_to_id(token) is not None
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])


def _frame(tokenizer: Tokenizer, tokens: Sequence[str], first: int | None, last: int | None) -> None:
    """What every text begins and ends with."""
    if first is None and last is None:
        return
    before = [tokens[first]] if first is not None else []
    after = [tokens[last]] if last is not None else []
    special = [(tokens[place], place) for place in dict.fromkeys((first, last)) if place is not None]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after], pair=[*before, "$A", *after, *before, "$B", *after], special_tokens=special
    )
