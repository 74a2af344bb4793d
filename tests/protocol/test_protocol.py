"""The codec: golden bytes shared with Rust, round trips, and garbage that must end in `ProtocolError`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textgen.shard import protocol as p
from textgen.shard.masks import MaskBoard, MaskSize

from .make_vectors import MASKS, PATH, as_value, mask_vectors, vectors

VECTORS: list[dict[str, Any]] = json.loads(PATH.read_text())

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
f32 = st.floats(width=32, allow_nan=False)
column = st.lists(u32, max_size=20).map(p.pack_u32)
text = st.text(max_size=20)
floats = st.lists(f32, max_size=20).map(p.pack_f32)
rules = st.builds(
    p.Rules,
    column,
    floats,
    column,
    column,
    u32,
    column,
    st.none() | st.builds(p.Watermark, f32, f32),
    st.none() | st.builds(p.Thinking, u32, column, column, column),
)

FRAMES: dict[type, st.SearchStrategy[Any]] = {
    p.Hello: st.builds(
        p.Hello,
        st.integers(0, 65535),
        u32,
        u32,
        st.builds(p.ModelFacts, u32, u32, text),
        st.builds(p.KvFacts, u32, u32, u64, st.lists(st.none() | u32, max_size=4)),
        st.builds(p.Limits, u32, u32, u32, st.booleans()),
        st.lists(st.builds(p.Region, text, u64, u64), max_size=3),
        st.lists(st.builds(p.Phase, text, st.floats(allow_nan=False)), max_size=3),
        st.lists(st.builds(p.MeasuredStep, u64, u64, u64, u64, u64, u64), max_size=3),
    ),
    p.Admit: st.builds(
        p.Admit,
        u32,
        f32,
        u32,
        f32,
        f32,
        f32,
        f32,
        f32,
        f32,
        u32,
        u64,
        u32,
        u32,
        u32,
        st.none() | u32,
        column,
        st.none() | rules,
        st.none() | st.builds(p.Source, u32, u32),
    ),
    p.Step: st.builds(p.Step, u64, column, column, column, column, column, column),
    p.Done: st.builds(
        p.Done,
        u64,
        column,
        column,
        column,
        floats,
        st.none() | st.builds(p.Range, u64, u64),
        st.builds(p.Times, u64, u64, u64),
    ),
    p.Failed: st.builds(p.Failed, st.none() | u64, column, text, text),
    p.Stop: st.builds(p.Stop),
    p.Ask: st.builds(p.Ask, u64, column),
}
any_frame = st.one_of(*FRAMES.values())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_golden_bytes_decode_to_their_value(vector: dict[str, Any]) -> None:
    ((kind, payload),) = p.FrameReader().feed(bytes.fromhex(vector["hex"]))
    assert kind == vector["kind"]
    frame = p.decode(kind, payload)
    assert as_value(frame) == vector["value"]
    if not vector["name"].endswith("_rust"):
        assert p.encode(frame).hex() == vector["hex"]


def test_golden_bytes_are_those_of_this_codec() -> None:
    assert vectors() == VECTORS, "run tests/protocol/make_vectors.py"
    assert {vector["kind"] for vector in VECTORS} == {int(kind) for kind in p.Kind}


@pytest.mark.parametrize("vector", json.loads(MASKS.read_text()))
def test_golden_mask_slots_are_read(vector: dict[str, Any]) -> None:
    size = MaskSize(vector["max_slots"], vector["vocab_size"])
    assert (size.count, size.stride) == (vector["count"], vector["stride"])
    last = size.count - 1
    region = bytes(last * size.stride) + bytes.fromhex(vector["hex"])
    arrived = MaskBoard(memoryview(region), size, timeout=1.0).read(vector["step"], np.array([last]))
    assert arrived.late.tolist() == [False]
    assert arrived.free.tolist() == [vector["allowed"] is None]
    bits = np.unpackbits(arrived.bits[0], bitorder="little")
    assert np.flatnonzero(bits).tolist() == (vector["allowed"] or [])


def test_golden_mask_slots_are_those_of_this_code() -> None:
    assert mask_vectors() == json.loads(MASKS.read_text()), "run python -m tests.protocol.make_vectors"


@given(frame=any_frame)
def test_what_is_encoded_decodes_to_the_same(frame: p.Frame) -> None:
    encoded = p.encode(frame)
    ((kind, payload),) = p.FrameReader().feed(encoded)
    assert p.decode(kind, payload) == frame


@given(frames=st.lists(any_frame, max_size=5), data=st.data())
def test_the_reader_cuts_frames_from_any_pieces(frames: list[p.Frame], data: st.DataObject) -> None:
    stream = b"".join(map(p.encode, frames))
    reader, decoded = p.FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        decoded += [p.decode(kind, payload) for kind, payload in reader.feed(stream[:size])]
        stream = stream[size:]
    assert decoded == frames
    assert reader.pending == 0


@settings(max_examples=500)
@given(kind=st.integers(0, 255), payload=st.binary(max_size=80))
def test_garbage_payloads_raise_protocol_errors(kind: int, payload: bytes) -> None:
    decode_or_refuse(kind, payload)


json_like: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | text | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(text, inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=300)
@given(kind=st.sampled_from(list(p.Kind)), value=json_like)
def test_other_messages_raise_protocol_errors(kind: p.Kind, value: Any) -> None:
    decode_or_refuse(kind, msgspec.msgpack.encode(value))


@settings(max_examples=300)
@given(frame=any_frame, data=st.data())
def test_damaged_frames_raise_protocol_errors(frame: p.Frame, data: st.DataObject) -> None:
    encoded = bytearray(p.encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    reader = p.FrameReader()
    try:
        for kind, payload in reader.feed(bytes(encoded)):
            decode_or_refuse(kind, payload)
    except p.ProtocolError:
        pass


def decode_or_refuse(kind: int, payload: bytes) -> None:
    try:
        frame = p.decode(kind, payload)
        if isinstance(frame, p.Step):
            p.step_columns(frame)
    except p.ProtocolError as error:
        assert "\n" not in str(error)


def test_a_deeply_nested_payload_is_refused() -> None:
    with pytest.raises(p.ProtocolError):
        p.decode(p.Kind.STOP, b"\x91" * 100_000)


def test_a_length_over_the_limit_is_refused_before_its_payload_arrives() -> None:
    with pytest.raises(p.ProtocolError, match="over the limit"):
        list(p.FrameReader().feed(p.HEADER.pack(p.MAX_PAYLOAD + 1, p.Kind.STEP)))
    with pytest.raises(p.ProtocolError, match="over the limit"):
        p.encode(p.Failed(None, bytes(p.MAX_PAYLOAD), "internal", ""))


@pytest.mark.parametrize("kind", [0, 8, 255])
def test_unknown_kinds_are_named(kind: int) -> None:
    with pytest.raises(p.ProtocolError, match=f"unknown frame kind {kind}"):
        p.decode(kind, b"\x90")


@pytest.mark.parametrize("name", [type_.__name__ for type_ in FRAMES])
def test_fields_too_many_and_too_few_are_refused(name: str) -> None:
    kind = p.Kind[name.upper()]
    vector = next(vector for vector in VECTORS if vector["kind"] == kind)
    fields = msgspec.msgpack.decode(bytes.fromhex(vector["hex"])[p.HEADER.size :])
    with pytest.raises(p.ProtocolError):
        p.decode(kind, msgspec.msgpack.encode([*fields, None]))
    if fields:
        with pytest.raises(p.ProtocolError):
            p.decode(kind, msgspec.msgpack.encode(fields[:-1]))


def a_step(segments: object, **columns: bytes) -> p.Step:
    names = ("tokens", "blocks", "copies", "freed", "masks")
    return p.Step(1, p.pack_u32(np.asarray(segments)), *(columns.get(name, b"") for name in names))


ONE = [[0], [0], [2], [0], [int(p.Flag.LAST)], [1]]  # two tokens, the first of them the last sampled; one block


def test_columns_of_a_step() -> None:
    columns = p.step_columns(a_step(ONE, tokens=p.pack_u32([9]), blocks=p.pack_u32([4]), copies=p.pack_u32([1, 2])))
    assert columns.explicit.tolist() == [1]
    assert columns.copies.tolist() == [[1, 2]]
    assert columns.slot.dtype == np.int64


segment = st.tuples(u32, u32, st.integers(1, 2), st.integers(0, 1), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(st.lists(segment, max_size=3), max_size=4))
def test_each_step_has_its_own_columns_whatever_came_before(steps: list[list[tuple[int, ...]]]) -> None:
    for rows in steps:
        table = np.array(rows, np.int64).reshape(-1, 6).T
        tokens = sum(row[2] - bool(row[4] & p.Flag.LAST) for row in rows)
        packed = p.pack_u32(np.arange(tokens)), p.pack_u32(np.arange(table[5].sum()))
        columns = p.step_columns(a_step(table, tokens=packed[0], blocks=packed[1]))
        for name, values in zip(("slot", "start", "length", "draft", "flags", "new_pages"), table, strict=True):
            assert getattr(columns, name).tolist() == values.tolist()
        for wrong in ({"tokens": packed[0] + bytes(4)}, {"blocks": packed[1] + bytes(4)}):
            with pytest.raises(p.ProtocolError, match="the segments announce"):
                p.step_columns(a_step(table, **{"tokens": packed[0], "blocks": packed[1]} | wrong))


def test_ones_are_packed_as_any_numbers_are() -> None:
    assert p.pack_ones(3) == p.pack_u32([1, 1, 1])
    assert p.pack_ones(0) == b""


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (a_step([0, 1, 2]), "six per segment"),
        (a_step([[0], [0], [0], [0], [0], [0]]), "no tokens"),
        (a_step(ONE, blocks=p.pack_u32([4])), "column tokens holds 0 numbers, the segments announce 1"),
        (a_step(ONE, tokens=p.pack_u32([9])), "column blocks holds 0 numbers, the segments announce 1"),
        (a_step(ONE, tokens=b"abc"), "column tokens of 3 bytes .* 4-byte"),
        (a_step(ONE, tokens=p.pack_u32([9]), blocks=b"abc"), "column blocks of 3 bytes .* 4-byte"),
        (p.Step(7, b"abcde", b"", b"", b"", b"", b""), "column segments of 5 bytes .* 4-byte"),
        (a_step(np.zeros((6, 0)), copies=p.pack_u32([1])), "pairs"),
        (a_step(np.zeros((6, 0)), masks=p.pack_u32([1, 2, 3])), "pairs"),
    ],
)
def test_columns_that_disagree_are_refused(step: p.Step, sentence: str) -> None:
    with pytest.raises(p.ProtocolError, match=sentence):
        p.step_columns(step)
