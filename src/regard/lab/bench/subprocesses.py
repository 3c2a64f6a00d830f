"""Contenders in processes of their own.

Only there can one measure the time from nothing to the first output, and the peak memory. And only
there do contenders not slow each other down: two libraries in one process have two thread pools,
whose threads spin while they wait for work.

This is the side of the benchmark. The programs that run in these processes are `decode_process.py`
and `load_process.py`; they read their request from an environment variable.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from regard.lab.bench.process_memory import family_memory
from regard.system.errors import SettingError

REQUEST = "REGARD_BENCH"  # the environment variable with the request, in JSON
REPLY = "regard:"  # how a line that is meant for us begins: libraries may print lines, too
FAILURE = "regard-failure:"  # the same for an expected error: problem and repair, in JSON


class ContenderProcess(AbstractContextManager["ContenderProcess"]):
    """A contender that decodes one batch whenever it is called, in a process that waits for it."""

    def __init__(self, request: dict[str, Any], amount: float) -> None:
        """`amount` is how many tokens one call decodes."""
        self.amount = amount
        self.process: Any = subprocess.Popen(
            [sys.executable, "-m", "regard.lab.bench.decode_process"],
            env=_environment(request),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read_reply()  # that it is ready

    def __call__(self) -> float:
        self._ask("go")
        return self.amount

    def peak(self) -> int:
        """The peak memory in bytes, that of the workers it forks in a further call included."""
        own_peak = int(self._ask("peak"))
        samples = [0]
        done = threading.Event()

        def sample() -> None:
            # Forked workers live only during a call, so their memory is sampled meanwhile.
            while not done.wait(0.02):  # seconds
                samples.append(family_memory(self.process.pid))

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            self()
        finally:
            done.set()
            sampler.join()
        return max(own_peak, *samples)

    def __exit__(self, *_: object) -> None:
        # It has nothing to save.
        self.process.kill()
        self.process.wait()

    def _ask(self, what: str) -> str:
        print(what, file=self.process.stdin, flush=True)
        return self._read_reply()

    def _read_reply(self) -> str:
        for line in self.process.stdout:
            if line.startswith(REPLY):
                return line.removeprefix(REPLY).strip()
            if line.startswith(FAILURE):
                raise SettingError(*json.loads(line.removeprefix(FAILURE)))
        raise SettingError("a benchmark process exited without a result", "read its output above")


def time_first_output(folder: Path, name: str, text: str, new: int) -> dict[str, float]:
    """Times a fresh Python up to its first translation.

    Seconds of import, load, translate and of the whole process, and its peak memory in bytes.
    """
    request = {"folder": str(folder), "name": name, "text": text, "new": new}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "regard.lab.bench.load_process"],
        env=_environment(request),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    elapsed = time.perf_counter() - start
    # Libraries may have printed lines before the last one.
    reply: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**reply, "whole": elapsed}


def read_request() -> dict[str, Any]:
    """The request, in the process that was started with it."""
    return json.loads(os.environ[REQUEST])


def _environment(request: dict[str, Any]) -> dict[str, str]:
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**os.environ, **quiet, REQUEST: json.dumps(request)}
