"""Why rows that were sampled are of no use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from textgen.ops.sampling import Allowed
from textgen.shard.batch import Fault
from textgen.shard.protocol import Ints


@dataclass(frozen=True, slots=True)
class Limits:
    """What the grammar masks of a step allow."""

    allowed: Allowed
    slots: Ints  # of the rows of `allowed`
    late: Ints  # slots whose mask has not come
    waited: float


def row_faults(
    chosen: Ints, tokens: Tensor, normaliser: Tensor, stuck: Ints | None, limits: Limits | None, timeout: float
) -> list[Fault]:
    """Why sampled rows are of no use; a slot is named once, the first reason counts."""
    broken = chosen[~normaliser.isfinite().cpu().numpy()]
    reasons = [(broken, "numerics", "the model's logits are not finite")]
    if stuck is not None:
        reasons.append((stuck, "limit", NOTHING_LEFT))
    if limits is not None:
        dead = limits.slots[~limits.allowed.permits(tokens.cpu().numpy())]
        reasons += [
            (limits.late, "internal", f"the mask of its grammar did not come within {timeout:g} seconds"),
            (dead, "limit", "its grammar allows no token here; use a looser grammar"),
        ]
    faults: list[Fault] = []
    for slots, kind, message in reasons:
        for fault in faults:
            slots = np.setdiff1d(slots, fault.slots)
        if slots.size:
            faults.append(Fault(slots, kind, message))
    return faults


NOTHING_LEFT = "its rules leave no token to draw here; allow more tokens, or ban fewer"
