"""What every benchmark writes and how it is shown.

A benchmark fills a `Report`: what ran where and when, and rows that compare us with a peer under a bar. `save` writes
``benchmark/results/NAME-DEVICE.json`` and a plot beside it; `pages.py` shows all of them.

A row: ``case``, ``metric``, ``unit``; ``ours``; ``peer``, ``peer_version`` and ``theirs`` where there is a peer;
``ratio``, ours over theirs; ``bar``, such as ``ratio <= 1.3`` or ``ours < 60``; ``holds``, computed from the bar and
never given.
"""

from __future__ import annotations

import datetime
import json
import operator
import os
import platform
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmark" / "results"

# AMD's with AVX-512, by their family.
GENERATIONS = {"25": "Zen 4", "26": "Zen 5"}

MOST = 10.0  # times as good as a bar asks: what a plot shows at most

_BAR = re.compile(r"(ours|ratio) (<=|<|>=|>|==) (\d+(?:\.\d+)?)")
_HOLDS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq}


class ReportError(ValueError):
    """A report or a row cannot be used; the message says why, in one sentence."""


@dataclass(frozen=True)
class Row:
    """One comparison. Raises `ReportError` for a bar that cannot be read or that asks for a ratio without a peer."""

    case: str
    metric: str
    unit: str
    ours: float
    peer: str | None = None
    peer_version: str | None = None
    theirs: float | None = None
    bar: str | None = None
    ratio: float | None = field(init=False)
    holds: bool | None = field(init=False)

    def __post_init__(self) -> None:
        ratio = self.ours / self.theirs if self.theirs else None
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "holds", None if self.bar is None else self._check())

    def bar_parts(self) -> tuple[float, str, float] | None:
        """The value under the bar, the comparison and the bar's own value; None without a bar."""
        if self.bar is None:
            return None
        match = _BAR.fullmatch(self.bar)
        if match is None:
            raise ReportError(f"bar {self.bar!r} of {self.case!r} must be like 'ratio <= 1.3' or 'ours < 60'")
        value = self.ours if match[1] == "ours" else self.ratio
        if value is None:
            raise ReportError(f"bar {self.bar!r} of {self.case!r} needs a peer's number to divide by")
        return value, match[2], float(match[3])

    def _check(self) -> bool:
        parts = self.bar_parts()
        assert parts is not None
        value, comparison, limit = parts
        return bool(_HOLDS[comparison](value, limit))


@dataclass(frozen=True)
class Report:
    """One run of one benchmark on one machine."""

    name: str
    command: str
    versions: dict[str, str]
    rows: list[Row]
    device: str = field(default_factory=lambda: device())
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"))
    notes: list[str] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """Name of the files, without an ending."""
        return f"{self.name}-{re.sub(r'[^a-z0-9]+', '-', self.device.lower()).strip('-')}"

    def save(self, folder: Path = RESULTS) -> Path:
        """Write JSON and, where a row has a bar, the plot. Gives the path of the JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.stem}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if any(row.bar for row in self.rows):
            plot(self, path.with_suffix(".png"))
        return path


def load(path: Path) -> Report:
    """Read a report back. Raises `ReportError` when it was edited into something that its own numbers contradict."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    given = {f.name for f in fields(Row) if f.init}
    rows = []
    for stored in data.pop("rows"):
        row = Row(**{key: value for key, value in stored.items() if key in given})
        if asdict(row) != stored:
            raise ReportError(
                f"{path.name}: row {row.case!r} ({row.metric}) does not follow from its numbers; run it again"
            )
        rows.append(row)
    return Report(rows=rows, **data)


def device() -> str:
    """This machine in words: processor and the cores this process may use."""
    told: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            told.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    model = told.get("model name") or platform.processor() or platform.machine()
    model = processor_name(model, told.get("flags", ""), told.get("cpu family", ""))
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} core{'s' if cores > 1 else ''}"


def processor_name(model: str, flags: str, family: str = "") -> str:
    """A processor's name, without what says nothing. A hypervisor hides the number of the model, and instructions too
    where it likes: with and without are two machines. So are two generations of one name."""
    name = " ".join(re.sub(r"\((R|TM|tm)\)|\bCPU\b|\bProcessor\b|@.*", " ", model).split())
    for known, flag, word in (("Intel Xeon", "amx_tile", "AMX"), ("AMD EPYC", "avx512f", "AVX-512")):
        if name == known and flag not in flags.split():
            name += f" without {word}"
    if name == "AMD EPYC" and family in GENERATIONS:
        name += f" {GENERATIONS[family]}"
    return name


def number(value: float | None) -> str:
    """A number as a person reads it: three significant digits, thousands whole."""
    if value is None:
        return ""
    if value and abs(value) < 999.5 and value != int(value):
        return f"{value:.3g}"
    return f"{value:,.0f}"


def table(report: Report) -> str:
    """The rows as a Markdown table."""
    head = ["case", "metric", "ours", "peer", "theirs", "ratio", "bar", "holds"]
    verdict = {None: "", True: "yes", False: "**no**"}
    lines = [head, ["---", "---", "--:", "---", "--:", "--:", "---", "---"]]
    for row in report.rows:
        peer = f"{row.peer} {row.peer_version or ''}".strip() if row.peer else ""
        unit = f"{row.metric} [{row.unit}]" if row.unit else row.metric
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        bar = (row.bar or "").replace("<=", "≤").replace(">=", "≥")
        cells = [row.case, unit, number(row.ours), peer, number(row.theirs), ratio, bar, verdict[row.holds]]
        lines.append([cell.replace("|", "\\|") for cell in cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot(report: Report, path: Path) -> None:
    """How far each value is past its bar: to the right of 1 the bar holds, and more is better."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError("plots need matplotlib; install the `bench` extra: pip install -e '.[bench]'") from None
    barred = [(row, parts) for row in report.rows if (parts := row.bar_parts())][::-1]
    names = [f"{row.case}: {row.metric}" + (f" / {row.peer}" if row.peer else "") for row, _ in barred]
    past = [past_bar(*parts) for _, parts in barred]
    figure = Figure(figsize=(11, 1.2 + 0.32 * len(barred)), layout="constrained")
    axes = figure.add_subplot()
    # By place: two rows may have the same name.
    places = range(len(barred))
    colours = ["#4c78a8" if row.holds else "#e45756" for row, _ in barred]
    axes.barh(places, [times - 1 for times in past], left=1, color=colours)
    axes.set_yticks(places, names)
    for place, (times, (row, (value, sign, limit))) in enumerate(zip(past, barred, strict=True)):
        unit = f" {row.unit}" if row.unit and row.bar and row.bar.startswith("ours") else ""
        told = f" {number(value)}{unit}, asked {sign} {number(limit)} "
        axes.text(times, place, told, va="center", ha="right" if times < 1 else "left", fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(min([0.4, *(times / 3 for times in past)]), max([2.5, *(times * 3 for times in past)]))
    ticks = [tick for tick in (0.1, 0.25, 0.5, 1, 2, 4, MOST) if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{tick:g} x" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"times as good as its bar asks (1 = the bar; no more than {MOST:g} is drawn)")
    axes.set_title(f"{report.name}: {report.device}, {report.date}", fontsize=10)
    axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=110)


def past_bar(value: float, sign: str, limit: float) -> float:
    """How many times as good a value is as its bar asks, 1 / MOST to MOST: more is better, whatever the bar's sign."""
    over, under = (value, limit) if ">" in sign else (limit, value)
    if under == 0:
        return 1.0 if over == 0 else MOST
    return min(max(over / under, 1 / MOST), MOST)
