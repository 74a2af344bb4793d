"""Where random inputs come from: other ones in each run, the same ones where `TEXTGEN_TEST_SEED` is set."""

from __future__ import annotations

import os
import random


def fresh_seed() -> int:
    """Printed, so that a failing test says how to fail again."""
    given = os.environ.get("TEXTGEN_TEST_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    print(f"TEXTGEN_TEST_SEED={seed}")
    return seed


def fresh_rng() -> random.Random:
    return random.Random(fresh_seed())
