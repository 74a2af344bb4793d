"""Certificates of this machine, by openssl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def make_pair(folder: Path, cert: Path, key: Path) -> None:
    """A certificate for this machine and its key, each put in its place at once."""
    fresh = [folder / "fresh-cert.pem", folder / "fresh-key.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-addext", "basicConstraints=critical,CA:FALSE",
         "-out", str(fresh[0]), "-keyout", str(fresh[1])],
        check=True, capture_output=True,
    )  # fmt: skip
    os.replace(fresh[1], key)
    os.replace(fresh[0], cert)
