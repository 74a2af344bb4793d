"""Where this folder is on PYTHONPATH, a launcher finds a GPU, and a shard opens it: the stand-in of `tests/shard`.

Python imports it before all else, in every process that is started so.
"""

from __future__ import annotations

import random
import sys

MEMORY = 1 << 34  # bytes that the launcher is told of


def _launcher() -> None:
    from textgen.launcher import hardware
    from textgen.launcher.gpu import Gpu

    gpu = Gpu("stand-in", (9, 0), MEMORY, MEMORY)
    vars(hardware).update(find_gpu=lambda: gpu, torch_cuda=lambda: "12.8")


def _shard() -> None:
    from tests.ops.cuda.conftest import BUILT
    from tests.shard.stand_in import StandIn, StandInKernels
    from textgen.ops import reference
    from textgen.ops.cuda.ops import CudaOps
    from textgen.shard import graphs, start
    from textgen.shard.settings import ShardSettings

    def open_stand_in(settings: ShardSettings, dtype: object) -> object:
        rng = random.Random(0)
        kernels = StandInKernels(0, BUILT)
        accelerator = StandIn(kernels, rng)
        if settings.attention == "torch":
            vars(accelerator).update(kernels=None)
            return accelerator, reference
        return accelerator, CudaOps(kernels)

    graphs.SPACING = 1  # of captures, in steps: soon, as a test has few
    vars(start).update(open_accelerator=open_stand_in)


if "textgen.shard" in sys.orig_argv:
    _shard()
elif "textgen.launcher" in sys.orig_argv:
    _launcher()
