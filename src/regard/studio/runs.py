"""Training runs for the page: how a run stands, and its metrics while it writes them."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, Literal

from regard.system import disk
from regard.system.errors import DataError

Status = Literal["training", "finished", "stopped", "failed"]
NEGATIVE_LOG_LIKELIHOOD = "negative log-likelihood"
# Families whose forecasts are distributions unless a recipe says otherwise.
DISTRIBUTIONS = ("time-series-transformer", "time_series_transformer")
QUIET_SECONDS = 120  # without a new line; a validation may take as long
MAX_TAIL = 1 << 16  # bytes at the end of the log that tell its last step


def run_status(folder: Path) -> dict[str, Any]:
    """The settings of a run by section, its status, and the seconds that are left."""
    recipe = _state_file(folder, "recipe.json")
    training = recipe.get("train") or {}
    tail = _last_records(folder / "metrics.jsonl")
    # Validations and findings are events; a line without one is a step of training.
    steps_logged = [r for r in tail if "event" not in r and isinstance(r.get("step"), int)]
    last = steps_logged[-1] if steps_logged else {}
    steps = training.get("steps")
    step = last.get("step", 0)
    outcome = _state_file(folder, "outcome.json")
    status = outcome.get("status") or _status(folder, tail, step, steps)
    return {
        "status": status,
        "scores": outcome.get("scores") or {},
        "problem": outcome.get("problem"),
        "repair": outcome.get("repair"),
        "step": step,
        "steps": steps,
        "seconds": last.get("seconds"),
        "seconds_left": _seconds_left(last, step, steps) if status == "training" else None,
        "loss": loss_name(recipe),
        "settings": _settings(recipe),
        "model_card": (folder / "README.md").is_file(),
    }


def loss_name(recipe: dict[str, Any]) -> str:
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


def _state_file(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of state/; empty for a folder that has only metrics."""
    try:
        return disk.read_json_object(folder / "state" / name, DataError)
    except DataError:
        return {}


def _settings(recipe: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Section → key → value, without what is not set."""
    sections: dict[str, dict[str, Any]] = {}
    for section, values in recipe.items():
        # Objectives and names stand beside the sections.
        if isinstance(values, dict):
            shown = {key: value for key, value in values.items() if value is not None}
            if shown:
                sections[section] = shown
        elif values is not None:
            sections.setdefault("run", {})[section] = values
    return sections


def _last_records(path: Path) -> list[dict[str, Any]]:
    """The records at the end of a log."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_TAIL))
        lines = file.read().splitlines()
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # the first one may be cut off, the last one half written
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _status(folder: Path, tail: list[dict[str, Any]], step: int, steps: int | None) -> Status:
    """The status of a run that has not written how it ended: it goes on, or was stopped."""
    if steps is None and (folder / "config.json").is_file():
        return "finished"  # a model that came with its metrics and nothing else
    return "training" if _is_written(folder / "metrics.jsonl", tail) else "stopped"


def _is_written(path: Path, tail: list[dict[str, Any]]) -> bool:
    """Whether the log has grown lately, measured by how often it does.

    The lock of the run folder would tell it exactly, but to try it could stop a run that begins.
    """
    times = [r["seconds"] for r in tail if isinstance(r.get("seconds"), int | float)]
    interval = 0.0
    if len(times) > 1:
        interval = (times[-1] - times[0]) / (len(times) - 1)
    return time.time() - path.stat().st_mtime < max(QUIET_SECONDS, 5 * interval)


def _seconds_left(last: dict[str, Any], step: int, steps: int | None) -> float | None:
    """By the mean time of a step so far."""
    seconds = last.get("seconds")
    if steps is None or not step or not isinstance(seconds, int | float):
        return None
    # Compilation and validations are part of the mean: the estimate is on the safe side.
    return round(seconds / step * max(0, steps - step), 1)


MAX_BYTES = 1 << 25  # read at once
POINTS = 2000  # of a curve that are sent at once; more would not fit on a screen
EVENTS = 200  # that are sent at once, the last ones
BROKEN = 200  # steps without a finite loss that are sent at once, the last ones
CURVES = ("loss", "nll", "learning_rate", "gradient_norm", "tokens_per_second", "attention_entropy")


def follow(path: Path, offset: int) -> dict[str, Any]:
    """What was appended after `offset`: curves as columns, and events.

    Events are validations and skipped updates; `broken` are the steps without a finite loss. Long
    curves are thinned out. `offset` in the answer is where to read on; a file that is shorter than
    the offset has been started anew.
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
    steps = [r for r in records if "event" not in r and isinstance(r.get("step"), int)]
    events = [r for r in records if "event" in r]
    end = start + len(complete)
    return {
        "offset": end,
        "restarted": restarted,
        "more": end < size and len(content) == MAX_BYTES,
        "lines": len(records),
        "unreadable": unreadable,
        "curves": _columns(_thinned(steps)),
        "broken": [r["step"] for r in steps if _is_broken(r)][-BROKEN:],
        "last": steps[-1] if steps else None,
        "events": events[-EVENTS:],
    }


def _parse(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The records of JSON lines, and how many lines are no JSON."""
    records: list[dict[str, Any]] = []
    unreadable = 0
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # also of bytes that are no UTF-8
            unreadable += 1
            continue
        records.append(record if isinstance(record, dict) else {})
    return records, unreadable


def _thinned(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evenly spaced records, always with the last one."""
    if len(steps) <= POINTS:
        return steps
    stride = math.ceil(len(steps) / POINTS)
    thinned = steps[::stride]
    # The page shows the last value as the current one.
    if thinned[-1] is not steps[-1]:
        thinned.append(steps[-1])
    return thinned


def _columns(steps: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The curves that occur, as columns beside that of the steps."""
    columns: dict[str, list[Any]] = {"step": [record["step"] for record in steps]}
    for name in CURVES:
        if any(name in record for record in steps):
            columns[name] = [_number(record.get(name)) for record in steps]
    return columns


def _is_broken(record: dict[str, Any]) -> bool:
    """Whether the loss of a step is logged and no finite number."""
    return "loss" in record and _number(record["loss"]) is None


def _number(value: Any) -> float | None:
    """A finite number. A run writes NaN and infinity as words: the curve has a gap there."""
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return None
