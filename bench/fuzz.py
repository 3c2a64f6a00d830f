"""Fuzzing: mutated model folders, run folders and recipes, each opened in a process of its own.

python bench/fuzz.py [--cases 20000] [--first 0] [--part I/N] [--seed 1] [--seconds 30] [--out FILE]
python bench/fuzz.py --case N [--seed 1]

A case is valid input with a few mutations, drawn from (seed, number). Allowed outcomes are success
and an error of `regard.system.errors`. Everything else is a finding and is printed with its number: another
exception, a crash, more than `--seconds` of processor time (or CLOCK_FACTOR times that of the
clock), more than LIMIT_BYTES of memory; code from the folder that is run, a file written outside, a
process started, a connection made. `--case N` shows one case with its traceback.

`--part 2/16` is every sixteenth case from the second on: sixteen processes with 1/16 … 16/16 are all
cases. The exit status is 1 where something was found. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_cases
import torch

import regard
from regard.lab.doctor.examination import examine
from regard.lab.verify import outputs
from regard.lab.verify.random_inputs import pad_token_id, random_batch
from regard.models.text_encoder import TextEncoder
from regard.system.errors import RegardError, TrainingInterrupted
from regard.training import preflight
from regard.training.diagnostics.run_log import RunLog
from regard.training.engine.loop import Loop
from regard.training.recipe import loading
from regard.training.run import resume

BATCH = 20  # cases of one process: forking a process with PyTorch in it takes as long as a case
# A file system in memory, where there is one: runs wait for fsync most of their time.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
LIMIT_SECONDS = 30.0  # of the processor, for each case
CLOCK_FACTOR = 4  # a case that waits ends here too; on a busy machine all take longer
LIMIT_BYTES = 2 * 10**9  # of address space for each case, beyond what its process had before
MOST_STEPS = 20  # of a run that is resumed
SHARES = {"models": 0.55, "runs": 0.2, "recipes": 0.25}
# What no file to read can ask for.
FORBIDDEN_EVENTS = (
    "os.exec", "os.posix_spawn", "os.system", "os.spawn", "subprocess.Popen", "os.fork",
    "os.forkpty", "socket.connect", "socket.getaddrinfo", "socket.bind", "pickle.find_class",
    "webbrowser.open", "urllib.Request",
)  # fmt: skip
# Audit events whose arguments are paths that are changed.
WRITING_EVENTS = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate",
    "os.chmod", "os.chown", "shutil.rmtree", "os.utime",
)  # fmt: skip


# The number of a case and a folder for it → what opens it.
Make = Callable[[int, Path], Callable[[], None]]


@dataclass(frozen=True)
class Outcome:
    """How a case ended: success, typed, untyped, crash, hang or violation."""

    kind: str
    text: str = ""
    seconds: float = 0.0  # of the processor

    @property
    def is_finding(self) -> bool:
        return self.kind not in ("success", "typed")


# --- what is done with a case ---------------------------------------------------------------------


def open_model(folder: Path, chance: random.Random) -> None:
    """Loads a model and uses it: a forward pass, and its task on a short text."""
    model = regard.load(folder, device="cpu", say=lambda _: None)
    with torch.inference_mode():
        batch = random_batch(model.spec, pad_token_id(model.config))
        outputs.run(model.model, batch.like(model.model))
        if not model.accepts_text:
            return
        for task in model.tasks:
            if task == "translate":
                model.translate(["The dog sees a cat."])
            elif task == "generate":
                model.generate("The dog", max_new_tokens=4)
            elif task == "classify" and model.spec.main_input_name == "input_ids":
                labels = () if isinstance(model, TextEncoder) else (["yes", "no"],)
                model.classify("The dog sees a cat.", *labels)
            elif task in ("embed", "tag"):
                getattr(model, task)("The dog sees a cat.")
    if chance.random() < 0.2:
        model.save(folder.parent / "saved")


def _stop_soon(loop: Loop) -> None:
    """A recipe that asks for a million steps is no hang."""
    if loop.progress.step >= MOST_STEPS:
        loop.request_stop()


def open_run(folder: Path, chance: random.Random) -> None:
    """Resumes a run, opens its model, reads its log, or examines it."""
    action = chance.random()
    if action < 0.7:
        steps = chance.choice((None, None, None, 8))
        with contextlib.suppress(TrainingInterrupted):
            resume(folder, quiet=True, steps=steps, on_step=_stop_soon)
    elif action < 0.8:
        regard.load(folder, device="cpu", say=lambda _: None)
    elif action < 0.9:
        RunLog.read(folder / "metrics.jsonl")
    else:
        examine(folder, trial_seconds=0)


def open_recipe(path: Path, chance: random.Random) -> None:
    """Reads a recipe and checks it; a part of the small ones is trained for a step."""
    recipe, _ = loading.choose(path, {}, data_root=str(path.parent))
    preflight.check(recipe)
    if path.name.startswith("small_") and chance.random() < 0.5:
        # Whatever the recipe asks for, a step of it is enough; scoring a model that has learnt
        # nothing, which never ends a sentence, may take minutes.
        bounds: dict[str, Any] = {
            "steps": 2, "batch_tokens": 128, "accumulate": 1, "beam": 1, "samples": 0,
            "builtin_lines": 100, "test_lines": 10, "device": "cpu", "threads": 1, "epochs": None,
        }  # fmt: skip
        with contextlib.suppress(TrainingInterrupted):
            regard.train(path, out=path.parent / "run", on_step=Loop.request_stop, **bounds)


ACTIONS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "models": (fuzz_cases.mutate_folder, open_model),
    "runs": (fuzz_cases.mutate_folder, open_run),
    "recipes": (fuzz_cases.mutate_recipe, open_recipe),
}


def case(
    originals: Path, seed: int, number: int, only: str | None, work: Path
) -> Callable[[], None]:
    """Makes the mutated input under `work`; returns what opens it."""
    chance = random.Random(f"{seed}/{number}")
    kind = only or chance.choices(list(SHARES), list(SHARES.values()))[0]
    original = chance.choice(sorted((originals / kind).iterdir()))
    target = work / original.name
    if original.is_dir():
        shutil.copytree(original, target)
    else:
        shutil.copyfile(original, target)
    mutate, action = ACTIONS[kind]
    mutate(chance, target)
    return lambda: action(target, chance)


# --- processes ------------------------------------------------------------------------------------


def run_cases(
    make: Make, numbers: Sequence[int], show: bool = False, seconds: float = LIMIT_SECONDS
) -> list[Outcome]:
    """The outcomes of some cases, up to the first that ends its process.

    A fork makes and opens them one after the other under limits, and reports through a pipe.
    """
    work = Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(make, numbers, work, writer, show)
    os.close(writer)
    outcomes: list[Outcome] = []
    try:
        with open(reader, "rb", closefd=False) as pipe:
            while len(outcomes) < len(numbers):
                line = pipe.readline() if _answers(reader, pid, seconds) else None
                if line:
                    outcomes.append(Outcome(*json.loads(line)))
                    if outcomes[-1].kind == "crash":  # the harness itself: its process ends
                        return outcomes
                    continue
                ending = Outcome("crash", "the process ended")
                if line is None:
                    place = _stack(pid, work)
                    ending = Outcome("hang", f"more than {seconds:.0f} s [{place}]")
                os.kill(pid, signal.SIGKILL)
                return [*outcomes, ending]
        return outcomes
    finally:
        os.close(reader)
        os.waitpid(pid, 0)
        shutil.rmtree(work, ignore_errors=True)


def _answers(reader: int, pid: int, seconds: float) -> bool:
    """Waits for the outcome of one case; False when its time is over."""
    used = _processor_seconds(pid)
    clock = time.monotonic()
    while True:
        ready, _, _ = select.select([reader], [], [], 0.5)
        if ready:
            return True
        waited = time.monotonic() - clock
        if waited > CLOCK_FACTOR * seconds or _processor_seconds(pid) - used > seconds:
            return False


def _processor_seconds(pid: int) -> float:
    """User and system time of a process; fields 14 and 15 of /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stack(pid: int, work: Path) -> str:
    """Where a process is: faulthandler writes it when it gets SIGUSR1."""
    os.kill(pid, signal.SIGUSR1)
    time.sleep(1.0)
    lines = (work / "stack").read_text(errors="replace").splitlines()
    frames = [line.strip() for line in lines if line.strip().startswith("File")]
    return " < ".join(frame.rpartition("/")[2] for frame in frames[:6])


def _child(make: Make, numbers: Sequence[int], work: Path, writer: int, show: bool) -> None:
    """Never returns: it ends the process."""
    try:
        if not show:
            null = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                os.dup2(null, handle)
        warnings.simplefilter("ignore")
        stack = (work / "stack").open("w")
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
        violations = _watch(work)
        for number in numbers:
            folder = work / str(number)
            folder.mkdir()
            os.chdir(folder)  # where code from a folder would write
            tempfile.tempdir = str(folder)  # temporary files belong to the case
            action = make(number, folder)
            _limit_memory()
            violations.clear()  # of the harness
            started = time.process_time()
            outcome = _outcome(action, show)
            seconds = time.process_time() - started
            if any(folder.glob("code-*")):
                violations.append("code was run")
            if violations:
                outcome = Outcome("violation", "; ".join(sorted(set(violations))[:5]))
                violations.clear()
            line = json.dumps([outcome.kind, outcome.text, round(seconds, 2)])
            os.write(writer, line.encode() + b"\n")
            os.chdir(work)
            shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        text = "the harness failed: " + traceback.format_exc()[-2000:]
        os.write(writer, json.dumps(["crash", text]).encode() + b"\n")
    finally:
        os._exit(0)


def _limit_memory() -> None:
    """LIMIT_BYTES more than there are now; what earlier cases left does not count."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + LIMIT_BYTES, resource.RLIM_INFINITY))


def _outcome(action: Callable[[], None], show: bool) -> Outcome:
    try:
        action()
    except RegardError as error:
        if show:
            traceback.print_exc()
        return Outcome("typed", type(error).__name__)
    except BaseException as error:
        if show:
            traceback.print_exc()
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/regard/" in frame.filename] or frames
        places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(own[-4:]))
        return Outcome("untyped", f"{type(error).__name__}: {str(error)[:200]} [{places}]")
    return Outcome("success")


def _watch(work: Path) -> list[str]:
    """An audit hook; the list fills with what the case must not do."""
    violations: list[str] = []
    allowed = (str(work), "/dev/null", "/dev/tty", "/proc/")
    inside = str(work)

    def is_outside(path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False  # a handle that is already open
        absolute = os.path.abspath(os.fsdecode(path))
        return not absolute.startswith(allowed)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN_EVENTS:
            violations.append(f"{event} {str(arguments[:1])[:80]}")
        elif event == "open":
            path, mode, flags = arguments
            writes = any(c in (mode or "") for c in "wax+") or (flags or 0) & (
                os.O_WRONLY | os.O_RDWR | os.O_CREAT
            )
            if writes and is_outside(path):
                violations.append(f"open for writing: {path}")
        elif event in WRITING_EVENTS and is_outside(arguments[0]):
            violations.append(f"{event} {arguments[0]}")
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(inside):
            violations.append(f"exec of {arguments[0].co_filename}")

    sys.addaudithook(hook)
    return violations


# --- many cases -----------------------------------------------------------------------------------


@contextlib.contextmanager
def originals(*, zoo: bool = True) -> Iterator[Path]:
    """The valid inputs, in a temporary folder; with `zoo`, models of all families."""
    with tempfile.TemporaryDirectory(prefix="fuzz-originals-", dir=MEMORY) as folder:
        # What runs and models say is not of interest here.
        with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
            fuzz_cases.make_originals(Path(folder), zoo=zoo)
            warm_up(Path(folder))
        yield Path(folder)


def warm_up(folder: Path) -> None:
    """Opens everything once: imports and caches are then in the process that is forked."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as work:
        warnings.simplefilter("ignore")
        for kind, (_, action) in ACTIONS.items():
            for original in sorted((folder / kind).iterdir()):
                target = Path(work) / kind / original.name
                if original.is_dir():
                    shutil.copytree(original, target)
                else:
                    target.parent.mkdir(exist_ok=True)
                    shutil.copyfile(original, target)
                with contextlib.suppress(RegardError):
                    action(target, random.Random(0))


def fuzz(
    folder: Path,
    seed: int,
    numbers: Sequence[int],
    only: str | None = None,
    seconds: float = LIMIT_SECONDS,
) -> Iterator[tuple[int, Outcome]]:
    """The outcome of each case."""
    done = 0
    while done < len(numbers):
        batch = numbers[done : done + BATCH]

        def make(number: int, work: Path) -> Callable[[], None]:
            return case(folder, seed, number, only, work)

        for outcome in run_cases(make, batch, seconds=seconds):
            yield numbers[done], outcome
            done += 1


def part_of(numbers: range, part: str) -> range:
    """`2/16`: every sixteenth, from the second on."""
    index, _, count = part.partition("/")
    if not 1 <= int(index) <= int(count):
        raise ValueError(part)
    return numbers[int(index) - 1 :: int(count)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--part", default="1/1", help="I/N: the I-th of N parts, from 1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(SHARES))
    parser.add_argument("--case", type=int, help="one case, with its traceback")
    parser.add_argument("--seconds", type=float, default=LIMIT_SECONDS, help="limit of one case")
    parser.add_argument("--out", type=Path, help="a file of JSON lines: findings, then a summary")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with originals() as folder:
        if arguments.case is not None:

            def make(number: int, work: Path) -> Callable[[], None]:
                return case(folder, arguments.seed, number, arguments.only, work)

            seconds = arguments.seconds
            print(*run_cases(make, [arguments.case], show=True, seconds=seconds))
            return 0
        numbers = range(arguments.first, arguments.first + arguments.cases)
        return report(folder, part_of(numbers, arguments.part), arguments)


def report(folder: Path, numbers: range, arguments: argparse.Namespace) -> int:
    """Runs the cases, with one line for each finding and one for all; 1 where there were any."""
    counts: Counter[str] = Counter()
    slowest = (0.0, -1)  # seconds, case
    started = time.perf_counter()

    def write(record: dict[str, Any]) -> None:
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(record) + "\n")

    for number, outcome in fuzz(folder, arguments.seed, numbers, arguments.only, arguments.seconds):
        counts[outcome.kind] += 1
        slowest = max(slowest, (outcome.seconds, number))
        if outcome.is_finding:
            print(f"case {number}: {outcome.kind}: {outcome.text}", flush=True)
            write({"case": number, "kind": outcome.kind, "text": outcome.text})
        if counts.total() % 1000 == 0:
            print(f"{counts.total()} cases: {dict(counts)}", flush=True)
    seconds = time.perf_counter() - started
    print(f"seed {arguments.seed}: {counts.total()} cases in {seconds:.0f} s: {dict(counts)}; "
          f"the slowest was {slowest[1]}, {slowest[0]:.1f} s of the processor")  # fmt: skip
    write({"seed": arguments.seed, "cases": counts.total(), **counts, "seconds": round(seconds)})
    return int(bool(set(counts) - {"success", "typed"}))


if __name__ == "__main__":
    sys.exit(main())
