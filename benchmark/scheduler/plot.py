"""Plots of a run of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {
    "target 20 ms": "#1f4e9c",
    "fixed 2048": "#e08214",
    "fixed 8192": "#b35806",
    "vLLM 2048": "#7fbf7b",
    "vLLM 8192": "#1b7837",
    "TGI chunking": "#998ec3",
    "TGI pausing": "#542788",
}
TARGET_ITL = 20


def plots(data: dict[str, Any], folder: Path, stem: str) -> None:
    """Write all plots as ``STEM-WHAT.png``."""
    for name, draw in (("gaps", gaps), ("rates", rates), ("traces", traces), ("replicas", replicas)):
        figure = draw(data)
        figure.savefig(folder / f"{stem}-{name}.png", dpi=110)


def _style(policy: str) -> dict[str, Any]:
    # The real scheduler is drawn over the others.
    ours = policy.startswith("target")
    # Two policies may do the very same.
    line = "--" if policy.startswith("vLLM") else "-"
    width = 2.6 if ours else 1.5
    return {
        "color": COLOURS[policy],
        "linestyle": line,
        "linewidth": width,
        "zorder": 3 if ours else 2,
        "label": policy,
    }


def gaps(data: dict[str, Any]) -> Figure:
    """Times between tokens and to the first token, beside long prompts: how many take longer."""
    experiment = next(one for one in data["single"] if one["trace"] == "long prompts among chats")
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    for axes, key, label in zip(
        figure.subplots(1, 2), ("itl", "ttft"), ("time between tokens", "time to a chat's first token"), strict=True
    ):
        for run in experiment["runs"]:
            points = run[key]
            above = [1 - place / len(points) for place in range(1, len(points))]
            axes.plot(points[:-1], above, **_style(run["policy"]))
        axes.set(xscale="log", yscale="log", xlabel=f"{label} [ms]", ylabel="share that takes longer")
        axes.grid(alpha=0.3, which="both")
    figure.axes[0].axvline(TARGET_ITL, color="grey", linestyle=":", linewidth=1.2)
    figure.axes[0].legend(fontsize=8, loc="lower left")
    rate = experiment["rate"]
    figure.suptitle(f"Long prompts among chats, {rate:g} requests/s, 8B on one H100 (simulated)", fontsize=11)
    return figure


def rates(data: dict[str, Any]) -> Figure:
    """What happens as more is asked."""
    panels = [
        ("itl_p99", "ITL p99 [ms]", True),
        ("ttft_p99", "TTFT p99 of chats [ms]", True),
        ("tokens_per_second", "tokens/s", False),
        ("goodput", "requests/s within limits", False),
    ]
    figure = Figure(figsize=(11, 7), layout="constrained")
    sweep = data["sweep"]
    policies = [run["policy"] for run in sweep[0]["runs"]]
    for axes, (key, label, log) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        for place, policy in enumerate(policies):
            values = [one["runs"][place]["summary"][key] for one in sweep]
            axes.plot([one["rate"] for one in sweep], values, marker="o", markersize=4, **_style(policy))
        axes.set(xlabel="requests/s asked", ylabel=label, yscale="log" if log else "linear")
        axes.grid(alpha=0.3)
        if not log:
            axes.set_ylim(bottom=0)
    figure.axes[0].axhline(TARGET_ITL, color="grey", linestyle=":", linewidth=1.2)
    figure.axes[0].legend(fontsize=8)
    figure.suptitle("Long prompts among chats at rising rates, 8B on one H100 (simulated)", fontsize=11)
    return figure


def traces(data: dict[str, Any]) -> Figure:
    """All traces on one replica, side by side."""
    panels = [
        ("itl_p99", "ITL p99 [ms]", True),
        ("ttft_p99", "TTFT p99 [ms]", True),
        ("tokens_per_second", "tokens/s", False),
        ("good_share", "share of requests within limits", False),
    ]
    figure = Figure(figsize=(12, 10), layout="constrained")
    experiments = data["single"]
    for axes, (key, label, log) in zip(figure.subplots(4, 1, sharex=True), panels, strict=True):
        _bars(axes, experiments, key)
        axes.set_ylabel(label)
        axes.set_yscale("log" if log else "linear")
        axes.grid(alpha=0.3, axis="y")
    names = [
        one["trace"].replace(", all", ",\nall").replace(" among", "\namong").replace(" of mixed", "\nof mixed")
        for one in experiments
    ]
    figure.axes[-1].set_xticks(range(len(experiments)), names, fontsize=9)
    figure.axes[0].axhline(TARGET_ITL, color="grey", linestyle=":", linewidth=1.2)
    figure.axes[0].legend(fontsize=8, ncols=7, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _bars(axes: Axes, experiments: list[dict[str, Any]], key: str) -> None:
    policies = [run["policy"] for run in experiments[0]["runs"]]
    width = 0.85 / len(policies)
    for place, policy in enumerate(policies):
        at = [spot + (place - (len(policies) - 1) / 2) * width for spot in range(len(experiments))]
        values = [one["runs"][place]["summary"][key] for one in experiments]
        axes.bar(at, values, width, color=COLOURS[policy], label=policy, zorder=2)


def replicas(data: dict[str, Any]) -> Figure:
    """Many replicas, by the way in which one is chosen."""
    cluster = data["cluster"]
    panels = [
        ("hit_rate", "prompt tokens found in a cache"),
        ("ttft_p99", "TTFT p99 [ms]"),
        ("itl_p99", "ITL p99 [ms]"),
    ]
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    names = [run["policy"] for run in cluster["runs"]]
    for axes, (key, label) in zip(figure.subplots(1, 3), panels, strict=True):
        bars = axes.bar(
            names, [run["summary"][key] for run in cluster["runs"]], color=["#bdbdbd", "#7f9fc9", "#1f4e9c"]
        )
        axes.bar_label(bars, fmt="{:.3g}", fontsize=8)
        axes.set_ylabel(label)
        axes.tick_params(labelsize=8)
    figure.suptitle(
        f"{cluster['replicas']} replicas, {cluster['requests']:,} requests of multi-turn chats", fontsize=11
    )
    return figure
