"""Following metrics.jsonl: read from a byte on, never locked, never written; the run does not notice."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

CHUNK = 1 << 25  # bytes read at once
POINTS = 2000  # of a curve that are sent at once; more would not fit on a screen
EVENTS = 200
CURVES = ("loss", "nll", "learning_rate", "gradient_norm", "tokens_per_second", "attention_entropy")


def follow(path: Path, offset: int) -> dict[str, Any]:
    """What was written after `offset`: curves as columns, thinned where they are long, and events (validations, skipped
    updates) whole. `offset` in the answer is where to go on; a file that is shorter than that was begun anew."""
    size = path.stat().st_size
    restarted = offset > size
    start = 0 if restarted else offset
    with path.open("rb") as file:
        file.seek(start)
        read = file.read(CHUNK)
    whole = read[
        : read.rfind(b"\n") + 1
    ]  # a line that is still being written is left for the next time
    records, unreadable = [], 0
    for line in whole.splitlines():
        try:
            record = json.loads(line)
            records.append(record if isinstance(record, dict) else {})
        except ValueError:
            unreadable += 1
    steps = [
        record
        for record in records
        if "event" not in record and isinstance(record.get("step"), int)
    ]
    events = [record for record in records if "event" in record]
    return {
        "offset": start + len(whole),
        "restarted": restarted,
        "more": start + len(whole) < size and len(read) == CHUNK,
        "lines": len(records),
        "unreadable": unreadable,
        "curves": _columns(_thinned(steps)),
        "last": steps[-1] if steps else None,
        "events": events[-EVENTS:],
    }


def _thinned(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evenly, with the last one always in it."""
    if len(steps) <= POINTS:
        return steps
    every = math.ceil(len(steps) / POINTS)
    kept = steps[::every]
    return kept if kept[-1] is steps[-1] else [*kept, steps[-1]]


def _columns(steps: list[dict[str, Any]]) -> dict[str, list[Any]]:
    present = [name for name in CURVES if any(name in record for record in steps)]
    columns: dict[str, list[Any]] = {"step": [record["step"] for record in steps]}
    for name in present:
        columns[name] = [_number(record.get(name)) for record in steps]
    return columns


def _number(value: Any) -> float | None:
    """A run writes what is not finite as a word; a curve has a gap there."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None
