"""What the studio may reach: the models and runs under the folders that were named when it started, and nothing else.

A request names a thing by its name on the shelf; names are looked up, never joined to a path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.api import load
from regard.errors import DataError, SettingError, did_you_mean
from regard.look import Look, Subject, look
from regard.look.subject import Head

DEMO = Path(__file__).parent / "demo"
OPEN_MODELS = 2  # two can be compared; the one that was not used longest is closed for a third
KEPT_LOOKS = 6


@dataclass
class Opened:
    """A model in use. One request at a time runs it; what it showed last is kept, so that another head is only a lookup."""

    subject: Subject
    lock: threading.RLock = field(default_factory=threading.RLock)
    looks: OrderedDict[tuple[object, ...], Look] = field(default_factory=OrderedDict)

    def look(self, text: str, target: str | None, off: Sequence[Head], ask: Sequence[str]) -> Look:
        key = (text, target, tuple(off), tuple(ask))
        with self.lock:
            if key not in self.looks:
                self.looks[key] = look(self.subject, text, target=target, off=off, ask=ask)
            self.looks.move_to_end(key)
            while len(self.looks) > KEPT_LOOKS:
                self.looks.popitem(last=False)
            return self.looks[key]


class Shelf:
    """Folders by name. A folder of runs is listed anew each time, so that a run that begins later is seen."""

    def __init__(
        self, folders: Sequence[Path], *, device: str = "auto", say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.folders = [folder.resolve() for folder in folders]
        self.device, self.say = device, say
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, tuple[float, Opened]] = OrderedDict()
        for folder in self.folders:
            if not folder.is_dir():
                raise SettingError(f"there is no folder {folder}", "name a run, a model folder, or a folder of runs")
        if not self.models() and not self.runs():
            raise DataError(
                f"{', '.join(map(str, self.folders))}: neither a model nor a run is there",
                "name a folder with config.json or metrics.jsonl in it, or one above such folders",
            )

    def models(self) -> dict[str, Path]:
        """Folders that can be opened as models."""
        return self._named(lambda folder: (folder / "config.json").is_file() and any(folder.glob("*.safetensors*")))

    def runs(self) -> dict[str, Path]:
        """Folders that a run writes, or has written, its metrics to."""
        return self._named(lambda folder: (folder / "metrics.jsonl").is_file())

    def run(self, name: str) -> Path:
        known = self.runs()
        if name not in known:
            raise SettingError(f"there is no run {name!r} here", did_you_mean(name, known) if known else "start one")
        return known[name] / "metrics.jsonl"

    def model(self, name: str) -> Opened:
        """Opened when it is first asked for, and again when its weights have changed."""
        known = self.models()
        if name not in known:
            raise SettingError(f"there is no model {name!r} here", did_you_mean(name, known) if known else "name one")
        written = max((file.stat().st_mtime for file in known[name].glob("*.safetensors*")), default=0.0)
        with self._lock:
            if name not in self._opened or self._opened[name][0] != written:
                subject = load(known[name], device=self.device, say=self.say).subject()
                self._opened[name] = (written, Opened(subject))
            self._opened.move_to_end(name)
            while len(self._opened) > OPEN_MODELS:
                self._opened.popitem(last=False)
            return self._opened[name][1]

    def _named(self, fits: Callable[[Path], bool]) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
            for path in [folder] if fits(folder) else [path for path in below if fits(path)]:
                name, number = path.name, 2
                while name in found:
                    name, number = f"{path.name} ({number})", number + 1
                found[name] = path
        return found
