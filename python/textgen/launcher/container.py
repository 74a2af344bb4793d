"""`python -m textgen.launcher.container`: the launcher where a cloud or an image starts it, by their contracts."""

from __future__ import annotations

import os
import sys

from textgen.launcher.arguments import current_environment
from textgen.launcher.cli import main as launch
from textgen.launcher.endpoints import translate
from textgen.launcher.errors import SettingsError


def main() -> int:
    """Run one server; exit codes are those of the launcher."""
    try:
        start = translate(sys.argv[1:], current_environment())
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    os.environ.update(start.environ)
    return launch(start.arguments)


if __name__ == "__main__":
    sys.exit(main())
