"""`docs/metrics.md` names what `/metrics` has, all of it and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from support.server import Launcher

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def test_the_page_names_what_is_exposed(built_in: Launcher) -> None:
    exposed = httpx.get(built_in.url + "/metrics", trust_env=False, timeout=30).text
    found = set(re.findall(r"^# TYPE (\w+) (\w+)$", exposed, re.M))
    assert set(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(), re.M)) == found
