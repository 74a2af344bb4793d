"""Downloads: which files, whole or resumed, checked, and where they end up."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import get_session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hub.mock_hub import MockHub, Repo
from tests.hub.repos import INDEX, NEEDED, PARTS, USELESS, WEIGHTS, model_files, noise, sharded_files
from textgen.hub import transfer
from textgen.hub.api import identify, list_files
from textgen.hub.connection import Hub
from textgen.hub.errors import HubError
from textgen.hub.files import Gguf
from textgen.hub.progress import Progress
from textgen.hub.pull import Snapshot, Wish, cached, obtain, pull
from textgen.hub.transfer import Source, fetch

AT_ONCE = (0.0, 0.0, 0.0)
TINY = Wish("test/tiny", pauses=AT_ONCE)
Make = Callable[[Hub, Wish, Progress], Snapshot]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def partial(cache: Path) -> list[Path]:
    return list(cache.rglob("*.incomplete"))


# --- which files


@pytest.mark.parametrize("make", [pull, obtain])
def test_only_what_is_needed_is_asked_for(make: Make, mock: MockHub, hub: Hub, progress: Progress) -> None:
    found = make(hub, TINY, progress)
    assert set(mock.asked()) == NEEDED
    assert mock.asked("HEAD") == []
    files = mock.repos["test/tiny"].files
    assert content(found.folder) == {name: files[name] for name in NEEDED}
    assert found.commit == mock.repos["test/tiny"].head
    assert not NEEDED & USELESS


def test_code_comes_only_when_it_is_asked_for(mock: MockHub, hub: Hub, progress: Progress) -> None:
    pull(hub, TINY, progress)
    trusting = dataclasses.replace(TINY, code=True)
    assert cached(hub, trusting) is None
    assert (obtain(hub, trusting, progress).folder / "modeling_tiny.py").is_file()
    assert set(mock.asked()) == NEEDED | {"modeling_tiny.py"}


def test_an_index_decides_which_weights(mock: MockHub, hub: Hub, progress: Progress) -> None:
    mock.repos["test/tiny"] = Repo(sharded_files())
    found = pull(hub, TINY, progress)
    asked = mock.asked()
    assert set(asked) == (NEEDED - {WEIGHTS}) | {INDEX, *PARTS}
    assert min(asked.index(name) for name in PARTS) > asked.index(INDEX)
    assert content(found.folder)[PARTS[1]] == noise(100_001, 1)


@pytest.mark.parametrize(
    ("index", "part"),
    [
        (b"{", "is no index"),
        (b'{"weight_map": {"a": "../../../up.safetensors"}}', "outside its folder"),
        (b'{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors in its index but does not have it"),
    ],
)
def test_an_index_that_cannot_be_followed(index: bytes, part: str, mock: MockHub, hub: Hub, progress: Progress) -> None:
    mock.repos["test/tiny"] = Repo(sharded_files() | {INDEX: index})
    with pytest.raises(HubError, match=part):
        pull(hub, TINY, progress)


@pytest.mark.parametrize(
    ("without", "part"),
    [
        ({"config.json"}, "no config.json"),
        ({"tokenizer.json"}, "no tokenizer.json"),
        ({WEIGHTS}, "textgen convert test/tiny --output FOLDER"),
        ({WEIGHTS, "pytorch_model.bin"}, "only GGUF weights"),
        ({WEIGHTS, "pytorch_model.bin", "model.gguf"}, "neither model.safetensors nor"),
    ],
)
def test_a_repository_that_cannot_be_served_is_refused_before_anything_is_downloaded(
    without: set[str], part: str, mock: MockHub, hub: Hub, progress: Progress
) -> None:
    mock.repos["test/tiny"] = Repo({name: data for name, data in model_files().items() if name not in without})
    with pytest.raises(HubError, match=part):
        obtain(hub, TINY, progress)
    assert mock.asked() == []


QUANTS = {
    "tiny-Q8_0.gguf": noise(5000, 1),
    "tiny-Q4_K_M.gguf": noise(4000, 2),
    "mmproj-tiny-Q4_K_M.gguf": b"x",
    "big/tiny-F16-00001-of-00002.gguf": noise(3000, 3),
    "big/tiny-F16-00002-of-00002.gguf": noise(2000, 4),
    "half/tiny-BF16-00001-of-00002.gguf": b"x",
    "README.md": b"x",
}


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ("Q4_K_M", {"tiny-Q4_K_M.gguf"}),
        ("q8_0", {"tiny-Q8_0.gguf"}),
        ("tiny-Q8_0.gguf", {"tiny-Q8_0.gguf"}),
        ("F16", {"big/tiny-F16-00001-of-00002.gguf", "big/tiny-F16-00002-of-00002.gguf"}),
        ("big/tiny-F16-00001-of-00002.gguf", {"big/tiny-F16-00001-of-00002.gguf", "big/tiny-F16-00002-of-00002.gguf"}),
    ],
)
@pytest.mark.parametrize("make", [pull, obtain])
def test_a_gguf_file_comes_alone(
    make: Make, wanted: str, files: set[str], mock: MockHub, hub: Hub, progress: Progress
) -> None:
    mock.repos["test/tiny"] = Repo(QUANTS)
    wish = Wish("test/tiny", form=Gguf(wanted), pauses=AT_ONCE)
    assert cached(hub, wish) is None
    found = make(hub, wish, progress)
    assert set(mock.asked()) == files
    assert content(found.folder) == {name: QUANTS[name] for name in files}
    assert cached(hub, wish) == found
    assert cached(hub, dataclasses.replace(wish, form=Gguf("Q5_K"))) is None


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ("Q5_K_M", "has no GGUF files 'Q5_K_M'; name one of: big/tiny-F16.gguf, "),
        ("BF16", "has only 1 of the 2 files of half/tiny-BF16.gguf"),
        ("4_K_M", "has no GGUF files '4_K_M'"),
        (".*", "has no GGUF files"),
    ],
)
def test_a_gguf_file_that_is_not_there(wanted: str, part: str, mock: MockHub, hub: Hub, progress: Progress) -> None:
    mock.repos["test/tiny"] = Repo(QUANTS)
    with pytest.raises(HubError, match=re.escape(part)):
        pull(hub, Wish("test/tiny", form=Gguf(wanted), pauses=AT_ONCE), progress)
    assert mock.asked() == []


def test_a_check_refuses_before_the_weights_are_downloaded(mock: MockHub, hub: Hub, progress: Progress) -> None:
    def check(folder: Path) -> None:
        assert (folder / "config.json").is_file()
        raise LookupError("not this one")

    with pytest.raises(LookupError):
        pull(hub, Wish("test/tiny", check=check), progress)
    assert WEIGHTS not in mock.asked()


def test_a_mirror_that_lists_no_hashes_is_asked_for_each(mock: MockHub, hub: Hub, progress: Progress) -> None:
    repo = mock.repos["test/tiny"] = Repo(model_files(), no_hashes=True)
    mock.fault(WEIGHTS).corrupt = 1
    found = pull(hub, TINY, progress)
    assert set(mock.asked("HEAD")) == NEEDED
    assert [each.method for each in mock.content] == ["GET", "GET"], "a token or a question went too far"
    assert content(found.folder) == {name: repo.files[name] for name in NEEDED}


@pytest.mark.parametrize("no_hashes", [False, True])
def test_a_repository_that_was_renamed(no_hashes: bool, mock: MockHub, hub: Hub, progress: Progress) -> None:
    mock.repos["test/tiny"].no_hashes = no_hashes
    mock.moved = {"old/name": "test/tiny"}
    found = pull(dataclasses.replace(hub, token="hf_good"), Wish("old/name"), progress)
    assert content(found.folder).keys() == NEEDED
    assert {each.token for each in mock.content} == {None}


# --- the cache is everybody's


def test_the_library_finds_what_we_downloaded(mock: MockHub, hub: Hub, cache: Path, progress: Progress) -> None:
    found = pull(hub, TINY, progress)
    theirs = huggingface_hub.snapshot_download("test/tiny", cache_dir=cache, local_files_only=True)
    assert Path(theirs) == found.folder
    one = huggingface_hub.try_to_load_from_cache("test/tiny", WEIGHTS, cache_dir=cache)
    assert one == str(found.folder / WEIGHTS)
    (repo,) = huggingface_hub.scan_cache_dir(cache).repos
    assert (repo.repo_id, list(repo.refs)) == ("test/tiny", ["main"])
    assert huggingface_hub.scan_cache_dir(cache).warnings == []


def test_we_find_what_the_library_downloaded(
    mock: MockHub, hub: Hub, cache: Path, progress: Progress, said: list[str]
) -> None:
    """This holds the mock hub to what the real client asks of one, too."""
    theirs = huggingface_hub.snapshot_download(
        "test/tiny", cache_dir=cache, endpoint=mock.endpoint, token=False, allow_patterns=list(NEEDED)
    )
    mock.requests.clear()
    found = obtain(hub, TINY, progress)
    assert found.folder == Path(theirs)
    assert mock.asked() == []
    assert said == []


def test_what_is_there_is_not_asked_for_again(mock: MockHub, hub: Hub, progress: Progress) -> None:
    first = pull(hub, TINY, progress)
    mock.requests.clear()
    assert pull(hub, TINY, progress) == first
    assert mock.asked() == []
    changed = model_files() | {"generation_config.json": b'{"eos_token_id": 3}'}
    commit = mock.repos["test/tiny"].commit(changed)
    second = pull(hub, TINY, progress)
    assert second.commit == commit
    assert mock.asked() == ["generation_config.json"]
    assert first.folder.is_dir()


def test_revisions(mock: MockHub, hub: Hub, progress: Progress) -> None:
    repo = mock.repos["test/tiny"]
    old = repo.head
    new = repo.commit(model_files(seed=1))
    assert pull(hub, Wish("test/tiny", old), progress).commit == old
    assert pull(hub, TINY, progress).commit == new
    mock.requests.clear()
    assert obtain(hub, Wish("test/tiny", old), progress).commit == old
    assert mock.requests == [], "a commit never changes, so a cached one needs no question"


def test_a_file_that_was_cut_off_in_the_cache_comes_again(
    mock: MockHub, hub: Hub, cache: Path, progress: Progress
) -> None:
    found = pull(hub, TINY, progress)
    os.truncate((found.folder / WEIGHTS).resolve(), 1000)
    mock.requests.clear()
    found = pull(hub, TINY, progress)
    assert mock.asked() == [WEIGHTS]
    assert (found.folder / WEIGHTS).read_bytes() == mock.repos["test/tiny"].files[WEIGHTS]


def test_two_at_once_download_once(mock: MockHub, hub: Hub, progress: Progress) -> None:
    mock.fault(WEIGHTS).hold_after = 1000
    get_session()  # old versions of the library make two when two threads are the first to ask
    made: list[Snapshot] = []
    threads = [threading.Thread(target=lambda: made.append(pull(hub, TINY, progress))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert mock.sent.wait(30)
    mock.go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert made[0] == made[1]
    assert mock.asked().count(WEIGHTS) == 1


def test_a_file_system_without_links_gets_copies(hub: Hub, progress: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    monkeypatch.setattr(Path, "symlink_to", refuse)
    found = pull(hub, TINY, progress)
    assert not (found.folder / WEIGHTS).is_symlink()
    assert set(content(found.folder)) == NEEDED
    before = (found.folder / WEIGHTS).stat().st_ino
    pull(hub, TINY, progress)
    assert (found.folder / WEIGHTS).stat().st_ino == before, "copied again"


# --- bytes that do not come as they should


def test_a_download_goes_on_where_the_connection_broke(mock: MockHub, hub: Hub, progress: Progress) -> None:
    mock.fault(WEIGHTS).drop_after = [100_000, 50_000, 0]
    found = pull(hub, TINY, progress)
    assert (found.folder / WEIGHTS).read_bytes() == mock.repos["test/tiny"].files[WEIGHTS]
    starts = [int(each.range.split("=")[1].split("-")[0]) for each in mock.content if each.range]
    assert starts == [0, 100_000, 150_000, 150_000]


def test_a_connection_that_falls_silent(
    mock: MockHub, hub: Hub, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    mock.fault(WEIGHTS).hold_after = 100_000
    found = pull(hub, Wish("test/tiny", pauses=(0.0,) * 100), progress)
    assert (found.folder / WEIGHTS).read_bytes() == mock.repos["test/tiny"].files[WEIGHTS]
    assert "bytes=100000-299999" in {each.range for each in mock.content}
    assert not mock.go_on.is_set()


def test_a_hub_without_ranges_starts_over(mock: MockHub, hub: Hub, progress: Progress) -> None:
    fault = mock.fault(WEIGHTS)
    fault.drop_after, fault.no_ranges = [100_000], True
    found = pull(hub, TINY, progress)
    assert (found.folder / WEIGHTS).read_bytes() == mock.repos["test/tiny"].files[WEIGHTS]


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_damaged_file_comes_once_more(name: str, mock: MockHub, hub: Hub, progress: Progress) -> None:
    mock.fault(name).corrupt = 1
    found = pull(hub, TINY, progress)
    assert (found.folder / name).read_bytes() == mock.repos["test/tiny"].files[name]
    assert mock.asked().count(name) == 2


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_file_that_is_damaged_twice_is_refused(
    name: str, mock: MockHub, hub: Hub, cache: Path, progress: Progress
) -> None:
    mock.fault(name).corrupt = 2
    with pytest.raises(HubError, match=f"{name} came damaged twice"):
        pull(hub, TINY, progress)
    assert cached(hub, TINY) is None
    listing = list_files(hub, TINY.repo, TINY.named)
    etag = identify(hub, TINY.repo, listing.commit, listing.files[name]).etag
    # Others that were on their way may have left what came of them, and go on from there.
    assert etag not in {part.stem for part in partial(cache)}
    assert (pull(hub, TINY, progress).folder / name).read_bytes() == mock.repos["test/tiny"].files[name]


def test_an_interrupted_file_that_was_damaged_is_noticed(
    mock: MockHub, hub: Hub, cache: Path, progress: Progress
) -> None:
    """What an earlier try left is hashed with the rest."""
    mock.fault(WEIGHTS).drop_after = [100_000] + [0] * len(AT_ONCE) + [0]
    with pytest.raises(HubError):
        pull(hub, TINY, progress)
    (part,) = partial(cache)
    assert part.stat().st_size == 100_000
    part.write_bytes(bytes(100_000))
    found = pull(hub, TINY, progress)
    assert (found.folder / WEIGHTS).read_bytes() == mock.repos["test/tiny"].files[WEIGHTS]


def test_a_hub_that_is_busy_is_asked_again(mock: MockHub, hub: Hub, progress: Progress) -> None:
    mock.fault(WEIGHTS).refuse = [503, 429, 500]
    pull(hub, TINY, progress)
    assert mock.asked().count(WEIGHTS) == 4


def test_patience_ends(mock: MockHub, hub: Hub, cache: Path, progress: Progress) -> None:
    mock.fault(WEIGHTS).refuse = [503] * 10
    with pytest.raises(HubError, match="answers 503"):
        pull(hub, TINY, progress)
    assert mock.asked().count(WEIGHTS) == 1 + len(AT_ONCE)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_drops_at_any_place(data: st.DataObject, mock: MockHub, hub: Hub, tmp_path: Path) -> None:
    size = data.draw(st.integers(0, 200_000), "size")
    drops = data.draw(st.lists(st.integers(0, size + 10), max_size=3), "drops")
    left = data.draw(st.integers(0, size + 10), "bytes that an earlier try left")
    repo = mock.repos["test/tiny"] = Repo(model_files(size, seed=size))
    fault = mock.fault(WEIGHTS)
    fault.drop_after, fault.no_ranges = list(drops), data.draw(st.booleans(), "no ranges")
    file = list_files(hub, "test/tiny", "main").files[WEIGHTS]
    blob = tmp_path / "blob"
    blob.unlink(missing_ok=True)
    wanted = repo.files[WEIGHTS]
    (tmp_path / "blob.incomplete").write_bytes(wanted[:left])
    told: list[int] = []
    fetch(Source(hub, "test/tiny", repo.head, threading.Event(), told.append, AT_ONCE), file, blob)
    assert blob.read_bytes() == wanted
    assert sum(told) == size, "a bar that ends full"


def test_a_download_that_is_told_to_stop(mock: MockHub, hub: Hub, tmp_path: Path) -> None:
    stop = threading.Event()
    source = Source(hub, "test/tiny", mock.repos["test/tiny"].head, stop, lambda size: stop.set() if size else None)
    file = list_files(hub, "test/tiny", "main").files[WEIGHTS]
    with pytest.raises(HubError, match="the same command goes on"):
        fetch(source, file, tmp_path / "blob")
    assert 0 < (tmp_path / "blob.incomplete").stat().st_size < file.size
    assert not (tmp_path / "blob").exists()


# --- the disk


def test_too_little_room_is_noticed_before(
    mock: MockHub, hub: Hub, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100_000))
    with pytest.raises(HubError, match=r"needs 300.0 kB more in .*, where 100.0 kB are free"):
        pull(hub, TINY, progress)
    assert WEIGHTS not in mock.asked()


def test_a_disk_that_fills_up(hub: Hub, cache: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer._Part, "write", full)
    with pytest.raises(HubError, match=f"{cache} is full"):
        pull(hub, TINY, progress)


def test_a_cache_that_is_a_file(mock: MockHub, hub: Hub, cache: Path, progress: Progress) -> None:
    cache.write_text("")
    with pytest.raises(HubError, match="cannot be written"):
        pull(hub, TINY, progress)


# --- what is said


def test_sentences(mock: MockHub, hub: Hub, progress: Progress, said: list[str]) -> None:
    pull(hub, TINY, progress)
    commit = mock.repos["test/tiny"].head[:12]
    assert said[0] == f"downloading test/tiny at {commit}: 1 file, 300.0 kB into {hub.cache}"
    assert said[1].startswith(f"downloaded test/tiny at {commit}: 5 files, 300.2 kB in ")
    assert len(said) == 2
