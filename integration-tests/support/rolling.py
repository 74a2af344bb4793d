"""Servers behind nginx that are restarted one after the other, and clients that go on asking meanwhile."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from support.scripted import Script
from support.server import START_SECONDS, STOP_SECONDS, Launcher, Start
from support.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "nginx" / "textgen.conf"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
# Below the ports that the system gives out, on loopback addresses of this process alone: nobody else takes them while
# a server is gone.
PORT = 18080


def own_address(number: int) -> str:
    """One of this process's four loopback addresses."""
    unique = os.getpid() * 4 + number  # a process id has at most 22 bits
    return f"127.{unique >> 16 & 255}.{unique >> 8 & 255}.{unique & 255}"


class Replica:
    """A server that keeps its address through restarts, and that says like a service when it is ready."""

    def __init__(self, start: Start, number: int, **given: object) -> None:
        self.address = f"{own_address(number)}:{PORT}"
        self._given = given | {"hostname": own_address(number), "port": PORT}
        self._start = start
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind("\0textgen-" + self.address)
        self._manager.setblocking(False)
        self.launcher = self._started()

    def _started(self) -> Launcher:
        launcher = self._start(environ={"NOTIFY_SOCKET": "@textgen-" + self.address}, **self._given)
        until(lambda: self._told(launcher), "the service manager is told that the server is ready", START_SECONDS)
        assert launcher.ready()
        return launcher

    def _told(self, launcher: Launcher) -> bool:
        launcher.must_run()
        try:
            return b"READY=1" in self._manager.recv(4096)
        except BlockingIOError:
            return False

    def restart(self) -> None:
        """As a service manager does it: SIGTERM, its end, another one, ready."""
        self.launcher.process.send_signal(signal.SIGTERM)
        assert self.launcher.wait(STOP_SECONDS) == 0, self.launcher.log
        self.launcher = self._started()

    def close(self) -> None:
        self._manager.close()


@contextmanager
def nginx(folder: Path, servers: list[str]) -> Iterator[str]:
    """nginx with the example's configuration before these addresses; its own address."""
    front = f"{own_address(0)}:{PORT}"
    text = EXAMPLE.read_text()
    listed = "".join(f"server {server} max_fails=0;\n" for server in servers)
    text, replaced = re.subn(r"(?:    server [\d.:]+ max_fails=0;\n)+", listed, text)
    text, placed = re.subn(r"listen 80;", f"listen {front};", text)
    assert (replaced, placed) == (1, 1), "the example has another form"
    (folder / "textgen.conf").write_text(text)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; {user} worker_processes 1;\n"
        "events { worker_connections 1024; }\n"
        f"http {{ access_log off; {temporary} include {folder}/textgen.conf; }}\n"
    )
    assert NGINX is not None
    process = subprocess.Popen(
        [NGINX, "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"], stdin=subprocess.DEVNULL
    )

    def listens() -> bool:
        assert process.poll() is None, (folder / "error.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex((own_address(0), PORT)) == 0

    try:
        until(listens, "nginx listens")
        yield front
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


@dataclass(frozen=True)
class Answer:
    """What a request of so many tokens has to be answered."""

    tokens: int
    text: str


def answers(script: Script, few: int = 6) -> tuple[Answer, Answer]:
    """Of at most `few` tokens, which end with a whole character, and of all."""
    tokenizer = Tokenizer.from_file(str(script.folder / "tokenizer.json"))
    beginnings = [Answer(count, tokenizer.decode(list(script.tokens[:count]))) for count in range(1, few + 1)]
    short = [answer for answer in beginnings if answer.text and script.text.startswith(answer.text)][-1]
    return short, Answer(len(script.tokens), script.text)


class Clients:
    """Threads that ask one thing after the other until they are told to stop: whole and streamed, in both dialects,
    mostly for few tokens and now and then for all.

    Each answer has to be right to its last character; what else happens is kept in `lost`.
    """

    def __init__(self, address: str, script: Script, count: int) -> None:
        self._address = address
        self._short, self._long = answers(script)
        self._stop = threading.Event()
        self._answered = [0] * count
        self.lost: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def answered(self) -> int:
        return sum(self._answered)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        kinds: tuple[Callable[[http.client.HTTPConnection, int], str], ...] = (_whole, _streamed, _completion)
        connection = http.client.HTTPConnection(self._address, timeout=START_SECONDS)
        for place in itertools.count(number):
            if self._stop.is_set():
                break
            ask, answer = kinds[place % len(kinds)], self._short if place % 10 else self._long
            try:
                said = ask(connection, answer.tokens)
                if said != answer.text:
                    self.lost.append(f"{ask.__name__} said {said!r}")
            except (OSError, http.client.HTTPException, ValueError, LookupError, AssertionError) as error:
                self.lost.append(f"{ask.__name__}: {error!r}")
                connection.close()
            self._answered[number] += 1
        connection.close()


def _post(connection: http.client.HTTPConnection, path: str, body: object) -> bytes:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200, (answer.status, content[:200])
    return content


def _native(tokens: int) -> dict[str, object]:
    return {"inputs": "a", "parameters": {"max_new_tokens": tokens}}


def _whole(connection: http.client.HTTPConnection, tokens: int) -> str:
    said: str = json.loads(_post(connection, "/generate", _native(tokens)))["generated_text"]
    return said


def _streamed(connection: http.client.HTTPConnection, tokens: int) -> str:
    events = _post(connection, "/generate_stream", _native(tokens)).decode().rstrip().split("\n\n")
    said: str = json.loads(events[-1].removeprefix("data:"))["generated_text"]
    return said


def _completion(connection: http.client.HTTPConnection, tokens: int) -> str:
    body = {"prompt": "a", "stream": True, "max_tokens": tokens}
    events = _post(connection, "/v1/completions", body).decode().rstrip().split("\n\n")
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data:")) for event in events]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
