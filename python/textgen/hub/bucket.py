"""Models in Google Cloud Storage, `gs://BUCKET/FOLDER`: how Vertex AI names the model of a container.

The protocol is the JSON API of Cloud Storage; tokens are of the machine's service account, by its metadata server.
`STORAGE_EMULATOR_HOST` and `GCE_METADATA_HOST` name others of both, as in Google's own clients.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from huggingface_hub import constants, errors, get_session
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's or httpx2's, as the library has it

from textgen.hub.api import RemoteFile
from textgen.hub.errors import HubError, Unreachable
from textgen.hub.files import first_files, weight_files
from textgen.hub.progress import Progress, amount

SCHEME = "gs://"
ENDPOINT = "https://storage.googleapis.com"
WORKERS = 8  # files at a time
TRIES = 5
PAUSE = 1.0  # seconds before the second try; twice as many before each further one
_ADDRESS = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/(.*))?", re.DOTALL)
_TOKEN = "computeMetadata/v1/instance/service-accounts/default/token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A folder of a bucket, and who asks for it."""

    name: str
    prefix: str  # ends with a slash, or is empty
    endpoint: str = ENDPOINT
    token: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        return f"{SCHEME}{self.name}/{self.prefix}".rstrip("/")


class _Object(msgspec.Struct):
    name: str
    size: str
    generation: str
    md5Hash: str = ""


class _Page(msgspec.Struct):
    items: list[_Object] = []
    nextPageToken: str = ""


class _Token(msgspec.Struct):
    access_token: str


def open_bucket(address: str, environ: Mapping[str, str]) -> Bucket:
    """The folder of a bucket as this machine may read it. Raises `HubError`."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise HubError("it does not name a bucket; give it as gs://BUCKET/FOLDER")
    prefix = (match[2] or "").strip("/")
    elsewhere = environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if elsewhere and "://" not in elsewhere:
        elsewhere = f"http://{elsewhere}"
    token = _token(environ) if not elsewhere or "GCE_METADATA_HOST" in environ else None
    return Bucket(name=match[1], prefix=f"{prefix}/" if prefix else "", endpoint=elsewhere or ENDPOINT, token=token)


def bring(bucket: Bucket, cache: Path, check: Callable[[Path], object], progress: Progress) -> Path:
    """The model's folder below `cache`. What came before is not downloaded again unless the bucket has another of it.

    check: sees the folder before the weights are in it, and may refuse it. Raises `HubError`.
    """
    listed = {one.name.removeprefix(bucket.prefix): one for one in _list(bucket)}
    files = {path: RemoteFile(path, _number(bucket, one.size), one.md5Hash) for path, one in listed.items()}
    first = first_files(bucket.shown, files)
    # Another generation of any file is another model, in a folder of its own.
    known = sorted((path, one.generation) for path, one in listed.items())
    folder = cache / "buckets" / hashlib.sha256(repr((bucket.shown, known)).encode()).hexdigest()[:32]
    progress.begin(f"downloading {bucket.shown}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(bucket, folder, first, progress)
        check(folder)
        weights = weight_files(bucket.shown, files, folder)
        missing = [file for file in weights if not (folder / file.path).is_file()]
        if missing:
            size = amount(sum(file.size for file in missing))
            progress.announce(f"downloading {bucket.shown}: {len(missing)} files, {size} into {folder}")
        _fetch(bucket, folder, weights, progress)
    except OSError as error:
        raise HubError(f"{bucket.shown} cannot be written to {folder}: {error.strerror or error}") from None
    finally:
        seconds = progress.end()
    if missing:
        progress.say(f"downloaded {bucket.shown} in {seconds:.1f} s")
    return folder


def _list(bucket: Bucket) -> Iterator[_Object]:
    """The files of the folder itself."""
    page = ""
    while True:
        asked = {"prefix": bucket.prefix, "delimiter": "/"} | ({"pageToken": page} if page else {})
        with _worded(bucket):
            url = f"{bucket.endpoint}/storage/v1/b/{bucket.name}/o"
            answer = get_session().get(
                url, params=asked, headers=_headers(bucket), timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
            _check_status(bucket, answer.status_code)
        try:
            found = msgspec.json.decode(answer.content, type=_Page)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise HubError(f"{bucket.endpoint} does not answer as Cloud Storage does") from None
        yield from (one for one in found.items if one.name != bucket.prefix)
        page = found.nextPageToken
        if not page:
            return


def _fetch(bucket: Bucket, folder: Path, files: Collection[RemoteFile], progress: Progress) -> None:
    """Download what is missing. The first failure ends the others."""
    missing = [file for file in files if not (folder / file.path).is_file()]
    progress.expect(sum(file.size for file in missing))
    stop = threading.Event()

    def one(file: RemoteFile) -> None:
        try:
            _try(bucket, file, folder / file.path, stop, progress)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(WORKERS, thread_name_prefix="bucket") as pool:
        try:
            list(pool.map(one, missing))
        finally:
            stop.set()


def _try(bucket: Bucket, file: RemoteFile, target: Path, stop: threading.Event, progress: Progress) -> None:
    for number in range(TRIES):
        if number and stop.wait(PAUSE * 2 ** (number - 1)):
            return
        try:
            return _download(bucket, file, target, stop, progress)
        except Unreachable:
            if number == TRIES - 1:
                raise


def _download(bucket: Bucket, file: RemoteFile, target: Path, stop: threading.Event, progress: Progress) -> None:
    """One file, which appears whole or not at all."""
    part, done, seen = target.with_name(target.name + ".incomplete"), 0, hashlib.md5(usedforsecurity=False)
    url = f"{bucket.endpoint}/storage/v1/b/{bucket.name}/o/{quote(bucket.prefix + file.path, safe='')}"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    try:
        with (
            _worded(bucket),
            get_session().stream(
                "GET", url, params={"alt": "media"}, headers=_headers(bucket), timeout=timeout
            ) as answer,
            part.open("wb") as written,
        ):
            _check_status(bucket, answer.status_code)
            for chunk in answer.iter_raw():
                if stop.is_set():
                    return
                written.write(chunk)
                seen.update(chunk)
                done += len(chunk)
                progress.advance(len(chunk))
        if done != file.size or (file.etag and base64.b64encode(seen.digest()).decode() != file.etag):
            raise Unreachable(f"{bucket.shown}: {file.path} came damaged; try again")
    except Unreachable:
        progress.advance(-done)
        raise
    os.replace(part, target)


def _token(environ: Mapping[str, str]) -> str | None:
    """Of the machine's service account; None where there is none, which is enough for what is public."""
    host = environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    try:
        answer = get_session().get(f"http://{host}/{_TOKEN}", headers={"metadata-flavor": "Google"}, timeout=5.0)
        if answer.status_code != 200:
            return None
        return msgspec.json.decode(answer.content, type=_Token).access_token
    except (HTTPError, OSError, msgspec.MsgspecError, errors.OfflineModeIsEnabled):
        return None


def _headers(bucket: Bucket) -> dict[str, str]:
    plain = {"accept-encoding": "identity"}
    return plain | ({"authorization": f"Bearer {bucket.token}"} if bucket.token else {})


def _number(bucket: Bucket, size: str) -> int:
    if not size.isdecimal():
        raise HubError(f"{bucket.endpoint} does not answer as Cloud Storage does")
    return int(size)


def _check_status(bucket: Bucket, status: int) -> None:
    if status == 200:
        return
    if status in (408, 429) or status >= 500:
        raise Unreachable(f"Cloud Storage answers {status} for {bucket.shown}; try again later")
    if status in (401, 403):
        who = "the machine's service account" if bucket.token else "somebody without an account"
        raise HubError(f"{bucket.shown} may not be read by {who}; grant it the role Storage Object Viewer")
    raise HubError(f"there is no {bucket.shown} (status {status}); check the bucket's name")


@contextmanager
def _worded(bucket: Bucket) -> Iterator[Any]:
    """The library's exceptions as sentences."""
    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise HubError("HF_HUB_OFFLINE is set, so nothing is asked of Cloud Storage") from None
    except HTTPError as error:
        raise Unreachable(f"{bucket.shown} cannot be read ({type(error).__name__}); check the network") from None
