"""Tokens a second of every program as a picture; ``python -m benchmark.cpu.plot FILE...`` draws it of results again."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmark.cpu.peers import PEERS
from benchmark.report import Report, Row, load

OURS = "textgen"
PROGRAMS = (OURS, *(peer.name for peer in PEERS))  # each has its colour in all pictures


def speeds(rows: Iterable[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """Tokens a second by format, case and program."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row.unit != "tokens/s":
            continue
        _, form, case = row.case.split(", ")
        programs = found.setdefault(form, {}).setdefault(case, {})
        programs[OURS] = row.ours
        if row.peer is not None and row.theirs is not None:
            programs[row.peer] = row.theirs
    return found


def draw(report: Report, path: Path) -> None:
    """A panel for each format, a line for each case and a dot for each program; equal distances are equal ratios."""
    from matplotlib.colors import TABLEAU_COLORS
    from matplotlib.figure import Figure

    colours = dict(zip(PROGRAMS, TABLEAU_COLORS.values(), strict=False))
    found = speeds(report.rows)
    cases = list(dict.fromkeys(case for each in found.values() for case in each))[::-1]
    figure = Figure(figsize=(11, 1.5 + 0.35 * len(cases)), layout="constrained")
    panels = figure.subplots(1, len(found), sharex=True, sharey=True, squeeze=False)[0]
    handles = {}
    for axes, (form, by_case) in zip(panels, found.items(), strict=True):
        for place, case in enumerate(cases):
            for program, speed in sorted(by_case.get(case, {}).items(), key=lambda item: item[0] == OURS):
                marker, size = ("D", 8) if program == OURS else ("o", 6)
                (handles[program],) = axes.plot(
                    speed, place, marker, color=colours[program], markersize=size, label=program
                )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("tokens a second", fontsize=8)
        axes.set_title(form, fontsize=9)
        axes.grid(axis="both", which="both", alpha=0.25)
        axes.tick_params(labelsize=8)
    panels[0].set_yticks(range(len(cases)), cases)
    figure.suptitle(f"{report.name}: {report.device}, {report.date}", fontsize=10)
    shown = [handles[program] for program in PROGRAMS if program in handles]
    figure.legend(handles=shown, loc="outside lower center", ncols=len(shown), fontsize=8)
    figure.savefig(path, dpi=110)


def beside(path: Path) -> Path:
    """Where the picture of a report lies."""
    return path.with_name(f"{path.stem}-tokens.png")


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        draw(load(path), beside(path))


if __name__ == "__main__":
    main()
