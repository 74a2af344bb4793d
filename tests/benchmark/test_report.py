"""Benchmark reports: verdicts follow from numbers, and what was written is what is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.pages import DOCS, TABLES, fill, page
from benchmark.report import (
    MOST,
    RESULTS,
    Report,
    ReportError,
    Row,
    load,
    number,
    past_bar,
    plot,
    processor_name,
    table,
)


def report(*rows: Row) -> Report:
    return Report(
        "echo", "make bench-echo", {"textgen": "1"}, list(rows), device="Some CPU, 2 cores", date="2026-01-02",
        notes=["quiet machine"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "bar", "holds"),
    [
        (13.0, 10.0, "ratio <= 1.3", True),
        (13.1, 10.0, "ratio <= 1.3", False),
        (60.0, None, "ours < 60", False),
        (60.0, None, "ours <= 60", True),
        (2.0, 1.0, "ratio > 2", False),
        (2.0, 1.0, "ratio >= 2", True),
        (0.0, None, "ours == 0", True),
        (1.0, None, None, None),
    ],
)
def test_a_verdict_is_computed(ours: float, theirs: float | None, bar: str | None, holds: bool | None) -> None:
    assert Row("case", "metric", "us", ours, "peer", "1", theirs, bar).holds is holds


@pytest.mark.parametrize("bar", ["fast", "ratio < x", "ours =< 3", "ratio <= 1.3 or so", "ratio <= 1.3"])
def test_a_bar_that_cannot_be_checked_is_refused(bar: str) -> None:
    with pytest.raises(ReportError, match="bar"):
        Row("case", "metric", "us", 1.0, bar=bar)


def test_a_report_comes_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plotted: list[Path] = []
    monkeypatch.setattr("benchmark.report.plot", lambda _, path: plotted.append(path))
    written = report(Row("a", "m", "us", 1.5, "p", "2", 3.0, "ratio <= 1"), Row("b", "m", "", 7.0, bar="ours >= 8"))
    path = written.save(tmp_path)
    assert path.name == "echo-some-cpu-2-cores.json"
    assert plotted == [path.with_suffix(".png")]
    assert load(path) == written


@pytest.mark.parametrize(
    ("value", "sign", "limit", "times"),
    [
        (1.5, "<=", 3.0, 2.0), (3.0, ">=", 1.5, 2.0), (4.0, "<", 1.0, 0.25), (0.5, ">", 1.0, 0.5),
        (0.0, "==", 0.0, 1.0), (2.0, "==", 0.0, 1 / MOST), (0.0, "<=", 1.0, MOST),
        (1.0, ">=", 1000.0, 1 / MOST), (1000.0, ">=", 1.0, MOST),
    ],
)  # fmt: skip
def test_more_is_better_whatever_the_sign_of_a_bar(value: float, sign: str, limit: float, times: float) -> None:
    assert past_bar(value, sign, limit) == pytest.approx(times)


def test_the_plot_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the bench extra")
    plot(report(Row("a", "m", "us", 1.5, bar="ours <= 1"), Row("b", "m", "", 0.0, bar="ours == 0")), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_an_edited_verdict_is_found(tmp_path: Path) -> None:
    path = report(Row("a", "m", "us", 3.0)).save(tmp_path)
    data = json.loads(path.read_text())
    data["rows"][0].update(bar="ours <= 2", holds=True)
    path.write_text(json.dumps(data))
    with pytest.raises(ReportError, match="does not follow"):
        load(path)


def test_the_page_has_every_row_and_says_what_fails() -> None:
    rows = [Row("C=32", "CPU", "us/token", 4.28, "echo", "0.8", 4.0, "ratio <= 1"), Row("x|y", "size", "MiB", 12345.0)]
    text = table(report(*rows))
    assert text.splitlines()[2] == "| C=32 | CPU [us/token] | 4.28 | echo 0.8 | 4 | 1.07 | ratio ≤ 1 | **no** |"
    assert "x\\|y" in text and "12,345" in text
    whole = page([report(*rows)])
    assert text in whole and "- quiet machine" in whole and "`make bench-echo`, 2026-01-02. textgen 1." in whole


@pytest.mark.parametrize(
    ("model", "flags", "family", "name"),
    [
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", "avx512f amx_tile", "6", "Intel Xeon"),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", "avx512f", "6", "Intel Xeon without AMX"),
        ("AMD EPYC", "avx2 avx512f", "25", "AMD EPYC Zen 4"),
        ("AMD EPYC", "avx2 avx512f", "26", "AMD EPYC Zen 5"),
        ("AMD EPYC", "avx2 avx512f", "", "AMD EPYC"),
        ("AMD EPYC", "avx2", "25", "AMD EPYC without AVX-512"),
        ("AMD EPYC 7763 64-Core Processor", "avx2", "25", "AMD EPYC 7763 64-Core"),
    ],
)
def test_processors_with_other_instructions_have_other_names(model: str, flags: str, family: str, name: str) -> None:
    assert processor_name(model, flags, family) == name


def test_numbers_are_short() -> None:
    assert [number(value) for value in (None, 0.0, 0.01234, 1.0, 12.345, 999.6, 1234.5)] == [
        "", "0", "0.0123", "1", "12.3", "1,000", "1,234",
    ]  # fmt: skip


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_committed_results_can_be_read(path: Path) -> None:
    assert load(path).rows


def test_a_machines_line_has_the_nearest_peer_of_each_case() -> None:
    rows = [
        Row("S, int8, one stream", "decode", "tokens/s", 30, "near", "1", 20, "ratio >= 1.4"),
        Row("S, int8, one stream", "decode", "tokens/s", 30, "far", "1", 3),
        Row("S, int8, prompt of 512", "prompt", "tokens/s", 90, "near", "1", 100, "ratio >= 1.3"),
        Row("S, int8", "memory at most", "MiB", 10, "large", "1", 50),
        Row("S, int8", "memory at most", "MiB", 10, "small", "1", 8),
        Row("S, int4, one stream", "decode", "tokens/s", 30, "near", "1", 40),
    ]
    marks = [f"<!-- {side}{name} -->\n" for name in TABLES for side in ("", "end of ")]
    text = "\n".join(("# A page\n", *marks, "and more"))
    ours = replace(report(*rows), name="cpu-S")
    filled = fill(text, [report(), ours])
    lines = [line for line in filled.splitlines() if "Some CPU" in line]
    assert lines == [
        "| S, int4 | Some CPU, 2 cores | 0.75 |  |  |  |  |  |  |",
        "| S, int8 | Some CPU, 2 cores | **1.50** |  |  | 0.90 |  | 1.25 |  |",
    ]
    assert fill(filled, [report(), ours]) == filled and filled.endswith("and more")
    with pytest.raises(ReportError, match="no place for the table of bench-serving"):
        fill(text.replace(marks[-1], ""), [ours])


def test_committed_pages_are_what_the_results_give() -> None:
    reports = [load(path) for path in sorted(RESULTS.glob("*.json"))]
    beside, whole = ((DOCS / name).read_text(encoding="utf-8") for name in ("cpu.md", "performance.md"))
    assert (fill(beside, reports), page(reports)) == (beside, whole), "make bench-report writes them"
