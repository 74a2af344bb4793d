"""Tells the service manager that started the launcher how far it is, by the protocol of systemd's `sd_notify(3)`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress


def notify(environ: Mapping[str, str], **facts: str) -> None:
    """Send facts such as `READY="1"`. Nothing is sent where no manager asks for it, and none is waited for."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # a name that is no file
        address = "\0" + address[1:]
    message = "\n".join(f"{name}={value}" for name, value in facts.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
        manager.setblocking(False)
        manager.sendto(message.encode(), address)
