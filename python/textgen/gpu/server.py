"""The server from end to end: the built-in model's answers on the GPU, in several ways to run it, against those of the
processor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from textgen.gpu.results import Results
from textgen.gpu.served import Served, kill_shard, served, wait_for_another

PART = "server"
TOKENS, LONG = 24, 600
PROMPTS = ("Once upon a time", "The king said", "In the morning they", "A dog and a cat")
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["name", "age", "kind"],
    "properties": {
        "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
    },
}  # fmt: skip
FLASH_PAGE = "256"


@dataclass(frozen=True)
class Variant:
    """A way to run it. flags: of the launcher. whole: everything is asked of it, else the plain answers alone.
    like: whose answers it is held against (None: the processor's). alike: the part of their letters that must be the
    same until they part, on average: roundings part two answers sooner or later, a mistake parts them at once."""

    name: str
    flags: tuple[str, ...]
    dtype: str = "float32"
    whole: bool = False
    like: str | None = None
    alike: float = 1.0


@dataclass
class Answers:
    """Of one server."""

    plain: list[str]
    drawn: list[str] = field(default_factory=list)
    structured: list[str] = field(default_factory=list)


def variants(device: str) -> list[Variant]:
    """Of a processor there are some too: what the check itself is tried with."""
    if device == "cpu":
        return [Variant("the plan's kernels", (), whole=True), Variant("torch", ("--plan", "off"))]
    found = [
        Variant("native", ("--attention", "native"), whole=True),
        Variant("without graphs", ("--attention", "native", "--cuda-graphs", "0")),
        Variant("torch", ("--attention", "torch")),
        Variant("weights of 8 bits", ("--attention", "native", "--quantize", "int8"), alike=0.25),
        Variant("weights of 4 bits", ("--attention", "native", "--quantize", "int4"), alike=0.1),
        Variant("a cache of 8 bits", ("--attention", "native", "--kv-cache-dtype", "int8"), alike=0.25),
    ]
    if any(find_spec(name) is not None for name in ("flash_attn", "flash_attn_interface")):
        flash = ("--attention", "flash-attn", "--block-size", FLASH_PAGE)
        found.append(Variant("native in bfloat16", ("--attention", "native"), "bfloat16", alike=0.25))
        found.append(Variant("flash-attn", flash, "bfloat16", like="native in bfloat16", alike=0.25))
    return found


def check_server(results: Results, device: str = "cuda", chosen: Sequence[Variant] | None = None) -> None:
    """Every answer greedy or drawn by a seed, in float32 but where a variant says otherwise."""
    known: dict[str | None, Answers] = {}
    with results.guarded(PART, "on the processor"), served("cpu") as server:
        known[None] = _ask_all(server)
        results.add(PART, "on the processor", True, f"{len(PROMPTS)} prompts answered in three ways")
    if None not in known:
        return
    for variant in variants(device) if chosen is None else chosen:
        with results.guarded(PART, variant.name), served(device, *variant.flags, dtype=variant.dtype) as server:
            theirs = known.get(variant.like, known[None])
            if not variant.whole:
                known[variant.name] = ours = Answers(_plain(server))
                _hold(results, f"{variant.name}: answers", ours.plain, theirs.plain, variant.alike)
                continue
            known[variant.name] = ours = _ask_all(server)
            for kind in ("plain", "drawn", "structured"):
                _hold(results, f"{variant.name}: {kind}", getattr(ours, kind), getattr(theirs, kind), variant.alike)
            _check_structured(results, variant.name, ours.structured)
            _check_streams(results, variant.name, server, ours.plain)
            _check_killed_shard(results, variant.name, server)


def _plain(server: Served) -> list[str]:
    return [server.generate(prompt, max_new_tokens=TOKENS) for prompt in PROMPTS]


def _ask_all(server: Served) -> Answers:
    """One prompt after the other."""
    draw = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1}
    grammar = {"type": "json", "value": SCHEMA}
    return Answers(
        _plain(server),
        [server.generate(prompt, max_new_tokens=TOKENS, seed=7 + at, **draw) for at, prompt in enumerate(PROMPTS)],
        [server.generate(prompt, max_new_tokens=4 * TOKENS, grammar=grammar) for prompt in PROMPTS],
    )


def _hold(results: Results, name: str, ours: Sequence[str], theirs: Sequence[str], alike: float = 1.0) -> None:
    both = list(zip(ours, theirs, strict=True))
    parted = [(a, b) for a, b in both if a != b]
    said = f"{len(both) - len(parted)} of {len(both)} the same"
    share = sum(_common(a, b) for a, b in both) / len(both)
    if alike < 1:
        said += f", {share:.0%} of their letters until they part"
    good = not parted or (alike < 1 and share >= alike)
    results.add(PART, name, good, said, *(f"{a!r}, not {b!r}" for a, b in parted if alike == 1))


def _common(a: str, b: str) -> float:
    """The part of the longer that both begin with."""
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return same / max(len(a), len(b), 1)


def _check_structured(results: Results, name: str, answers: Sequence[str]) -> None:
    wrong = [answer for answer in answers if not _fits(answer)]
    said = f"{len(answers) - len(wrong)} of {len(answers)} are of the schema"
    results.add(PART, f"{name}: schema", not wrong, said, *map(repr, wrong))


def _fits(answer: str) -> bool:
    try:
        told: Any = json.loads(answer)
    except ValueError:
        return False
    return (
        isinstance(told, dict)
        and set(told) == {"name", "age", "kind"}
        and isinstance(told["name"], str)
        and isinstance(told["age"], int)
        and 0 <= told["age"] <= 99
        and told["kind"] in ("cat", "dog")
    )


def _check_streams(results: Results, name: str, server: Served, plain: Sequence[str]) -> None:
    """All prompts at once, twice over: each says what it said alone."""
    prompts = [*PROMPTS, *PROMPTS]
    with ThreadPoolExecutor(len(prompts)) as pool:
        said = list(pool.map(lambda prompt: "".join(server.stream(prompt, max_new_tokens=TOKENS)), prompts))
    stripped = [text.strip() for text in said]
    _hold(results, f"{name}: streams at once", stripped, [text.strip() for text in (*plain, *plain)])


def _check_killed_shard(results: Results, name: str, server: Served) -> None:
    """A stream goes on where its shard was ended."""
    whole = "".join(server.completion(PROMPTS[0], LONG))
    stream: Iterator[str] = server.completion(PROMPTS[0], LONG)
    came = [next(stream) for _ in range(3)]
    killed = kill_shard(server)
    came += list(stream)
    wait_for_another(server, killed)
    _hold(results, f"{name}: a stream whose shard was killed", ["".join(came)], [whole])
