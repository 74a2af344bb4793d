"""The offline benchmark: its prompts are the same in every run, and its rows say what the runs said."""

from __future__ import annotations

from benchmark.offline.programs import PROGRAMS, Result
from benchmark.offline.run import agreement, prompts, rows


def test_prompts_are_the_same_in_every_run_and_within_their_lengths() -> None:
    made = prompts(50, 3, 9)
    assert made == prompts(50, 3, 9)
    assert {len(prompt) for prompt in made} <= set(range(3, 10))
    assert len({tuple(prompt) for prompt in made}) == 50


def test_rows_are_medians_beside_each_way_of_transformers() -> None:
    ours = [Result(1.0, seconds, [[1, 2], [3, 4]]) for seconds in (9.0, 2.0, 4.0)]
    runs = {"textgen": ours, "generate": [Result(2.0, 8.0, [[1, 2], [3, 5]])]}
    throughput, whole = rows(runs, "transformers 5", "two")
    assert (throughput.ours, throughput.theirs, throughput.ratio, throughput.holds) == (1.0, 0.5, 2.0, True)
    assert (whole.ours, whole.theirs, whole.holds) == (5.0, 10.0, None)
    (sentence,) = agreement(runs)
    assert sentence.startswith("1 of 2 answers")
    assert set(runs) <= set(PROGRAMS)
