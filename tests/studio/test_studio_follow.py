"""Following a run: from a byte on, whatever the run does meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.studio.runs import POINTS, follow, run_status


def line(step: int, **more: Any) -> str:
    return (
        json.dumps(
            {"step": step, "loss": 1 / step, "gradient_norm": 0.5, "learning_rate": 0.1, **more}
        )
        + "\n"
    )


def test_only_whole_lines_are_taken_and_each_once(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    second = line(2)
    log.write_text(line(1) + second[:10])
    first = follow(log, 0)
    assert first["curves"]["step"] == [1]
    assert first["offset"] == len(line(1))
    assert follow(log, first["offset"])["lines"] == 0
    with log.open("a") as file:
        file.write(second[10:] + line(3))
    then = follow(log, first["offset"])
    assert then["curves"]["step"] == [2, 3]
    assert then["last"]["step"] == 3
    assert then["offset"] == log.stat().st_size
    assert then["curves"]["loss"] == [0.5, 1 / 3]


def test_a_log_that_was_cut_back_is_begun_again(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text(line(1) + line(2) + line(3))
    end = follow(log, 0)["offset"]
    log.write_text(line(1))
    answer = follow(log, end)
    assert answer["restarted"]
    assert answer["curves"]["step"] == [1]


def test_words_for_numbers_are_gaps_and_damaged_lines_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    event = {
        "event": "validation",
        "step": 2,
        "loss": 0.5,
        "samples": [{"source": "<b>", "translation": "x"}],
    }
    log.write_text(
        line(1, loss="nan") + "not json\n" + json.dumps(event) + "\n[1]\n" + line(2, loss=True)
    )
    answer = follow(log, 0)
    assert answer["curves"]["loss"] == [None, True]
    assert answer["broken"] == [1]
    assert answer["unreadable"] == 1
    assert answer["events"] == [event]
    assert answer["curves"]["step"] == [1, 2]


def test_the_status_of_a_log_of_damaged_lines(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b'\x00\xff\n[1]\n{"step": "a", "loss": 1}\n')
    assert run_status(tmp_path)["step"] == 0
    with log.open("a") as file:
        file.write(line(7) + '{"step": null}\n')
    assert run_status(tmp_path)["step"] == 7


def test_100_000_steps_are_thinned_and_the_last_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(line(step) for step in range(1, 100_001)))
    answer = follow(log, 0)
    assert len(answer["curves"]["step"]) <= POINTS + 1
    assert answer["curves"]["step"][-1] == 100_000
    assert answer["lines"] == 100_000
    assert not answer["more"]
    assert len(json.dumps(answer)) < 300_000


def test_a_run_that_diverged_is_shown(tmp_path: Path) -> None:
    """What a log and its files hold that no JSON has, and lines that no parser takes."""
    log = tmp_path / "metrics.jsonl"
    event = '{"event": "validation", "step": 2, "loss": NaN, "perplexity": Infinity}\n'
    log.write_text(
        line(1) + event + "[" * 100_000 + "\n" + '{"step": 3, "loss": 1e999, "seconds": NaN}\n'
    )
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "outcome.json").write_text(
        '{"status": "finished", "scores": {"a": Infinity}}'
    )
    answer = follow(log, 0)
    assert answer["unreadable"] == 1
    assert answer["last"] == {"step": 3, "loss": None, "seconds": None}
    assert answer["broken"] == [3]
    status = run_status(tmp_path)
    assert status["scores"] == {"a": None}
    json.dumps([answer, status], allow_nan=False)
