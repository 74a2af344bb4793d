"""From `--model-id` to a folder that can be served, and the facts about it that the memory plan needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import textgen
from textgen.hub.naming import gguf_of
from textgen.launcher.arguments import current_environment
from textgen.launcher.checkpoint import Checkpoint, read_checkpoint
from textgen.launcher.errors import ModelError
from textgen.models.config import read_config
from textgen.models.errors import ModelError as UnreadableModel
from textgen.models.registry import UnknownArchitecture, describe, packed_as
from textgen.models.spec import DecoderSpec

BUILT_IN = Path(textgen.__file__).parent / "demo" / "model"
BUILT_IN_NAME = "textgen-demo"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Model:
    """A model folder whose config and weight headers were read. `name` is what clients see.

    commit: of the hub's repository that the folder is a snapshot of; None for any other folder. fallback: it has no
    family here and is run by Transformers' own modelling.
    """

    folder: Path
    name: str
    built_in: bool
    spec: DecoderSpec
    checkpoint: Checkpoint
    commit: str | None = None
    fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """What a download is told: the revision, the cache's folder, where sentences go, and whether a bar may be drawn.

    trust_remote_code: whether code that comes with a model may be run.
    """

    revision: str | None = None
    cache: str | None = None
    say: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = lambda _: None
    bar: bool | None = False  # None: where standard error is a terminal
    trust_remote_code: bool = False


def resolve(model_id: str | None, options: HubOptions | None = None) -> Model:
    """The model that was asked for, the built-in one when none was: a folder, or the name of a model on the hub.

    Raises `ModelError` with what to change.
    """
    options = options or HubOptions()
    if model_id is None:
        folder, commit = BUILT_IN, None
        if not (folder / "config.json").is_file():
            raise ModelError("this installation has no built-in model; give a model's folder with --model-id")
    else:
        folder, commit = _find(model_id, options)
    spec, fallback, bits = _describe(folder, options.trust_remote_code)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} has no tokenizer.json; save the model's fast tokenizer there")
    name = BUILT_IN_NAME if model_id is None else model_id
    return Model(folder.resolve(), name, model_id is None, spec, read_checkpoint(folder, bits), commit, fallback)


def _describe(folder: Path, trust: bool) -> tuple[DecoderSpec, bool, int]:
    """The model's sizes, whether Transformers' own modelling has to run it, and the bits of integers, if it has any."""
    try:
        try:
            config = read_config(folder)
            spec, packed = describe(config)[0], packed_as(config)
            return spec, False, 4 if packed is None else packed.bits
        except UnknownArchitecture as unknown:
            from textgen.launcher.fallback import describe_fallback  # here: most starts have no use for it

            return describe_fallback(folder, trust, unknown), True, 4
    except UnreadableModel as error:
        raise ModelError(f"{folder}: {error}" if str(folder) not in str(error) else str(error)) from None


def _find(model_id: str, options: HubOptions) -> tuple[Path, str | None]:
    """The folder, and its commit when it came from the hub. A folder of that name goes first."""
    if model_id.startswith("gs://"):
        return _bring(model_id, options), None
    path = Path(model_id).expanduser()
    if path.is_dir():
        return path, None
    if path.is_file():
        return _unpack(path, model_id), None
    if (found := gguf_of(model_id)) is not None:
        return _download(model_id, options, *found)
    if _HUB_ID.fullmatch(model_id) and not model_id.endswith(".gguf"):
        return _download(model_id, options, model_id)
    raise ModelError(
        f"--model-id {model_id}: there is no such folder or file; give the folder that holds config.json, a GGUF file, "
        "or a model of the hub as ORG/NAME, ORG/NAME:Q4_K_M or ORG/NAME/FILE.gguf"
    )


def _unpack(path: Path, model_id: str) -> Path:
    """A folder for a GGUF file."""
    from textgen.gguf.errors import GgufError  # here: other models have no use for these imports
    from textgen.gguf.unpack import unpack

    try:
        return unpack(path)
    except GgufError as error:
        raise ModelError(f"--model-id {model_id}: {error}") from None


def _download(model_id: str, options: HubOptions, repo: str, gguf: str | None = None) -> tuple[Path, str]:
    """A model of the hub, or one of its GGUF files."""
    from textgen.hub.connection import connect  # here: a start from a folder must not wait for these imports
    from textgen.hub.errors import HubError

    try:
        hub = connect(options.cache)
        from textgen.hub.files import SAFETENSORS, Gguf, gguf_files
        from textgen.hub.progress import Progress
        from textgen.hub.pull import Wish, obtain

        form = SAFETENSORS if gguf is None else Gguf(gguf)
        trust = options.trust_remote_code

        def check(folder: Path) -> None:  # before gigabytes that cannot be served
            _describe(folder, trust)

        wish = Wish(repo, options.revision, form, check=check, code=trust)
        found = obtain(hub, wish, Progress(options.say, warn=options.warn, bar=options.bar))
        if isinstance(form, Gguf):
            names = [str(path.relative_to(found.folder)) for path in found.folder.rglob("*.gguf")]
            return _unpack(found.folder / gguf_files(repo, names, form)[0], model_id), found.commit
    except HubError as error:
        raise ModelError(f"--model-id {model_id}: {_no_folder(model_id)}{error}") from None
    return found.folder, found.commit


def _bring(model_id: str, options: HubOptions) -> Path:
    """A model of a bucket."""
    from textgen.hub.bucket import bring, open_bucket  # here: as above
    from textgen.hub.connection import connect
    from textgen.hub.errors import HubError
    from textgen.hub.progress import Progress

    def check(folder: Path) -> None:
        _describe(folder, False)

    progress = Progress(options.say, warn=options.warn, bar=options.bar)
    try:
        return bring(open_bucket(model_id, current_environment()), connect(options.cache).cache, check, progress)
    except HubError as error:
        raise ModelError(f"--model-id {model_id}: {error}") from None


def _no_folder(model_id: str) -> str:
    """Who wrote a path and mistyped it should not look for the mistake at the hub."""
    return "" if "/" in model_id else "there is no such folder, and "
