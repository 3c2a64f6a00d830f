"""`regard predict` on series, graphs and sound: files in, answers out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import regard
from regard.cli.predict import command
from regard.evaluation.prediction import _as_text

QUICK: dict[str, Any] = {
    "steps": 2, "warmup_steps": 1, "validate_every": 2, "save_every": 2, "schedule": "constant",
    "learning_rate": 1e-3, "threads": 1, "device": "cpu", "d_model": 8, "d_ff": 8, "heads": 2,
    "layers": 1,
}  # fmt: skip


def predicted(*arguments: str) -> list[str]:
    done = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def refused(*arguments: str) -> str:
    with pytest.raises(regard.system.errors.RegardError) as caught:
        CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    return str(caught.value)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("series") / "load.csv"
    rows = [f"{i},{np.sin(i):.4f},{np.cos(i):.4f}\n" for i in range(200)]
    path.write_text("hour,load,heat\n" + "".join(f"day {row}" for row in rows))
    return path


@pytest.mark.parametrize("forecast", ["points", "quantiles:0.1:0.5:0.9"])
def test_a_forecast_is_a_table(forecast: str, series: Path, tmp_path: Path) -> None:
    settings = QUICK | {
        "model": "patchtst:tiny", "series": str(series), "horizon": 5, "context": 24, "patch": 6,
        "stride": 3, "forecast": forecast,
    }  # fmt: skip
    run = str(regard.train(settings, out=tmp_path / "run").folder)
    model: Any = regard.load(run, device="cpu")
    expected = model.forecast(series)
    rows = predicted(run, str(series))
    names = ["load", "heat"]
    if forecast != "points":
        names = [f"{name} {level}" for name in names for level in ("0.1", "0.5", "0.9")]
    assert rows[0] == ",".join(["step", *names])
    values = np.array([[float(cell) for cell in row.split(",")] for row in rows[1:]])
    assert values[:, 0].tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(values[:, 1:], expected.reshape(5, -1), rtol=1e-4)
    both = predicted(run, str(series), f"{series}:0:100", "--json")
    assert [json.loads(line)["answer"]["columns"] for line in both] == [names, names]
    np.testing.assert_allclose(json.loads(both[0])["answer"]["forecast"], expected.reshape(5, -1))
    assert predicted(run, str(series), str(series))[0] == f"# {series}"
    assert "this model reads 24" in refused(run, f"{series}:0:10")
    assert "cannot read" in refused(run, str(tmp_path / "missing.csv"))


def test_nodes_have_a_line_each(tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    folder.mkdir()
    splits = ["train", "train", "valid", "test"] * 5
    rows = [f"{i}\t{'ab'[i % 2]}\t{split}\t{i % 3}\n" for i, split in enumerate(splits)]
    (folder / "nodes.tsv").write_text("".join(rows))
    (folder / "edges.tsv").write_text("".join(f"{i}\t{(i + 2) % 20}\n" for i in range(20)))
    run = str(regard.train(QUICK | {"model": "graph:tiny", "graph": str(folder)},
                           out=tmp_path / "run").folder)  # fmt: skip
    model: Any = regard.load(run, device="cpu")
    expected = model.classify(folder)
    lines = predicted(run, str(folder))
    assert len(lines) == 20
    for i, (line, scores) in enumerate(zip(lines, expected, strict=True)):
        name, _, text = line.partition("\t")
        assert name == f"{folder}:{i}"
        assert text.split()[0] == next(iter(scores))
    assert predicted(run, f"{folder}:7") == [lines[7]]
    answer = json.loads(predicted(run, f"{folder}:7", "--json")[0])["answer"]
    assert answer == pytest.approx(expected[7])
    assert "has no number 20" in refused(run, f"{folder}:20")


def test_a_class_may_be_called_text() -> None:
    assert _as_text({"text": 0.75, "image": 0.25}) == "text 0.7500  image 0.2500"
    assert _as_text({"text": "a cat", "probability": 0.5, "start": 0, "end": 5}) == "a cat 0.5000"
