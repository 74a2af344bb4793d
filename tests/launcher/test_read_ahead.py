"""Weights are asked for before the shard maps them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.launcher.folders import make_folder
from textgen import files
from textgen.launcher.read_ahead import read_ahead


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, int]]:
    """What the system was asked for: path, offset, length, advice."""
    found: list[tuple[str, int, int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, *rest: found.append((os.readlink(f"/proc/self/fd/{fd}"), *rest))
    )
    return found


def wait() -> None:
    for thread in threading.enumerate():
        if thread.name == "read-ahead":
            thread.join()


def test_the_whole_file_is_asked_for(tmp_path: Path, asked: list[tuple[str, int, int, int]]) -> None:
    folder = make_folder(tmp_path / "m")
    weights = folder / "model.safetensors"
    assert read_ahead(folder, 2 * weights.stat().st_size) == [weights]
    wait()
    assert all((path, advice) == (str(weights), os.POSIX_FADV_WILLNEED) for path, _, _, advice in asked)
    begins, lengths = [begin for _, begin, _, _ in asked], {length for _, _, length, _ in asked}
    assert begins == list(range(0, weights.stat().st_size, *lengths))
    assert lengths <= {128 * 1024}, "Linux heeds no more of one call"


def test_what_would_not_stay_is_not_asked_for(tmp_path: Path, asked: list[tuple[str, int, int, int]]) -> None:
    folder = make_folder(tmp_path / "m")
    assert not read_ahead(folder, 2 * (folder / "model.safetensors").stat().st_size - 1)
    wait()
    assert not asked


def test_files_of_a_gguf_model(tmp_path: Path, asked: list[tuple[str, int, int, int]]) -> None:
    parts = [tmp_path / name for name in ("one.gguf", "two.gguf")]
    for file in parts:
        file.write_bytes(bytes(64))
    tensors = {
        f"{number}.{file.stem}": {"file": str(file), "offset": 0, "kind": "F32", "shape": [4]}
        for number in range(2)
        for file in parts
    }
    (tmp_path / "gguf.json").write_text(json.dumps({"architecture": "llama", "tensors": tensors}))
    assert read_ahead(tmp_path, 1 << 20) == parts
    wait()
    assert [path for path, *_ in asked] == list(map(str, parts))


def test_a_file_that_is_gone_is_the_shards_to_tell_of(tmp_path: Path, asked: list[tuple[str, int, int, int]]) -> None:
    tensors = {"a": {"file": str(tmp_path / "none.gguf"), "offset": 0, "kind": "F32", "shape": [4]}}
    (tmp_path / "gguf.json").write_text(json.dumps({"architecture": "llama", "tensors": tensors}))
    assert not read_ahead(tmp_path, 1 << 20)


def test_little_is_under_way_at_a_time(
    tmp_path: Path, asked: list[tuple[str, int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads something small meanwhile waits for all that was asked for before."""
    file, arrived, most = tmp_path / "weights", 0, 0

    def awaited(_: int, count: int, offset: int) -> bytes:
        nonlocal arrived, most
        most = max(most, asked[-1][1] + asked[-1][2] - arrived)
        arrived = max(arrived, offset + count)
        return bytes(count)

    with file.open("wb") as whole:
        whole.truncate(20 * files.WINDOW + 1)
    monkeypatch.setattr(os, "pread", awaited)
    files.read_ahead(file)
    assert asked[-1][1] + asked[-1][2] > 20 * files.WINDOW
    assert files.WINDOW < most <= 3 * files.WINDOW
