"""`textgen`: the models on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from textgen import __version__
from textgen.hub.connection import Hub, connect
from textgen.hub.errors import HubError

STOPPED, USAGE, MODEL, INTERRUPTED = 0, 2, 3, 130  # exit codes, as textgen-launcher has them

Answer: TypeAlias = tuple[Any, Sequence[str]]  # JSON, and lines for people
Command: TypeAlias = Callable[[argparse.Namespace, Hub], Answer]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. `argparse` ends the process with 2 for flags that cannot be used."""
    given = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    command: Command = given.command
    try:
        found, lines = command(given, connect(given.cache))
    except HubError as error:
        print(json.dumps({"error": str(error)}) if given.json else f"error: {error}", file=sys.stderr)
        return MODEL
    except KeyboardInterrupt:
        return INTERRUPTED
    print(json.dumps(found, indent=2, default=str) if given.json else "\n".join(lines))
    return STOPPED


def _pull(given: argparse.Namespace, hub: Hub) -> Answer:
    from textgen.hub.files import Gguf, gguf_files  # imports that only this command needs stay in it
    from textgen.hub.naming import gguf_of
    from textgen.hub.pull import Wish, pull

    packed = gguf_of(given.model)
    if packed is None:
        found = pull(hub, Wish(_name(given.model), given.revision), _progress())
        return {"model": given.model, "commit": found.commit, "folder": str(found.folder)}, [str(found.folder)]
    repo, form = _name(packed[0]), Gguf(packed[1])
    found = pull(hub, Wish(repo, given.revision, form), _progress())
    names = [str(path.relative_to(found.folder)) for path in found.folder.rglob("*.gguf")]
    file = str(found.folder / gguf_files(repo, names, form)[0])
    return {"model": given.model, "commit": found.commit, "folder": str(found.folder), "file": file}, [file]


def _list(given: argparse.Namespace, hub: Hub) -> Answer:
    from textgen.hub.progress import amount
    from textgen.hub.shelf import kept

    every = kept(hub)
    rows = [("model", "revision", "commit", "size", "downloaded", "")]
    for each in every:
        note = "" if each.servable else "not servable"
        day = datetime.fromtimestamp(each.modified, timezone.utc).strftime("%Y-%m-%d")
        rows.append((each.repo, ",".join(each.branches), each.commit[:12], amount(each.size), day, note))
    return [_entry(each) for each in every], _table(rows) if every else ["no models"]


def _show(given: argparse.Namespace, hub: Hub) -> Answer:
    from textgen.hub.progress import amount
    from textgen.hub.shelf import find

    each = find(hub, _name(given.model), given.revision)
    about = _about(each.folder)
    facts = {"folder": str(each.folder), "commit": each.commit, "revision": ", ".join(each.branches)} | about
    lines = _table([(f"{name}:", str(value)) for name, value in facts.items()])
    files = _table([(name, amount(size)) for name, size in sorted(each.files.items())])
    return _entry(each) | about | {"files": each.files}, [*lines, "", *files]


def _remove(given: argparse.Namespace, hub: Hub) -> Answer:
    from textgen.hub.progress import amount
    from textgen.hub.shelf import remove

    freed = remove(hub, _name(given.model), given.revision)
    return {"model": given.model, "freed": freed}, [f"removed {given.model}: {amount(freed)} are free again"]


def _convert(given: argparse.Namespace, hub: Hub) -> Answer:
    from textgen.hub.convert import convert
    from textgen.hub.files import PICKLED
    from textgen.hub.pull import Wish, pull

    output = Path(given.output).expanduser() if given.output else None
    folder = Path(given.source).expanduser()
    if not folder.is_dir():
        wish = Wish(_name(given.source), given.revision, PICKLED)
        if output is None:
            raise HubError(f"{given.source} is no folder; to convert a model of the hub, name a folder with --output")
        folder = pull(hub, wish, _progress()).folder
    made = convert(folder, output, _progress())
    return {"folder": str(made)}, [str(made)]


def _progress() -> Any:
    """Sentences and bar go to standard error: standard output is the result."""
    from textgen.hub.progress import Progress

    return Progress(lambda sentence: print(sentence, file=sys.stderr))


def _name(model: str) -> str:
    """The name as the hub allows it; it becomes part of an address and of a path."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(model)
    except HFValidationError:
        raise HubError(f"{model!r} is no name of a model; names look like ORG/NAME") from None
    return model


def _about(folder: Path) -> dict[str, Any]:
    """What config.json says, where it can be read."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        names = config.get("architectures") or []
        return {"architecture": ", ".join(map(str, names)), "dtype": config.get("dtype") or config.get("torch_dtype")}
    except (OSError, ValueError, AttributeError):
        return {}


def _entry(each: Any) -> dict[str, Any]:
    values = asdict(each)
    values.pop("files")
    return values | {"folder": str(each.folder)}


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="textgen",
        description="Models of the hub on this machine. Serve one with `textgen-launcher --model-id ORG/NAME`.",
        epilog="HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean to every Hugging "
        "Face tool. Exit codes: 0 done, 2 a flag cannot be used, 3 the model cannot be had, 130 interrupted.",
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", "-V", action="version", version=f"textgen {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        made.set_defaults(command=command)
        made.add_argument(
            "--cache", metavar="FOLDER", help="the cache's folder (default: as HF_HUB_CACHE and HF_HOME say)"
        )
        made.add_argument("--json", action="store_true", help="write the result, or the error, as JSON")
        return made

    def add_model(made: argparse.ArgumentParser, revision: str) -> None:
        made.add_argument("model", metavar="ORG/NAME")
        made.add_argument("--revision", metavar="NAME", help=revision)

    add_model(add("pull", _pull, "download a model, or what is new of it"), "branch, tag or commit (default: main)")
    add("list", _list, "list the models in the cache")
    add_model(add("show", _show, "tell what is in the cache of a model"), "branch, tag or commit (default: the latest)")
    add_model(add("rm", _remove, "remove a model from the cache"), "only this branch, tag or commit")
    convert = add("convert", _convert, "turn PyTorch's .bin weights into safetensors, without running any code in them")
    convert.add_argument("source", metavar="SOURCE", help="a model's folder, or its ORG/NAME on the hub")
    convert.add_argument("--output", metavar="FOLDER", help="where to write (default: into the folder itself)")
    convert.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a model of the hub")
    # `textgen.cli` runs it; here it is listed.
    commands.add_parser("batch", help="answer a file of requests, in the form of OpenAI's batch API", add_help=False)
    return parser
