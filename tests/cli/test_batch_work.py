"""Batch work over files: any crash, then the same command, gives the file of an undisturbed job."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import regard as package
from command_line import Command, command, demo  # noqa: F401 (fixtures)
from regard.cli import batch_work, translate
from regard.data.generated import builtin
from regard.data.resumable_output import ResumableOutput
from regard.system import disk
from regard.system.errors import DataError, DiskError, SettingError

SENTENCES = [sentence.source for sentence in itertools.islice(builtin.sentences("test"), 45)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Sentences, with an empty line among them."""
    path = tmp_path / "in.txt.gz"
    lines = [*SENTENCES[:20], "", *SENTENCES[20:]]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return path


# --- the output file ---


def windows(count: int = 6) -> list[str]:
    return [f"window {i}\n" * (i + 1) for i in range(count)]


def job(path: Path, crash: BaseException | None = None, at: int = -1) -> None:
    """Writes all windows from where the file is, or crashes before one of them."""
    with ResumableOutput(path, {"beam": 4}) as output:
        for number in range(output.inputs_done, len(windows())):
            if number == at:
                assert crash is not None
                raise crash
            output.commit(windows()[number], 1)


@pytest.mark.parametrize("at", range(6))
def test_a_job_goes_on_after_its_last_window(tmp_path: Path, at: int) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        job(path, KeyboardInterrupt(), at)
    assert not path.exists()  # a file that is there is complete
    job(path)
    assert path.read_text() == "".join(windows())
    assert [file.name for file in tmp_path.iterdir()] == ["out.txt"]


def test_every_state_on_the_disk_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder as it is at any moment between two writes: results, sync, progress, rename."""
    work = tmp_path / "work"
    work.mkdir()
    states: list[Path] = []

    def watched(function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            for moment in ("before", "after"):
                if moment == "after":
                    result = function(*arguments, **keywords)
                copy = tmp_path / f"state{len(states)}"
                shutil.copytree(work, copy)
                states.append(copy)
            return result

        return call

    monkeypatch.setattr(os, "fsync", watched(os.fsync))
    monkeypatch.setattr(os, "replace", watched(os.replace))
    job(work / "out.txt")
    monkeypatch.undo()
    assert len(states) > 40
    for state in states:
        if not (state / "out.txt").exists():
            # A write may have reached the disk in part: any prefix of it is cut off again.
            with (state / "out.txt.partial").open("ab") as file:
                file.write(b"half a wind")
            job(state / "out.txt")
        assert (state / "out.txt").read_text() == "".join(windows())


def test_other_settings_and_finished_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        job(path, KeyboardInterrupt(), 2)
    with pytest.raises(SettingError, match=r"other settings \(beam\)"):
        ResumableOutput(path, {"beam": 8}).__enter__()
    job(path)
    with pytest.raises(SettingError, match="already exists"):
        job(path)


def test_one_process_writes_a_file(tmp_path: Path) -> None:
    with (
        ResumableOutput(tmp_path / "out.txt", {}),
        pytest.raises(DiskError, match="another process is writing"),
    ):
        ResumableOutput(tmp_path / "out.txt", {}).__enter__()


def test_lost_results_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        job(path, KeyboardInterrupt(), 2)
    (tmp_path / "out.txt.partial").write_bytes(b"")
    with pytest.raises(DataError, match="shorter than"):
        job(path)


# --- the commands ---


class Crash(BaseException):
    """What no command catches."""


@pytest.mark.parametrize("flags", [["--beam", "2"], ["--sample", "--seed", "3", "--json"]])
def test_translate_resumes(
    flags: list[str],
    source: Path,
    demo: Path,  # noqa: F811
    tmp_path: Path,
    command: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 10)
    arguments = ["translate", demo, "--input", source, "--device", "cpu", *flags]
    printed = command(*arguments)
    assert len(printed.out.splitlines()) == 46
    out = tmp_path / "out.txt"
    commit = ResumableOutput.commit

    def crash_in_the_third(self: ResumableOutput, results: str, inputs: int) -> None:
        if self.inputs_done == 20:
            raise Crash
        commit(self, results, inputs)

    monkeypatch.setattr(ResumableOutput, "commit", crash_in_the_third)
    with pytest.raises(Crash):
        command(*arguments, "--output", out)
    monkeypatch.setattr(ResumableOutput, "commit", commit)
    resumed = command(*arguments, "--output", out)
    assert resumed.code == 0
    assert "20 inputs already done" in resumed.err
    assert out.read_text() == printed.out
    command(*arguments, "--output", out).refused("already exists")


def test_standard_input_cannot_be_resumed(
    demo: Path,  # noqa: F811
    tmp_path: Path,
    command: Command,  # noqa: F811
) -> None:
    outcome = command("translate", demo, "--output", tmp_path / "out.txt", text="a\n")
    outcome.refused("cannot be read again")


def test_memory_is_that_of_a_window(tmp_path: Path) -> None:
    """A million inputs: never more than one window of them at a time."""
    alive = 0
    most = 0

    class Input(str):
        def __new__(cls, text: str) -> Input:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            return super().__new__(cls, text)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def inputs() -> Iterator[str]:
        return (Input(str(i)) for i in range(20_000))

    work = batch_work.BatchWork(100, lambda window, first_index: f"{first_index} {len(window)}\n")
    work.run(inputs(), str(tmp_path / "out.txt"), {})
    assert most <= 202  # a window, and the next one while it is read
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 200


def test_what_cannot_be_read_again_has_no_output_to_resume(
    demo: Path,  # noqa: F811
    tmp_path: Path,
    command: Command,  # noqa: F811
) -> None:
    fifo = tmp_path / "in"
    os.mkfifo(fifo)
    asked = ("translate", demo, "--input", fifo, "--output", tmp_path / "out.txt")
    command(*asked).refused("cannot be read again")
    assert not (tmp_path / "out.txt").exists()


def test_an_input_of_the_same_size_is_another_one(
    demo: Path,  # noqa: F811
    tmp_path: Path,
    command: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "in.txt"
    path.write_text("The dog sees a cat.\n" * 4)
    out = tmp_path / "out.txt"
    asked = ("translate", demo, "--input", path, "--output", out, "--device", "cpu", "--beam", 1)
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    commit = ResumableOutput.commit

    def stopped(self: ResumableOutput, results: str, inputs: int) -> None:
        commit(self, results, inputs)
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(ResumableOutput, "commit", stopped)
        assert command(*asked).code == 130
    path.write_text("The cat sees a dog.\n" * 4)
    command(*asked).refused("other settings (input)")


def test_a_co_process_gets_each_answer_before_it_writes_on(demo: Path) -> None:  # noqa: F811
    code = "from regard.cli import run; run()"
    words = [sys.executable, "-c", code, "translate", str(demo), "--device", "cpu", "--beam", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        killer = threading.Timer(60.0, process.kill)  # or a reader would wait for ever
        killer.start()
        for text in ("The dog sees a cat.", "The cat sees a dog."):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            assert process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait() == 0
        killer.cancel()


def test_progress_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch_work, "SECONDS_BETWEEN_LINES", 0.0)
    work = batch_work.BatchWork(10, lambda window, first_index: "")
    work.run(iter(["x"] * 30), str(tmp_path / "out.txt"), {}, total=30)
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" inputs")[0] for line in told] == ["10 of 30", "20 of 30", "30 of 30"]
    assert "min left" in told[0]


# --- kill -9 ---


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "threads"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)])
def test_killed_jobs_leave_the_file_of_an_undisturbed_one(
    seed: int,
    threads: int,
    demo: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """SIGKILL at random moments, again and again, until the job is done."""
    path = tmp_path / "in.txt"
    lines = [sentence.source for sentence in itertools.islice(builtin.sentences("train"), 2000)]
    path.write_text("".join(f"{line}\n" for line in lines))
    code = "from regard.cli import main, translate; translate.LINES_AT_ONCE = 200; main()"
    arguments = [sys.executable, "-c", code, "translate", str(demo), "--input", str(path),
                 "--beam", "1", "--device", "cpu", "--output"]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),  # decoding forks a worker for each but the first
        "PYTHONPATH": str(Path(package.__file__).parents[1]),
    }
    subprocess.run([*arguments, str(tmp_path / "whole.txt")], env=environment, check=True)
    chance = random.Random(seed)
    out = tmp_path / "out.txt"
    progress = tmp_path / "out.txt.progress"
    kills = 0
    while not out.exists():
        before = content(progress)
        process = subprocess.Popen([*arguments, str(out)], env=environment, stderr=subprocess.PIPE)
        # A window further than before, and then at any moment: in the next one, or in its commit.
        while process.poll() is None and content(progress) in (b"", before):
            time.sleep(0.01)
        try:
            process.wait(chance.uniform(0.0, 1.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            time.sleep(0.2)  # forked workers notice that their parent is gone
        assert kills < 50
    assert kills > 0
    assert out.read_bytes() == (tmp_path / "whole.txt").read_bytes()
    # Killed between the last two operations, a job leaves its progress to the next one.
    again = subprocess.run([*arguments, str(out)], env=environment, capture_output=True)
    assert again.returncode == 2
    assert not list(tmp_path.glob("out.txt.*"))


def test_the_progress_of_a_finished_job_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    job(path)
    stale = tmp_path / "out.txt.progress"
    stale.write_text('{"inputs": 3, "bytes": 54, "settings": {"beam": 8}}')
    with pytest.raises(SettingError, match="already exists"):
        job(path)
    assert not stale.exists()
    stale.write_text('{"inputs": 3, "bytes": 54, "settings": {"beam": 8}}')
    path.unlink()
    job(path)
    assert path.exists()
    assert not stale.exists()


def test_progress_files_are_small_and_plain(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        job(path, KeyboardInterrupt(), 3)
    progress = disk.read_json(tmp_path / "out.txt.progress", DataError)
    assert progress == {"inputs": 3, "bytes": 54, "settings": {"beam": 4}}
    assert json.dumps(progress)


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_tasks_have_commands_of_their_own(
    task: str,
    demo: Path,  # noqa: F811
    source: Path,
    command: Command,  # noqa: F811
) -> None:
    assert "--output" in command(task, "--help").out
    # A translator has neither vectors nor classes, and says what it has.
    command(task, demo, "--input", source).refused("translate")


def test_predict_keeps_the_places_of_empty_lines(
    demo: Path,  # noqa: F811
    source: Path,
    tmp_path: Path,
    command: Command,  # noqa: F811
) -> None:
    out = tmp_path / "out.tsv"
    done = command("predict", demo, "--input", source, "--output", out, "--device", "cpu")
    assert done.code == 0, done.err
    lines = out.read_text().splitlines()
    assert len(lines) == 46
    assert lines[20] == ""
    assert [line.partition("\t")[0] for line in lines if line] == SENTENCES
