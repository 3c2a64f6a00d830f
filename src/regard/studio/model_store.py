"""What the studio may reach: the models and runs under the folders that were named when it started, and nothing else.

A request names a thing by its name on the shelf; names are looked up, never joined to a path.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from regard.errors import DataError, SettingError, did_you_mean
from regard.look import Given, Look, Subject, look
from regard.look.target import Head
from regard.models import load
from regard.studio.sample_inputs import EXAMPLE, example

DEMO = Path(__file__).parent / "demo"
OPEN_MODELS = 2  # two can be compared; the one that was not used longest is closed for a third
KEPT_LOOKS = 6
KEPT_BYTES = 1 << 29  # of what looks have recorded; the last one is kept in any case
KEPT_FILES = 8


class Files:
    """Pictures and recordings that the page handed in: in memory, a few, under names made of their contents."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()[:32]
        with self._lock:
            self._held[name] = data
            self._held.move_to_end(name)
            while len(self._held) > KEPT_FILES:
                self._held.popitem(last=False)
        return name

    def get(self, name: str, kind: str) -> bytes:
        if name == EXAMPLE:
            return example(kind)
        with self._lock:
            if name not in self._held:
                raise DataError(
                    "the studio does not hold this file any more",
                    "choose it again, or try the example",
                )
            self._held.move_to_end(name)
            return self._held[name]


@dataclass
class Opened:
    """A model in use. One request at a time runs it; what it showed last is kept, so that another head is only a lookup.
    `version` tells weights apart that were written at other times."""

    subject: Subject
    version: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)
    looks: OrderedDict[tuple[object, ...], Look] = field(default_factory=OrderedDict)
    given: OrderedDict[str, Given] = field(default_factory=OrderedDict)

    def look(
        self, text: str | Given, target: str | None, off: Sequence[Head], ask: Sequence[str]
    ) -> Look:
        key = (text if isinstance(text, str) else id(text), target, tuple(off), tuple(ask))
        with self.lock:
            if key not in self.looks:
                subject, inputs = self.shown(text)
                self.looks[key] = look(subject, inputs, target=target, off=off, ask=ask)
            self.looks.move_to_end(key)
            while len(self.looks) > 1 and (
                len(self.looks) > KEPT_LOOKS or sum(map(_bytes, self.looks.values())) > KEPT_BYTES
            ):
                self.looks.popitem(last=False)
            return self.looks[key]

    def shown(self, text: str | Given) -> tuple[Subject, str | Tensor]:
        """Whom to show it, and what to show: decoding may begin differently for each recording."""
        if isinstance(text, str):
            return self.subject, text
        return (
            self.subject if text.ends is None else replace(self.subject, ends=text.ends)
        ), text.inputs

    def input(self, files: Files, text: str, file: str | None) -> str | Given:
        """A text, or the file, opened once; a model that reads no text is shown the example unless one is named."""
        medium = self.subject.medium
        if file is None and (self.subject.source is not None or medium is None):
            return text
        if medium is None:
            raise SettingError("this model reads text only", "give it a sentence")
        name = file or EXAMPLE
        with self.lock:
            if name not in self.given:
                self.given[name] = medium.read(files.get(name, medium.kind))
            self.given.move_to_end(name)
            while len(self.given) > KEPT_FILES:
                self.given.popitem(last=False)
                self.looks.clear()  # a look is found by its input, which is gone
            return self.given[name]


def _bytes(found: Look) -> int:
    parts = [t for call in found.probe.attentions.values() for t in (call.q, call.k, call.v)]
    return sum(t.numel() * t.element_size() for t in [*parts, *found.probe.tensors.values()])


class Shelf:
    """Folders by name. A folder of runs is listed anew each time, so that a run that begins later is seen."""

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        device: str = "auto",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folders = [folder.resolve() for folder in folders]
        self.device, self.say = device, say
        self.files = Files()
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, tuple[float, Opened]] = OrderedDict()
        for folder in self.folders:
            if not folder.is_dir():
                raise SettingError(
                    f"there is no folder {folder}",
                    "name a run, a model folder, or a folder of runs",
                )
        if not self.models() and not self.runs():
            raise DataError(
                f"{', '.join(map(str, self.folders))}: neither a model nor a run is there",
                "name a folder with config.json or metrics.jsonl in it, or one above such folders",
            )

    def models(self) -> dict[str, Path]:
        """Folders that can be opened as models."""
        return self._named(
            lambda folder: (folder / "config.json").is_file() and any(folder.glob("*.safetensors*"))
        )

    def runs(self) -> dict[str, Path]:
        """Folders that a run writes, or has written, its metrics to."""
        return self._named(lambda folder: (folder / "metrics.jsonl").is_file())

    def run(self, name: str) -> Path:
        known = self.runs()
        if name not in known:
            raise SettingError(
                f"there is no run {name!r} here",
                did_you_mean(name, known) if known else "start one",
            )
        return known[name] / "metrics.jsonl"

    def model(self, name: str) -> Opened:
        """Opened when it is first asked for, and again when its weights have changed."""
        known = self.models()
        if name not in known:
            raise SettingError(
                f"there is no model {name!r} here",
                did_you_mean(name, known) if known else "name one",
            )
        written = max(
            (file.stat().st_mtime for file in known[name].glob("*.safetensors*")), default=0.0
        )
        with self._lock:
            if name not in self._opened or self._opened[name][0] != written:
                subject = load(known[name], device=self.device, say=self.say).subject()
                self._opened[name] = (written, Opened(subject, written))
            self._opened.move_to_end(name)
            while len(self._opened) > OPEN_MODELS:
                self._opened.popitem(last=False)
            return self._opened[name][1]

    def _named(self, fits: Callable[[Path], bool]) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            below = sorted(
                path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()
            )
            for path in [folder] if fits(folder) else [path for path in below if fits(path)]:
                name, number = path.name, 2
                while name in found:
                    name, number = f"{path.name} ({number})", number + 1
                found[name] = path
        return found
