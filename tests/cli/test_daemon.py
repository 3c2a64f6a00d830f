"""`regard daemon`: a command that a fork of it answers is the same command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import regard
from command_line import SHOWS_TORCH
from forked_command import run_command
from regard.cli import fork_server

DEMO = Path(regard.__file__).parent / "studio/demo"
SENTENCE = "The dog sees a cat.\n"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the daemon requires Linux")
pytestmark = linux


def start(*arguments: str, ignored: Sequence[int] = (), **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "regard", *arguments]

    def set_signals() -> None:
        # Whatever those of the tests are: a shell in the background ignores SIGINT.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=set_signals,
        **options,  # type: ignore[call-overload]
    )


def run(*arguments: str, text: str = "", **options: Any) -> tuple[int, str, str]:
    process = start(*arguments, **options)
    out, err = process.communicate(text)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The environment of a running daemon; its runtime directory."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        # In the background, as a script would: what it ignores is not what commands ignore.
        code, _, err = run("daemon", "start", "--minutes", "5", ignored=[signal.SIGINT])
        assert code == 0, err
        yield folder
        run("daemon", "stop")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("translate", str(DEMO), SENTENCE.strip()), ""),
        (("translate", str(DEMO), "--json", "--beam", "3", "--n-best", "2"), SENTENCE * 3),
        (("translate", str(DEMO)), "Zorblax.\n"),  # with a warning of a word never seen
        (("translate", "nowhere"), SENTENCE),
        (("translate", str(DEMO), "--baem", "3"), SENTENCE),
        (("predict", str(DEMO), SENTENCE.strip(), "--json"), ""),
        (("look", "demo", SENTENCE.strip(), "--what", "alignment"), ""),
    ],
)
def test_a_command_is_the_same(
    arguments: tuple[str, ...], text: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "demo").symlink_to(DEMO)  # a path relative to the folder of the shell
    answered = run(*arguments, text=text, cwd=tmp_path)
    alone = run_command(*arguments, text=text, cwd=tmp_path)
    assert answered == (alone.returncode, alone.stdout, alone.stderr)
    command = [sys.executable, "-c", SHOWS_TORCH, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "False"


def test_umask_and_limits_are_those_of_the_shell(home: Path, tmp_path: Path) -> None:
    shell = f"umask 077; ulimit -v 1000; {sys.executable} -m regard translate {DEMO} x"
    # So little memory that Python itself cannot start: the limit is that of the shell's process.
    assert subprocess.run(["bash", "-c", shell], capture_output=True).returncode != 0
    out = tmp_path / "out.txt"
    source = tmp_path / "in.txt"
    source.write_text(SENTENCE)
    files = f"--input {source} --output {out}"
    shell = f"umask 077; {sys.executable} -m regard translate {DEMO} {files}"
    subprocess.run(["bash", "-c", shell], check=True, capture_output=True)
    assert out.stat().st_mode & 0o777 == 0o600


def test_signals_reach_the_command(home: Path) -> None:
    # The new line after Ctrl-C is Python's: the command was interrupted, not killed.
    for number, message in ((signal.SIGINT, "\n"), (signal.SIGTERM, "")):
        process = start("translate", str(DEMO))  # waits for its standard input
        time.sleep(1.0)
        assert process.poll() is None
        # Once more after a while: on a busy machine the first may come before it waits.
        for _ in range(10):
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
                break
        assert process.returncode == 128 + number
        assert process.communicate() == ("", message)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_the_shell_ignores_is_ignored(number: int, home: Path) -> None:
    """nohup keeps a command from SIGHUP, and a script's background from SIGINT."""
    process = start("translate", str(DEMO), ignored=[number])
    time.sleep(1.0)
    process.send_signal(number)
    time.sleep(0.5)
    out, err = process.communicate(SENTENCE)
    assert process.returncode == 0, err
    assert out.strip()


@pytest.mark.slow
def test_a_closed_pipe_is_seen(home: Path) -> None:
    lines = SENTENCE * 200
    shell = f"{sys.executable} -m regard translate {DEMO} --batch-tokens 64 | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], input=lines, capture_output=True, text=True
    )
    assert done.stdout == "Der Hund sieht eine Katze.\n"
    assert done.stderr == ""


def test_other_settings_of_torch_are_not_ignored(home: Path) -> None:
    threads = str(1 + int(os.environ.get("OMP_NUM_THREADS", "1")))
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    code, out, err = run("translate", str(DEMO), text=SENTENCE, env=environment)
    assert (code, out) == (0, "Der Hund sieht eine Katze.\n")
    assert "other settings (OMP_NUM_THREADS)" in err


def test_one_at_a_time(home: Path) -> None:
    code, _, err = run("daemon", "start")
    assert code == 2
    assert "already running" in err
    code, out, _ = run("daemon", "status")
    assert code == 0
    assert "5 minutes" in out


def test_it_ends_when_its_code_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "code" / "regard"
    package.parent.mkdir()
    subprocess.run(["cp", "-r", str(Path(regard.__file__).parent), str(package)], check=True)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run("daemon", "start", "--minutes", "5")[0] == 0
    # In a file that the daemon has imported, and would answer with as it was.
    with open(package / "models/translator.py", "a") as file:
        file.write("\n_text = Translator.text\n")
        file.write("Translator.text = lambda self, one: 'new: ' + _text(self, one)\n")
    code, out, err = run("translate", str(DEMO), text=SENTENCE)
    assert (code, out, err) == (0, "new: Der Hund sieht eine Katze.\n", "")
    code, _, err = run("daemon", "status")
    assert code == 2
    assert "no daemon is running" in err


def test_a_folder_of_others_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = fork_server.socket_path().parent
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    fork_server.socket_path().touch()
    assert fork_server.answer(["translate"]) is None
    code, _, err = run("daemon", "start")
    assert code == 2
    assert "not private to you" in err


@pytest.mark.slow
def test_it_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run("daemon", "start", "--minutes", "0.02")[0] == 0
    for _ in range(100):
        if not fork_server.socket_path().exists():
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")
