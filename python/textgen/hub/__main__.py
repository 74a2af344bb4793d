"""`python -m textgen.hub` is `textgen`."""

from __future__ import annotations

import sys

from textgen.cli import main

sys.exit(main())
