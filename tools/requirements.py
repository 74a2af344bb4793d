"""Prints what the project needs, and what extras need, a line each: `python -m tools.requirements test lint`.

pip installs that only together with the project, once it is built; `make` fetches it while the router is being built.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with maturin


def requirements(extras: list[str]) -> list[str]:
    """Raises `KeyError` for an extra that `pyproject.toml` does not have."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    print(*requirements(sys.argv[1:]), sep="\n")
