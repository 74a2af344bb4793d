"""`python -m textgen.launcher` is `textgen-launcher`."""

from __future__ import annotations

import sys

from textgen.launcher.cli import main

sys.exit(main())
