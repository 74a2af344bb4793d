"""From a repository's name to a folder with a whole model: out of the cache, or out of the hub into the cache."""

from __future__ import annotations

import errno
import queue
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from textgen.hub.api import COMMIT, Listing, RemoteFile, identify, list_files
from textgen.hub.connection import Hub
from textgen.hub.errors import HubError
from textgen.hub.files import SAFETENSORS, Form, Gguf, complete, first_files, weight_files
from textgen.hub.progress import Progress, amount
from textgen.hub.store import Store
from textgen.hub.transfer import PAUSES, Source, fetch

WORKERS = 8  # files at a time
GRACE = 1.0  # seconds that each of the others gets to let go when one fails
BRANCH = "main"
_FULL = (errno.ENOSPC, errno.EDQUOT)

Check = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model in the cache."""

    folder: Path
    commit: str


@dataclass(frozen=True, slots=True)
class Wish:
    """What to download, and how. `check` sees the folder before the weights are in it, and may refuse it."""

    repo: str
    revision: str | None = None
    form: Form | Gguf = SAFETENSORS
    check: Check | None = None
    code: bool = False  # Python files too
    pauses: tuple[float, ...] = PAUSES

    @property
    def named(self) -> str:
        return self.revision or BRANCH


def cached(hub: Hub, wish: Wish) -> Snapshot | None:
    """The model as it is in the cache, if all of it is."""
    store = Store(hub.cache, wish.repo)
    commit = store.commit_of(wish.named)
    if commit is None or not COMMIT.fullmatch(commit) or not complete(store.snapshot(commit), wish.form):
        return None
    if wish.code and not any(store.snapshot(commit).glob("*.py")):
        return None
    return Snapshot(store.snapshot(commit), commit)


def obtain(hub: Hub, wish: Wish, progress: Progress) -> Snapshot:
    """The model for a server: as new as the hub has it, but a cached one serves when the hub does not.

    A commit that is in the cache is taken from there without a question. Raises `HubError`.
    """
    found = cached(hub, wish)
    if found is not None and (hub.offline or found.commit == wish.revision):
        return found
    if hub.offline:
        raise HubError(
            f"{wish.repo} at {wish.named} is not in {hub.cache}, and HF_HUB_OFFLINE is set; run "
            f"`textgen pull {wish.repo}` where there is a network, or unset it"
        )
    try:
        listing = list_files(hub, wish.repo, wish.named)
    except HubError as error:
        if found is None:
            raise
        progress.warn(f"{error}; serving {wish.repo} as it is in the cache")
        return found
    return _download(hub, wish, listing, progress)


def pull(hub: Hub, wish: Wish, progress: Progress) -> Snapshot:
    """The model as the hub has it now. Raises `HubError`."""
    if hub.offline:
        raise HubError("HF_HUB_OFFLINE is set, so nothing can be pulled; unset it")
    return _download(hub, wish, list_files(hub, wish.repo, wish.named), progress)


def _download(hub: Hub, wish: Wish, listing: Listing, progress: Progress) -> Snapshot:
    store, commit = Store(hub.cache, wish.repo), listing.commit
    folder = store.snapshot(commit)
    stop = threading.Event()
    source = Source(hub, wish.repo, commit, stop, progress.advance, wish.pauses)

    def known(files: Iterable[RemoteFile]) -> list[RemoteFile]:
        return [identify(hub, wish.repo, commit, file) for file in files]

    first = first_files(wish.repo, listing.files, wish.form, wish.code)
    progress.begin(f"downloading {wish.repo}")
    try:
        with _worded(hub):
            new = _files(source, store, known(first), progress)
            if wish.check is not None and first:
                wish.check(folder)
            weights = known(weight_files(wish.repo, listing.files, folder, wish.form))
            missing = [file for file in weights if not _has(store.blob(file.etag), file)]
            if missing:
                progress.announce(f"downloading {wish.repo} at {commit[:12]}: {_counted(missing)} into {hub.cache}")
            new += _files(source, store, weights, progress)
            store.remember(wish.named, commit)
    except KeyboardInterrupt:
        progress.end()
        progress.say(f"{wish.repo}: interrupted; what has come is kept, the same command goes on from there")
        raise
    finally:
        stop.set()
        seconds = progress.end()
    if new:
        progress.say(f"downloaded {wish.repo} at {commit[:12]}: {_counted(new)} in {seconds:.1f} s")
    return Snapshot(folder, commit)


def _counted(files: Sequence[RemoteFile]) -> str:
    return f"{len(files)} {'file' if len(files) == 1 else 'files'}, {amount(sum(file.size for file in files))}"


def _files(source: Source, store: Store, files: Sequence[RemoteFile], progress: Progress) -> list[RemoteFile]:
    """Bring files into the snapshot; those that were not in the cache before."""
    new = [file for file in files if not _has(store.blob(file.etag), file)]
    _check_room(store, new)
    progress.expect(sum(file.size for file in new))

    def bring(file: RemoteFile) -> None:
        blob = store.blob(file.etag)
        with store.lock(file.etag, source.stop):
            if _has(blob, file):  # another process was faster, or two names have one content
                source.advance(file.size)
            else:
                fetch(source, file, blob)

    _in_parallel(bring, new, source.stop)
    for file in files:
        store.link(source.commit, file.path, file.etag)
    return new


def _has(blob: Path, file: RemoteFile) -> bool:
    """A blob of another length is not the file: it was cut off by something other than us."""
    with suppress(OSError):
        return blob.stat().st_size == file.size
    return False


def _check_room(store: Store, files: Iterable[RemoteFile]) -> None:
    needed = sum(file.size - _length(store.blob(f"{file.etag}.incomplete")) for file in files)
    store.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(store.folder).free
    if needed > free:
        raise HubError(
            f"{store.repo} needs {amount(needed)} more in {store.cache}, where {amount(free)} are free; make room "
            "there, or give another folder with --huggingface-hub-cache"
        )


def _length(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _in_parallel(run: Callable[[RemoteFile], None], files: Sequence[RemoteFile], stop: threading.Event) -> None:
    """Run for each file, the largest first; the first failure stops the others. The threads do not outlive the process,
    so that Ctrl-C is not kept waiting by a connection that is silent."""
    todo: queue.SimpleQueue[RemoteFile] = queue.SimpleQueue()
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    for file in sorted(files, key=lambda file: -file.size):
        todo.put(file)

    def work() -> None:
        try:
            while not stop.is_set():
                run(todo.get_nowait())
                ended.put(None)
        except queue.Empty:
            return
        except Exception as error:  # handed to the thread that waits
            ended.put(error)

    numbers = range(min(WORKERS, len(files)))
    threads = [threading.Thread(target=work, name=f"download-{number}", daemon=True) for number in numbers]
    for thread in threads:
        thread.start()
    for _ in files:
        error = ended.get()
        if error is not None:
            stop.set()
            for thread in threads:
                thread.join(GRACE)
            raise error


@contextmanager
def _worded(hub: Hub) -> Iterator[None]:
    """What the file system says, as a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise HubError(
                f"{hub.cache} is full; make room there, or give another folder with --huggingface-hub-cache"
            ) from None
        raise HubError(
            f"{error.filename or hub.cache} cannot be written ({error.strerror}); give a folder that can with "
            "--huggingface-hub-cache"
        ) from None
