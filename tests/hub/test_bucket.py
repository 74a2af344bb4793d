"""Models in a bucket: what is asked for and by whom, what damage and refusals become, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session

from tests.hub.mock_bucket import TOKEN, MockBucket
from tests.hub.repos import INDEX, NEEDED, PARTS, WEIGHTS, model_files, noise, sharded_files
from textgen.hub import bucket as bucket_module
from textgen.hub.bucket import bring, open_bucket
from textgen.hub.errors import HubError
from textgen.hub.progress import Progress

ADDRESS = "gs://models/team/tiny"
PREFIX = "team/tiny/"


def below(files: dict[str, bytes]) -> dict[str, bytes]:
    return {PREFIX + name: data for name, data in files.items() if "/" not in name}


@pytest.fixture
def mock() -> Iterator[MockBucket]:
    with MockBucket("models", below(model_files()) | {"team/other/config.json": b"{}"}, token=TOKEN) as made:
        yield made
    close_session()


@pytest.fixture
def progress() -> Progress:
    return Progress(lambda sentence: None)


def environ(mock: MockBucket) -> dict[str, str]:
    return {"STORAGE_EMULATOR_HOST": mock.host, "GCE_METADATA_HOST": mock.host}


def brought(mock: MockBucket, cache: Path, progress: Progress) -> Path:
    return bring(open_bucket(ADDRESS, environ(mock)), cache, lambda folder: None, progress)


def test_what_a_server_needs_comes_and_nothing_else(mock: MockBucket, cache: Path, progress: Progress) -> None:
    folder = brought(mock, cache, progress)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: mock.files[PREFIX + name] for name in NEEDED
    }
    assert mock.downloaded == sorted(PREFIX + name for name in NEEDED)


def test_an_index_names_the_weights(mock: MockBucket, cache: Path, progress: Progress) -> None:
    mock.files = below(sharded_files())
    mock.generations = dict.fromkeys(mock.files, 1)
    folder = brought(mock, cache, progress)
    assert {INDEX, *PARTS} < {path.name for path in folder.iterdir()}
    assert not (folder / "model-extra.safetensors").exists()


def test_a_second_start_downloads_nothing_until_the_bucket_has_another(
    mock: MockBucket, cache: Path, progress: Progress
) -> None:
    folder = brought(mock, cache, progress)
    seen = len(mock.downloaded)
    assert brought(mock, cache, progress) == folder
    assert len(mock.downloaded) == seen
    mock.put(PREFIX + WEIGHTS, noise(10_000, 7))
    again = brought(mock, cache, progress)
    assert again != folder
    assert (again / WEIGHTS).read_bytes() == noise(10_000, 7)


def test_what_is_refused_for_now_or_comes_damaged_is_asked_for_again(
    mock: MockBucket, cache: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "PAUSE", 0.0)
    mock.refuse[PREFIX + WEIGHTS] = [503, 429]
    mock.damage[PREFIX + "tokenizer.json"] = 2
    folder = brought(mock, cache, progress)
    for name in (WEIGHTS, "tokenizer.json"):
        assert (folder / name).read_bytes() == mock.files[PREFIX + name]


def test_damage_that_stays_ends_it(
    mock: MockBucket, cache: Path, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "PAUSE", 0.0)
    mock.damage[PREFIX + WEIGHTS] = 100
    with pytest.raises(HubError, match="came damaged"):
        brought(mock, cache, progress)
    assert not list(cache.rglob(WEIGHTS))


def test_a_model_that_cannot_be_served_is_refused_before_its_weights(
    mock: MockBucket, cache: Path, progress: Progress
) -> None:
    def refuse(folder: Path) -> None:
        assert (folder / "config.json").exists()
        raise HubError("no")

    with pytest.raises(HubError, match="no"):
        bring(open_bucket(ADDRESS, environ(mock)), cache, refuse, progress)
    assert PREFIX + WEIGHTS not in mock.downloaded


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("gs://", "does not name a bucket"),
        ("gs://Models/x", "does not name a bucket"),
        ("gs://elsewhere/x", "there is no gs://elsewhere/x"),
        ("gs://models/nothing/here", "has no config.json"),
        ("gs://models/team/other", "no"),
    ],
)
def test_addresses_that_lead_nowhere(
    mock: MockBucket, cache: Path, progress: Progress, address: str, sentence: str
) -> None:
    with pytest.raises(HubError, match=sentence):
        bring(open_bucket(address, environ(mock)), cache, lambda folder: None, progress)


def test_who_may_not_read_is_told_what_to_grant(mock: MockBucket, cache: Path, progress: Progress) -> None:
    stranger = {"STORAGE_EMULATOR_HOST": mock.url}
    with pytest.raises(HubError, match="Storage Object Viewer"):
        bring(open_bucket(ADDRESS, stranger), cache, lambda folder: None, progress)


def test_a_bucket_that_is_not_there(cache: Path, progress: Progress) -> None:
    with MockBucket("models", {}) as gone:
        host = gone.host
    with pytest.raises(HubError, match="cannot be read"):
        bring(open_bucket(ADDRESS, {"STORAGE_EMULATOR_HOST": host}), cache, lambda folder: None, progress)


def test_no_token_is_shown() -> None:
    with MockBucket("models", {}) as mock:
        opened = open_bucket(ADDRESS, environ(mock))
    assert opened.token == TOKEN
    assert TOKEN not in repr(opened)
    close_session()
