"""What a service manager is told, over a socket of the test's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from textgen.launcher.notify import notify


@pytest.mark.parametrize("name", ["a file", "@a name that is no file"])
def test_a_manager_that_asks_is_told(name: str, tmp_path: Path) -> None:
    address = f"{name}-{os.getpid()}" if name.startswith("@") else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0", 1))
        notify({"NOTIFY_SOCKET": address}, READY="1", STATUS="serves a model")
        assert manager.recv(4096) == b"READY=1\nSTATUS=serves a model"


@pytest.mark.parametrize("address", ["", "vsock:2:1", "/nowhere/at/all"])
def test_without_one_nothing_happens(address: str) -> None:
    notify({"NOTIFY_SOCKET": address}, READY="1")
    notify({}, READY="1")
