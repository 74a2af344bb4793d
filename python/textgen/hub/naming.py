"""How a GGUF file of the hub is named: ORG/NAME:Q4_K_M by its blocks, ORG/NAME/FILE.gguf by itself."""

from __future__ import annotations

import re

_GGUF = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w.-]+)|/([\w./-]+\.gguf))", re.ASCII)


def gguf_of(name: str) -> tuple[str, str] | None:
    """The repository and what is wanted of it; None for a name of another form."""
    found = _GGUF.fullmatch(name)
    return None if found is None else (found[1], found[2] or found[3])
