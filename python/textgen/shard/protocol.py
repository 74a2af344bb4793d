"""The step protocol, version 6: frames between the router and a shard (Rust twin: `router/src/shard/protocol.rs`).

A frame is a little-endian u32 payload length, a kind byte, and one msgpack array (the fields of a struct in order).
What is per token or per segment travels as packed little-endian columns, read here without a copy by numpy.
Whatever arrives, decoding raises `ProtocolError` or returns a checked frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

VERSION = 6
NO_PAGE = 0xFFFF_FFFF  # in the place of a page that no window reaches
MAX_PAYLOAD = 64 << 20
HEADER = struct.Struct("<IB")
SEGMENT_COLUMNS = 6

U16: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF)]
U32: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U64: TypeAlias = Annotated[int, Meta(ge=0)]  # msgpack itself ends at 2**64 - 1
Ints: TypeAlias = NDArray[np.int64]


class ProtocolError(Exception):
    """The peer broke the protocol; the message says how, in one sentence."""


class Kind(IntEnum):
    HELLO = 1
    ADMIT = 2
    STEP = 3
    DONE = 4
    FAILED = 5
    STOP = 6
    ASK = 7


class Flag(IntFlag):
    """Bits of the segment column `flags`."""

    SAMPLE = 1  # sample after the segment's last token
    LAST = 2  # the first token is the one the shard sampled last for this slot; its id is not in `tokens`
    PROMPT_LOGPROBS = 4  # report the log-probabilities of this segment's tokens


class _Array(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A struct on the wire as an array of its fields in order, neither more nor fewer."""


class ModelFacts(_Array, frozen=True):
    vocab_size: U32
    max_positions: U32
    dtype: str


class KvFacts(_Array, frozen=True):
    num_pages: U32
    block_size: U32
    bytes_per_page: U64
    groups: list[U32 | None]  # windows of the groups of layers, those without one first


class Limits(_Array, frozen=True):
    max_slots: U32
    max_batch_tokens: U32
    max_top_n: U32
    asks_for_masks: bool  # masks may come in part: an `Ask` is sent where the rest is needed


class Region(_Array, frozen=True):
    name: str
    offset: U64
    length: U64


class Phase(_Array, frozen=True):
    name: str
    seconds: float


class MeasuredStep(_Array, frozen=True):
    """A step that was run to see how long it takes."""

    tokens: U64
    pairs: U64  # of a prompt's token and a token up to it
    context: U64  # positions that are read
    sequences: U64
    streams: U64  # those of them that go on from the token sampled last
    micros: U64


class Hello(_Array, frozen=True):
    """shard → router, first frame: what runs here and how much of it fits."""

    version: U16
    rank: U32
    world_size: U32
    model: ModelFacts
    kv: KvFacts
    limits: Limits
    regions: list[Region]
    phases: list[Phase]
    measured: list[MeasuredStep]


class Watermark(_Array, frozen=True):
    gamma: float
    delta: float


class Thinking(_Array, frozen=True):
    budget: U32
    openings: bytes  # sequences, as in `Rules.banned`
    end: bytes
    closings: bytes  # sequences


class Rules(_Array, frozen=True):
    """What a sequence may or may not draw whatever the model says."""

    bias_ids: bytes
    biases: bytes
    allowed: bytes  # bits by token id in u32 words; empty: all
    banned: bytes  # for each banned sequence its length and its tokens
    min_tokens: U32
    endings: bytes
    watermark: Watermark | None
    thinking: Thinking | None


class Source(_Array, frozen=True):
    """What an encoder reads: the first `tokens` ids of the sequence. The decoder's first token is at `positions`."""

    tokens: U32
    positions: U32


class Admit(_Array, frozen=True):
    """router → shard: seat a sequence; whatever sat in the slot is gone."""

    slot: U32
    temperature: float
    top_k: U32
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_window: U32
    seed: U64
    prompt_len: U32
    top_n: U32
    prompt_top_n: U32
    adapter: U32 | None
    history: bytes
    rules: Rules | None
    source: Source | None


class Step(_Array, frozen=True):
    """router → shard: freed slots, then block copies, then segments."""

    step: U64
    segments: bytes
    tokens: bytes
    blocks: bytes
    copies: bytes
    freed: bytes
    masks: bytes


class Range(_Array, frozen=True):
    offset: U64
    length: U64


class Times(_Array, frozen=True):
    queue_ns: U64
    forward_ns: U64
    sample_ns: U64


class Done(_Array, frozen=True):
    """shard → router: what the step sampled."""

    step: U64
    slots: bytes
    counts: bytes
    tokens: bytes
    logprobs: bytes
    wide: Range | None
    times: Times


class Failed(_Array, frozen=True):
    """shard → router: the slots at fault (none named: the whole step), the kind and one sentence."""

    step: U64 | None
    slots: bytes
    kind: str
    message: str


class Stop(_Array, frozen=True):
    """router → shard: finish the steps before this one and exit."""


class Ask(_Array, frozen=True):
    """shard → router: masks of a step, of which there are parts, are needed whole."""

    step: U64
    masks: bytes  # their slots


Frame: TypeAlias = Hello | Admit | Step | Done | Failed | Stop | Ask

_TYPES: dict[Kind, type[Frame]] = {
    Kind.HELLO: Hello,
    Kind.ADMIT: Admit,
    Kind.STEP: Step,
    Kind.DONE: Done,
    Kind.FAILED: Failed,
    Kind.STOP: Stop,
    Kind.ASK: Ask,
}
_KINDS = {type_: kind for kind, type_ in _TYPES.items()}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[int, msgspec.msgpack.Decoder[Frame]] = {
    kind: msgspec.msgpack.Decoder(type_) for kind, type_ in _TYPES.items()
}


def encode(frame: Frame) -> bytes:
    """The frame as bytes, header included. Raises `ProtocolError` when the payload is over 64 MiB."""
    payload = _ENCODER.encode(frame)
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(f"a frame of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
    return HEADER.pack(len(payload), _KINDS[type(frame)]) + payload


def decode(kind: int, payload: bytes | bytearray | memoryview) -> Frame:
    """The frame in a payload. Raises `ProtocolError` for an unknown kind or a payload of another shape."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ProtocolError(f"unknown frame kind {kind}")
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the {Kind(kind).name.lower()} frame cannot be read: {error}") from None


def cut(buffer: bytearray) -> tuple[int, bytes] | None:
    """Take the first frame out of the buffer, kind and payload; None where it has not arrived to its end.

    Raises `ProtocolError` as soon as a header is wrong; the stream cannot be read on after that.
    """
    if len(buffer) < HEADER.size:
        return None
    length, kind = HEADER.unpack_from(buffer)
    if length > MAX_PAYLOAD:
        raise ProtocolError(f"a frame of {length} bytes is over the limit of {MAX_PAYLOAD}")
    end = HEADER.size + length
    if len(buffer) < end:
        return None
    payload = bytes(memoryview(buffer)[HEADER.size : end])
    del buffer[:end]
    return kind, payload


class FrameReader:
    """Cuts a byte stream into frames, whatever the sizes of its pieces: for whoever talks to a shard from Python."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
        """Yield (kind, payload) of every frame that `data` completes. Raises what `cut` raises."""
        self._buffer += data
        while (frame := cut(self._buffer)) is not None:
            yield frame

    @property
    def pending(self) -> int:
        """Bytes of a frame that has not fully arrived."""
        return len(self._buffer)


_U32, _F32, _INT64 = np.dtype("<u4"), np.dtype("<f4"), np.dtype(np.int64)  # parsed once
_LAST = np.array(int(Flag.LAST))
_EMPTY = np.empty(0, dtype=np.int64)  # shared: an array without elements cannot be changed
_NO_PAIRS = _EMPTY.reshape(0, 2)


# An array converts itself in less than half the time that `asarray` takes for it. In what runs in every step, arguments
# have no names, and nothing is called that could be written out: numpy takes as long to look at a name, and Python to
# make a call, as to convert 100 numbers.


def pack_u32(values: object) -> bytes:
    """Any sequence of integers as a packed u32 column."""
    if type(values) is np.ndarray:
        return values.astype(_U32).tobytes()
    return np.asarray(values, dtype=_U32).tobytes()


def pack_ones(count: int) -> bytes:
    """A packed u32 column of so many ones."""
    return b"\x01\0\0\0" * count


def pack_f32(values: object) -> bytes:
    """Any sequence of numbers as a packed f32 column."""
    if type(values) is np.ndarray:
        return values.tobytes() if values.dtype is _F32 else values.astype(_F32).tobytes()
    return np.asarray(values, dtype=_F32).tobytes()


def unpack_u32(column: bytes, name: str) -> Ints:
    """A packed u32 column as int64, ready for index arithmetic. Raises `ProtocolError` on a torn column."""
    if not column:
        return _EMPTY  # most columns of a steady step
    if len(column) % 4:
        raise _torn(name, len(column))
    return np.frombuffer(column, _U32).astype(_INT64)


def unpack_f32(column: bytes, name: str) -> NDArray[np.float32]:
    """A packed f32 column. Raises `ProtocolError` on a torn column."""
    if len(column) % 4:
        raise _torn(name, len(column))
    return np.frombuffer(column, _F32)


class StepColumns(msgspec.Struct, frozen=True, eq=False):
    """The columns of a step, each an int64 array; lengths agree, values are not yet checked."""

    slot: Ints  # [n]
    start: Ints
    length: Ints
    draft: Ints
    flags: Ints
    new_pages: Ints
    tokens: Ints  # [sum(length) - segments with LAST]
    blocks: Ints  # [sum(new_pages)] pages, a new block after the other, of each the page of each group
    copies: Ints  # [m, 2] from, to
    freed: Ints
    masks: Ints  # [k, 2] segment, mask slot

    @property
    def explicit(self) -> Ints:
        """[n] how many ids of each segment are in `tokens`."""
        explicit: Ints = self.length - ((self.flags & int(Flag.LAST)) != 0)
        return explicit

    @property
    def samples(self) -> NDArray[np.bool_]:
        """[n] whether each segment samples."""
        samples: NDArray[np.bool_] = (self.flags & int(Flag.SAMPLE)) != 0
        return samples


def step_columns(step: Step) -> StepColumns:
    """Unpack a step. Raises `ProtocolError` when a column is torn or the lengths disagree."""
    segments = step.segments
    count, rest = divmod(len(segments), 4 * SEGMENT_COLUMNS)
    if rest:
        raise _not_six(len(segments))
    if len(step.blocks) % 4:
        raise _torn("blocks", len(step.blocks))
    shape = _shape(segments[8 * count : 20 * count])
    # Converted together: a second conversion takes as long as one of 1,000 numbers more.
    packed = unpack_u32(segments + step.blocks, "blocks")
    new_pages, blocks = packed[5 * count : 6 * count], packed[6 * count :]
    columns = StepColumns(
        packed[:count], packed[count : 2 * count], shape.length, shape.draft, shape.flags, new_pages,
        unpack_u32(step.tokens, "tokens") if step.tokens else _EMPTY,
        blocks,
        unpack_pairs(step.copies, "copies") if step.copies else _NO_PAIRS,
        unpack_u32(step.freed, "freed") if step.freed else _EMPTY,
        unpack_pairs(step.masks, "masks") if step.masks else _NO_PAIRS,
    )  # fmt: skip
    if columns.tokens.size != shape.explicit:
        raise _disagree("tokens", columns.tokens.size, shape.explicit)
    announced = int(new_pages.dot(shape.ones))  # their sum, in half the time that adding them up takes
    if blocks.size != announced:
        raise _disagree("blocks", blocks.size, announced)
    return columns


class _Shape(msgspec.Struct, frozen=True, eq=False):
    """The columns length, draft and flags, which most steps have in common with the step before."""

    packed: bytes
    length: Ints
    draft: Ints
    flags: Ints
    explicit: int  # ids that come with the step
    ones: Ints  # [n]


def _shape(packed: bytes) -> _Shape:
    global _last_shape
    if packed == _last_shape.packed:
        return _last_shape
    columns = unpack_u32(packed, "segments").reshape(3, -1)
    columns.flags.writeable = False  # several steps look at it
    length, draft, flags = columns
    if np.count_nonzero(length) != length.size:
        raise ProtocolError("a segment has no tokens")
    explicit = int(np.add.reduce(length)) - np.count_nonzero(flags & _LAST)
    _last_shape = _Shape(packed, length, draft, flags, explicit, np.ones_like(length))
    return _last_shape


_last_shape = _Shape(b"", _EMPTY, _EMPTY, _EMPTY, 0, _EMPTY)


def unpack_pairs(column: bytes, name: str) -> Ints:
    """[k, 2] from the column of a step. Raises `ProtocolError` when it is torn."""
    values = unpack_u32(column, name)
    if values.size % 2:
        raise ProtocolError(f"column {name} holds {values.size} numbers, not pairs")
    pairs: Ints = values.reshape(-1, 2)
    return pairs


def _torn(name: str, size: int) -> ProtocolError:
    return ProtocolError(f"column {name} of {size} bytes is not made of 4-byte numbers")


def _not_six(size: int) -> ProtocolError:
    if size % 4:
        return _torn("segments", size)
    return ProtocolError(f"column segments holds {size // 4} numbers, not six per segment")


def _disagree(name: str, have: int, announced: int) -> ProtocolError:
    return ProtocolError(f"column {name} holds {have} numbers, the segments announce {announced}")
