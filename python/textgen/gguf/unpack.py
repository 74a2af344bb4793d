"""A GGUF file as a folder in Hugging Face format: its texts are written, its weights stay where they are."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from textgen.gguf.config import config_of, tensors_of
from textgen.gguf.errors import GgufError
from textgen.gguf.file import read_gguf
from textgen.gguf.index import NAME, Index
from textgen.gguf.vocabulary import Vocabulary, vocabulary_of


def unpack(path: Path) -> Path:
    """A folder with the file's configuration, tokenizer and chat template; it goes when the process ends.

    Raises `GgufError` with what cannot be served, before anything is written.
    """
    model = read_gguf(path)
    config = config_of(model)
    vocabulary = vocabulary_of(model, model.metadata["general.architecture"])
    if vocabulary.tokenizer.get_vocab_size() > config["vocab_size"]:
        raise GgufError(f"{path} has more tokens than rows of 'token_embd.weight'; download it again")
    index = Index(model.metadata["general.architecture"], tensors_of(model))
    texts = {
        "config.json": json.dumps({**config, "eos_token_id": vocabulary.ends, "bos_token_id": vocabulary.begin}),
        "tokenizer.json": vocabulary.tokenizer.to_str(),
        "tokenizer_config.json": json.dumps(_tokenizer_config(vocabulary)),
        "generation_config.json": json.dumps({"eos_token_id": vocabulary.ends, "bos_token_id": vocabulary.begin}),
        NAME: msgspec.json.encode(index).decode(),
    }
    try:
        folder = Path(tempfile.mkdtemp(prefix="textgen-gguf-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise GgufError(
            f"{path}: its tokenizer cannot be written to {tempfile.gettempdir()} ({error.strerror}); make room there "
            "or set TMPDIR to another folder"
        ) from None
    return folder


def _tokenizer_config(vocabulary: Vocabulary) -> dict[str, Any]:
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocabulary.add_begin,
        "add_eos_token": vocabulary.add_end,
        "clean_up_tokenization_spaces": False,
        **vocabulary.names,
    }
    return values if vocabulary.template is None else {**values, "chat_template": vocabulary.template}
