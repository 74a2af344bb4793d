"""Which files of a repository a server needs: few, and never one that could hold code."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from textgen.hub.api import RemoteFile
from textgen.hub.errors import HubError

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
TEXT = (
    CONFIG, TOKENIZER, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
MAX_INDEX = 100 * 2**20  # bytes
_COUNTED = re.compile(r"-\d{5}-of-(\d{5})(?=\.gguf$)")


@dataclass(frozen=True, slots=True)
class Form:
    """How weights are stored: all in one file, or in several that an index names."""

    single: str
    index: str
    suffix: str


@dataclass(frozen=True, slots=True)
class Gguf:
    """All in one GGUF file, or in several whose names count them. `wanted`: its path, or the name of its blocks."""

    wanted: str


SAFETENSORS = Form("model.safetensors", "model.safetensors.index.json", ".safetensors")
PICKLED = Form("pytorch_model.bin", "pytorch_model.bin.index.json", ".bin")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def first_files(
    repo: str, files: Mapping[str, RemoteFile], form: Form | Gguf = SAFETENSORS, code: bool = False
) -> list[RemoteFile]:
    """What is small and tells the rest: configuration, tokenizer, template, and the index where there is one.

    code: the model's Python files too. A GGUF file has all of it in itself.

    Raises `HubError` when the repository has nothing that can be served.
    """
    if isinstance(form, Gguf):
        return []
    if CONFIG not in files:
        raise HubError(f"{repo} has no {CONFIG}: it is no model in Hugging Face format; choose another")
    if form.single not in files and form.index not in files:
        raise HubError(_no_weights(repo, files))
    if TOKENIZER not in files:
        raise HubError(
            f"{repo} has no {TOKENIZER}; save the model's fast tokenizer beside its weights in a folder and give that"
        )
    names = [*TEXT, *([] if form.single in files else [form.index])]
    names += sorted(name for name in files if code and name.endswith(".py"))
    return [files[name] for name in names if name in files]


def weight_files(
    repo: str, files: Mapping[str, RemoteFile], folder: Path, form: Form | Gguf = SAFETENSORS
) -> list[RemoteFile]:
    """The weights. `folder` is where the index was downloaded to, if there is one. Raises `HubError`."""
    if isinstance(form, Gguf):
        return [files[name] for name in gguf_files(repo, files, form)]
    index = folder / form.index
    if form.single in files:
        return [files[form.single]]
    names = indexed(index)
    missing = sorted(names - files.keys())
    if missing:
        raise HubError(f"{repo} names {missing[0]} in its index but does not have it; give another --revision")
    return [files[name] for name in sorted(names)]


def indexed(index: Path) -> set[str]:
    """The files that an index names. Raises `HubError` for one that cannot be read or names a file elsewhere."""
    try:
        if index.stat().st_size > MAX_INDEX:
            raise HubError(f"{index} is larger than {MAX_INDEX} bytes, which no index is; choose another model")
        names = set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    except OSError as error:
        raise HubError(f"{index} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HubError(f"{index} is no index of weights ({error}); choose another model") from None
    outside = sorted(name for name in names if PurePosixPath(name).name != name)
    if outside:
        raise HubError(f"{index} names a file outside its folder: {outside[0]!r}; choose another model")
    return names


def gguf_files(repo: str, names: Collection[str], form: Gguf) -> list[str]:
    """The file that is meant, or the files in their order. Raises `HubError` for none, and for more than one meant."""
    sets: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf") and "mmproj" not in PurePosixPath(name).name:
            sets.setdefault(_COUNTED.sub("", name), []).append(name)
    kind = re.compile(rf"(.*[-._/])?{re.escape(form.wanted)}\.gguf", re.IGNORECASE)
    meant = [stem for stem, parts in sets.items() if form.wanted in (stem, *parts)]
    meant = meant or [stem for stem in sets if kind.fullmatch(stem)]
    if len(meant) != 1:
        there = ", ".join(sets) or "none"
        raise HubError(f"{repo} has {len(meant) or 'no'} GGUF files {form.wanted!r}; name one of: {there}")
    (stem,) = meant
    parts = sets[stem]
    if (found := _COUNTED.search(parts[0])) and len(parts) != int(found[1]):
        raise HubError(f"{repo} has only {len(parts)} of the {int(found[1])} files of {stem}; give another --revision")
    return parts


def complete(folder: Path, form: Form | Gguf = SAFETENSORS) -> bool:
    """Whether a folder of the cache has all that a server needs. A link to a file that is gone does not count."""
    if isinstance(form, Gguf):
        names = {str(path.relative_to(folder)) for path in folder.rglob("*.gguf") if path.is_file()}
        try:
            return bool(gguf_files("", names, form))
        except HubError:
            return False
    if not (folder / CONFIG).is_file() or not (folder / TOKENIZER).is_file():
        return False
    if (folder / form.single).is_file():
        return True
    try:
        names = indexed(folder / form.index)
    except HubError:
        return False
    return bool(names) and all((folder / name).is_file() for name in names)


def _no_weights(repo: str, files: Collection[str]) -> str:
    suffixes = {PurePosixPath(name).suffix for name in files}
    if PICKLED.single in files or PICKLED.index in files:
        return (
            f"{repo} has only PyTorch .bin weights, which are not loaded because they can hold code; run "
            f"`textgen convert {repo} --output FOLDER` and give that folder with --model-id"
        )
    if ".gguf" in suffixes:
        first = min(name for name in files if name.endswith(".gguf"))
        return (
            f"{repo} has only GGUF weights; name the file, such as {repo}/{first}, or its type, such as {repo}:Q4_K_M"
        )
    return f"{repo} has neither {SAFETENSORS.single} nor {SAFETENSORS.index}; choose a model with safetensors weights"
