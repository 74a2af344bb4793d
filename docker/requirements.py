"""Prints what `pyproject.toml` says Textgen needs, with what models without a family need, one a line."""

import sys

import tomllib

with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], *project["optional-dependencies"]["fallback"], sep="\n")
