"""Fetching a model from a hub, when it is asked for: the files that can be read here, and never a pickle or code.

What arrives goes into a folder beside its place, which takes the place by one rename when all is there; a file that broke off
goes on where it stopped, if it is still the same.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from regard import disk
from regard.errors import CheckpointError, ModelError
from regard.families.folder import WEIGHTS
from regard.models.saving import BESIDE, PIECES

_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_CHUNK = 1 << 20
_SECONDS = 30  # without an answer


def is_name(name: str) -> bool:
    """Whether it can be the name of a model on a hub: `owner/name`, or a name alone."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def fetch(name: str, say: Callable[[str], None]) -> Path:
    """The folder that holds this model, fetched unless it was before: ~/.cache/regard, or what REGARD_CACHE names."""
    if not is_name(name):
        raise ModelError(f"{name!r} is no name of a model on a hub", "give it as owner/name")
    cache = Path(os.environ.get("REGARD_CACHE") or Path.home() / ".cache" / "regard")
    place = cache / name.replace("/", "--")
    if place.is_dir():
        say(f"{name} is in {place}")
        return place
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not hub.startswith(("https://", "http://")):
        raise ModelError(
            f"HF_ENDPOINT is {hub!r}, which is no address of the web",
            "give one that begins with https://",
        )
    arriving = cache / f".{place.name}.arriving"
    with disk.disk_errors(name):
        arriving.mkdir(parents=True, exist_ok=True)
        _all(f"{hub}/{name}/resolve/main", arriving, name, say)
        for path in arriving.rglob("*"):
            disk.sync(path)
        os.rename(arriving, place)
        disk.sync(cache)
    return place


def _all(source: str, folder: Path, name: str, say: Callable[[str], None]) -> None:
    if not _file(source, folder, "config.json", say):
        raise ModelError(
            f"{source} has no config.json that anyone may read",
            "check the name; fetch a private model with its owner's tools, and give the folder",
        )
    if not _file(source, folder, WEIGHTS, say):
        for shard in _shards(source, folder, name, say):
            if not _file(source, folder, shard, say):
                raise ModelError(f"{name} lacks {shard}, which its index names", "ask its owner")
    for file in (*BESIDE, *PIECES):
        _file(source, folder, file, say)


def _shards(source: str, folder: Path, name: str, say: Callable[[str], None]) -> list[str]:
    index = f"{WEIGHTS}.index.json"
    if not _file(source, folder, index, say):
        raise ModelError(
            f"{name} has no {WEIGHTS}",
            "its weights may be a pickle, which can run any code: convert it where you trust it, and give the folder",
        )
    try:
        files = set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        files = {""}
    if not all(
        isinstance(file, str) and re.fullmatch(r"[\w-][\w.-]*\.safetensors", file) for file in files
    ):
        (folder / index).unlink()
        raise CheckpointError(f"the index of {name} is damaged", "try again")
    return sorted(files)


def _file(source: str, folder: Path, file: str, say: Callable[[str], None]) -> bool:
    """Fetches one file, unless it is there; False if the hub has none of this name."""
    place = folder / file
    if place.is_file():
        return True
    place.parent.mkdir(exist_ok=True)
    part, mark = place.with_name(f".{place.name}.part"), place.with_name(f".{place.name}.mark")
    try:
        answer = _ask(f"{source}/{file}", part, mark)
        if answer is None:
            return False
        with answer:
            _receive(answer, part, mark, f"{source}/{file}", say)
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        TimeoutError,
        ConnectionError,
    ) as error:
        raise ModelError(
            f"fetching {source}/{file} failed: {error}",
            "check the connection, and ask again: it goes on",
        ) from None
    mark.unlink(missing_ok=True)
    os.replace(part, place)
    return True


def _ask(address: str, part: Path, mark: Path) -> http.client.HTTPResponse | None:
    """The rest of a file that broke off, provided it is still the one that was marked; otherwise all of it."""
    headers = {"User-Agent": "regard"}
    if part.is_file() and mark.is_file():
        headers |= {
            "Range": f"bytes={part.stat().st_size}-",
            "If-Range": mark.read_text(encoding="utf-8"),
        }
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=_SECONDS
        )
        return answer
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to send: it cannot be told from a file that shrank
            part.unlink()
            return _ask(address, part, mark)
        if error.code in (401, 403, 404):
            return None
        raise


def _receive(
    answer: http.client.HTTPResponse,
    part: Path,
    mark: Path,
    address: str,
    say: Callable[[str], None],
) -> None:
    goes_on = answer.status == 206
    before = part.stat().st_size if goes_on else 0
    length = answer.headers.get("Content-Length")
    whole = None if length is None else before + int(length)
    size = "" if whole is None else f", {whole / 1e6:.1f} MB"
    say(f"fetching {address}{size}" + (f", from {before / 1e6:.1f} MB on" if goes_on else ""))
    if etag := answer.headers.get("ETag"):
        mark.write_text(etag, encoding="utf-8")
    else:
        mark.unlink(missing_ok=True)
    with part.open("ab" if goes_on else "wb") as file:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
    if whole is not None and part.stat().st_size != whole:
        raise ConnectionError(f"{part.stat().st_size} of {whole} bytes came")
