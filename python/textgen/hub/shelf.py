"""The models in the cache: listed, described, removed. Whichever tool downloaded them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, CacheNotFound, scan_cache_dir

from textgen.hub.api import COMMIT
from textgen.hub.connection import Hub
from textgen.hub.errors import HubError
from textgen.hub.files import complete
from textgen.hub.store import Store


@dataclass(frozen=True, slots=True)
class Kept:
    """One commit of a model in the cache. `size` in bytes; contents that commits share count in each."""

    repo: str
    commit: str
    branches: tuple[str, ...]
    size: int
    modified: float  # seconds since 1970
    folder: Path
    servable: bool  # it has all the files that a server needs
    files: dict[str, int]  # bytes by path


def kept(hub: Hub) -> list[Kept]:
    """Every commit of every model, by name. Raises `HubError` when the cache is no folder."""
    return sorted(
        (_kept(repo, each) for repo in _repos(hub) for each in repo.revisions), key=lambda k: (k.repo, k.commit)
    )


def find(hub: Hub, repo: str, revision: str | None) -> Kept:
    """One of them: of a revision, or the only one, or the one that was downloaded last."""
    every = [each for each in kept(hub) if each.repo == repo]
    if not every:
        raise HubError(f"{repo} is not in {hub.cache}; `textgen list` shows what is, `textgen pull {repo}` brings it")
    fitting = [each for each in every if revision is None or revision == each.commit or revision in each.branches]
    if not fitting:
        there = ", ".join(name for each in every for name in (*each.branches, each.commit[:12]))
        raise HubError(f"{repo} at {revision!r} is not in {hub.cache}, which has {there}")
    return max(fitting, key=lambda each: each.modified)


def remove(hub: Hub, repo: str, revision: str | None) -> int:
    """Delete a model, or one commit of it with what no other commit needs; the bytes that are free now.

    Raises `HubError` when it is not there or cannot be deleted.
    """
    store = Store(hub.cache, repo)
    chosen = [each for each in kept(hub) if each.repo == repo]
    if revision is not None or not store.folder.is_dir():
        chosen = [find(hub, repo, revision)]
    before = _size(store.folder)
    try:
        plan = scan_cache_dir(hub.cache).delete_revisions(*(each.commit for each in chosen))
        plan.execute()  # the library knows what it shares between models
        if revision is None and store.folder.is_dir():  # what belongs to no commit: downloads that were never finished
            shutil.rmtree(store.folder)
            shutil.rmtree(hub.cache / ".locks" / store.name, ignore_errors=True)
    except OSError as error:
        raise HubError(
            f"{error.filename or repo} cannot be deleted ({error.strerror}); check its permissions"
        ) from None
    return max(plan.expected_freed_size, before - _size(store.folder))


def _size(folder: Path) -> int:
    """Bytes of the files in a folder, what links lead to not included."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _repos(hub: Hub) -> Iterator[CachedRepoInfo]:
    try:
        found = scan_cache_dir(hub.cache)
    except CacheNotFound:
        return
    except ValueError:
        raise HubError(f"{hub.cache} is a file; give the folder of the cache") from None
    for repo in found.repos:
        if repo.repo_type == "model":
            yield repo


def _kept(repo: CachedRepoInfo, revision: CachedRevisionInfo) -> Kept:
    folder = revision.snapshot_path
    whole = complete(folder) or any(folder.rglob("*.gguf"))
    return Kept(
        repo=repo.repo_id,
        commit=revision.commit_hash,
        branches=tuple(sorted(revision.refs)),
        size=revision.size_on_disk,
        modified=revision.last_modified,
        folder=folder,
        servable=COMMIT.fullmatch(revision.commit_hash) is not None and whole,
        files={str(file.file_path.relative_to(folder)): file.size_on_disk for file in revision.files},
    )
