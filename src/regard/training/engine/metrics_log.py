"""The metrics log of a run: metrics.jsonl for programs, and TensorBoard on request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.system import disk
from regard.system.errors import DataError, SettingError


class MetricsLog:
    """metrics.jsonl: one JSON object per line, appended and flushed at once.

    A resumed run truncates the file to where it was when its checkpoint was saved.
    """

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        self.path = path
        # A resumed run appends. Unbuffered: what a full disk did not take must not come later.
        with disk.disk_errors(path.name):
            self.file = disk.open_to_append(path)
        self.summary_writer = None
        if tensorboard is not None:
            self.summary_writer = summary_writer_class()(tensorboard)

    def write(self, record: dict[str, Any]) -> None:
        line = disk.json_line(disk.json_value(record)).encode()
        with disk.disk_errors(self.path.name):
            # One call may write a part only, the next then says why.
            while line:
                line = line[self.file.write(line) :]
        if self.summary_writer is None:
            return
        for key, value in record.items():
            # Scalars only: samples, examples and entropies by layer are in the file alone.
            if isinstance(value, (int, float)) and key not in ("step", "epoch"):
                self.summary_writer.add_scalar(key, value, record["step"])

    def position(self) -> int:
        """The length of the file in bytes."""
        return self.file.seek(0, os.SEEK_END)

    def sync(self) -> None:
        """fsync: all that was logged has reached the disk."""
        with disk.disk_errors(self.path.name):
            os.fsync(self.file.fileno())

    def truncate(self, position: int) -> bool:
        """Drops what was logged after this position.

        False if the file is not what was logged: it is shorter, or has no end of a line there. Then
        its lines up to there are kept.
        """
        with disk.disk_errors(self.path.name), open(self.path, "rb") as logged:
            end = logged.read(position).rfind(b"\n") + 1  # of the last complete line
            self.file.truncate(end)
        return end == position

    def close(self) -> None:
        self.file.close()
        if self.summary_writer is not None:
            self.summary_writer.close()


class NoMetrics(MetricsLog):
    """The null form: of a rank that logs nothing."""

    def __init__(self) -> None:
        self.path = Path(os.devnull)

    def write(self, record: dict[str, Any]) -> None:
        pass

    def position(self) -> int:
        return 0

    def sync(self) -> None:
        pass

    def truncate(self, position: int) -> bool:
        return True

    def close(self) -> None:
        pass


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a metrics log; lines that are damaged or still being written are left out."""
    if not path.is_file():
        return
    try:
        content = disk.read_bytes(path)
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}", "move it away; a new log will be started"
        ) from None
    for line in content.decode(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def last_losses(path: Path) -> dict[str, float]:
    """The last training loss of a log, and the numbers of its last validation."""
    losses: dict[str, float] = {}
    for record in records(path):
        if record.get("event") == "validation":
            losses |= {
                f"validation_{key}": value
                for key, value in record.items()
                if isinstance(value, float)
            }
        elif "event" not in record and isinstance(record.get("loss"), float):
            losses["loss"] = record["loss"]
    return losses


def summary_writer_class() -> Any:
    """TensorBoard's writer of events; `SettingError` where the package tensorboard is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SettingError(
            "tensorboard = true needs the package tensorboard", "pip install tensorboard"
        ) from None
    return SummaryWriter
