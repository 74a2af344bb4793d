"""A rolling restart behind nginx, by the example's configuration: no request is lost, and each answer is whole.

`make soak-restart` makes it many more requests: `ROLLING_REQUESTS`, by `ROLLING_CLIENTS` at once.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.rolling import NGINX, Clients, Replica, nginx
from support.scripted import Script
from support.server import Start
from support.waiting import until

REQUESTS = int(os.environ.get("ROLLING_REQUESTS", "300"))
CLIENTS = int(os.environ.get("ROLLING_CLIENTS", "3"))

pytestmark = [
    pytest.mark.timeout(300 if REQUESTS < 1000 else 7200),
    pytest.mark.skipif(NGINX is None, reason="there is no nginx; Debian's package of that name has it"),
]


def test_no_request_is_lost(start: Start, script: Script, tmp_path: Path) -> None:
    replicas = [Replica(start, number, model=script.folder) for number in (1, 2)]
    restarts = 0
    (tmp_path / "nginx").mkdir()
    with nginx(tmp_path / "nginx", [replica.address for replica in replicas]) as front:
        clients = Clients(front, script, CLIENTS)
        try:
            while clients.answered < REQUESTS or restarts < len(replicas):
                before = clients.answered
                replicas[restarts % len(replicas)].restart()
                restarts += 1
                # Each server answers for a while before the other one goes.
                until(lambda n=before: clients.answered > n + 10 * CLIENTS, "requests are answered")  # type: ignore[misc]
        finally:
            clients.stop()
    for replica in replicas:
        replica.close()
    print(f"{clients.answered} requests, {restarts} restarts, {len(clients.lost)} lost")
    assert clients.lost == []
