"""Files that commands write besides standard output: checked before anything is computed.

What a user named to be read is never written to. Pages and pictures are made anew by the same
command; nothing else that exists is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from regard.system import disk
from regard.system.errors import SettingError

PAGE = (".html", ".htm")
PICTURE = (".png",)


def check_page(
    flag: str, path: str | None, suffixes: tuple[str, ...], inputs: Iterable[str] = ()
) -> None:
    """Refuses a page or picture that would replace an input, or a file that is none."""
    if path is None:
        return
    check_not_input(flag, path, inputs)
    file = Path(path)
    if file.exists() and (file.is_dir() or file.suffix.lower() not in suffixes):
        disk.require_absent(file, f"choose another {flag}, such as {file.stem}{suffixes[0]}")
    check_folder_exists(flag, file)


def check_new_file(flag: str, path: str | None, inputs: Iterable[str] = ()) -> None:
    """Refuses to write to what exists."""
    if path is None:
        return
    check_not_input(flag, path, inputs)
    disk.require_absent(Path(path), f"remove it, or choose another {flag}")
    check_folder_exists(flag, path)


def check_not_input(flag: str, path: str, inputs: Iterable[str]) -> None:
    """Refuses an output that is one of the inputs, by whatever name."""
    for name in inputs:
        # Missing inputs are reported by who reads them.
        if os.path.exists(path) and os.path.exists(name) and os.path.samefile(path, name):
            raise SettingError(f"{flag} {path} is also an input", f"choose another {flag}")


def check_folder_exists(flag: str, file: str | Path) -> None:
    """Refuses an output in a folder that is not there."""
    folder = Path(file).parent
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}", f"create it, or choose another {flag}")
