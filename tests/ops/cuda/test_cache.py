"""What is compiled once is read from disk, unless something that it depends on, or the entry itself, has changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from textgen.ops.cuda.cache import CompileCache, default_folder, default_limit
from textgen.ops.cuda.source import Binary, Resources, Source

SOURCE = Source.of("copy_rows", UNIT=16)


class Counting:
    """A compiler that counts what it is asked for."""

    def __init__(self, arch: str = "sm_90", version: str = "1", size: int = 10) -> None:
        self.arch, self.version, self.options, self.asked, self._size = arch, version, ["-O"], 0, size

    def compile(self, source: Source) -> Binary:
        self.asked += 1
        code = f"{source} {self.arch}\n".encode().ljust(self._size, b"\0")
        return Binary(code, {source.name: Resources(32, 0, 0, 64)})


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    made = CompileCache(first, tmp_path / "new", 1 << 20).get(SOURCE)
    assert CompileCache(second, tmp_path / "new", 1 << 20).get(SOURCE) == made
    assert (first.asked, second.asked) == (1, 0)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (entry,) = entries(tmp_path / "new")
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


@pytest.mark.parametrize("other", [Counting(arch="sm_80"), Counting(version="2")])
def test_another_architecture_or_version_is_compiled(tmp_path: Path, other: Counting) -> None:
    CompileCache(Counting(), tmp_path, 1 << 20).get(SOURCE)
    CompileCache(other, tmp_path, 1 << 20).get(SOURCE)
    assert other.asked == 1


def test_other_constants_or_options_are_compiled(tmp_path: Path) -> None:
    compiler = Counting()
    cache = CompileCache(compiler, tmp_path, 1 << 20)
    cache.get(SOURCE)
    cache.get(Source.of("copy_rows", UNIT=4))
    compiler.options = ["-G"]
    cache.get(SOURCE)
    assert compiler.asked == 3


def test_another_header_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Counting()
    cache = CompileCache(compiler, tmp_path, 1 << 20)
    cache.get(SOURCE)
    monkeypatch.setattr("textgen.ops.cuda.source.headers", lambda: {"device.cuh": "// other"})
    cache.get(SOURCE)
    assert compiler.asked == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no json", "a list", "another form"])
def test_a_damaged_entry_is_compiled_again(tmp_path: Path, damage: str) -> None:
    compiler = Counting()
    cache = CompileCache(compiler, tmp_path, 1 << 20)
    made = cache.get(SOURCE)
    (entry,) = entries(tmp_path)
    data = entry.read_bytes()
    entry.write_bytes(
        {
            "cut": data[:-1],
            "flipped": data[:-1] + bytes([data[-1] ^ 1]),
            "empty": b"",
            "no json": b"{\n" + made.code,
            "a list": b"[]\n" + made.code,
            "another form": data.replace(b'"form": 1', b'"form": 2'),
        }[damage]
    )
    assert cache.get(SOURCE) == made
    assert compiler.asked == 2
    assert entry.read_bytes() == data


def test_what_was_used_longest_ago_gives_way(tmp_path: Path) -> None:
    compiler = Counting(size=1000)
    cache = CompileCache(compiler, tmp_path, 2800)
    sources = [Source.of("copy_rows", UNIT=unit) for unit in (16, 4, 1)]
    for age, source in zip((30, 20), sources, strict=False):
        cache.get(source)
        newest = max(entries(tmp_path), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (newest.stat().st_atime, newest.stat().st_mtime - age))
    cache.get(sources[0])  # used now
    cache.get(sources[2])
    assert len(entries(tmp_path)) == 2
    compiler.asked = 0
    cache.get(sources[0])
    cache.get(sources[2])
    assert compiler.asked == 0


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    compiler = Counting()
    assert CompileCache(compiler, tmp_path / "file" / "below", 1 << 20).get(SOURCE).code
    assert "TEXTGEN_CUDA_CACHE" in caplog.text


def test_environment_names_folder_and_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTGEN_CUDA_CACHE", str(tmp_path))
    monkeypatch.setenv("TEXTGEN_CUDA_CACHE_MB", "3")
    assert (default_folder(), default_limit()) == (tmp_path, 3 << 20)
    monkeypatch.delenv("TEXTGEN_CUDA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "textgen" / "cuda"
    monkeypatch.setenv("TEXTGEN_CUDA_CACHE_MB", "many")
    with pytest.raises(ValueError, match="TEXTGEN_CUDA_CACHE_MB is 'many'; give a whole number"):
        default_limit()
