"""The models and runs that the studio may open: those under the folders named when it started.

A request names a thing by its listed name; names are looked up, never joined to a path. Another
folder is listed once a page has asked to open it, if the studio was started so that it may.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

from regard.look import Look, MediaInput, look
from regard.look.probe_names import Head
from regard.models import Model, hub, load
from regard.studio.lesson import open_lesson
from regard.studio.sample_inputs import EXAMPLE, example
from regard.system import disk
from regard.system.disk import cache_folder
from regard.system.errors import DataError, RegardError, Say, SettingError, did_you_mean

Key = TypeVar("Key")

DEMO = Path(__file__).parent / "demo"
SHAKESPEARE = Path(__file__).parent / "shakespeare"
OPEN_MODELS = 2  # two can be compared; for a third the least recently used one is closed
MAX_RECORDINGS = 6  # of a model
MAX_LOOK_BYTES = 1 << 29  # of a model's recordings; the last one is kept in any case
MAX_FILES = 8  # uploaded ones
MAX_RECENT = 12  # folders that were opened from a page
MAX_LISTED = 200  # folders of one folder


def _used(cache: OrderedDict[Key, Any], key: Key, most: int) -> None:
    """Notes that an entry was used last; those that were used first are dropped."""
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)


class UploadedFiles:
    """Uploaded images and recordings: the last few, in memory, named by a hash of the contents."""

    def __init__(self) -> None:
        self._contents: OrderedDict[str, bytes] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def add(self, data: bytes) -> str:
        """Stores a file; its name."""
        # The same file gets the same name, so that its recordings are found again.
        name = hashlib.sha256(data).hexdigest()[:32]
        with self._lock:
            self._contents[name] = data
            _used(self._contents, name, MAX_FILES)
        return name

    def get(self, name: str, kind: str) -> bytes:
        """The contents of a file; `example` names the sample of a kind (`image`, `sound`)."""
        if name == EXAMPLE:
            return example(kind)
        with self._lock:
            if name not in self._contents:
                raise DataError(
                    "the studio no longer holds this file",
                    "choose it again, or use the example",
                )
            _used(self._contents, name, MAX_FILES)
            return self._contents[name]


@dataclass
class OpenModel:
    """An open model with a cache of its last recordings, so that another head is only a lookup.

    One request at a time runs it. `version` is the modification time of its weights.
    """

    model: Model
    version: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)
    looks: OrderedDict[tuple[object, ...], Look] = field(default_factory=OrderedDict)
    media: OrderedDict[str, MediaInput] = field(default_factory=OrderedDict)

    def look(
        self, text: str | MediaInput, target: str | None, off: Sequence[Head], ask: Sequence[str]
    ) -> Look:
        """A recording, from the cache if the same one was made before."""
        key = (text, target, tuple(off), tuple(ask))
        # A model runs for one request at a time: its memory is that of one forward pass.
        with self.lock:
            if key not in self.looks:
                self.looks[key] = look(self.model, text, target=target, off=off, ask=ask)
            _used(self.looks, key, MAX_RECORDINGS)
            while len(self.looks) > 1 and sum(map(_bytes, self.looks.values())) > MAX_LOOK_BYTES:
                self.looks.popitem(last=False)
            return self.looks[key]

    def input(self, files: UploadedFiles, text: str, file: str | None) -> str | MediaInput:
        """The text, or the uploaded file as the model reads it.

        A model that reads no text is shown the sample unless a file is named.
        """
        medium = self.model.medium
        if file is None and (self.model.accepts_text or medium is None):
            return text
        if medium is None:
            raise SettingError("this model reads text only", "enter a sentence")
        name = file or EXAMPLE
        with self.lock:
            if name not in self.media:
                self.media[name] = self.model.read_medium(files.get(name, medium))
            _used(self.media, name, MAX_FILES)
            return self.media[name]


def _bytes(recording: Look) -> int:
    """The bytes of all tensors of a recording."""
    tensors = [*recording.probe.tensors.values()]
    for call in recording.probe.attentions.values():
        tensors += [call.q, call.k, call.v]
    return sum(tensor.nbytes for tensor in tensors)


class ModelStore:
    """Model folders and run folders by name.

    Folders are listed anew each time, so that a run that begins later appears.
    """

    lesson: dict[str, Any] | None = None  # that the page plays

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        device: str = "auto",
        say: Say = lambda text: None,
        opener: FolderOpener | None = None,
    ) -> None:
        self.folders = [folder.resolve() for folder in folders]
        self._named_at_start = len(self.folders)
        self.device = device
        self.say = say
        self.opener = opener  # None: pages open no other folders
        self.files = UploadedFiles()
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenModel] = OrderedDict()  # least recently used first
        for folder in self.folders:
            if not folder.is_dir():
                raise SettingError(
                    f"there is no folder {folder}",
                    "give a run, a model folder or a folder of runs",
                )
        if not self.models() and not self.runs():
            raise DataError(
                f"{', '.join(map(str, self.folders))}: no model and no run found",
                "give a folder with config.json or metrics.jsonl, or a parent of such folders",
            )

    def models(self) -> dict[str, Path]:
        """The folders that can be opened as models."""
        return self._named(_is_model)

    def runs(self) -> dict[str, Path]:
        """The folders of training runs, finished or not."""
        return self._named(lambda folder: (folder / "metrics.jsonl").is_file())

    def latest_runs(self) -> list[str]:
        """The names of the runs, the one that logged last first."""
        runs = self.runs()
        logged = {name: (path / "metrics.jsonl").stat().st_mtime for name, path in runs.items()}
        return sorted(runs, key=logged.__getitem__, reverse=True)

    def open_folder(self, path: str) -> str:
        """Lists another model folder, or a folder of models; the name of the first model in it."""
        if self.opener is None:
            raise not_allowed()
        folder = self.opener.folder(path, self.say)
        if not any(_is_model(each) for each in (folder, *_subfolders(folder))):
            raise DataError(
                f"{folder} contains no model: config.json and *.safetensors are missing",
                "choose a folder with these files, or a parent of such folders",
            )
        listed = self._model_in(folder)
        if listed is None:
            # From here on its models are listed like those named at the start.
            self.folders.append(folder)
            listed = self._model_in(folder)
            assert listed is not None
        if _is_model(folder):
            try:
                self.model(listed)
            except RegardError:
                # One that cannot be opened leaves no trace in the list.
                if folder in self.folders[self._named_at_start :]:
                    self.folders.remove(folder)
                raise
        self.opener.remember(folder)
        return listed

    def _model_in(self, folder: Path) -> str | None:
        """The name of a folder's model, or of the first one right below it, where it is listed."""
        for name, path in self.models().items():
            if path == folder or (path.parent == folder and folder in self.folders):
                return name
        return None

    def run(self, name: str) -> Path:
        """The metrics file of a run."""
        return _listed("run", name, self.runs()) / "metrics.jsonl"

    def model(self, name: str) -> OpenModel:
        """A model, opened when first asked for and again when its weights have changed."""
        folder = _listed("model", name, self.models())
        # A run writes new weights while the studio is open.
        times = [file.stat().st_mtime for file in folder.glob("*.safetensors*")]
        version = max(times, default=0.0)
        with self._lock:
            if name not in self._open or self._open[name].version != version:
                model = load(folder, device=self.device, say=self.say)
                self._open[name] = OpenModel(model, version)
            _used(self._open, name, OPEN_MODELS)
            return self._open[name]

    def _named(self, matches: Callable[[Path], bool]) -> dict[str, Path]:
        """The folders that match, or those right below them, by unique names."""
        named: dict[str, Path] = {}
        for folder in self.folders:
            for path in [folder] if matches(folder) else _subfolders(folder):
                # A folder may be named by itself and by the one above it.
                if matches(path) and path not in named.values():
                    names = chain([path.name], (f"{path.name} ({n})" for n in count(2)))
                    named[next(name for name in names if name not in named)] = path
        return named


def with_lesson(lesson: str, folder: str | None) -> ModelStore:
    """A model, by default the packaged one, and a lesson for it: a packaged one or a file."""
    opened = open_lesson(lesson)
    store = ModelStore([DEMO if folder is None else Path(folder)])
    opened.require_fit(store.model(next(iter(store.models()), "")).model)
    store.lesson = asdict(opened)
    return store


def _listed(kind: str, name: str, listed: dict[str, Path]) -> Path:
    if name not in listed:
        repair = did_you_mean(name, listed) if listed else f"open a folder with a {kind}"
        raise SettingError(f"there is no {kind} {name!r}", repair)
    return listed[name]


def recent_folders_file() -> Path:
    """Where the folders that were opened lately are listed: in the cache, beside downloads."""
    return cache_folder() / "studio.json"


class FolderOpener:
    """Opening of folders that were not named at the start: which may be, and which were lately.

    A path is made absolute and must be an existing folder. Models are data: no code of a folder
    is ever run. With `download`, a name on the hub is fetched.
    """

    def __init__(self, recent_file: Path | None = None, *, download: bool = False) -> None:
        self.recent_file = recent_file  # where the list is kept between sessions
        self.download = download

    def folder(self, path: str, say: Say) -> Path:
        """The folder of a path that a page sent, or of a name on the hub."""
        # A folder wins over a name on the hub.
        if self.download and hub.is_name(path) and not Path(path).exists():
            return hub.fetch(path, say)
        folder = _absolute(path)
        if folder.is_file():
            raise SettingError(f"{folder} is a file, not a folder", f"open {folder.parent}")
        if not folder.is_dir():
            repair = "choose an existing folder"
            if hub.is_name(path) and not self.download:
                repair += "; to open models from the Hub, start the studio with --download"
            raise SettingError(f"there is no folder {folder}", repair)
        return folder

    def recent(self) -> list[Path]:
        """The folders that were opened last and still hold a model, newest first."""
        if self.recent_file is None:
            return []
        try:
            names = disk.read_json_object(self.recent_file, DataError).get("folders", [])
        except DataError:
            return []
        # The file may have been written by anyone: only folders that exist are listed.
        paths = [Path(name) for name in names if isinstance(name, str)]
        return [path for path in paths if path.is_dir()]

    def remember(self, folder: Path) -> None:
        """Puts a folder at the head of the list."""
        if self.recent_file is None:
            return
        folders = [folder, *(path for path in self.recent() if path != folder)][:MAX_RECENT]
        with suppress(OSError):  # a home that cannot be written to costs the list, nothing else
            self.recent_file.parent.mkdir(parents=True, exist_ok=True)
            disk.write_json(self.recent_file, {"folders": [*map(str, folders)]})

    def listing(self, path: str) -> tuple[Path, list[tuple[str, bool]]]:
        """A folder, and the names of those in it, each with whether it can be opened."""
        folder = _absolute(path)
        if not folder.is_dir():
            raise SettingError(f"there is no folder {folder}", "choose an existing folder")
        try:
            inside = _subfolders(folder)[:MAX_LISTED]
        except PermissionError:
            raise SettingError(f"no permission to read {folder}", "choose another folder") from None
        return folder, [(each.name, _is_model(each)) for each in inside]


def _absolute(path: str) -> Path:
    # No path of an operating system holds a zero byte; Python would raise a ValueError.
    if "\0" in path:
        raise SettingError("this is not a valid path", "choose a folder")
    try:
        return Path(path).expanduser().resolve()
    except (RuntimeError, OSError):  # an unknown user, or a loop of links
        raise SettingError(
            f"{path} is not a valid path on this machine", "choose a folder"
        ) from None


def not_allowed() -> SettingError:
    return SettingError(
        "this studio opens only the folders it was started with",
        "start it with this folder: regard studio FOLDER",
    )


def _subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, by name, without hidden ones.

    Links are left out: they could lead out of the folders that were named.
    """
    inside = folder.iterdir()
    return sorted(
        p for p in inside if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")
    )


def _is_model(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file() and any(folder.glob("*.safetensors*"))
    except OSError:  # a folder that may not be read
        return False
