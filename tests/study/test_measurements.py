"""What studies measure with: known power laws come back, peaks and paths are as computed."""

from __future__ import annotations

import pytest
import torch

from regard.lab.measure.instruments import peak_bytes
from regard.lab.plan.compute_optimal import Law
from regard.lab.study import layer_types, training_run
from regard.lab.study.scaling_law import (
    Point,
    bootstrap,
    fit,
    interval,
    larger_width,
    size,
)
from regard.lab.study.translators import calibration_error


def test_a_known_law_is_fitted_and_predicts_a_larger_model() -> None:
    law = Law(1.2, 30.0, 0.35, 80.0, 0.3)
    points = [Point(n, d, law.loss(n, d)) for n in (1e3, 3e3, 1e4, 3e4) for d in (1e5, 4e5, 1.6e6)]
    found = fit(points)
    assert found.size_exponent == pytest.approx(0.35, abs=0.02)
    assert found.data_exponent == pytest.approx(0.3, abs=0.02)
    assert found.loss(2e5, 1.6e6) == pytest.approx(law.loss(2e5, 1.6e6), rel=0.005)
    laws = bootstrap(points, found, 2, seed=1)
    low, high = interval([one.loss(2e5, 1.6e6) for one in laws])
    assert low <= 1.01 * law.loss(2e5, 1.6e6)
    assert high >= 0.99 * law.loss(2e5, 1.6e6)


def test_the_predicted_model_is_four_times_larger() -> None:
    assert size(larger_width(16)) >= 4 * size(16)
    assert size(larger_width(16) - 8) < 4 * size(16)


def test_the_peak_counts_what_lives_at_one_time() -> None:
    x = torch.ones(1000)  # 4,000 bytes, there before

    def one_after_the_other() -> None:
        for _ in range(5):
            x * 2

    def together() -> list[torch.Tensor]:
        return [x * 2 for _ in range(5)]

    assert peak_bytes(one_after_the_other) == 4000
    assert peak_bytes(together) == 20_000
    assert peak_bytes(lambda: x.view(10, 100).sum()) == 4  # a view has no bytes of its own


def test_paths_and_operations_of_table_1() -> None:
    measure = layer_types
    assert measure.path_length("self-attention", 33) == 1
    assert measure.path_length("recurrent", 33) == 33
    # In float32 its gradient vanishes before it has passed all positions.
    assert measure.path_length("recurrent", 257) == 257
    assert measure.path_length("convolutional", 33) == 16  # k − 1 positions a layer
    assert measure.path_length("dilated", 28) == 4  # 2·(1 + 3 + 9) < 27 < 2·(1 + 3 + 9 + 27)
    assert measure.path_length("restricted", 33) == 4  # 8 positions a layer
    # 2·n²·d for QKᵀ and for the weighted sum, each
    assert measure.layer_flops("self-attention", 64, 16) == 2 * 2 * 64 * 64 * 16
    # W x and U h of each step
    assert measure.layer_flops("recurrent", 64, 16) == 2 * 2 * 64 * 16 * 16


def test_calibration_of_a_known_case() -> None:
    # Ten answers of confidence 0.8, of which six are right: 0.2 off.
    confidence = torch.full((10,), 0.8)
    correct = torch.tensor([1.0] * 6 + [0.0] * 4)
    assert calibration_error(confidence, correct) == pytest.approx(0.2)


def test_smoothed_targets_sum_to_one() -> None:
    class Fixed(torch.nn.Module):
        """A model that always says the same."""

        writes = True
        head = lm_head = torch.nn.Identity()

        def forward(self, *_: object) -> tuple[torch.Tensor, None]:
            return logits, None

    logits = torch.randn(1, 1, 5)
    batch = training_run.Batch(torch.zeros(1, 1), torch.tensor([[2]]))
    smoothed = torch.full((5,), 0.1 / 5)
    smoothed[2] += 0.9
    assert float(smoothed.sum()) == pytest.approx(1.0)
    expected = -(smoothed * logits[0, 0].log_softmax(-1)).sum()
    torch.testing.assert_close(training_run.mean_loss(Fixed(), batch, 0.1), expected)
