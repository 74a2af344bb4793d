"""A router for tests: starts `python -m textgen.shard` over a real socket pair and memfd and speaks the protocol."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from textgen.shard.protocol import (
    Admit,
    Done,
    Failed,
    Flag,
    Frame,
    FrameReader,
    Hello,
    Rules,
    Step,
    decode,
    encode,
    pack_f32,
    pack_u32,
)

TIMEOUT = 60.0  # seconds before a test gives up on a frame; never waited for when all is well


@dataclass
class Segment:
    """One segment in readable form. `last`: the first token is the one sampled last."""

    slot: int
    start: int
    tokens: Sequence[int] = ()
    last: bool = False
    sample: bool = True
    blocks: Sequence[int] = ()
    prompt_logprobs: bool = False
    draft: int = 0

    @property
    def row(self) -> list[int]:
        flags = Flag.SAMPLE * self.sample | Flag.LAST * self.last | Flag.PROMPT_LOGPROBS * self.prompt_logprobs
        return [self.slot, self.start, len(self.tokens) + self.last, self.draft, int(flags), len(self.blocks)]


def step(
    number: int,
    segments: Sequence[Segment],
    copies: Sequence[tuple[int, int]] = (),
    freed: Sequence[int] = (),
    masks: Sequence[tuple[int, int]] = (),
) -> Step:
    return Step(
        number,
        pack_u32(np.array([segment.row for segment in segments], dtype=np.int64).T),
        pack_u32([token for segment in segments for token in segment.tokens]),
        pack_u32([block for segment in segments for block in segment.blocks]),
        pack_u32(copies),
        pack_u32(freed),
        pack_u32(masks),
    )


def admit(slot: int, prompt_len: int = 0, **changes: Any) -> Admit:
    values: dict[str, Any] = {
        "slot": slot,
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "penalty_window": 0,
        "seed": 0,
        "prompt_len": prompt_len,
        "top_n": 0,
        "prompt_top_n": 0,
        "adapter": None,
        "history": b"",
        "rules": None,
        "source": None,
    }
    return Admit(**{**values, **changes})


def token_rules(vocab: int, **changes: Any) -> Rules:
    """Rules as they travel: `bias` by token, `allowed` ids, `banned` sequences, `endings` ids."""
    bias: dict[int, float] = changes.get("bias", {})
    allowed = np.zeros(-(-vocab // 32) * 32, np.bool_)
    allowed[changes.get("allowed", [])] = True
    return Rules(
        bias_ids=pack_u32(list(bias)),
        biases=pack_f32(list(bias.values())),
        allowed=np.packbits(allowed, bitorder="little").tobytes() if "allowed" in changes else b"",
        banned=pack_u32([number for tokens in changes.get("banned", []) for number in (len(tokens), *tokens)]),
        min_tokens=changes.get("min_tokens", 0),
        endings=pack_u32(changes.get("endings", [])),
        watermark=changes.get("watermark"),
        thinking=changes.get("thinking"),
    )


def tokens_of(done: Done) -> dict[int, int]:
    """Sampled token by slot."""
    slots, tokens = np.frombuffer(done.slots, "<u4"), np.frombuffer(done.tokens, "<u4")
    return dict(zip(slots.tolist(), tokens.tolist(), strict=True))


@dataclass
class RunningShard:
    """A shard process and this side of its link."""

    process: subprocess.Popen[str]
    link: socket.socket
    memory_fd: int
    ops_path: Path
    first: Hello = field(init=False)  # set by who takes the first frame
    _reader: FrameReader = field(default_factory=FrameReader)
    _frames: list[Frame] = field(default_factory=list)

    def send(self, *frames: Frame) -> None:
        self.link.sendall(b"".join(map(encode, frames)))

    def receive(self) -> Frame:
        """The next frame. Raises `EOFError` at the end of the stream."""
        while not self._frames:
            data = self.link.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames.extend(decode(kind, payload) for kind, payload in self._reader.feed(data))
        return self._frames.pop(0)

    def hello(self) -> Hello:
        """The first frame."""
        frame = self.receive()
        assert isinstance(frame, Hello), frame
        return frame

    def done(self) -> Done:
        frame = self.receive()
        assert isinstance(frame, Done), frame
        return frame

    def failed(self) -> Failed:
        frame = self.receive()
        assert isinstance(frame, Failed), frame
        return frame

    def exit_code(self) -> int:
        return self.process.wait(TIMEOUT)

    def ask(self, path: str) -> tuple[int, str]:
        """GET from the ops app: status and body."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(TIMEOUT)
            client.connect(str(self.ops_path))
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: shard\r\nConnection: close\r\n\r\n".encode())
            reply = b"".join(iter(lambda: client.recv(1 << 16), b""))
        head, _, body = reply.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()


def shard_settings(model: Path, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model_dir": str(model),
        "dtype": "float32",
        "device": "cpu",
        "rank": 0,
        "world_size": 1,
        "num_blocks": 64,
        "block_size": 4,
        "max_slots": 8,
        "max_batch_tokens": 64,
        "max_context": 96,
        "threads": 1,
        "log_json": False,
        "log_level": "warning",
    }
    return {**values, **changes}


@contextmanager
def running_shard(model: Path, folder: Path, **changes: Any) -> Iterator[RunningShard]:
    """A shard over `model`, killed at the end if it has not ended by itself."""
    ours, theirs = socket.socketpair()
    memory_fd = os.memfd_create("textgen-test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    ops_path = folder / "ops"
    command = [
        sys.executable, "-m", "textgen.shard",
        "--socket-fd", str(theirs.fileno()), "--memory-fd", str(memory_fd), "--ops-socket", str(ops_path),
        "--settings", json.dumps(shard_settings(model, **changes)),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, pass_fds=(theirs.fileno(), memory_fd), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    theirs.close()
    ours.settimeout(TIMEOUT)
    try:
        yield RunningShard(process, ours, memory_fd, ops_path)
    finally:
        ours.close()
        process.kill()
        process.communicate()
        os.close(memory_fd)
