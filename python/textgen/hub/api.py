"""What is asked of a hub: which files a revision has, and their bytes. Its refusals become sentences here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import msgspec
from huggingface_hub import constants, errors, get_session
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's or httpx2's, as the library has it
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from textgen import __version__
from textgen.hub.connection import Hub
from textgen.hub.errors import HubError, Unreachable

COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HOPS = 3  # redirects to another name of the repository
_SENDING = 30.0  # seconds for what is not waiting for an answer


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of one commit. `etag` is its sha256 where it is a large file, else the hash that git gives it; empty where
    the listing does not say, see `identify`."""

    path: str
    size: int  # bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a revision, and the commit that it names now."""

    commit: str
    files: dict[str, RemoteFile]


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes of a file from position `start` on, which is 0 when the hub does not do ranges."""

    start: int
    chunks: Iterator[bytes]


class _Large(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str | None = None
    lfs: _Large | None = None


class _Info(msgspec.Struct):
    sha: str
    siblings: list[_Sibling]


def list_files(hub: Hub, repo: str, revision: str) -> Listing:
    """Ask for the files of a revision. Raises `HubError`, `Unreachable` among them."""
    url = f"{hub.endpoint}/api/models/{quote(repo)}/revision/{quote(revision, safe='')}"
    timeout = _timeout(constants.HF_HUB_ETAG_TIMEOUT)
    with _worded(hub, repo, revision):
        answer = get_session().get(url, params={"blobs": "true"}, headers=_headers(hub), timeout=timeout)
        hf_raise_for_status(answer)
    strange = HubError(f"{hub.shown} does not answer as a hub does; check HF_ENDPOINT")
    try:
        info = msgspec.json.decode(answer.content, type=_Info)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise strange from None
    if not COMMIT.fullmatch(info.sha):
        raise strange
    return Listing(info.sha, {each.rfilename: _file(each) for each in info.siblings})


def _file(sibling: _Sibling) -> RemoteFile:
    size, etag = sibling.size, sibling.blobId
    if sibling.lfs is not None:
        size, etag = sibling.lfs.size, sibling.lfs.sha256
    if size is None or size < 0 or not _ETAG.fullmatch(etag or ""):  # it becomes a file's name
        return RemoteFile(sibling.rfilename, 0, "")
    return RemoteFile(sibling.rfilename, size, etag or "")


def identify(hub: Hub, repo: str, commit: str, file: RemoteFile) -> RemoteFile:
    """The file with its size and hash, asked for one by one where a mirror's listing has none. Raises `HubError`."""
    if file.etag:
        return file
    answer = _head(hub, repo, commit, f"{hub.endpoint}/{quote(repo)}/resolve/{commit}/{quote(file.path)}")
    size: str = answer.get("x-linked-size") or answer.get("content-length", "")
    etag: str = answer.get("x-linked-etag") or answer.get("etag", "")
    etag = etag.removeprefix("W/").strip('"')
    if not _ETAG.fullmatch(etag) or not size.isdecimal():
        raise HubError(f"{hub.shown} does not tell the size and hash of {file.path} in {repo}; use another HF_ENDPOINT")
    return RemoteFile(file.path, int(size), etag)


def _head(hub: Hub, repo: str, commit: str, url: str) -> Any:
    """The headers of a file's address. A repository may have another name by now, but large files are elsewhere, and
    there they have other headers."""
    for _ in range(_HOPS):
        with _worded(hub, repo, commit):
            answer = get_session().head(
                url, headers=_headers(hub) | {"accept-encoding": "identity"}, follow_redirects=False,
                timeout=_timeout(constants.HF_HUB_ETAG_TIMEOUT),
            )  # fmt: skip
            hf_raise_for_status(answer)
        moved = urljoin(url, answer.headers.get("location", url))
        if moved == url or "x-linked-etag" in answer.headers or urlsplit(moved).netloc != urlsplit(url).netloc:
            return answer.headers
        url = moved
    raise HubError(f"{hub.shown} sends us in circles for {repo}; check HF_ENDPOINT")


@contextmanager
def read_range(hub: Hub, repo: str, commit: str, path: str, first: int, last: int) -> Iterator[Stream]:
    """The bytes `first` to `last` of a file. Raises `Unreachable` for what another try may mend, else `HubError`."""
    url = f"{hub.endpoint}/{quote(repo)}/resolve/{commit}/{quote(path)}"
    headers = _headers(hub) | {"range": f"bytes={first}-{last}", "accept-encoding": "identity"}
    timeout = _timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    with (
        _worded(hub, repo, commit),
        get_session().stream("GET", url, headers=headers, timeout=timeout) as answer,
    ):
        hf_raise_for_status(answer)
        start = first if answer.status_code == 206 else 0
        # Without a size of chunks they come as they are: what waits for more would be lost with the connection.
        yield Stream(start, answer.iter_raw())


def _headers(hub: Hub) -> dict[str, str]:
    """Ours alone: the library's own tell the hub about the machine, and ask it a question first."""
    agent = {"user-agent": f"textgen/{__version__}"}
    return agent | ({"authorization": f"Bearer {hub.token}"} if hub.token else {})


def _timeout(seconds: float) -> Any:
    """Connecting and waiting for bytes, each; a tuple is what both generations of the library's client take."""
    return (seconds, seconds, _SENDING, _SENDING)


@contextmanager
def _worded(hub: Hub, repo: str, revision: str) -> Iterator[None]:
    """The library's exceptions as sentences."""
    try:
        yield
    except errors.GatedRepoError:
        raise HubError(_gated(hub, repo)) from None
    except errors.RevisionNotFoundError:
        raise HubError(
            f"{repo} has no revision {revision!r} at {hub.shown}; give a branch, tag or commit of it with --revision"
        ) from None
    except errors.DisabledRepoError:
        raise HubError(f"{hub.shown} has closed {repo} to everybody; choose another model") from None
    except errors.RepositoryNotFoundError:
        raise HubError(_missing(hub, repo)) from None
    except errors.HfHubHTTPError as error:
        raise _refused(hub, repo, error.response.status_code) from None
    except errors.OfflineModeIsEnabled:
        raise Unreachable("HF_HUB_OFFLINE is set, so nothing is asked of the hub") from None
    except HTTPError as error:
        raise Unreachable(
            f"{hub.shown} cannot be reached ({_reason(error)}); check the network, HF_ENDPOINT and proxy settings"
        ) from None


def _gated(hub: Hub, repo: str) -> str:
    page = f"{hub.shown}/{repo}"
    if hub.token:
        return f"{repo} is gated and the account of this token has no access to it; ask for access at {page}"
    return f"{repo} is gated; ask for access at {page}, then set HF_TOKEN to a token of that account"


def _missing(hub: Hub, repo: str) -> str:
    if hub.token:
        return f"{hub.shown} has no model {repo}, or none that this token may read; check the name and the token"
    return f"{hub.shown} has no model {repo}, or it is private; check the name, and set HF_TOKEN for a private one"


def _refused(hub: Hub, repo: str, status: int) -> HubError:
    match status:
        case 401:
            return HubError(
                f"{hub.shown} does not accept the token in HF_TOKEN (or of `hf auth login`); make another at "
                f"{hub.shown}/settings/tokens or unset it"
            )
        case 403:
            return HubError(f"{hub.shown} does not let this token read {repo}; give the token that permission")
        case 404:
            return HubError(f"{hub.shown} lists a file of {repo} that it does not have; try again later")
        case _ if status in (408, 416, 429) or status >= 500:
            return Unreachable(f"{hub.shown} answers {status} for {repo}; try again later")
    return HubError(f"{hub.shown} refuses to give {repo} (status {status}); check the name and HF_ENDPOINT")


def _reason(error: HTTPError) -> str:
    """The system's own words where there are some; never the address, which may be signed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    name = type(error).__name__
    return "no answer in time" if "Timeout" in name else f"the connection broke, {name}"
