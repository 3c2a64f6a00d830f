"""Contenders in processes of their own. Only there can one tell how long it takes from nothing to the first output, and the
largest memory; and only there do they not slow each other down: two libraries in one process have two sets of threads, which
wait for work by turning in circles."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.allocator import keep_large_blocks
from regard.errors import SettingError

if TYPE_CHECKING:
    import torch

    from regard.bench.decode import Case

_MARK = "regard:"


class Waiting:
    """A contender that decodes one batch of a case whenever it is called, in a process that waits in between."""

    def __init__(
        self,
        case: Case,
        home: Path,
        against: list[str],
        name: str,
        device: torch.device,
        threads: int,
    ) -> None:
        asked = {
            "case": asdict(case), "home": str(home), "against": against, "name": name, "device": str(device),
            "threads": threads,
        }  # fmt: skip
        self.amount = float(case.batch * case.new)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "regard.bench.subprocesses", "decode"],
            env=_environment(asked),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def __call__(self) -> float:
        self._ask("go")
        return self.amount

    def peak(self) -> int:
        """The largest memory so far, that of the processes that it makes in a turn included."""
        alone, found, done = int(self._ask("peak")), [0], threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                found.append(sum(map(_share, [self.process.pid, *_children(self.process.pid)])))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self()
        finally:
            done.set()
            watcher.join()
        return max(alone, *found)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _ask(self, what: str) -> str:
        assert self.process.stdin is not None
        print(what, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> str:
        """What it says to us; libraries may say something, too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(_MARK):
                return line.removeprefix(_MARK).strip()
        raise SettingError("a contender stopped before it had answered", "see what it said above")


def _children(process: int) -> list[int]:
    """Of a process, which Linux lists by the thread that made them."""
    found: list[int] = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, listed.read_text().split())
    return found


def _share(process: int) -> int:
    """Bytes of a process, with its part of those that several share; 0 for one that has gone."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def first_output(home: Path, name: str, text: str, new: int) -> dict[str, float]:
    """Seconds from the start of Python to the end: import, load, and the first translation; and bytes at most."""
    began = time.perf_counter()
    found = _alone("load", {"home": str(home), "name": name, "text": text, "new": new})
    return {**found, "whole": time.perf_counter() - began}


def _alone(what: str, request: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "regard.bench.subprocesses", what],
        env=_environment(request),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _environment(request: dict[str, Any]) -> dict[str, str]:
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**os.environ, **quiet, "REGARD_BENCH": json.dumps(request)}


# ------------------------------------------------------------------ in that process


def _decode(request: dict[str, Any]) -> None:
    import numpy as np
    import torch

    from regard.bench.decode import Case, contenders
    from regard.bench.models import measured

    torch.set_num_threads(request["threads"])
    case, device = Case(**request["case"]), torch.device(request["device"])
    sources = (
        np.random.default_rng(0)
        .integers(4, measured(case.model).vocabulary, (case.batch, case.given))
        .tolist()
    )
    keep_large_blocks()
    known = contenders(case, Path(request["home"]), request["against"], device, request["threads"])
    decodes = known[request["name"]]()
    torch.set_num_threads(request["threads"])
    print(_MARK, "ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "go":
            decodes(sources)
            if device.type == "cuda":
                torch.cuda.synchronize()
            print(_MARK, "done", flush=True)
        else:
            print(
                _MARK,
                torch.cuda.max_memory_allocated() if device.type == "cuda" else _most(),
                flush=True,
            )


def _load(request: dict[str, Any]) -> dict[str, Any]:
    clocks = [time.perf_counter()]
    if request["name"] == "regard":
        import regard
        from regard.decode.batch_decoding import DecodingSettings
        from regard.decode.strategy import BeamSearch, Limit

        clocks.append(time.perf_counter())
        model = regard.load(request["home"])
        clocks.append(time.perf_counter())
        settings = DecodingSettings(BeamSearch(4), Limit(0, request["new"]))
        said = model.text(model.hypotheses([request["text"]], settings)[0][0])  # type: ignore[attr-defined]
    else:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        clocks.append(time.perf_counter())
        tokenizer = AutoTokenizer.from_pretrained(request["home"])
        peer: Any = AutoModelForSeq2SeqLM.from_pretrained(request["home"])
        clocks.append(time.perf_counter())
        out = peer.generate(
            **tokenizer(request["text"], return_tensors="pt"),
            num_beams=4,
            max_new_tokens=request["new"],
        )
        said = tokenizer.decode(out[0], skip_special_tokens=True)
    clocks.append(time.perf_counter())
    assert isinstance(said, str)
    parts = dict(
        zip(
            ("import", "load", "translate"),
            (b - a for a, b in itertools.pairwise(clocks)),
            strict=True,
        )
    )
    return {**parts, "peak": _most()}


def _most() -> int:
    """The largest memory of this process. The kernel's other figure (ru_maxrss) begins with that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    told = json.loads(os.environ["REGARD_BENCH"])
    if sys.argv[1] == "decode":
        _decode(told)
    else:
        print(json.dumps(_load(told)))
