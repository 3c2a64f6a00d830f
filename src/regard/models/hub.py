"""Downloads from a model hub, only when asked for: safetensors, configs and tokenizer files.

Pickles and code are never fetched. Files arrive in a temporary folder, which is renamed when all
are there; an interrupted file is resumed by an HTTP range request if its ETag is still the same.
"""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from regard.families.folder import WEIGHTS
from regard.models.saving import COMPANION_FILES, SENTENCEPIECE_FILES
from regard.system import disk
from regard.system.disk import cache_folder
from regard.system.errors import CheckpointError, ModelError, Say

_MODEL_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")

_CHUNK_BYTES = 1 << 20  # of a response held in memory at a time
_TIMEOUT_SECONDS = 30  # without a byte, not of the whole download
_MEGABYTE = 1e6

# HTTP status codes
_PARTIAL_CONTENT = 206
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_NOT_FOUND = 404
_RANGE_NOT_SATISFIABLE = 416


def is_name(name: str) -> bool:
    """Whether it can be the name of a model on a hub: `owner/name`, or a name alone."""
    return _MODEL_NAME.fullmatch(name) is not None and ".." not in name


def fetch(name: str, say: Say) -> Path:
    """The local folder of a model, downloaded unless it is in the cache.

    The cache is ~/.cache/regard, or what REGARD_CACHE names; the hub is huggingface.co, or what
    HF_ENDPOINT names.
    """
    if not is_name(name):
        raise ModelError(f"{name!r} is not a model name on the Hub", "use the form owner/name")
    cache = cache_folder()
    folder = cache / name.replace("/", "--")
    # A folder in the cache is complete: it was renamed only then.
    if folder.is_dir():
        say(f"{name} is in {folder}")
        return folder
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not hub.startswith(("https://", "http://")):
        raise ModelError(
            f"HF_ENDPOINT = {hub!r} is not a URL",
            "set it to a URL that starts with https://",
        )
    # The same name each time, so that a second attempt resumes what the first one left.
    incomplete = cache / f".{folder.name}.arriving"
    with disk.disk_errors(name):
        incomplete.mkdir(parents=True, exist_ok=True)
        # resolve/main is the hub's address of a file on the main branch, LFS pointers followed.
        _Download(name, f"{hub}/{name}/resolve/main", incomplete, say).fetch_all()
        for path in incomplete.rglob("*"):
            disk.sync(path)
        os.rename(incomplete, folder)
        # The rename itself must reach the disk too.
        disk.sync(cache)
    return folder


class _Index(BaseModel):
    """model.safetensors.index.json: tensor → file; a slash in a name could lead out of the
    folder."""

    weight_map: dict[str, Annotated[str, Field(pattern=r"^[\w-][\w.-]*\.safetensors$")]]


@dataclass(frozen=True)
class _Download:
    """The download of one model: its name, its address on the hub, and the folder to fill."""

    name: str
    address: str
    folder: Path
    say: Say

    def fetch_all(self) -> None:
        """Downloads config.json, the weights, and whatever else of the known files exists."""
        if not self._fetch("config.json"):
            raise ModelError(
                f"{self.address} has no public config.json",
                "check the name; for a private model, download it yourself and pass the folder",
            )
        # One file of weights, or an index that names several.
        if not self._fetch(WEIGHTS):
            for shard in self._shards():
                if not self._fetch(shard):
                    raise ModelError(
                        f"{self.name} has no {shard}, which its weight index lists",
                        "ask the owner of the model",
                    )
        # Most models have few of these; a missing one is no error.
        for file in (*COMPANION_FILES, *SENTENCEPIECE_FILES):
            self._fetch(file)

    def _shards(self) -> list[str]:
        """The weight files that the index of a sharded checkpoint names."""
        index = f"{WEIGHTS}.index.json"
        if not self._fetch(index):
            raise ModelError(
                f"{self.name} has no {WEIGHTS}",
                "its weights may be pickled, which can run any code: convert them to safetensors "
                "yourself, and pass the folder",
            )
        path = self.folder / index
        try:
            return sorted({*_Index.model_validate_json(path.read_bytes()).weight_map.values()})
        except ValidationError:
            path.unlink()
            raise CheckpointError(
                f"the weight index of {self.name} is damaged", "download the model again"
            ) from None

    def _fetch(self, file: str) -> bool:
        """Downloads one file, unless it is there; False if the hub has none of this name."""
        path = self.folder / file
        if path.is_file():
            return True
        path.parent.mkdir(exist_ok=True)
        url = f"{self.address}/{file}"
        part = path.with_name(f".{path.name}.part")
        etag = path.with_name(f".{path.name}.mark")
        try:
            response = _request(url, part, etag)
            if response is None:
                return False
            with response:
                _receive(response, part, etag, url, self.say)
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            TimeoutError,
            ConnectionError,
        ) as error:
            raise ModelError(
                f"the download of {url} failed: {error}",
                "check the connection and try again: the download resumes",
            ) from None
        etag.unlink(missing_ok=True)
        # Only a complete file gets its name.
        os.replace(part, path)
        return True


def _request(url: str, part: Path, etag: Path) -> http.client.HTTPResponse | None:
    """Requests a file, or the rest of it where a part is there; None if it may not be read.

    If-Range makes the server send the whole file when the ETag has changed since.
    """
    headers = {"User-Agent": "regard"}
    if part.is_file() and etag.is_file():
        headers["Range"] = f"bytes={part.stat().st_size}-"
        headers["If-Range"] = etag.read_text(encoding="utf-8")
    request = urllib.request.Request(url, headers=headers)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(
            request, timeout=_TIMEOUT_SECONDS
        )
        return response
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_NOT_SATISFIABLE:
            # Either all bytes are here already or the file has shrunk: start again to be sure.
            part.unlink()
            return _request(url, part, etag)
        # The hub answers 401 also for names that do not exist.
        if error.code in (_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND):
            return None
        raise


def _receive(
    response: http.client.HTTPResponse,
    part: Path,
    etag: Path,
    url: str,
    say: Say,
) -> None:
    """Writes the body of a response to `part`, behind what is there if it continues a file."""
    resumed = response.status == _PARTIAL_CONTENT
    offset = part.stat().st_size if resumed else 0
    content_length = response.headers.get("Content-Length")
    size = None if content_length is None else offset + int(content_length)
    message = f"fetching {url}"
    if size is not None:
        message += f", {size / _MEGABYTE:.1f} MB"
    if resumed:
        message += f", from {offset / _MEGABYTE:.1f} MB on"
    say(message)
    # Without an ETag there is no way to tell later whether the file is still the same.
    if response.headers.get("ETag"):
        etag.write_text(response.headers["ETag"], encoding="utf-8")
    else:
        etag.unlink(missing_ok=True)
    with part.open("ab" if resumed else "wb") as file:
        while chunk := response.read(_CHUNK_BYTES):
            file.write(chunk)
    received = part.stat().st_size
    if size is not None and received != size:
        raise ConnectionError(f"received {received} of {size} bytes")
