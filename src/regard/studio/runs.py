"""Training runs for the page: how a run stands, and its metrics while it writes them."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from regard.look.result import to_json
from regard.system import disk
from regard.system.errors import DataError

Record = dict[str, Any]
NEGATIVE_LOG_LIKELIHOOD = "negative log-likelihood"
# Families whose forecasts are distributions unless a recipe says otherwise.
DISTRIBUTIONS = ("time-series-transformer", "time_series_transformer")
QUIET_SECONDS = 120  # without a new line; a validation may take as long
MAX_TAIL = 1 << 16  # bytes at the end of the log that tell its last step
MAX_BYTES = 1 << 25  # read at once
POINTS = 2000  # of a curve that are sent at once; more would not fit on a screen
EVENTS = 200  # that are sent at once, the last ones
BROKEN = 200  # steps without a finite loss that are sent at once, the last ones
CURVES = (
    *("loss", "nll", "learning_rate", "gradient_norm", "tokens_per_second", "attention_entropy"),
    *("seconds", "tokens"),  # the other horizontal axes
)


def run_status(folder: Path) -> Record:
    """The settings of a run by section, its status, and the seconds that are left."""
    recipe = _state_file(folder, "recipe.json")
    log = folder / "metrics.jsonl"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MAX_TAIL))
        tail, _ = _parse(file.read())  # the first line may be cut off, the last one half written
    logged = _steps(tail)
    last = logged[-1] if logged else {}
    steps = (recipe.get("train") or {}).get("steps")
    outcome = _state_file(folder, "outcome.json")
    status = outcome.get("status")
    if status is None and steps is None and (folder / "config.json").is_file():
        status = "finished"  # a model that came with its metrics and nothing else
    elif status is None:  # it has not written how it ended
        status = "training" if _is_written(log, tail) else "stopped"
    step = last.get("step", 0)
    seconds = _number(last.get("seconds"))
    left = None
    if status == "training" and steps is not None and step and seconds is not None:
        # Compilation and validations are part of the mean: the estimate is on the safe side.
        left = round(seconds / step * max(0, steps - step), 1)
    status_of_run: Record = to_json(
        {
            "status": status,
            "scores": outcome.get("scores") or {},
            "problem": outcome.get("problem"),
            "repair": outcome.get("repair"),
            "step": step,
            "steps": steps,
            "seconds": seconds,
            "seconds_left": left,
            "loss": loss_name(recipe),
            "settings": _settings(recipe),
            "model_card": (folder / "README.md").is_file(),
        }
    )
    return status_of_run


def loss_name(recipe: Record) -> str:
    """What the loss of a run is: −log p of what is right, or an error of numbers."""
    model = recipe.get("model") or {}
    family = str(model.get("model")).partition(":")[0]
    match (recipe.get("train") or {}).get("objective"), model.get("forecast"):
        case "forecast", str(output) if output.startswith("quantiles"):
            return "pinball loss"
        case "forecast", None if family not in DISTRIBUTIONS:
            return "mean squared error"
        case "regress", _:
            return "mean squared error"
        case "masked_images", _:
            return "reconstruction error of masked pixels"
        case _:
            return NEGATIVE_LOG_LIKELIHOOD


def _state_file(folder: Path, name: str) -> Record:
    """A JSON file of state/; empty for a folder that has only metrics."""
    try:
        return disk.read_json_object(folder / "state" / name, DataError)
    except DataError:
        return {}


def _settings(recipe: Record) -> dict[str, Record]:
    """Section → key → value, without what is not set."""
    sections: dict[str, Record] = {}
    for section, values in recipe.items():
        # Objectives and names stand beside the sections.
        name, settings = (
            (section, values) if isinstance(values, dict) else ("run", {section: values})
        )
        shown = {key: value for key, value in settings.items() if value is not None}
        if shown:
            sections.setdefault(name, {}).update(shown)
    return sections


def _is_written(path: Path, tail: list[Record]) -> bool:
    """Whether the log has grown lately, measured by how often it does.

    The lock of the run folder would tell it exactly, but to try it could stop a run that begins.
    """
    times = [seconds for r in tail if (seconds := _number(r.get("seconds"))) is not None]
    interval = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    return time.time() - path.stat().st_mtime < max(QUIET_SECONDS, 5 * interval)


# ------------------------------------------------------------------ while a run writes


def follow(path: Path, offset: int) -> Record:
    """What was appended after `offset`: curves as columns, and events.

    The file is read while a run appends, without locks. Events are validations and skipped updates;
    `broken` are the steps without a finite loss. Long curves are thinned out. `offset` in the
    answer is where to read on; a file that is shorter than the offset has been started anew.
    """
    size = path.stat().st_size
    restarted = offset > size  # the run began anew and its file is shorter
    start = 0 if restarted else offset
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(MAX_BYTES)
    # A line that is still being written is left for the next time.
    complete = content[: content.rfind(b"\n") + 1]
    records, unreadable = _parse(complete)
    steps = _steps(records)
    end = start + len(complete)
    broken = [r["step"] for r in steps if "loss" in r and _number(r["loss"]) is None]
    appended: Record = to_json(
        {
            "offset": end,
            "restarted": restarted,
            "more": end < size and len(content) == MAX_BYTES,
            "lines": len(records),
            "unreadable": unreadable,
            "curves": _curves(steps),
            "broken": broken[-BROKEN:],
            "last": steps[-1] if steps else None,
            "events": [r for r in records if "event" in r][-EVENTS:],
        }
    )
    return appended


def _parse(content: bytes) -> tuple[list[Record], int]:
    """The records of JSON lines, and how many lines are no JSON."""
    records: list[Record] = []
    unreadable = 0
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # also of bytes that are no UTF-8
            unreadable += 1
            continue
        records.append(record if isinstance(record, dict) else {})
    return records, unreadable


def _steps(records: list[Record]) -> list[Record]:
    """The steps of training: validations and findings are events."""
    return [r for r in records if "event" not in r and isinstance(r.get("step"), int)]


def _curves(steps: list[Record]) -> dict[str, list[Any]]:
    """The curves that occur, as columns beside that of the steps, thinned to what can be seen."""
    thinned = steps[:: math.ceil(len(steps) / POINTS) or 1]
    # The page shows the last value as the current one.
    if steps and thinned[-1] is not steps[-1]:
        thinned.append(steps[-1])
    columns: dict[str, list[Any]] = {"step": [record["step"] for record in thinned]}
    for name in CURVES:
        if any(name in record for record in thinned):
            columns[name] = [_number(record.get(name)) for record in thinned]
    return columns


def _number(value: Any) -> float | None:
    """A finite number. A run writes NaN and infinity as words: the curve has a gap there."""
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return None
