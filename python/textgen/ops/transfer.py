"""How columns of the host come to a device: on a GPU by pinned memory, so that nobody waits for the copy."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on the device; on a processor the tensor shares their memory.

    Pinned memory comes from torch's pool, which takes it back only once the copy has been made.
    """
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
