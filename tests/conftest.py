"""One torch thread for every test and every process that a test starts: tiny models are slower on more."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a script starts in the background ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes depends on who else has the processor. A given seed is for all that is random.
settings.register_profile("textgen", deadline=None, derandomize="TEXTGEN_TEST_SEED" in os.environ)
settings.load_profile("textgen")
