"""Learning-rate curves by their formulas."""

from __future__ import annotations

import pytest

from regard.training.engine.optimizer import ConstantRate, CosineDecay, InverseSquareRoot


def test_the_papers_curve() -> None:
    """Equation 3 with d_model 512 and 4,000 warm-up steps: linear, a peak of 6.99e-4, then the
    inverse root.
    """
    rate = InverseSquareRoot(512, 4000)
    assert rate(1) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert rate(4000) == pytest.approx(6.9877e-4, rel=1e-4)
    assert max(range(1, 20_000), key=rate) == 4000
    assert rate(2000) == pytest.approx(rate(4000) / 2)
    assert rate(16_000) == pytest.approx(rate(4000) / 2)
    assert rate(100_000) == pytest.approx(1.3975e-4, rel=1e-4)


def test_a_peak_scales_the_papers_curve() -> None:
    scaled, paper = InverseSquareRoot.with_peak(0.005, 2000), InverseSquareRoot(128, 2000)
    assert scaled(2000) == pytest.approx(0.005)
    assert scaled(500) / scaled(7000) == pytest.approx(paper(500) / paper(7000))


def test_cosine_and_constant() -> None:
    rate = CosineDecay(1.0, 10, 110, floor=0.1)
    assert [rate(5), rate(10), rate(60), rate(110), rate(999)] == pytest.approx(
        [0.5, 1.0, 0.55, 0.1, 0.1]
    )
    assert [ConstantRate(2.0, 4)(2), ConstantRate(2.0, 4)(400)] == pytest.approx([1.0, 2.0])
