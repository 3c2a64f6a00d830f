"""The state of a training run: its settings, whether it still trains, and how long it will take."""

from __future__ import annotations

import json
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
