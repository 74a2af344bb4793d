"""``make bench-report``: all results as `docs/performance.md`, and the tables of `docs/cpu.md`, a line for a machine.

The latter has a place for each table, between two comments: ``<!-- bench-cpu -->`` and ``<!-- end of bench-cpu -->``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.report import RESULTS, ROOT, Report, ReportError, Row, load, table

DOCS = ROOT / "docs"
_INTRODUCTION = """\
# Performance

Measured with `make bench-*`, written by `make bench-report` from `benchmark/results/`; `benchmark/README.md` says how.
A ratio compares two programs within one run on one machine: it travels to other machines, an absolute number does not.
"""


def page(reports: Iterable[Report], folder: Path = RESULTS) -> str:
    """`docs/performance.md`: a section for each report, with its table and its plots."""
    parts = [_INTRODUCTION]
    for report in reports:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
        parts.append(f"## {report.name}: {report.device}\n")
        parts.append(f"`{report.command}`, {report.date}. {versions}.\n")
        parts.append(table(report) + "\n")
        parts.extend(f"- {note}" for note in report.notes)
        if report.notes:
            parts.append("")
        images = sorted(folder.glob(f"{report.stem}*.png"))
        parts.extend(f"![{report.name}](../{image.relative_to(ROOT).as_posix()})\n" for image in images)
    return "\n".join(parts)


@dataclass(frozen=True)
class Column:
    """Rows of one case and metric. case: behind shape and format, "" for a whole run. metric: how its name begins.
    peer: None stands for whoever is best."""

    title: str
    case: str
    metric: str
    peer: str | None = None
    more: bool = False  # is better

    def cell(self, rows: Iterable[Row]) -> str:
        """Our number over the peer's, bold where a bar holds."""
        fitting = [
            (row.ratio, bool(row.holds))
            for row in rows
            if ", ".join(row.case.split(", ")[2:]) == self.case and row.metric.startswith(self.metric)
            and self.peer in (None, row.peer) and row.ratio is not None
        ]  # fmt: skip
        if not fitting:
            return ""
        ratio, holds = (min if self.more else max)(fitting)
        return f"**{ratio:.2f}**" if holds else f"{ratio:.2f}"


TABLES: dict[str, tuple[str, Sequence[Column]]] = {
    "bench-cpu": (
        "cpu-",
        [
            Column("one stream", "one stream", "decode", more=True),
            Column("8 streams", "8 streams", "decode", more=True),
            Column("32 streams", "32 streams", "decode", more=True),
            Column("prompt of 512", "prompt of 512", "prompt", more=True),
            Column("prompt of 2,048", "prompt of 2048", "prompt", more=True),
            Column("memory", "", "memory"),
            Column("ready", "", "ready"),
        ],
    ),
    "bench-serving": (
        "serving-",
        [
            Column("requests/s, 32 chats", "32 chats", "requests", "vllm", more=True),
            Column("64 chats", "64 chats", "requests", "vllm", more=True),
            Column("first token, 32 chats", "32 chats", "first token, median", "vllm"),
            Column("64 chats", "64 chats", "first token, median", "vllm"),
            Column("between tokens, 32 chats", "32 chats", "between tokens, median", "vllm"),
            Column("64 chats", "64 chats", "between tokens, median", "vllm"),
            Column("memory", "", "memory", "vllm"),
            Column("a prompt, llama-server", "a prompt of 128", "last first token", "llama-server"),
            Column("8 prompts", "8 prompts of 128", "last first token", "llama-server"),
            Column("memory", "", "memory", "llama-server"),
        ],
    ),
}


def machines(reports: Iterable[Report], prefix: str, columns: Sequence[Column]) -> str:
    """A line for each shape, format and machine, of the reports whose names begin so."""
    lines = []
    for report in reports:
        if not report.name.startswith(prefix):
            continue
        for shape, form in dict.fromkeys((row.case.split(", ")[0], row.case.split(", ")[1]) for row in report.rows):
            rows = [row for row in report.rows if row.case.split(", ")[:2] == [shape, form]]
            lines.append([f"{shape}, {form}", report.device, *(column.cell(rows) for column in columns)])
    head = ["shape, format", "machine", *(column.title for column in columns)]
    rule = ["---", "---", *["--:"] * len(columns)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *sorted(lines))) + "\n"


def fill(page: str, reports: Sequence[Report]) -> str:
    """The page with its tables. Raises `ReportError` where it has no place for one."""
    for name, (prefix, columns) in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ReportError(f"the page has no place for the table of {name}: {begin.strip()} and {end.strip()}")
        page = f"{before}{begin}\n{machines(reports, prefix, columns)}\n{end}{after}"
    return page


def main() -> None:
    """Write the pages from all results."""
    beside = DOCS / "cpu.md"
    try:
        reports = [load(path) for path in sorted(RESULTS.glob("*.json"))]
        beside.write_text(fill(beside.read_text(encoding="utf-8"), reports), encoding="utf-8")
        (DOCS / "performance.md").write_text(page(reports), encoding="utf-8")
    except (ReportError, TypeError, KeyError, json.JSONDecodeError) as error:
        sys.exit(f"error: {error}")
    print(f"docs/performance.md: {len(reports)} reports, {sum(len(report.rows) for report in reports)} rows")


if __name__ == "__main__":
    main()
