"""TLS through the launcher: clients that trust the certificate, plain HTTP, stalling clients, a renewed certificate."""

from __future__ import annotations

import shutil
import socket
import ssl
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from support.raw import connect
from support.server import Launcher, Start
from support.tls import make_pair
from support.waiting import until

BODY = {"inputs": "a b c", "parameters": {"max_new_tokens": 4}}

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="there is no openssl to make certificates with; Debian's package has it"
)


class Secured:
    """A server with TLS, and where its certificate lies."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.launcher, self.folder = launcher, folder
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"

    @property
    def url(self) -> str:
        return f"https://{self.launcher.address}"

    def trust(self) -> ssl.SSLContext:
        """What the certificate of now is trusted by, and no other."""
        return ssl.create_default_context(cafile=str(self.cert))

    def client(self, **given: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.trust(), trust_env=False, timeout=60, **given)

    def answers(self) -> bool:
        self.launcher.must_run()
        try:
            with self.client() as client:
                return client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def server(start_for_module: Start, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Secured:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    make_pair(folder, cert, key)
    launcher = start_for_module(
        model=tiny_folder, tls_cert=cert, tls_key=key, max_tls_handshakes=4, tls_handshake_timeout=60
    )
    secured = Secured(launcher, folder)
    until(secured.answers, "the server answers by TLS", 90)
    return secured


@pytest.mark.parametrize(("http2", "version"), [(False, "HTTP/1.1"), (True, "HTTP/2")])
def test_both_protocols_of_http(server: Secured, http2: bool, version: str) -> None:
    with server.client(http1=not http2, http2=http2) as client:
        whole = client.post("/generate", json=BODY)
        assert (whole.status_code, whole.http_version) == (200, version)
        with client.stream("POST", "/generate_stream", json=BODY) as stream:
            events = [line for line in stream.iter_lines() if line.startswith("data:")]
        assert len(events) == 4
        assert whole.json()["generated_text"] in events[-1]


def test_openais_client(server: Secured) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", http_client=cast(Any, server.client())) as client:
        asked: dict[str, Any] = {"model": "m", "prompt": "a b c", "max_tokens": 4, "temperature": 0}
        pieces = [piece.choices[0].text for piece in client.completions.create(**asked, stream=True)]
        assert "".join(pieces) == client.completions.create(**asked).choices[0].text != ""


def test_the_address_to_paste_is_that_of_tls(server: Secured) -> None:
    log = server.launcher.log
    assert f"ready on https://{server.launcher.address}" in log
    assert f"curl -N https://{server.launcher.address}/v1" in log


def test_who_does_not_trust_the_certificate_is_not_served(server: Secured) -> None:
    with pytest.raises(httpx.ConnectError, match="certificate"):
        httpx.get(f"{server.url}/ready", trust_env=False)


def test_plain_http_is_told_what_to_do(server: Secured) -> None:
    answer = httpx.post(f"http://{server.launcher.address}/generate", json=BODY, trust_env=False)
    assert answer.status_code == 400
    assert "https://" in answer.json()["error"]


def test_clients_that_stall_in_their_handshakes_hold_nobody_up(server: Secured) -> None:
    stalled: list[socket.socket] = []
    try:
        for number in range(12):
            connection = connect(server.url)
            connection.sendall(b"\x16\x03\x01\x02\x00"[: number % 6])
            stalled.append(connection)
        assert server.answers()
        # Beyond the four that there may be, the oldest have given way.
        for connection in stalled[:4]:
            assert _ended(connection)
    finally:
        for connection in stalled:
            connection.close()


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_renewed_certificate_is_shown_without_a_restart(server: Secured) -> None:
    old = server.trust()
    with httpx.Client(base_url=server.url, verify=old, trust_env=False) as before:
        assert before.get("/ready").status_code == 200
        make_pair(server.folder, server.cert, server.key)
        until(server.answers, "the new certificate is shown")
        # The connection of before goes on.
        assert before.get("/ready").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/ready", verify=old, trust_env=False)


def test_a_pair_that_does_not_belong_together_ends_the_start(start: Start, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make_pair(tmp_path, tmp_path / "cert.pem", tmp_path / "key.pem")
    make_pair(tmp_path / "other", tmp_path / "other" / "cert.pem", tmp_path / "other" / "key.pem")
    launcher = start(model=tiny_folder, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "other" / "key.pem")
    assert launcher.wait() == 2
    assert "--tls-key" in launcher.log and "give two that belong together" in launcher.log
