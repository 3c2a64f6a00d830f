"""Running studies: one, or all with the results of earlier runs."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from regard import __version__
from regard.lab.study import evidence, listing, report, training_run
from regard.lab.study.report import StudyResult
from regard.lab.study.study import Effort, Study
from regard.system import disk
from regard.system.errors import DataError

Report = Callable[[float, str], None]  # the share of the measurements that is done, what is next


def run(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    processes: int = 1,
    progress: Report = lambda share, text: None,
) -> StudyResult:
    """Runs the study of this name, with its usual number of seeds unless others are asked for.

    Its models are trained in so many processes. `progress` is told the share of the measurements
    that is done, and what is next.
    """
    study = listing.load(name)
    effort = study.effort(quick, seeds, processes=processes, report=progress)
    # The import of torch is not counted.
    start = time.perf_counter()
    numbers = study.measure(effort)
    # Through JSON, so that a result is the same when it is read again: tuples become lists, and
    # keys texts.
    numbers = json.loads(json.dumps(numbers))
    seconds = time.perf_counter() - start
    effort.report(1.0, "")
    of_code = fingerprint(study, effort)
    return StudyResult(study, effort, numbers, seconds, of_code, study.measurement)


def run_all(
    folder: Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    processes: int = 1,
    names: Sequence[str] = tuple(listing.STUDIES),
    progress: Callable[[str, float, str], None] = lambda name, share, text: None,
) -> Iterator[StudyResult]:
    """Runs all studies, or those of these names, and yields each result.

    Results are kept in the folder: one of the same code and settings is not measured again. The
    report is written anew after each study, so that an interrupted run leaves one as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Of earlier results too: the report has all of them.
    results: list[StudyResult] = []
    for name in names:
        study = listing.load(name)
        result = stored(folder, study, study.effort(quick, seeds))
        if result is None:
            report_of = partial(progress, name)
            result = run(name, quick=quick, seeds=seeds, processes=processes, progress=report_of)
            result.save(folder)
        results.append(result)
        disk.write_file(folder / "report.html", report.page(results))
        yield result


# ------------------------------------------------------------------ results of earlier runs


def stored(folder: Path, study: Study, effort: Effort) -> StudyResult | None:
    """The result in the folder, if code and settings are still the same."""
    file = folder / f"{study.name}.json"
    if not file.exists():
        return None
    try:
        result = StudyResult.read(file)
    except DataError:  # damaged by another program: measured again
        return None
    return result if result.fingerprint == fingerprint(study, effort) else None


def fingerprint(study: Study, effort: Effort) -> str:
    """A hash of what a result depends on: versions, settings, and the source of the study."""
    digest = hashlib.sha256()
    for value in (__version__, torch.__version__, effort.quick, effort.seeds):
        digest.update(f"{value};".encode())
    # Rules and figures too: they stand in the same file as what is measured.
    for module in (sys.modules[type(study).__module__], training_run, evidence):
        digest.update(inspect.getsource(module).encode())
    return digest.hexdigest()[:16]
