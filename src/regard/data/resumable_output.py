"""Output files of long jobs, which go on where a crash stopped them.

Results are appended to `NAME.partial`. After each window of inputs the file is synced, and then
`NAME.progress` says, by one atomic write, how many inputs are done and where their results end.
Whatever a crash left behind that place is cut off; the same inputs give the same windows, so the
finished file is the same, byte for byte, as that of a job that was never interrupted. The last step
renames it to NAME.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from regard.system import disk
from regard.system.errors import DataError, DiskError, SettingError


class ResumableOutput:
    """A context manager: `inputs_done` results are there, `commit` adds those of a window.

    `settings` are what the results depend on. An unfinished output of other settings is refused,
    and so is one that another process is writing.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._partial = self.path.with_name(f"{self.path.name}.partial")
        self._progress = self.path.with_name(f"{self.path.name}.progress")
        self._settings = dict(settings)
        self.inputs_done = 0

    def __enter__(self) -> ResumableOutput:
        if not self._partial.exists():
            # A crash right after the last rename leaves the progress of nothing.
            self._progress.unlink(missing_ok=True)
        if self.path.exists():
            raise SettingError(
                f"{self.path} already exists", "remove it, or choose another --output"
            )
        with disk.disk_errors(self.path.name):
            # Appending never cuts off what another process is writing; the lock comes next.
            self._file = self._partial.open("ab")
        try:
            if not disk.lock(self._file):
                raise DiskError(
                    f"another process is writing {self._partial}", "wait for it, or stop it"
                )
            self._resume()
        except BaseException:
            self._file.close()
            raise
        return self

    def _resume(self) -> None:
        size = 0
        if self._progress.exists():
            progress = disk.read_json_object(self._progress, DataError)
            before = dict(progress.get("settings") or {})
            keys = before.keys() | self._settings.keys()
            changed = [key for key in keys if before.get(key) != self._settings.get(key)]
            if changed:
                names = ", ".join(sorted(changed))
                raise SettingError(
                    f"{self._partial} was started with other settings ({names})",
                    f"give the same ones, or remove {self._partial.name} and {self._progress.name}",
                )
            self.inputs_done = int(progress["inputs"])
            size = int(progress["bytes"])
        if self._partial.stat().st_size < size:
            raise DataError(
                f"{self._partial} is shorter than {self._progress.name} says",
                "remove both to start over",
            )
        with disk.disk_errors(self.path.name):
            self._file.truncate(size)

    def commit(self, results: str, inputs: int) -> None:
        """The results of the next `inputs`, on disk when this returns."""
        with disk.disk_errors(self.path.name):
            self._file.write(results.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        self.inputs_done += inputs
        # Content first, then where it ends: a crash between the two repeats one window.
        progress = {
            "inputs": self.inputs_done,
            "bytes": self._file.tell(),
            "settings": self._settings,
        }
        disk.write_json(self._progress, progress)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is not None:
            return
        with disk.disk_errors(self.path.name):
            os.replace(self._partial, self.path)
            disk.sync(self.path.parent)
            self._progress.unlink(missing_ok=True)
