"""The header of a GGUF file against the gguf package's reader, files in several parts, and damage of every kind."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from textgen.gguf.errors import GgufError
from textgen.gguf.file import is_gguf, read_gguf


def write(path: Path, **split: int) -> Path:
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    writer.add_string("a.text", "größer")
    writer.add_array("a.texts", ["x", "", "東京"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.floats", [0.5, -1.5])
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -300)
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int32("a.i32", -(2**31))
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_bool("a.flag", True)
    writer.add_float64("a.float", 0.1)
    for name, value in split.items():
        writer.add_uint16(f"split.{name}", value)
    number = split.get("no", 0)
    writer.add_tensor(f"t{number}", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor(f"q{number}", gguf.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "m.gguf")


def test_it_reads_what_the_package_reads(path: Path) -> None:
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert dict(ours.metadata) == fields
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.offset, mine.kind, mine.nbytes) == (tensor.data_offset, tensor.tensor_type.name, tensor.n_bytes)
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
    assert is_gguf(path)


def test_a_model_in_several_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"m-{no + 1:05}-of-00003.gguf", no=no, count=3) for no in range(3)]
    model = read_gguf(paths[0])
    assert sorted(model.tensors) == ["q0", "q1", "q2", "t0", "t1", "t2"]
    assert model.tensors["t2"].file == str(paths[2])
    with pytest.raises(GgufError, match="not the first of its 3 files; give m-00001-of-00003.gguf"):
        read_gguf(paths[1])
    paths[2].unlink()
    with pytest.raises(GgufError, match="m-00003-of-00003.gguf is missing"):
        read_gguf(paths[0])
    with pytest.raises(GgufError, match="give them back their names"):
        read_gguf(paths[0].rename(tmp_path / "model.gguf"))


def test_what_is_no_gguf_file(tmp_path: Path) -> None:
    other = tmp_path / "model.gguf"
    for content, words in ((b"", "damaged"), (b"GGU", "no GGUF file"), (b"PK\3\4" + bytes(100), "no GGUF file")):
        other.write_bytes(content)
        assert not is_gguf(other)
        with pytest.raises(GgufError, match=words):
            read_gguf(other)
    with pytest.raises(GgufError, match="cannot be read"):
        read_gguf(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (4, struct.pack("<I", 1), "version 1"),
        (4, struct.pack(">I", 3), "version 50331648, in little-endian order"),
        (8, struct.pack("<Q", 2**60), "damaged"),
        (16, struct.pack("<Q", 2**60), "damaged"),
        (16, struct.pack("<Q", 2**23), "damaged"),
        (24, struct.pack("<Q", 2**63), "its header is cut off"),
    ],
)
def test_damaged_headers(at: int, value: bytes, words: str, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(GgufError, match=words):
        read_gguf(path)


def test_a_file_cut_off_anywhere(path: Path) -> None:
    content = path.read_bytes()
    end = max(tensor.offset + tensor.nbytes for tensor in read_gguf(path).tensors.values())
    for length in (*range(0, end, 7), end - 1):
        path.write_bytes(content[:length])
        with pytest.raises(GgufError):
            read_gguf(path)


def test_any_byte_may_be_wrong(path: Path) -> None:
    """It is read or refused with a sentence, whatever the header says."""
    content, rng = path.read_bytes(), random.Random(5)
    for _ in range(400):
        changed = bytearray(content)
        changed[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            read_gguf(path)
        except GgufError as error:
            assert "\n" not in str(error)
