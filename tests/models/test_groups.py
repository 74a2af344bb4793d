"""Groups of layers: every layer has a place, no two the same, and pages hold what they say."""

from __future__ import annotations

import pytest

from textgen.models.groups import MOST_GROUPS, LayerGroups, group_layers

from ..seeds import fresh_rng

GEMMA3 = tuple(None if (layer + 1) % 6 == 0 else 512 for layer in range(26))


@pytest.mark.parametrize(
    ("windows", "groups", "page_layers"),
    [
        ((None,) * 5, (None,), 5),
        ((4096,) * 32, (4096,), 32),  # Mistral
        ((128, None) * 12, (None, 128), 12),  # gpt-oss
        (GEMMA3, (None, *(512,) * 6), 4),
        ((7,), (7,), 1),
    ],
)
def test_groups_of_models(windows: tuple[int | None, ...], groups: tuple[int | None, ...], page_layers: int) -> None:
    found = group_layers(windows, 8192)
    assert (found.windows, found.page_layers) == (groups, page_layers)


def test_a_window_that_nothing_outgrows_is_none() -> None:
    assert group_layers((64, None, 64), 64).windows == (None,)
    assert group_layers((63, None, 63), 64).windows == (None, 63, 63)


def test_every_layer_has_a_place_of_its_own() -> None:
    rng = fresh_rng()
    for _ in range(200):
        kinds = rng.sample([None, 3, 9, 70], rng.randint(1, 4))
        windows = [rng.choice(kinds) for _ in range(rng.randint(1, 70))]
        found = group_layers(windows, 64)
        wanted = [None if window == 70 else window for window in windows]
        assert [found.windows[group] for group in found.group] == wanted
        assert len(set(zip(found.group, found.place, strict=True))) == len(windows)
        assert len(found.windows) <= MOST_GROUPS
        assert list(found.windows) == sorted(found.windows, key=lambda window: (window is not None, window or 0))
        assert found.page_layers * len(found.windows) < 2 * len(windows) + MOST_GROUPS


def test_pages_of_a_sequence_are_those_that_its_windows_reach() -> None:
    """Against the plain count, position by position."""
    rng = fresh_rng()
    for _ in range(100):
        span, size, tokens = rng.randint(1, 20), rng.randint(1, 6), rng.randint(1, 60)
        chunk = rng.randint(1, 2 * size)
        groups = LayerGroups((None, span, span), (0, 1, 2), (0, 0, 0))
        held = groups.sequence_pages(tokens, size, chunk)
        blocks = -(-tokens // size)
        starts = range(0, tokens)
        ends = [min(start + chunk, tokens) for start in starts]
        reached = [-(-end // size) - max(start - span + 1, 0) // size for start, end in zip(starts, ends, strict=True)]
        assert blocks + 2 * max(reached) <= held <= blocks + 2 * min(blocks, max(reached) + 1)


def test_a_model_of_windows_seats_several_times_more() -> None:
    """Gemma 3's pattern at 8,192 tokens: what a sequence takes, in positions of layers."""
    groups = group_layers(GEMMA3, 8192)
    windowed = groups.sequence_pages(8192, 16) * groups.page_layers
    assert 26 * 8192 / 16 / windowed > 4
