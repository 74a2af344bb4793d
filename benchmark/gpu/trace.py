"""What runs on the device while steps follow one another: how long nothing does, and a picture of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.gpu.ceilings import Ceilings
from benchmark.gpu.numbers import gaps, idle_share
from benchmark.gpu.places import Place
from benchmark.gpu.steps import Streams, warmed
from benchmark.gpu.tasks import Collected, Found, Task, report_name, stem
from benchmark.report import Row

WARM, STEPS, DRAWN = 40, 32, 3
REHEARSED = (8, 4)
BARRED = (1, 64)  # batches
# What a kernel is for, by what its name has; the first that fits.
KINDS = {
    "copies": ("memcpy", "memset", "copy_"),
    "attention": ("attention", "flash", "fmha"),
    "products": (
        "gemm",
        "gemv",
        "cutlass",
        "cublas",
        "nvjet",
        "linear",
        "matmul",
        "addmm",
        "::mm",
        "splitk",
        "grouped",
    ),
    "norms, rotation, activation": ("rms_norm", "rotary", "activate", "silu"),
    "draw": ("sample", "shape", "softmax", "logsumexp"),
}
OTHERS = "others"
ANSWER = "dtoh"  # in the name of the copy that a step ends with
WAITING = ("Sync", "Wait", "ProfilerStep")  # events of the device in which nothing runs
COLOURS = ("#8d99ae", "#4c78a8", "#e45756", "#72b7b2", "#b279a2", "#d4a72c")


@dataclass(frozen=True)
class Span:
    """Something that ran on the device. begin, end: microseconds."""

    name: str
    begin: float
    end: float

    @property
    def kind(self) -> str:
        name = self.name.lower()
        return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), OTHERS)


def measure(task: Task, place: Place, ceilings: Ceilings) -> Found:
    warm, steps = REHEARSED if place.rehearsal else (WARM, STEPS)
    found = Collected()
    for batch, _, streams in warmed(task, warm, steps, found.notes):
        spans = profiled(streams, steps, place)
        case = f"{task.model}, {batch} x {task.context} tokens"
        busy = [(span.begin, span.end) for span in spans]
        bar = "ours < 3" if batch in BARRED else None
        between = idle_between(spans, step_ends(spans, steps))
        found.rows.append(Row(case, "device idle between steps, profiled", "%", between * 100, bar=bar))
        found.rows.append(Row(case, "device idle at all, profiled", "%", idle_share(busy) * 100))
        found.rows.append(Row(case, "kernels and copies of a step", "", len(spans) / steps))
        for kind, share in shares(spans).items():
            found.rows.append(Row(case, f"busy with {kind}", "%", share * 100))
        name = stem(report_name(place.rehearsal), place.name)
        path = Path(task.out) / f"{name}-trace-{task.shape}-{task.form}-{batch}.png"
        try:
            draw(spans, step_ends(spans, steps)[-DRAWN - 1 :], f"{case}: {DRAWN} steps on {place.name}", path)
        except ImportError:
            found.notes.append("No picture of the trace: matplotlib is not installed.")
    return found.found()


def profiled(streams: Streams, steps: int, place: Place) -> list[Span]:
    """What runs on the device during so many steps, in order. Of a rehearsal: torch's operations."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    of = ProfilerActivity.CPU if place.rehearsal else ProfilerActivity.CUDA
    with profile(activities=[of]) as trace:
        for _ in range(steps):
            streams.step()
        streams.end()
        place.synchronize()
    # The host's calls of the driver are among the events too.
    wanted = DeviceType.CPU if place.rehearsal else DeviceType.CUDA
    events: Sequence[Any] = trace.events() or ()
    spans = [
        Span(event.name, event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == wanted and not any(word in event.name for word in WAITING)
    ]
    return sorted(spans, key=lambda span: span.begin)


def shares(spans: Sequence[Span]) -> dict[str, float]:
    """Of the time of all that ran, by what it was for."""
    times: Counter[str] = Counter()
    for span in spans:
        times[span.kind] += span.end - span.begin  # type: ignore[assignment]
    whole = sum(times.values()) or 1
    return {kind: times[kind] / whole for kind in (*KINDS, OTHERS) if kind in times}


def step_ends(spans: Sequence[Span], steps: int) -> list[int]:
    """The index of the last span of each step: the copy of its answer, or where all steps have as many spans."""
    answers = [at for at, span in enumerate(spans) if ANSWER in span.name.lower()]
    if len(answers) == steps:
        return answers
    return [len(spans) * (step + 1) // steps - 1 for step in range(steps)]


def idle_between(spans: Sequence[Span], ends: Sequence[int]) -> float:
    """The part of the time in which nothing runs between the last span of a step and the first of the next."""
    whole = max(span.end for span in spans) - spans[0].begin
    idle, over, at = 0.0, spans[0].begin, 0
    for end in ends[:-1]:
        over = max(over, *(span.end for span in spans[at : end + 1]))
        idle, at = idle + max(spans[end + 1].begin - over, 0.0), end + 1
    return idle / whole if whole else 0.0


def draw(spans: Sequence[Span], ends: Sequence[int], title: str, path: Path) -> None:
    """Kernels and copies on an axis of time, a lane for each kind, and the time hatched in which nothing runs. ends: of
    the step before those that are drawn, and of these."""
    from matplotlib.figure import Figure

    shown = spans[ends[0] + 1 : ends[-1] + 1]
    begin = shown[0].begin
    lanes = [kind for kind in (*KINDS, OTHERS) if any(span.kind == kind for span in shown)]
    figure = Figure(figsize=(14, 1.4 + 0.45 * (len(lanes) + 1)), layout="constrained")
    axes = figure.add_subplot()
    for lane, kind in enumerate(lanes):
        bars = [(span.begin - begin, span.end - span.begin) for span in shown if span.kind == kind]
        colour = COLOURS[[*KINDS, OTHERS].index(kind)]
        axes.broken_barh(bars, (lane - 0.35, 0.7), facecolors=colour, edgecolor="none")
    busy = [(span.begin, span.end) for span in shown]
    idle = [(start - begin, stop - start) for start, stop in gaps(busy)]
    axes.broken_barh(
        idle, (len(lanes) - 0.35, 0.7), facecolors="none", edgecolor="#555555", hatch="////", linewidth=0.3
    )
    for end in ends[:-1]:
        axes.axvline(spans[end + 1].begin - begin, color="black", linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(lanes) + 1), [*lanes, f"idle, {idle_share(busy):.1%}"])
    axes.set_xlabel("microseconds; dotted: a step begins")
    axes.set_xlim(0, max(span.end for span in shown) - begin)
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
