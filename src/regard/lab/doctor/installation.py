"""The examination of an installation: versions, threads, devices, extras, disk, kernels."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from regard import __version__
from regard.system import memory

State = Literal["good", "warning", "bad"]

# What the package needs, and what some commands need besides.
REQUIRED = ("torch", "numpy", "tokenizers", "safetensors", "click", "pydantic", "rich", "sacrebleu")
EXTRAS = {
    "pillow": "images",
    "scipy": "optimal assignment of heads",
    "matplotlib": "figures in notebooks",
    "seqeval": "F1 of entities",
    "rouge-score": "ROUGE",
    "jiwer": "word error rates",
    "onnx": "regard convert --to onnx",
    "ctranslate2": "regard convert --to ctranslate2",
    "transformers": "regard verify --against transformers",
}
LITTLE_DISK = 2e9  # bytes: a checkpoint of a base model with its optimizer
LITTLE_MEMORY = 1e9


@dataclass(frozen=True)
class InstallationCheck:
    """One line of the report: what was checked, its state, and how to fix it."""

    name: str
    value: str
    state: State = "good"
    change: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_installation() -> Iterator[InstallationCheck]:
    """All checks of this file, the quick ones first."""
    yield InstallationCheck("regard", __version__)
    yield InstallationCheck("python", f"{platform.python_version()} on {sys.platform}")
    for name in REQUIRED:
        version = _version(name)
        if version is None:
            yield InstallationCheck(name, "not installed", "bad", f"pip install {name}")
        else:
            yield InstallationCheck(name, version)
    yield from _torch()
    for name, purpose in EXTRAS.items():
        version = _version(name)
        value = f"{version} ({purpose})"
        if version is None:
            # Nothing is wrong: whoever wants it knows now what to install.
            value = f"not installed ({purpose}: pip install {name})"
        yield InstallationCheck(name, value)
    yield _memory()
    yield _disk(Path.cwd())
    yield _data_root()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch() -> Iterator[InstallationCheck]:
    import torch

    threads = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    repair: tuple[State, str] = ("good", "")
    if threads > cores:
        repair = ("warning", f"set OMP_NUM_THREADS={cores}")
    yield InstallationCheck("threads", f"{threads} on {cores} cores", *repair)
    yield _bfloat16()
    if not torch.cuda.is_available():
        yield InstallationCheck("devices", "cpu")
        return
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        state: State = "good" if free > 0.2 * total else "warning"
        yield InstallationCheck(
            f"cuda:{number}",
            f"{properties.name}, {memory.amount(free)} of {memory.amount(total)} free",
            state,
            "" if state == "good" else "free GPU memory: nvidia-smi lists the processes",
        )
    yield _kernels()


def _bfloat16() -> InstallationCheck:
    """Whether products of bfloat16 can be computed on the CPU as oneDNN would compute them."""
    from regard.core.amx import WITHOUT_AMX, amx_is_missing

    if amx_is_missing():
        return InstallationCheck(
            "bfloat16",
            "this CPU reports AMX instructions that it does not support",
            "warning",
            f"set ONEDNN_MAX_CPU_ISA={WITHOUT_AMX}, also for other programs with oneDNN",
        )
    return InstallationCheck("bfloat16", "computed on the CPU")


def _kernels() -> InstallationCheck:
    """Whether the package's own kernels compile, by the smallest of them."""
    import torch

    if importlib.util.find_spec("triton") is None:
        return InstallationCheck(
            "kernels",
            "triton is not installed: slower kernels are used",
            "warning",
            "pip install triton",
        )
    from regard.core.kernels.topk import top

    scores = torch.randn(4, 1000, device="cuda")
    try:
        values = top(scores, 4)[0]
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        return InstallationCheck("kernels", problem, "bad", "update triton")
    if bool((values == scores.topk(4).values).all()):
        return InstallationCheck("kernels", "compiled, correct results")
    return InstallationCheck("kernels", "wrong results", "bad", "update triton and the driver")


def _memory() -> InstallationCheck:
    free = memory.available()
    if free is None:
        return InstallationCheck("memory", "not reported by this system")
    value = f"{memory.amount(free)} free"
    if free < LITTLE_MEMORY:
        return InstallationCheck("memory", value, "warning", "close other programs")
    return InstallationCheck("memory", value)


def _disk(folder: Path) -> InstallationCheck:
    if not os.access(folder, os.W_OK):
        value = f"{folder} cannot be written to"
        return InstallationCheck("disk", value, "warning", "choose another folder with --out")
    free = shutil.disk_usage(folder).free
    value = f"{memory.amount(free)} free in {folder}"
    if free < LITTLE_DISK:
        return InstallationCheck("disk", value, "warning", "free disk space for checkpoints")
    return InstallationCheck("disk", value)


def _data_root() -> InstallationCheck:
    root = os.environ.get("REGARD_DATA")
    if root is None:
        return InstallationCheck("data", "$REGARD_DATA is not set: pass --data-dir DIR to recipes")
    if not Path(root).is_dir():
        value = f"$REGARD_DATA = {root} is not a folder"
        return InstallationCheck("data", value, "warning", "correct it, or pass --data-dir DIR")
    return InstallationCheck("data", root)
