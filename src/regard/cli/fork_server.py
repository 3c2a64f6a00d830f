"""A process that stays, with torch imported: a fork of it answers each command.

`import torch` is most of the time of a command that answers one sentence. Where a server runs
(`regard daemon start`), the shell's process imports nothing: it hands arguments, folder,
environment, limits and file descriptors over a Unix socket, passes signals on, and ends with the
exit code of the fork. For the user nothing else differs.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import importlib
import io
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from regard.errors import SettingError

# Read while torch is imported: a server that was started with others computes otherwise.
IMPORT_SETTINGS = (
    *("CUBLAS", "CUDA", "GOMP", "KMP", "LD_", "MALLOC", "MKL", "NVIDIA", "OMP", "OPENBLAS"),
    *("PYTHON", "PYTORCH", "TORCH", "TRITON"),
)
# What a terminal or another process may send to the command.
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))
# Imported before the first command; they import the rest of what commands need.
MODULES = ("regard.models", "regard.models.prediction", "regard.look")
SECONDS_TO_ASK = 5.0  # a request that takes longer is none
STANDARD_STREAMS = (0, 1, 2)


# ------------------------------------------------------------------ where a server listens


def socket_path() -> Path:
    """The socket of the server of this user, this Python and this copy of the package."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    place = f"{sys.prefix}\n{Path(__file__).parent}"
    digest = hashlib.sha256(place.encode()).hexdigest()[:12]
    return Path(base) / f"regard-{os.getuid()}" / f"{digest}.sock"


def is_private(folder: Path) -> bool:
    """Whether a folder is this user's, and no other's: whoever may write there may listen there."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own_folder and not status.st_mode & 0o077


# ------------------------------------------------------------------ the process of the shell


def answer(arguments: Sequence[str]) -> int | None:
    """The exit code of a command that a server has answered; None where there is no server."""
    with _connection() as connection:
        if connection is None:
            return None
        _send(connection, _request(arguments), STANDARD_STREAMS)
        replies = connection.makefile("rb")
        first = _read(replies)
        if first is None:  # it ended, because its code is not that of the files any more
            return None
        if "other_settings" in first:
            # Whoever has not asked for a daemon need not hear why there is none.
            if not first["automatic"]:
                names = ", ".join(first["other_settings"])
                message = f"the daemon was started with other settings ({names})"
                print(f"{message}; running without it", file=sys.stderr)
            return None
        with _signals_forwarded(first["process"]):
            last = _read(replies)
    if last is None:
        print("error: the daemon was killed\n  → run the command again", file=sys.stderr)
        return 1
    code = int(last["code"])
    return code if code >= 0 else 128 - code  # ended by a signal, as a shell reports it


def ask(question: str) -> dict[str, Any] | None:
    """The answer of a server to "status" or "stop"; None where there is none."""
    with _connection() as connection:
        if connection is None:
            return None
        _send(connection, {"question": question}, STANDARD_STREAMS)
        return _read(connection.makefile("rb"))


@contextlib.contextmanager
def _connection() -> Iterator[socket.socket | None]:
    path = socket_path()
    if not path.exists() or not is_private(path.parent):
        yield None
        return
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:  # its process was killed
            yield None
            return
        yield connection


def _request(arguments: Sequence[str]) -> dict[str, Any]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "arguments": list(arguments),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "umask": umask,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
    }


@contextlib.contextmanager
def _signals_forwarded(process: int) -> Iterator[None]:
    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)

    # What the shell has this process ignore (SIGHUP by nohup, SIGINT in the background) stays so.
    numbers = [one for one in FORWARDED_SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------ messages


def _send(connection: socket.socket, message: dict[str, Any], files: Sequence[int] = ()) -> None:
    """One line of JSON; file descriptors go before it, with a byte that carries them."""
    # os.environ and paths may hold bytes that are no UTF-8, as lone surrogates.
    line = json.dumps(message).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if files:
            socket.send_fds(connection, [b" "], list(files))
        connection.sendall(line)


def _read(replies: Any) -> dict[str, Any] | None:
    """The next message; None where the other side has gone."""
    try:
        line = replies.readline()
    except OSError:
        return None
    return json.loads(line) if line else None


# ------------------------------------------------------------------ the server


@dataclass
class ForkServer:
    """Answers commands by `run` in a fork; ends after `idle` seconds without one.

    `automatic`: a command has started it, and nobody by name.
    """

    run: Callable[[], NoReturn]
    idle: float
    automatic: bool = False
    started: float = 0.0

    def serve(self) -> None:
        """Imports what commands need, then listens until it is stopped, idle, or out of date."""
        for module in MODULES:
            importlib.import_module(module)
        gc.freeze()  # a collection in a fork would copy the pages that it shares with the server
        files = _code_files()
        path = socket_path()
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # two were started at once, and the other one serves
            return
        os.chdir("/")  # no folder is kept in use
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets children that ended
        self.started = time.time()
        with socket.socket(socket.AF_UNIX) as listener:
            own_path = path.with_suffix(f".{os.getpid()}")
            listener.bind(str(own_path))
            listener.listen()
            listener.settimeout(self.idle)
            own_path.rename(path)  # who finds it finds it listening
            try:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        if _code_files() != files:
                            break  # closed without a word: the client runs the command itself
                        self._fork(listener, connection)
            except TimeoutError:
                pass
            finally:
                path.unlink(missing_ok=True)

    def _fork(self, listener: socket.socket, connection: socket.socket) -> None:
        if os.fork():
            return
        # The fork never comes back to the loop of the server.
        try:
            listener.close()
            # Not the server's, whose shell may have ignored some: those of any new process.
            for number in (*FORWARDED_SIGNALS, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._handle(connection)
        finally:
            os._exit(0)

    def _handle(self, connection: socket.socket) -> None:
        """One connection, in a process of its own."""
        connection.settimeout(SECONDS_TO_ASK)
        if _peer(connection) != os.getuid():
            return
        _, streams, _, _ = socket.recv_fds(connection, 1, len(STANDARD_STREAMS))
        request = _read(connection.makefile("rb"))
        if request is None or len(streams) != len(STANDARD_STREAMS):
            return
        match request.get("question"):
            case "status":
                status = {"process": os.getppid(), "started": self.started, "idle": self.idle}
                _send(connection, {**status, "automatic": self.automatic})
            case "stop":
                os.kill(os.getppid(), signal.SIGTERM)
                _send(connection, {"process": os.getppid()})
            case _:
                self._answer(connection, request, streams)

    def _answer(
        self, connection: socket.socket, request: dict[str, Any], streams: Sequence[int]
    ) -> None:
        other_settings = _other_settings(request["environment"])
        if other_settings:
            reply = {"other_settings": other_settings, "automatic": self.automatic}
            _send(connection, reply)
            return
        worker = os.fork()
        if not worker:
            connection.close()
            _become(request, streams)
            self.run()
        for stream in streams:
            os.close(stream)
        _send(connection, {"process": worker})
        ended = os.pidfd_open(worker)
        ready, _, _ = select.select([connection.fileno(), ended], [], [])
        if ended not in ready:  # the client has gone: nobody waits for the answer
            os.kill(worker, signal.SIGHUP)
        _, status = os.waitpid(worker, 0)
        _send(connection, {"code": os.waitstatus_to_exitcode(status)})


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Gives this process all that the client's process has."""
    for number, stream in zip(STANDARD_STREAMS, streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    # Python's streams are those of the numbers; how they are buffered depends on the file.
    for output in (sys.stdout, sys.stderr):
        assert isinstance(output, io.TextIOWrapper), "nobody has replaced it"
        output.reconfigure(line_buffering=output.isatty())
    os.environ.clear()
    os.environ.update(request["environment"])
    os.umask(request["umask"])
    for name, (soft, _) in request["limits"].items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError):  # a limit above the server's own
            resource.setrlimit(kind, (soft, hard))
    with contextlib.suppress(OSError):  # deleted meanwhile: the command says what it misses
        os.chdir(request["folder"])
    sys.argv = ["regard", *request["arguments"]]


def _other_settings(environment: dict[str, str]) -> list[str]:
    """Variables that torch or Python read at their start, and that the server has otherwise."""
    names = {*os.environ, *environment}
    return sorted(
        name
        for name in names
        if name.startswith(IMPORT_SETTINGS) and environment.get(name) != os.environ.get(name)
    )


def _code_files() -> dict[str, float]:
    """All files of this package, and the first of every other, with the times of their change."""
    files = [str(file) for file in Path(__file__).parents[1].rglob("*.py")]
    for name, module in list(sys.modules.items()):
        # Whoever installs another version of a package writes its first file too.
        file = getattr(module, "__file__", None)
        if "." not in name and file is not None:
            files.append(file)
    times = {}
    for name in files:
        with contextlib.suppress(OSError):
            times[name] = os.stat(name).st_mtime
    return times


def _peer(connection: socket.socket) -> int:
    """The user of the process at the other end."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


# ------------------------------------------------------------------ starting one


def prepare_folder() -> None:
    """Makes the private folder of the socket; an error where it belongs to somebody else."""
    folder = socket_path().parent
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        raise SettingError(
            f"{folder} is not private to you", "set XDG_RUNTIME_DIR to a folder that is"
        )
