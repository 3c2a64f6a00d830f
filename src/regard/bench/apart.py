"""What only a process of its own can tell: how long it takes from nothing to the first output, and its largest memory."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from regard.bench.decode import Case


def peak(case: Case, home: Path, name: str, device: torch.device, threads: int) -> int:
    """The largest memory of one contender that decodes one batch of a case."""
    asked = {"case": asdict(case), "home": str(home), "name": name, "device": str(device), "threads": threads}
    return int(_alone("decode", asked)["peak"])


def first_output(home: Path, name: str, text: str, new: int) -> dict[str, float]:
    """Seconds from the start of Python to the end: import, load, and the first translation; and bytes at most."""
    began = time.perf_counter()
    found = _alone("load", {"home": str(home), "name": name, "text": text, "new": new})
    return {**found, "whole": time.perf_counter() - began}


def _alone(what: str, request: dict[str, Any]) -> dict[str, Any]:
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment = {**os.environ, **quiet, "REGARD_BENCH": json.dumps(request)}
    done = subprocess.run(
        [sys.executable, "-m", "regard.bench.apart", what],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ------------------------------------------------------------------ in that process


def _decode(request: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch

    from regard.bench.decode import Case, contenders
    from regard.bench.models import measured

    torch.set_num_threads(request["threads"])
    case, device = Case(**request["case"]), torch.device(request["device"])
    sources = np.random.default_rng(0).integers(4, measured(case.model).vocabulary, (case.batch, case.given)).tolist()
    contenders(case, Path(request["home"]), ["transformers", "ctranslate2"], device, request["threads"])[
        request["name"]
    ]()(sources)
    on_device = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {"peak": on_device or _most()}


def _load(request: dict[str, Any]) -> dict[str, Any]:
    clocks = [time.perf_counter()]
    if request["name"] == "regard":
        import regard
        from regard.decode.search import Settings
        from regard.decode.strategy import Beam, Limit

        clocks.append(time.perf_counter())
        model = regard.load(request["home"])
        clocks.append(time.perf_counter())
        settings = Settings(Beam(4), Limit(0, request["new"]))
        said = model.text(model.hypotheses([request["text"]], settings)[0][0])  # type: ignore[attr-defined]
    else:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        clocks.append(time.perf_counter())
        tokenizer = AutoTokenizer.from_pretrained(request["home"])
        peer: Any = AutoModelForSeq2SeqLM.from_pretrained(request["home"])
        clocks.append(time.perf_counter())
        out = peer.generate(
            **tokenizer(request["text"], return_tensors="pt"), num_beams=4, max_new_tokens=request["new"]
        )
        said = tokenizer.decode(out[0], skip_special_tokens=True)
    clocks.append(time.perf_counter())
    assert isinstance(said, str)
    parts = dict(zip(("import", "load", "translate"), (b - a for a, b in itertools.pairwise(clocks)), strict=True))
    return {**parts, "peak": _most()}


def _most() -> int:
    """The largest memory of this process. The kernel's other figure (ru_maxrss) begins with that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


_TASKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"decode": _decode, "load": _load}

if __name__ == "__main__":
    print(json.dumps(_TASKS[sys.argv[1]](json.loads(os.environ["REGARD_BENCH"]))))
