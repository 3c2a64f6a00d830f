"""Time series by the one assembly line: windows, forecasts, resuming, fine-tuning, evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import spec
from regard.core.frontends.series_patches import Scaling
from regard.core.heads.series_head import distribution, pinball_loss
from regard.data.series import Series, SeriesProcessor, read_series
from regard.evaluation.scores import Score, scored
from regard.families import presets
from regard.system.errors import DataError, SettingError, TrainingInterrupted
from regard.training.data.series_source import open_series, split_counts
from regard.training.recipe import loading
from regard.training.run import resume
from regard.training.run_folder import RunFolder

STEPS = 400
QUICK: dict[str, Any] = {
    "steps": 6, "warmup_steps": 1, "batch_tokens": 400, "validate_every": 3, "save_every": 2,
    "schedule": "constant", "learning_rate": 2e-3, "threads": 1, "device": "cpu",
    "model": "patchtst:tiny", "d_model": 8, "d_ff": 12, "heads": 2, "layers": 1, "context": 24,
    "patch": 6, "stride": 3, "horizon": 5, "series_split": "240:80:80",
}  # fmt: skip


def waves(steps: int = STEPS) -> np.ndarray[Any, Any]:
    """Two daily rhythms of other sizes, with some noise."""
    time = np.arange(steps)
    noise = np.random.default_rng(0).normal(size=(steps, 2)) * 0.1
    rhythms = np.stack([np.sin(time * np.pi / 6), np.cos(time * np.pi / 6)], axis=1)
    return (rhythms + noise) * [3, 100] + [10, -50]


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "load.csv"
    rows = [f"2016-07-01 {i},{a:.4f},{b:.4f}\n" for i, (a, b) in enumerate(waves())]
    path.write_text("date,load,heat\n" + "".join(rows))
    return str(path)


# ------------------------------------------------------------------ files


def test_a_csv_is_read_without_its_dates(table: str) -> None:
    series = read_series(table)
    assert series.columns == ("load", "heat")
    assert np.allclose(series.values, waves(), atol=1e-3)
    assert read_series(table, ["heat"]).values.shape == (STEPS, 1)
    some = read_series(f"{table}:100:103")
    assert np.array_equal(some.values, series.values[100:103])


def test_empty_cells_are_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("load\n1\nNaN\n\n3\n")
    values = read_series(path).values[:, 0]
    assert np.array_equal(values, np.array([1, np.nan, 3], np.float32), equal_nan=True)
    processor = SeriesProcessor.of(read_series(path))
    assert processor.mean == (2.0,)
    assert processor.std == (1.0,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no rows"),
        ("load\n", "no rows"),
        ("date,load\nmonday,1\ntuesday,much\n", "'much' is not a number"),
        ("a,b\n1,2\n3\n", "row 2 has 1 cells"),
        ("date\nmonday\n", "no column of numbers"),
    ],
)
def test_a_csv_that_is_no_series_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=problem):
        read_series(path)


def test_a_misspelt_column_is_named(table: str) -> None:
    with pytest.raises(DataError, match="load"):
        read_series(table, ["lod"])


# ------------------------------------------------------------------ splits and windows


def test_the_borders_are_those_of_the_literature() -> None:
    assert list(split_counts("8640:2880:2880", 17_420)) == [8640, 2880, 2880]
    # Of shares: training and test are rounded down, validation is what is left.
    assert list(split_counts("0.7:0.1:0.2", 26_304)) == [18_412, 2632, 5260]
    for text in ("many", "1:2:3:4", "0:1"):
        with pytest.raises(SettingError):
            split_counts(text, 100)
    with pytest.raises(SettingError, match="but the series"):
        split_counts("80:20:1", 100)


def test_windows_look_back_into_the_split_before_but_forecast_in_their_own(
    table: str, tmp_path: Path
) -> None:
    regard.train({**QUICK, "steps": 1}, series=table, out=tmp_path / "run")
    stored = open_series(RunFolder(tmp_path / "run"))
    train = stored.windows("train", 24, 5)
    valid = stored.windows("valid", 24, 5)
    assert len(train) == 240 - 24 - 5 + 1
    assert len(valid) == 80 - 5 + 1
    assert np.array_equal(valid[0, 24:], stored.series.values[240:245])
    assert np.array_equal(valid[-1, 24:], stored.series.values[315:320])
    # Standardized by what trains.
    assert np.allclose(stored.series.values[:240].mean(axis=0), 0, atol=1e-5)
    assert np.allclose(stored.series.values[:240].std(axis=0), 1, atol=1e-5)


# ------------------------------------------------------------------ losses


def test_the_pinball_loss_is_least_at_the_quantile() -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    for level in (0.1, 0.5, 0.9):
        best = values.quantile(level)
        losses = [
            pinball_loss((best + shift).expand(2000)[..., None], values, [level]).mean()
            for shift in (-0.3, 0.0, 0.3)
        ]
        assert losses[1] < min(losses[0], losses[2])


def test_the_median_has_half_the_absolute_error() -> None:
    forecast = torch.tensor([[[[1.0]]]])
    loss = pinball_loss(forecast, torch.tensor([[[3.0]]]), [0.5])
    assert loss.item() == pytest.approx(0.5 * 2)


def test_coverage_counts_what_lies_between_the_outer_quantiles() -> None:
    forecasts = np.zeros((1, 4, 1, 3)) + np.array([-1.0, 0.0, 1.0])
    references = np.array([[[-2.0], [0.5], [1.0], [np.nan]]])
    score = scored(
        "forecast", [((0.1, 0.5, 0.9), one) for one in forecasts], list(references), "quantiles"
    )
    assert isinstance(score, Score)
    assert score.coverage == pytest.approx(100 * 2 / 3)
    assert score.mae == pytest.approx((2 + 0.5 + 1) / 3)


@pytest.mark.parametrize("kind", ["student_t", "normal"])
def test_a_distribution_is_scaled_back_as_transformers_does(kind: str) -> None:
    utils = pytest.importorskip("transformers.time_series_utils")
    outputs = {"student_t": utils.StudentTOutput, "normal": utils.NormalOutput}
    parameters = [torch.rand(2, 3, 4) + 0.5 for _ in range(3 if kind == "student_t" else 2)]
    scaling = Scaling(torch.randn(2, 1, 4), torch.rand(2, 1, 4) + 0.5)
    values = torch.randn(2, 3, 4)
    theirs = outputs[kind](dim=1).distribution(parameters, loc=scaling.loc, scale=scaling.scale)
    ours = distribution(kind, tuple(parameters), scaling)
    assert torch.allclose(ours.log_prob(values), theirs.log_prob(values), atol=1e-6)


# ------------------------------------------------------------------ models


def test_channels_do_not_see_each_other() -> None:
    model = regard.build(presets.preset("patchtst:tiny", 3, 48)).eval()
    values = torch.randn(2, 48, 3)
    changed = values.clone()
    changed[:, :, 1] += torch.randn(2, 48)
    with torch.inference_mode():
        one, other = (model.predict(model(x)[0], x) for x in (values, changed))
    assert isinstance(one, torch.Tensor)
    assert isinstance(other, torch.Tensor)
    assert torch.allclose(one[..., [0, 2]], other[..., [0, 2]], atol=1e-6)
    assert not torch.allclose(one[..., 1], other[..., 1], atol=1e-3)


@pytest.mark.parametrize("name", ["patchtst", "nlinear"])
def test_a_forecast_moves_with_the_level_of_its_window(name: str) -> None:
    """Instance normalization, and NLinear's last value: ŷ(a x + b) follows x."""
    model = regard.build(presets.preset(name, 1, 48)).eval()
    values = torch.randn(2, 48, 1)
    with torch.inference_mode():
        forecast = model.predict(model(values)[0], values)
        moved = model.predict(model(values + 7)[0], values + 7)
    assert isinstance(forecast, torch.Tensor)
    assert isinstance(moved, torch.Tensor)
    assert torch.allclose(moved, forecast + 7, atol=1e-4)


def test_dlinear_is_one_linear_map_of_the_window() -> None:
    model = regard.build(presets.preset("dlinear", 1, 48)).eval()
    a, b = torch.randn(2, 3, 48, 1)
    with torch.inference_mode():
        both = model(a + b)[0] + model(torch.zeros_like(a))[0]
        assert torch.allclose(both, model(a)[0] + model(b)[0], atol=1e-5)


def test_patches_of_two_scales_are_one_sequence() -> None:
    part = spec.SeriesPatches(48, 2, (spec.TimeScale(16, 8), spec.TimeScale(24, 12)))
    assert part.patches == 5 + 3
    model = presets.preset("patchtst:tiny", 2, 48, scales="16:8,24:12")
    hidden, _ = regard.build(model).eval()(torch.randn(3, 48, 2))
    assert hidden.shape == (6, 8, 16)


# ------------------------------------------------------------------ runs


def test_a_rhythm_is_learnt_better_than_its_mean(table: str, tmp_path: Path) -> None:
    changes = {"steps": 150, "validate_every": 50, "save_every": 150, "learning_rate": 1e-2}
    result = regard.train({**QUICK, **changes}, series=table, out=tmp_path / "run", dropout=0.0)
    score = result.scores["test"]
    assert isinstance(score, Score)
    # The variance of standardized values is 1, that of their noise about 0.02.
    assert score.mse < 0.2
    model = regard.load(tmp_path / "run", device="cpu")
    forecast = model.forecast(f"{table}::395")
    assert forecast.shape == (5, 2)
    assert np.abs(forecast - waves()[395:]).max(axis=0) == pytest.approx([0, 0], abs=60)
    assert np.abs(forecast - waves()[395:])[:, 0].max() < 3
    # The same windows, read again from the file, have the same score.
    again = regard.evaluate(tmp_path / "run", f"{table}:296:400")
    assert again["mse"] == pytest.approx(score.mse, rel=1e-4)
    assert again["mae"] == pytest.approx(score.mae, rel=1e-4)


@pytest.mark.parametrize("model", ["patchtst:tiny", "dlinear"])
def test_a_resumed_run_is_the_same_bit_for_bit(model: str, table: str, tmp_path: Path) -> None:
    """Batch norms too: their running statistics are part of the checkpoint."""
    sizes = ("d_model", "d_ff", "heads", "layers", "patch", "stride")
    settings = {key: value for key, value in QUICK.items() if key not in sizes}
    settings |= {"model": model, "series": table, "batch_tokens": 2000}
    regard.train(settings, out=tmp_path / "whole")

    def stop(loop: Any) -> None:
        if loop.progress.step == 4:
            loop.request_stop()

    with pytest.raises(TrainingInterrupted):
        regard.train(settings, out=tmp_path / "parts", on_step=stop)
    Path(table).unlink()  # what is needed is in the run folder
    resume(tmp_path / "parts")
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("forecast", ["quantiles:0.1:0.5:0.9", "student_t", "normal"])
def test_quantiles_and_distributions_are_learnt(forecast: str, table: str, tmp_path: Path) -> None:
    result = regard.train(QUICK, series=table, forecast=forecast, out=tmp_path / "run")
    model = regard.load(tmp_path / "run", device="cpu")
    levels = (3,) if forecast.startswith("quantiles") else ()
    assert model.forecast(table).shape == (5, 2, *levels)
    if levels:
        assert isinstance(result.scores["test"], Score)
        metrics = ["mse", "quantile_loss", "coverage"]
        scores = regard.evaluate(tmp_path / "run", table, metrics)
        assert 0 <= scores["coverage"] <= 100
    else:
        assert model.config["model_type"] == "patchtst"  # transformers knows these


def test_missing_values_change_neither_loss_nor_batch(table: str, tmp_path: Path) -> None:
    lines = Path(table).read_text().splitlines()
    for row in (30, 31, 120):
        date, load, _ = lines[row].split(",")
        lines[row] = f"{date},{load},"
    gaps = tmp_path / "gaps.csv"
    gaps.write_text("\n".join(lines) + "\n")
    result = regard.train(QUICK, series=str(gaps), out=tmp_path / "run")
    score = result.scores["test"]
    assert isinstance(score, Score)
    assert np.isfinite(score.mse)


def test_a_forecaster_is_fine_tuned_for_another_horizon(table: str, tmp_path: Path) -> None:
    regard.train(QUICK, series=table, out=tmp_path / "base")
    tuned = {**QUICK, "steps": 2, "validate_every": 2}
    for key in ("model", "d_model", "d_ff", "heads", "layers", "patch", "stride", "context"):
        del tuned[key]
    settings = {**tuned, "base": str(tmp_path / "base"), "objective": "forecast", "horizon": 8}
    regard.train(settings, series=table, out=tmp_path / "tuned")
    model = regard.load(tmp_path / "tuned", device="cpu")
    assert model.forecast(table).shape == (8, 2)


def test_a_pretrained_encoder_of_transformers_learns_to_forecast(
    table: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.PatchTSTConfig(
        num_input_channels=3, context_length=24, patch_length=6, patch_stride=3, d_model=8,
        num_attention_heads=2, num_hidden_layers=1, ffn_dim=12,
    )  # fmt: skip
    transformers.PatchTSTForPretraining(config).save_pretrained(tmp_path / "base")
    settings = {
        **{key: QUICK[key] for key in ("batch_tokens", "series_split", "threads", "device")},
        "base": str(tmp_path / "base"), "objective": "forecast", "horizon": 4, "steps": 1,
    }  # fmt: skip
    regard.train(settings, series=table, out=tmp_path / "tuned")
    opened = transformers.PatchTSTForPrediction.from_pretrained(tmp_path / "tuned")
    assert opened.config.num_input_channels == 2
    assert opened.config.prediction_length == 4


def test_an_own_source_of_series(tmp_path: Path) -> None:
    class Pieces:
        """A split in two pieces, one after the other."""

        def splits(self) -> Any:
            values = waves().astype(np.float32)
            parts = [Series(values[:150], ("a", "b")), Series(values[150:300], ("a", "b"))]
            rest = Series(values[300:], ("a", "b"))
            return {"train": lambda: iter(parts), "valid": lambda: iter([rest])}

    regard.train(QUICK, data=Pieces(), objective="forecast", out=tmp_path / "run")
    stored = open_series(RunFolder(tmp_path / "run"))
    assert stored.borders == {"train": (0, 300), "valid": (300, 400)}


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"series": None}, "learns from time series"),
        ({"text": "a.txt"}, "not from `text`"),
        ({"objective": "causal", "model": "gpt2"}, "not from `series`"),
        ({"forecast": "guess"}, "there is no forecast"),
        ({"forecast": "quantiles:0.9:0.1"}, "levels"),
        ({"scales": "16:x"}, "scales"),
        ({"model": "bert:tiny"}, "not for the objective"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], problem: str) -> None:
    values = {**QUICK, "objective": "forecast", "series": "a.csv", **changes}
    with pytest.raises(SettingError, match=problem):
        loading.load(None, {key: value for key, value in values.items() if value is not None})


def test_a_series_that_is_too_short_is_refused(table: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few"):
        regard.train({**QUICK, "horizon": 90}, series=table, out=tmp_path / "run")
