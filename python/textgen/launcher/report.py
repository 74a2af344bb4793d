"""What a person sees at start: the plan's arithmetic, how long each phase took, and a line to paste."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from textgen import __version__
from textgen.launcher.log import Log
from textgen.launcher.plan import Plan
from textgen.launcher.router import Router


class _Hello(msgspec.Struct):
    phases: list[tuple[str, float]] = []


class Phases:
    """Names and seconds, in order."""

    def __init__(self, *, of_process: bool = True) -> None:
        """of_process: count from the start of the process, which did nothing else before."""
        self._began = time.monotonic()
        self._last = self._began
        self._before = process_age() if of_process else 0.0
        self.done: list[tuple[str, float]] = [("launcher", self._before)] if of_process else []

    def end(self, name: str) -> None:
        """The phase since the last one ended."""
        now = time.monotonic()
        self.done.append((name, now - self._last))
        self._last = now

    @property
    def total(self) -> float:
        """Seconds since it began."""
        return self._before + time.monotonic() - self._began


def process_age() -> float:
    """Seconds since this process was started, interpreter and imports included; 0 where the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    per_second = 100  # USER_HZ, fixed by the kernel's interface
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / per_second, 0.0)


def report_plan(log: Log, plan: Plan) -> None:
    """Which model, which limits, and where the memory goes."""
    model = plan.model
    log.info(
        f"Textgen {__version__} serves {model.name} in {plan.dtype} on {plan.settings.device}",
        parameters=model.checkpoint.parameters,
        max_input_tokens=plan.max_input_tokens,
        max_total_tokens=plan.max_total_tokens,
        max_batch_prefill_tokens=plan.max_batch_tokens,
        max_batch_size=plan.max_slots,
        kv_blocks=plan.memory.num_blocks,
        block_size=plan.block_size,
    )
    if model.fallback:
        log.info("this architecture has no family here: Transformers' own modelling runs it (fallback)")
    if model.built_in:
        log.info(
            "this is the small built-in model, good for trying the server and for nothing else; "
            "serve your own with --model-id FOLDER or --model-id ORG/NAME"
        )
    log.block(["memory plan:", *plan.memory.table])


def report_ready(log: Log, plan: Plan, router: Router, hello: str, phases: Phases) -> None:
    """The server answers from now on. `Connected` is the word that TGI's tools wait for."""
    address, total = router.address, phases.total
    steps = [*phases.done, *_shard_phases(hello)]
    router.ready(total, steps)
    log.info("Connected")
    scheme = "http" if plan.settings.tls_cert is None else "https"
    where = f" on {scheme}://{address}" if address else ""
    log.info(f"ready{where} after {total:.1f} s ({_list(steps)})")
    if address:
        log.block(["", *curl(plan.model.name, address, scheme), ""])


def _shard_phases(hello: str) -> Iterable[tuple[str, float]]:
    try:
        return msgspec.json.decode(hello, type=_Hello).phases
    except msgspec.MsgspecError:
        return []


def _list(steps: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in steps)


def curl(model: str, address: str, scheme: str = "http") -> list[str]:
    """A request to paste into a shell."""
    host, _, port = address.rpartition(":")
    reachable = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    message = {"role": "user", "content": "Tell me a story."}
    body: dict[str, Any] = {"model": model, "stream": True, "messages": [message]}
    text = json.dumps(body).replace("'", "'\\''")
    return [
        f"  curl -N {scheme}://{reachable}:{port}/v1/chat/completions \\",
        "    -H 'Content-Type: application/json' \\",
        f"    -d '{text}'",
    ]
