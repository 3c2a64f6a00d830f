"""Checks of the metrics log: each on a log that has the trouble, and on one that has not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.training.diagnostics.finding import Finding, ranked
from regard.training.diagnostics.monitor import check_rate
from regard.training.diagnostics.run_log import (
    Baseline,
    RunLog,
    check_log,
    diverging_loss,
    exploding_gradients,
    loss_spike,
    non_finite,
    overfitting,
    plateau,
    unmoved,
)

ENTROPY = 3.0
BASELINE = Baseline(ENTROPY, math.log(50), warmup=10, steps=300)
FALLING = [4 * 0.92**i + 0.5 for i in range(30)]


def run_log(losses: list[float], validations: Sequence[float] = (), norm: float = 1.0) -> RunLog:
    log = RunLog()
    for i, loss in enumerate(losses, 1):
        record = {"step": 10 * i, "loss": loss, "nll": loss, "gradient_norm": norm}
        log.add(record | {"learning_rate": 1e-3})
    for i, loss in enumerate(validations, 1):
        log.add({"event": "validation", "step": 50 * i, "loss": loss})
    return log


def checks(log: RunLog, baseline: Baseline = BASELINE) -> set[str]:
    return {finding.check for finding in check_log(log, baseline)}


def test_a_falling_loss_has_no_finding() -> None:
    assert checks(run_log(FALLING, [3.5, 2.5, 2.2, 2.1])) == set()


def test_a_run_without_class_labels_is_judged_by_its_own_course() -> None:
    assert checks(run_log(FALLING, [3.5, 2.5]), Baseline(None)) == set()
    assert "diverging_loss" in checks(run_log([*FALLING, 5.0, 5.0, 5.0]), Baseline(None))


def test_divergence_is_against_the_best_so_far() -> None:
    assert len(list(diverging_loss(run_log([*FALLING, 4.0, 4.0, 4.0]), BASELINE))) == 1
    # One line is noise.
    assert list(diverging_loss(run_log([*FALLING, 4.0, 1.0, 1.0]), BASELINE)) == []


def test_a_rate_is_not_too_low_where_its_schedule_ends() -> None:
    log = run_log([ENTROPY] * 30)
    assert [finding.check for finding in check_rate(1e-7, log, BASELINE)] == ["rate_too_low"]
    log.add({"step": 310, "loss": ENTROPY, "nll": ENTROPY, "learning_rate": 0.0})
    assert list(check_rate(0.0, log, BASELINE)) == []


def test_a_spike_names_its_step() -> None:
    losses = [2.0 + 0.01 * (i % 3) for i in range(30)]
    losses[20] = 5.0
    (finding,) = loss_spike(run_log(losses))
    assert finding.step == 210
    losses[20] = 2.5  # less than a nat
    assert list(loss_spike(run_log(losses))) == []


def test_a_spike_of_a_falling_loss_is_above_its_last_lines() -> None:
    losses = [6 - 0.1 * i for i in range(30)]
    losses[25] += 1.5  # still below where the loss was twenty lines before
    (finding,) = loss_spike(run_log(losses))
    assert finding.step == 260


def test_a_loss_that_comes_down_again_is_a_spike_alone() -> None:
    losses = [*FALLING, *(12 - 0.5 * i for i in range(15))]
    assert checks(run_log(losses)) == {"loss_spike"}


def test_noisy_batches_do_not_diverge() -> None:
    """Of regression, or of texts sorted by length: the last lines are above the best by chance."""
    losses = [8.0 + 6.0 * (i * 7 % 5 - 2) / 2 for i in range(40)]
    losses[-6:] = [13.0] * 6
    assert list(diverging_loss(run_log(losses), Baseline(None))) == []
    assert len(list(diverging_loss(run_log([*losses, 60.0, 70.0, 80.0]), Baseline(None)))) == 1


def test_noise_is_no_spike() -> None:
    losses = [2.0 + (i % 2) * 1.2 for i in range(40)]
    assert list(loss_spike(run_log(losses))) == []


@pytest.mark.parametrize(("level", "count"), [(3.0, 1), (2.95, 1), (2.7, 0), (3.4, 0)])
def test_a_plateau_is_at_the_entropy_of_the_labels(level: float, count: int) -> None:
    assert len(list(plateau(run_log([4.0] + [level] * 29), BASELINE))) == count


def test_no_plateau_before_the_warm_up_ends() -> None:
    baseline = Baseline(ENTROPY, warmup=1000, steps=2000)
    assert list(plateau(run_log([3.0] * 30), baseline)) == []


def test_overfitting_is_a_rising_validation_loss() -> None:
    assert len(list(overfitting(run_log(FALLING, [2.5, 2.2, 2.6, 3.1]), BASELINE))) == 1
    assert list(overfitting(run_log(FALLING, [2.0, 1.6, 1.4, 1.3]), BASELINE)) == []
    # Learnt by heart, with one validation only.
    assert len(list(overfitting(run_log([3.0, 1.0, 0.1, 0.1, 0.1], [3.2]), BASELINE))) == 1


def test_overfitting_is_validation_that_no_longer_follows() -> None:
    # Two thirds of what was learnt on the training data, 3.0 → 0.83, are missing in validation.
    stale = [2.6, 2.35, 2.3, 2.31, 2.32, 2.33]
    (finding,) = overfitting(run_log(FALLING, stale), BASELINE)
    assert finding.step == 150
    # The same gap, but validation still improves: other text, and no memory.
    assert list(overfitting(run_log(FALLING, sorted(stale, reverse=True)), BASELINE)) == []
    # A run that diverges has learnt nothing that it could know by heart.
    assert list(overfitting(run_log([2.9] * 30, [2.9, 2.8, 3.5, 5.0]), BASELINE)) == []
    # It has stopped improving where training has: nothing is memorized.
    assert list(overfitting(run_log(FALLING, [1.6, 1.2, 1.0, 1.01, 1.02]), BASELINE)) == []


def test_overfitting_compares_losses_of_the_same_step() -> None:
    # Training has gone on since the only validation, at step 50, where both were alike.
    log = run_log([3.0, 2.9, 2.8, 2.8, 2.8, *FALLING], [2.8])
    assert list(overfitting(log, BASELINE)) == []


def test_labels_that_say_nothing_are_not_answered_with_more_data() -> None:
    by_heart = [3.0, 2.0, 1.0, 0.4, 0.2, 0.1, 0.1, 0.1]
    (finding,) = overfitting(run_log([*by_heart] * 2, [3.1, 3.4, 3.9]), BASELINE)
    assert "labels" in finding.change
    (finding,) = overfitting(run_log(FALLING, [2.5, 2.2, 2.6, 3.1]), BASELINE)
    assert "dropout" in finding.change


def test_training_that_has_not_moved_is_said() -> None:
    noisy = [3.0 + 0.4 * (i % 2) for i in range(12)]  # a rate far too high: no plateau
    (finding,) = unmoved(run_log(noisy, [3.1, 3.2]), BASELINE)
    assert finding.check == "plateau"
    # A slow start, whose validation goes on improving, and a model that has learnt.
    assert list(unmoved(run_log(noisy, [3.2, 3.1]), BASELINE)) == []
    assert list(unmoved(run_log(FALLING, [3.1, 3.2]), BASELINE)) == []
    # It was learning for as long as it had a rate.
    decayed = run_log([*noisy, *noisy, 3.0], [3.5, 3.4, 3.3, 3.299, 3.298])
    assert [finding.check for finding in unmoved(decayed, BASELINE)] == ["plateau"]
    decayed.learning_rates[16:] = [1e-6] * len(decayed.learning_rates[16:])
    assert list(unmoved(decayed, BASELINE)) == []


def test_a_finding_of_an_unknown_name_comes_last() -> None:
    unknown = Finding("of_a_later_version", "", "", "", 1.0)
    known = Finding("plateau", "", "", "", 0.1)
    assert ranked([unknown, known]) == [known, unknown]


def test_gradients_of_a_thousand_explode() -> None:
    assert len(list(exploding_gradients(run_log(FALLING, norm=1e5)))) == 1
    assert list(exploding_gradients(run_log(FALLING, norm=50))) == []


def test_a_skipped_update_names_step_and_module() -> None:
    log = run_log(FALLING)
    log.add({"event": "skipped", "step": 77, "loss": "nan", "origin": "stack.blocks.1 (exp)"})
    (finding,) = non_finite(log)
    assert finding.step == 77
    assert "stack.blocks.1 (exp)" in finding.evidence


def test_a_finding_survives_the_log(tmp_path: Path) -> None:
    finding = Finding("plateau", "evidence", "cause", "change", 0.5, 7)
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(finding.record(7)) + '\n{"step": 3, "lo')
    assert RunLog.read(path).findings == [finding]


def test_causes_stand_above_symptoms() -> None:
    def finding(check: str, confidence: float) -> Finding:
        return Finding(check, "", "", "", confidence)

    names = ["plateau", "rate_too_high", "misaligned_sides", "saturated_attention"]
    findings: list[Any] = [finding(name, 0.9) for name in names]
    order = [each.check for each in ranked(findings)]
    assert order == ["misaligned_sides", "rate_too_high", "saturated_attention", "plateau"]
    # A low rate kills no units: they are a cause of their own beside it.
    low = [finding("rate_too_low", 0.9), finding("dead_units", 0.5), finding("rate_too_high", 0.1)]
    assert [each.check for each in ranked(low)] == ["rate_too_high", "dead_units", "rate_too_low"]
    # Each once, as surely as it was ever seen.
    twice = ranked([finding("plateau", 0.3), finding("plateau", 0.6)])
    assert [each.confidence for each in twice] == [0.6]
