"""Write `vectors.json`: the same frames for both codecs. After a change of the protocol:
`python -m tests.protocol.make_vectors`.

Each entry is {name, kind, hex, value}: `hex` is the whole frame, header included; `value` its fields by name, packed
columns as lists of numbers. Entries named `*_rust` hold floats as the Rust side writes them (msgpack float 32):
decoding them gives the same value, encoding them in Python does not give the same bytes.

And `masks.json`: slots of the region `masks`, as the router writes them and the shard reads them.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from textgen.shard import protocol as p
from textgen.shard.masks import MaskSize

from ..shard.mask_writer import mask_slot

PATH = Path(__file__).parent / "vectors.json"
MASKS = Path(__file__).parent / "masks.json"
COLUMNS = {
    "Admit": {"history": "<u4"},
    "Thinking": dict.fromkeys(("openings", "end", "closings"), "<u4"),
    "Rules": {"biases": "<f4"} | dict.fromkeys(("bias_ids", "allowed", "banned", "endings"), "<u4"),
    "Step": dict.fromkeys(("segments", "tokens", "blocks", "copies", "freed", "masks"), "<u4"),
    "Done": {"slots": "<u4", "counts": "<u4", "tokens": "<u4", "logprobs": "<f4"},
    "Failed": {"slots": "<u4"},
    "Ask": {"masks": "<u4"},
}
BIG = 2**64 - 1


def admit(**changes: Any) -> p.Admit:
    values: dict[str, Any] = {
        "slot": 3, "temperature": 0.75, "top_k": 40, "top_p": 0.5, "min_p": 0.0625, "typical_p": 1.0,
        "repetition_penalty": 1.25, "frequency_penalty": -0.5, "presence_penalty": 2.0, "penalty_window": 65536,
        "seed": BIG, "prompt_len": 4, "top_n": 5, "prompt_top_n": 7, "adapter": 1,
        "history": p.pack_u32([7, 0, 65536, 9]), "rules": None, "source": None,
    }  # fmt: skip
    return p.Admit(**{**values, **changes})


def frames() -> dict[str, p.Frame]:
    model = p.ModelFacts(32000, 131072, "bfloat16")
    segments = [[0, 255], [0, 70000], [5, 1], [0, 0], [4, 3], [2, 0]]
    return {
        "hello": p.Hello(
            6, 0, 1, model, p.KvFacts(1000, 16, 5_000_000_000, [None, 1024, 1024]), p.Limits(256, 2048, 20, True),
            [p.Region("logprobs", 0, 8192), p.Region("masks", 8192, 4096)],
            [p.Phase("import", 1.5), p.Phase("load", 0.0)], [p.MeasuredStep(520, 1 << 40, 70000, 9, 8, 123456)],
        ),
        "hello_without_windows": p.Hello(
            65535, 4294967295, 2, p.ModelFacts(101, 64, "float32"), p.KvFacts(1, 1, BIG, [None]),
            p.Limits(1, 1, 0, False), [], [], [],
        ),
        "admit": admit(),
        "admit_greedy": admit(
            temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, frequency_penalty=0.0,
            presence_penalty=0.0, penalty_window=0, seed=0, top_n=0, prompt_top_n=0, adapter=None, history=b"",
        ),
        "admit_with_rules": admit(
            rules=p.Rules(
                p.pack_u32([5, 70000]), p.pack_f32([-100.0, 1.5]), p.pack_u32([3, 1 << 31]),
                p.pack_u32([1, 9, 3, 7, 8, 70001]), 12, p.pack_u32([2, 70002]), p.Watermark(0.5, 2.0),
                p.Thinking(9, p.pack_u32([1, 4, 2, 4, 70003]), p.pack_u32([5, 6]), p.pack_u32([1, 8])),
            )
        ),
        "admit_with_source": admit(source=p.Source(70000, 70016)),
        "admit_with_empty_rules": admit(rules=p.Rules(b"", b"", b"", b"", 0, b"", None, None)),
        "step": p.Step(
            1 << 40, p.pack_u32(segments), p.pack_u32([1, 2, 3, 4, 5]), p.pack_u32([8, 9]),
            p.pack_u32([[5, 6], [7, 8]]), p.pack_u32([2, 4]), p.pack_u32([[1, 6]]),
        ),
        "step_empty": p.Step(0, b"", b"", b"", b"", b"", b""),
        "done": p.Done(
            1 << 40, p.pack_u32([0, 255]), p.pack_u32([1, 1]), p.pack_u32([42, 31999]), p.pack_f32([-0.5, -1.25]),
            p.Range(4096, 48), p.Times(1, 2_000_000_000, 300),
        ),
        "done_empty": p.Done(7, b"", b"", b"", b"", None, p.Times(0, 0, 0)),
        "failed": p.Failed(9, p.pack_u32([3]), "numerics", "the model's logits are not finite"),
        "failed_unknown": p.Failed(None, b"", "protocol", "unknown frame kind 99 – ünïcode"),
        "stop": p.Stop(),
        "ask": p.Ask(1 << 40, p.pack_u32([6, 70000])),
    }  # fmt: skip


def as_value(frame: object) -> Any:
    """Fields by name, columns as lists."""
    if not hasattr(frame, "__struct_fields__"):
        return [as_value(item) for item in frame] if isinstance(frame, list) else frame
    columns = COLUMNS.get(type(frame).__name__, {})
    return {
        name: np.frombuffer(getattr(frame, name), columns[name]).tolist()
        if name in columns
        else as_value(getattr(frame, name))
        for name in frame.__struct_fields__
    }


def with_single_floats(frame: bytes) -> bytes:
    """The frame with every msgpack float 64 (0xcb) as a float 32 (0xca). Only for frames without 0xcb elsewhere."""
    payload, kind = frame[p.HEADER.size :], frame[4]
    pieces, rest = [], payload
    while 0xCB in rest:
        at = rest.index(0xCB)
        (number,) = struct.unpack_from(">d", rest, at + 1)
        pieces += [rest[:at], b"\xca", struct.pack(">f", number)]
        rest = rest[at + 9 :]
    single = b"".join([*pieces, rest])
    return p.HEADER.pack(len(single), kind) + single


def vectors() -> list[dict[str, Any]]:
    entries = []
    for name, frame in frames().items():
        encoded = p.encode(frame)
        kind, value = encoded[4], as_value(frame)
        entries.append({"name": name, "kind": kind, "hex": encoded.hex(), "value": value})
        if kind == p.Kind.ADMIT:
            single = with_single_floats(encoded).hex()
            entries.append({"name": f"{name}_rust", "kind": kind, "hex": single, "value": value})
    return entries


def mask_vectors() -> list[dict[str, Any]]:
    cases: list[tuple[int, int, int, list[int] | None]] = [
        (101, 8, 0, [0, 7, 8, 31, 32, 100]),
        (101, 8, 1 << 40, []),
        (32, 1, 6, list(range(32))),
        (2048, 3, 9, [2047]),
        (70, 2, 5, None),
    ]
    entries = []
    for vocab, slots, step, allowed in cases:
        size = MaskSize(slots, vocab)
        written = mask_slot(size, step, allowed).hex()
        layout = {"vocab_size": vocab, "max_slots": slots, "count": size.count, "stride": size.stride}
        entries.append({**layout, "step": step, "allowed": allowed, "hex": written})
    return entries


if __name__ == "__main__":
    MASKS.write_text(json.dumps(mask_vectors(), indent=1) + "\n")
    PATH.write_text(json.dumps(vectors(), indent=1) + "\n")
