"""What the hub refuses, and a hub that is not there: a sentence each, and never a secret in one."""

from __future__ import annotations

import dataclasses
import json
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.hub.mock_hub import MockHub, Repo
from tests.hub.repos import WEIGHTS, model_files
from textgen.hub.connection import Hub
from textgen.hub.errors import HubError, Unreachable
from textgen.hub.progress import Progress
from textgen.hub.pull import Wish, obtain, pull

TINY = Wish("test/tiny", pauses=(0.0,))
SECRET = "hf_secret"


def refusal(hub: Hub, wish: Wish = TINY) -> str:
    said: list[str] = []
    with pytest.raises(HubError) as caught:
        pull(hub, wish, Progress(said.append, bar=False))
    sentence = str(caught.value)
    for text in (sentence, *said):
        assert "\n" not in text
        assert SECRET not in text
        assert "signature" not in text
    return sentence


@pytest.mark.parametrize("token", [None, "hf_good"])
def test_a_missing_repository(token: str | None, mock: MockHub, hub: Hub) -> None:
    sentence = refusal(dataclasses.replace(hub, token=token), Wish("test/none"))
    assert f"{mock.endpoint} has no model test/none" in sentence
    assert ("HF_TOKEN" in sentence) == (token is None)


def test_a_missing_revision(hub: Hub) -> None:
    assert "no revision 'v9'" in refusal(hub, Wish("test/tiny", "v9"))


@pytest.mark.parametrize("revision", ["../../etc", "a/../../b", "/etc/passwd"])
def test_a_revision_is_never_a_path(revision: str, mock: MockHub, hub: Hub, cache: Path) -> None:
    mock.repos["test/tiny"].branch = revision
    refusal(hub, Wish("test/tiny", revision))
    assert not (cache / "etc").exists()


@pytest.mark.parametrize(("token", "part"), [(None, "set HF_TOKEN"), (SECRET, "has no access")])
def test_a_gated_repository(token: str | None, part: str, mock: MockHub, hub: Hub) -> None:
    mock.tokens.add(SECRET)
    mock.repos["test/tiny"].gated = True
    sentence = refusal(dataclasses.replace(hub, token=token))
    assert "gated" in sentence
    assert f"{mock.endpoint}/test/tiny" in sentence
    assert part in sentence


@pytest.mark.parametrize("kind", ["gated", "private"])
def test_the_right_token_opens(kind: str, mock: MockHub, hub: Hub, progress: Progress) -> None:
    setattr(mock.repos["test/tiny"], kind, True)
    pull(dataclasses.replace(hub, token="hf_good"), TINY, progress)
    assert {each.token for each in mock.requests} == {"hf_good"}
    assert {each.token for each in mock.content} == {None}, "the token went on to another server"


def test_no_more_is_told_to_the_hub_than_our_name(mock: MockHub, hub: Hub, progress: Progress) -> None:
    pull(hub, TINY, progress)
    assert {each.agent.partition("/")[0] for each in (*mock.requests, *mock.content)} == {"textgen"}
    assert {each.agent.count(" ") for each in mock.requests} == {0}
    assert [each.path for each in mock.requests if each.path.startswith("/api/")] == [
        "/api/models/test/tiny/revision/main"
    ]


def test_a_bad_token(hub: Hub) -> None:
    sentence = refusal(dataclasses.replace(hub, token=SECRET))
    assert "does not accept the token" in sentence
    assert "HF_TOKEN" in sentence


def test_a_token_is_not_in_what_a_hub_looks_like(hub: Hub) -> None:
    assert SECRET not in repr(dataclasses.replace(hub, token=SECRET))


def test_a_closed_repository(mock: MockHub, hub: Hub) -> None:
    mock.repos["test/tiny"].disabled = True
    assert "closed test/tiny to everybody" in refusal(hub)


def test_a_token_without_the_permission(mock: MockHub, hub: Hub) -> None:
    mock.fault(WEIGHTS).refuse = [403]
    assert "give the token that permission" in refusal(dataclasses.replace(hub, token="hf_good"))


def test_a_file_that_is_listed_and_gone(mock: MockHub, hub: Hub) -> None:
    mock.fault(WEIGHTS).refuse = [404]
    assert "lists a file" in refusal(hub)


def test_a_hash_that_is_none(mock: MockHub, hub: Hub) -> None:
    mock.repos["test/tiny"] = Repo(model_files(), no_hashes=True)
    mock.fault("config.json").etag = "../../../x"
    assert "does not tell the size and hash of config.json" in refusal(hub)


def test_a_hub_that_sends_us_in_circles(mock: MockHub, hub: Hub) -> None:
    mock.repos["test/tiny"] = Repo(model_files(), no_hashes=True)
    mock.moved = {
        "resolve/" + mock.repos["test/tiny"].head: "resolve/x",
        "resolve/x": "resolve/y",
        "resolve/y": "resolve/x",
    }
    assert "in circles" in refusal(hub)


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"sha": "../..", "siblings": []}', b"[" * 100_000])
def test_something_else_than_a_hub(answer: bytes, cache: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        hub = Hub(endpoint=f"http://127.0.0.1:{server.server_port}", cache=cache)
        assert "check HF_ENDPOINT" in refusal(hub)
        server.shutdown()


def test_names_from_a_hub_never_lead_out_of_the_cache(mock: MockHub, hub: Hub, progress: Progress) -> None:
    files = model_files() | {"../../../../../out": b"x", "/out": b"x"}
    mock.repos["test/tiny"] = Repo(files)
    found = pull(hub, TINY, progress)
    assert {path.parent for path in found.folder.rglob("*")} == {found.folder}


# --- no hub


@pytest.fixture
def nobody(cache: Path) -> Hub:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return Hub(endpoint=f"http://user:{SECRET}@127.0.0.1:{port}", cache=cache)


def test_nobody_listens(nobody: Hub) -> None:
    sentence = refusal(nobody)
    assert "http://127.0.0.1:" in sentence
    assert "cannot be reached (Connection refused)" in sentence


def test_a_cached_model_serves_when_nobody_listens(nobody: Hub, hub: Hub, progress: Progress, said: list[str]) -> None:
    found = pull(hub, TINY, progress)
    said.clear()
    assert obtain(nobody, TINY, progress) == found
    (sentence,) = said
    assert "cannot be reached" in sentence
    assert "as it is in the cache" in sentence
    with pytest.raises(Unreachable):
        pull(nobody, TINY, progress)


def test_a_cached_model_serves_when_the_hub_is_down(mock: MockHub, hub: Hub, progress: Progress) -> None:
    found = pull(hub, TINY, progress)
    mock.down = True
    assert obtain(hub, TINY, progress) == found


def test_half_a_model_does_not_serve(mock: MockHub, hub: Hub, nobody: Hub, progress: Progress) -> None:
    mock.fault(WEIGHTS).refuse = [500, 500]
    with pytest.raises(Unreachable):
        pull(hub, TINY, progress)
    with pytest.raises(Unreachable, match="cannot be reached"):
        obtain(nobody, TINY, progress)


def test_offline(mock: MockHub, hub: Hub, progress: Progress, said: list[str]) -> None:
    offline = dataclasses.replace(hub, offline=True)
    with pytest.raises(HubError, match="`textgen pull test/tiny`"):
        obtain(offline, TINY, progress)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        pull(offline, TINY, progress)
    found = pull(hub, TINY, progress)
    mock.requests.clear()
    said.clear()
    assert obtain(offline, TINY, progress) == found
    assert obtain(offline, Wish("test/tiny", found.commit), progress) == found
    assert (mock.requests, said) == ([], [])
    with pytest.raises(HubError, match="at v9 is not in"):
        obtain(offline, Wish("test/tiny", "v9"), progress)


def test_a_link_to_a_file_that_is_gone_is_no_model(hub: Hub, progress: Progress) -> None:
    found = pull(hub, TINY, progress)
    (found.folder / WEIGHTS).resolve().unlink()
    with pytest.raises(HubError, match="is not in"):
        obtain(dataclasses.replace(hub, offline=True), TINY, progress)
    assert json.loads((found.folder / "config.json").read_text())
