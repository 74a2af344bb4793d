"""PyTorch's `.bin` weights to safetensors. The reading is done by a child process that can be lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from textgen.hub.errors import HubError
from textgen.hub.files import CONFIG, PICKLED, SAFETENSORS, TEXT, indexed
from textgen.hub.progress import Progress, amount

COMMAND = (sys.executable, "-m", "textgen.hub.convert_child")


class Told(msgspec.Struct):
    """A line of the child: a file that is done, or why it gives up."""

    error: str | None = None
    done: int = 0  # bytes of the source
    file: str = ""
    names: list[str] = []  # of its tensors
    size: int = 0  # bytes of its tensors


def convert(folder: Path, output: Path | None, progress: Progress) -> Path:
    """Convert a folder's weights into `output`, or beside them; the folder that can be served now.

    Tensors keep their data types. Raises `HubError`; files that were written by then are removed.
    """
    into = output or folder
    sources = _sources(folder)
    if (into / SAFETENSORS.single).exists() or (into / SAFETENSORS.index).exists():
        raise HubError(f"{into} has safetensors weights already; remove them, or give another folder with --output")
    sizes = [path.stat().st_size for path in sources]
    targets = _targets(sources, into)
    progress.begin(f"converting {folder.name}")
    progress.expect(sum(sizes))
    try:
        into.mkdir(parents=True, exist_ok=True)
        _check_room(into, sum(sizes))
        told = []
        for line in in_child(folder, sources, targets):
            told.append(msgspec.json.decode(line, type=Told))
            if (reason := told[-1].error) is not None:
                raise HubError(reason)
            progress.advance(told[-1].done)
        if len(targets) > 1:
            _write_index(told, into)
        if output is not None and not into.samefile(folder):
            _copy_text(folder, into)
    except BaseException as error:
        for path in (*targets, into / SAFETENSORS.index):
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise HubError(
                f"{error.filename or into} cannot be written ({error.strerror}); give another --output"
            ) from None
        raise
    finally:
        seconds = progress.end()
    progress.say(f"converted {folder} into {into}: {amount(sum(sizes))} in {seconds:.1f} s")
    return into


def _sources(folder: Path) -> list[Path]:
    if not (folder / CONFIG).is_file():
        raise HubError(f"{folder} has no {CONFIG}; give the folder of a model in Hugging Face format")
    if (folder / PICKLED.single).is_file():
        return [folder / PICKLED.single]
    if not (folder / PICKLED.index).is_file():
        raise HubError(f"{folder} has neither {PICKLED.single} nor {PICKLED.index}; there is nothing to convert")
    paths = [folder / name for name in sorted(indexed(folder / PICKLED.index))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        raise HubError(f"{folder} lacks {', '.join(missing) or 'weights'}; download the model again")
    return paths


def _targets(sources: list[Path], into: Path) -> list[Path]:
    if len(sources) == 1:
        return [into / SAFETENSORS.single]
    return [into / f"model-{number:05}-of-{len(sources):05}.safetensors" for number in range(1, len(sources) + 1)]


def _write_index(told: list[Told], into: Path) -> None:
    weight_map = {name: each.file for each in told for name in each.names}
    total = sum(each.size for each in told)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (into / SAFETENSORS.index).write_bytes(msgspec.json.format(msgspec.json.encode(index)))


def in_child(folder: Path, sources: list[Path], targets: list[Path]) -> Iterator[bytes]:
    """The child's lines. Raises `HubError` when it ends in another way than it should."""
    paths = [str(path) for pair in zip(sources, targets, strict=True) for path in pair]
    process = subprocess.Popen(
        [*COMMAND, str(folder / CONFIG), *paths], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is ours to handle
    )  # fmt: skip
    assert process.stdout is not None
    try:
        with process.stdout as lines:
            yield from lines
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    if code < 0:
        raise HubError(
            f"converting {folder} was ended by {signal.Signals(-code).name}, most likely for want of memory; it needs "
            f"{amount(2 * max(path.stat().st_size for path in sources))}"
        )
    if code != 0:
        raise HubError(f"converting {folder} failed with exit code {code}; the lines above say why")


def _check_room(into: Path, needed: int) -> None:
    free = shutil.disk_usage(into).free
    if needed > free:
        raise HubError(f"{into} needs {amount(needed)}, {amount(free)} are free; make room or give another --output")


def _copy_text(folder: Path, into: Path) -> None:
    for name in TEXT:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, into / name)
