"""Open files: as many as the connections need, and a sentence where the system does not allow them."""

from __future__ import annotations

import resource

import pytest

from textgen.launcher.descriptors import SPARE, make_room

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "becomes"),
    [
        (1024, 1 << 20, 4096 + SPARE),
        (1024, INFINITE, 4096 + SPARE),
        (1 << 16, 1 << 20, None),
        (INFINITE, INFINITE, None),
        (1024, 2048, 2048),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed_and_allowed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, becomes: int | None
) -> None:
    changed: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changed.append(limits))
    warning = make_room(4096)
    assert changed == ([] if becomes is None else [(becomes, hard)])
    if becomes == hard:
        assert warning and "--max-connections 4096" in warning and f"to {2048 - SPARE}" in warning
    else:
        assert warning is None
