"""Tailing metrics.jsonl: reads from a byte offset on while a run appends, without locks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

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
