"""The encoder–decoder of time series in training: the calendar, resuming, fine-tuning, sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import look, spec
from regard.data.series import calendar_features, dates_after, read_series
from regard.evaluation.scores import Score
from regard.families import presets
from regard.look.backdrop import SeriesBackdrop
from regard.models import SeriesModel
from regard.system.errors import DataError, ModelError, SettingError, TrainingInterrupted
from regard.training.recipe import loading
from regard.training.run import resume

STEPS = 420
QUICK: dict[str, Any] = {
    "steps": 6, "warmup_steps": 1, "batch_tokens": 600, "validate_every": 3, "save_every": 2,
    "schedule": "constant", "learning_rate": 3e-3, "threads": 1, "device": "cpu",
    "model": "time_series_transformer:tiny", "d_model": 8, "d_ff": 12, "heads": 2, "layers": 1,
    "context": 12, "lags": "1,2,24", "horizon": 4, "series_split": "260:80:80",
}  # fmt: skip
SIZES = ("model", "d_model", "d_ff", "heads", "layers", "context", "lags")


def waves() -> np.ndarray[Any, Any]:
    """Two daily rhythms of other sizes, hour by hour, with some noise."""
    time = np.arange(STEPS)
    noise = np.random.default_rng(0).normal(size=(STEPS, 2)) * 0.1
    rhythms = np.stack([np.sin(time * np.pi / 12), np.cos(time * np.pi / 12)], axis=1)
    return (rhythms + noise) * [3, 100] + [10, -50]


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Hours from 2016-07-01 on, as the ETT files write them."""
    dates = np.datetime64("2016-07-01T00") + np.arange(STEPS)
    rows = [
        f"{str(date).replace('T', ' ')}:00:00,{a:.4f},{b:.4f}\n"
        for date, (a, b) in zip(dates, waves(), strict=True)
    ]
    path = tmp_path / "load.csv"
    path.write_text("date,load,heat\n" + "".join(rows))
    return str(path)


def trained(table: str, out: Path, **changes: Any) -> Any:
    return regard.train({**QUICK, **changes}, series=table, out=out)


def opened(folder: Path) -> SeriesModel:
    model = regard.load(folder, device="cpu")
    assert isinstance(model, SeriesModel)
    return model


# ------------------------------------------------------------------ the calendar


def test_time_features_are_shares_of_day_week_month_and_year() -> None:
    dates = np.array(["2016-07-04 00:00", "2016-07-10 23:59", "2016-12-31"], "datetime64[s]")
    features = calendar_features(dates) + 0.5
    # Monday, 4 July at midnight; the Sunday after it, before midnight; the last day of a leap year.
    assert features[0] == pytest.approx([0, 0, 3 / 30, 185 / 365])
    assert features[1] == pytest.approx([1, 1, 9 / 30, 191 / 365])
    assert features[2, 2:] == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("last", "following"),
    [
        (["2016-07-01 22:00", "2016-07-01 23:00"], ["2016-07-02 00:00", "2016-07-02 01:00"]),
        (["2015-11-01", "2015-12-01"], ["2016-01-01", "2016-02-01"]),
        (["2014-03-31", "2015-03-31"], ["2016-03-31", "2017-03-31"]),
        (["2016-02-22", "2016-02-29"], ["2016-03-07", "2016-03-14"]),
    ],
)
def test_dates_go_on_as_they_are_apart(last: list[str], following: list[str]) -> None:
    after = dates_after(np.array(last, "datetime64[s]"), 2)
    assert list(after) == list(np.array(following, "datetime64[s]"))


def test_a_column_of_other_words_is_no_date(table: str, tmp_path: Path) -> None:
    dates = read_series(table).dates
    assert dates is not None
    assert dates[25] == np.datetime64("2016-07-02T01")
    (tmp_path / "days.csv").write_text("day,load\nmonday,1\ntuesday,2\n")
    assert read_series(tmp_path / "days.csv").dates is None


# ------------------------------------------------------------------ runs


@pytest.mark.slow
def test_a_forecaster_learns_and_its_scores_come_back(table: str, tmp_path: Path) -> None:
    changes = {"steps": 250, "validate_every": 250, "save_every": 250, "dropout": 0.0}
    sizes = {"d_model": 16, "d_ff": 32, "attention_dropout": 0.0, "feedforward_dropout": 0.0}
    result = trained(table, tmp_path / "run", **changes, **sizes)
    score = result.scores["test"]
    assert isinstance(score, Score)
    # The variance of standardized values is 1, that of their noise about 0.02.
    assert score.mse < 0.15
    model = opened(tmp_path / "run")
    forecast = model.forecast(f"{table}::416")
    assert np.abs(forecast - waves()[416:])[:, 0].max() < 1.5
    # Trajectories differ, and their mean is near the mean path.
    samples = model.sample(f"{table}::416", 200)
    assert samples.shape == (200, 4, 2)
    assert np.abs(samples.mean(axis=0) - forecast)[:, 0].max() < 1


def test_a_run_is_a_folder_of_transformers(table: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    result = trained(table, tmp_path / "run")
    theirs = transformers.TimeSeriesTransformerForPrediction.from_pretrained(tmp_path / "run")
    model = opened(tmp_path / "run")
    assert theirs.config.num_time_features == 4
    values = torch.from_numpy(model.standardized(table))[None]  # [1, steps, 2]
    features = model.time_features(read_series(table))
    assert features is not None
    inputs = {
        "past_values": values[:, :36],
        "past_time_features": torch.from_numpy(features)[None, :36],
        "future_values": values[:, 36:40],
        "future_time_features": torch.from_numpy(features)[None, 36:40],
    }
    with torch.inference_mode():
        ours = model(**inputs)
        mask = torch.ones_like(inputs["past_values"])
        expected = theirs.eval()(**inputs, past_observed_mask=mask)
    assert ours.loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
    # The same windows, read again from the file, have the same score.
    again = regard.evaluate(tmp_path / "run", f"{table}:304:420")
    assert again["mse"] == pytest.approx(result.scores["test"].mse, rel=1e-4)


def test_a_resumed_run_is_the_same_bit_for_bit(table: str, tmp_path: Path) -> None:
    """With LayerDrop and dropout, whose draws follow from seed and step."""
    settings = {key: value for key, value in QUICK.items() if key not in (*SIZES, "horizon")}
    settings |= {"series": table, "objective": "forecast"}
    model = presets.preset(
        "time_series_transformer:tiny", 2, 12, horizon=4, lags="1,24", layer_drop=0.3, d_model=8
    )
    regard.train(settings, model=model, out=tmp_path / "whole")

    def stop(loop: Any) -> None:
        if loop.progress.step == 4:
            loop.request_stop()

    with pytest.raises(TrainingInterrupted):
        regard.train(settings, model=model, out=tmp_path / "parts", on_step=stop)
    Path(table).unlink()  # what is needed is in the run folder, dates too
    resume(tmp_path / "parts")
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_it_is_fine_tuned_for_another_horizon(table: str, tmp_path: Path) -> None:
    trained(table, tmp_path / "base", steps=2)
    settings = {key: value for key, value in QUICK.items() if key not in SIZES}
    settings |= {"base": str(tmp_path / "base"), "objective": "forecast", "horizon": 7, "steps": 1}
    regard.train(settings, series=table, out=tmp_path / "tuned")
    assert opened(tmp_path / "tuned").forecast(table).shape == (7, 2)


def test_samples_follow_from_the_seed_and_leave_the_generator_alone(
    table: str, tmp_path: Path
) -> None:
    trained(table, tmp_path / "run", steps=1, forecast="student_t")
    model = opened(tmp_path / "run")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = model.sample(table, 5, seed=1)
    assert torch.equal(torch.rand(2), expected)
    assert np.array_equal(first, model.sample(table, 5, seed=1))
    assert not np.array_equal(first, model.sample(table, 5, seed=2))
    assert len(model.sample(table)) == 100
    answer = regard.predict(model, [table], samples=20)[0].answer
    assert answer["columns"][:3] == ["load 0.1", "load 0.5", "load 0.9"]
    rows = np.array(answer["forecast"])
    quantiles = np.quantile(model.sample(table, 20), (0.1, 0.5, 0.9), axis=0)  # [levels, 4, 2]
    assert np.allclose(rows.reshape(4, 2, 3), quantiles.transpose(1, 2, 0))


@pytest.mark.parametrize("model", ["time-series-transformer:tiny", "patchtst:tiny"])
def test_counts_stay_counts(model: str, tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    visits = np.random.default_rng(0).poisson(5 + 4 * np.sin(np.arange(STEPS) / 4))
    path.write_text("visits\n" + "".join(f"{count}\n" for count in visits))
    settings = {key: value for key, value in QUICK.items() if key not in ("lags", "context")}
    settings |= {"model": model, "context": 24, "forecast": "negative_binomial"}
    regard.train(settings, series=str(path), out=tmp_path / "run")
    samples = opened(tmp_path / "run").sample(path, 30)
    assert samples.min() >= 0
    assert np.array_equal(samples, samples.round())
    # Halves are no counts.
    path.write_text(path.read_text() + "2.5\n")
    settings["series_split"] = str(STEPS + 1)
    with pytest.raises(DataError, match="counts"):
        regard.train(settings, series=str(path), out=tmp_path / "other")


def test_half_precision_computes_losses_in_float32(table: str, tmp_path: Path) -> None:
    losses = []
    for precision in ("float32", "bf16"):
        run = tmp_path / precision
        trained(table, run, steps=3, validate_every=3, dropout=0.0, precision=precision)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses.append(next(line["loss"] for line in lines if line.get("event") == "validation"))
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


def test_what_each_step_looks_at_is_drawn_with_the_forecast(table: str, tmp_path: Path) -> None:
    trained(table, tmp_path / "run", steps=1)
    model = opened(tmp_path / "run")
    run = model.look(table, ask=("*.weights", "logits"))
    cross = run.attention("decoder.0.cross")
    # Each row is what its position reads and predicts; +0 is the last step of the context.
    assert cross.rows == ("+0 → +1", "+1 → +2", "+2 → +3", "+3 → +4")
    # The context; what its lags look back to before it has no position.
    assert cross.columns == tuple(str(step) for step in range(24, 36))
    assert isinstance(cross.backdrop, SeriesBackdrop)
    assert cross.backdrop.forecast == pytest.approx(model.forecast(table)[:, 0], rel=1e-4)
    assert len(cross.scene().marks) > 40
    attribution = look.attribution(model, table)
    assert attribution.values.shape == (4, 12 + 4)
    assert attribution.scene().marks
    # A head that is off changes what the decoder reads, and so the forecast.
    ablated = model.look(table, ask="logits", off=[("decoder.0.cross", 0)])
    assert not np.allclose(ablated["logits"], run["logits"])


def test_missing_values_and_missing_dates(table: str, tmp_path: Path) -> None:
    lines = Path(table).read_text().splitlines()
    for row in (30, 31, 300):
        date, load, _ = lines[row].split(",")
        lines[row] = f"{date},{load},"
    gaps = tmp_path / "gaps.csv"
    gaps.write_text("\n".join(lines) + "\n")
    result = trained(str(gaps), tmp_path / "run", steps=1)
    assert np.isfinite(result.scores["test"].mse)
    # Without dates, a model that has learnt the calendar cannot forecast; a new one needs none.
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("\n".join(line.partition(",")[2] for line in lines) + "\n")
    with pytest.raises(DataError, match="no dates"):
        opened(tmp_path / "run").forecast(numbers)
    trained(str(numbers), tmp_path / "other", steps=1)
    part = opened(tmp_path / "other").spec
    assert isinstance(part, spec.SeriesEncoderDecoder)
    assert part.input.time_features == 0


# ------------------------------------------------------------------ specs and what is refused


def test_a_distribution_is_stored() -> None:
    for name in ("student_t", "normal", "negative_binomial"):
        part = spec.Distribution(name)  # type: ignore[arg-type]
        assert spec.from_dict(spec.to_dict(part)) == part


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"lags": "0,1"}, "lags"),
        ({"lags": "daily"}, "lags"),
        ({"forecast": "points"}, "cannot be Points"),
        ({"position": "learned"}, "remove `position`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changes: dict[str, Any], problem: str, table: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError) as caught:
        loading.load(None, {**QUICK, "series": table, **changes})
        trained(table, tmp_path / "run", **changes)
    assert problem in f"{caught.value.problem} {caught.value.repair}"


def test_static_features_are_not_in_a_table(table: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.TimeSeriesTransformerConfig(
        prediction_length=4, context_length=12, input_size=2, num_static_real_features=1, d_model=8
    )
    transformers.TimeSeriesTransformerForPrediction(config).save_pretrained(tmp_path / "base")
    with pytest.raises(DataError, match="features that a table"):
        opened(tmp_path / "base").forecast(table)
    settings = {key: value for key, value in QUICK.items() if key not in (*SIZES, "horizon")}
    settings |= {"base": str(tmp_path / "base"), "objective": "forecast", "steps": 1}
    with pytest.raises(ModelError, match="features that a table"):
        regard.train(settings, series=table, out=tmp_path / "tuned")


def test_a_processor_with_an_unknown_time_feature_is_refused(table: str, tmp_path: Path) -> None:
    trained(table, tmp_path / "run", steps=1)
    path = tmp_path / "run" / "preprocessor_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"time_features": ["phase_of_moon"]}))
    with pytest.raises(DataError, match="phase_of_moon"):
        opened(tmp_path / "run").forecast(table)
