"""Evaluation: the scores that the run itself gave, intervals, paired tests, and refusals."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

import regard
from forked_command import run_command
from regard.evaluation.evaluation import evaluate, paired_tests
from regard.evaluation.metrics.metric import Array, Metric
from regard.evaluation.metrics.registry import METRICS
from regard.evaluation.scores import Score
from regard.evaluation.tasks import TASKS
from regard.system.errors import DataError, ModelError, SettingError
from regard.training.result import Result
from regard.training.run_evaluation import run_settings, score_run
from regard.training.run_folder import RunFolder

TINY: dict[str, Any] = {
    "d_model": 32, "d_ff": 48, "heads": 2, "layers": 1, "threads": 1, "samples": 0,
    "log_every": 999, "validate_every": 999, "save_every": 999,
}  # fmt: skip


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A run with another beam, penalty and tokenisation than the defaults."""
    folder = tmp_path_factory.mktemp("translation")
    nouns = ("dog Hund", "cat Katze", "owl Eule", "fox Fuchs")
    verbs = ("sleeps schläft", "runs läuft", "sees sieht", "sings singt")
    pairs = []
    for noun in nouns:
        for verb in verbs:
            english = f"the {noun.split()[0]} {verb.split()[0]} ."
            pairs.append((english, f"Tier : {noun.split()[1]} {verb.split()[1]} ."))
    for side, column in (("en", 0), ("de", 1)):
        lines = "".join(pair[column] + "\n" for pair in pairs)
        (folder / f"train.{side}").write_text(lines * 8)
        (folder / f"test.{side}").write_text(lines)
    result = regard.train(
        {"source": str(folder / "train.en"), "target": str(folder / "train.de")},
        test_source=str(folder / "test.en"), test_target=str(folder / "test.de"),
        out=folder / "run", steps=60, warmup_steps=20, batch_tokens=256, vocabulary=80,
        beam=3, length_penalty="power:0.2", tokenize="none",
        preset="tiny", metrics=["chrf", "bleu", "loss"], **TINY,
    )  # fmt: skip
    return result, folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("classifier")
    rng = np.random.default_rng(0)
    words = np.array(["sun", "rain", "dog", "cat", "tree", "house", "one", "two"])
    for split, count in (("train", 300), ("test", 90)):
        lines = []
        for row in rng.integers(len(words), size=(count, 6)):
            # One label in six is wrong, so that no model is right everywhere.
            is_sky = ((row < 2).sum() > 1) != (rng.random() < 1 / 6)
            label = "sky" if is_sky else "earth"
            lines.append(f"{' '.join(words[row])}\t{label}\n")
        (folder / f"{split}.tsv").write_text("".join(lines))
    result = regard.train(
        objective="classify", text=str(folder / "train.tsv"), test_text=str(folder / "test.tsv"),
        out=folder / "run", steps=120, learning_rate=1e-2, schedule="cosine", warmup_steps=10,
        batch_tokens=256, context=16, preset="tiny", metrics=["accuracy", "top_k:1"], **TINY,
    )  # fmt: skip
    return result, folder


# --- the scores of the run itself ---


def test_translations_score_as_in_the_run(translation: tuple[Result, Path]) -> None:
    result, folder = translation
    own = result.scores["test"]
    assert isinstance(own, Score)
    data = (folder / "test.en", folder / "test.de")
    again = regard.evaluate(result.folder, data)
    assert (again["bleu"], again["chrf"], again["exact_match"]) == (
        own.bleu, own.chrf, own.exact_match,
    )  # fmt: skip
    assert own.signature == again.results["bleu"].metric.signature()
    assert "tok:none" in own.signature
    assert 0 < own.chrf < 100
    assert result.metrics["test"] == {
        "chrf": again["chrf"],
        "bleu": again["bleu"],
        "loss": pytest.approx(np.log(again["perplexity"])),
    }


def test_the_prefix_of_the_run(translation: tuple[Result, Path], tmp_path: Path) -> None:
    """Sources are read with the prefix that fine-tuning put before them."""
    result, folder = translation
    sources = (folder / "test.en").read_text().splitlines()
    targets = (folder / "test.de").read_text().splitlines()
    lines = [f"{a}\t{b}\n" for a, b in zip(sources, targets, strict=True)]
    data = tmp_path / "data.tsv"
    data.write_text("".join(lines))
    tuned = regard.finetune(
        result.folder, "summarize", data, prefixes=("sees . ",), test=data, out=tmp_path / "run",
        epochs=1, quiet=True, threads=1, beam=2,
    )  # fmt: skip
    own = tuned.scores["test"]
    assert isinstance(own, Score)
    again = regard.evaluate(tuned.folder, data, ["chrf", "bleu"])
    assert again.task == "summarize"
    assert (again["chrf"], again["bleu"]) == (own.chrf, own.bleu)
    # Summaries are scored by ROUGE at the end of a run, and whenever no metrics are named.
    assert regard.evaluate(tuned.folder, data)["rougeL"] == own.rougeL
    assert "ROUGE-L" in str(own)
    written_out = [f"sees . {line}" for line in lines]
    (tmp_path / "prefixed.tsv").write_text("".join(written_out))
    once = evaluate(regard.load(tuned.folder), tmp_path / "prefixed.tsv", ["loss"], "summarize")
    assert regard.evaluate(tuned.folder, data, ["loss"])["loss"] == pytest.approx(once["loss"])
    stored = score_run(RunFolder(tuned.folder), ["loss"], ["test"])["test"]
    assert stored["loss"] == pytest.approx(once["loss"])
    twice = regard.evaluate(tuned.folder, tmp_path / "prefixed.tsv", ["loss"])
    assert twice["loss"] != pytest.approx(once["loss"])


def test_perplexity_is_that_of_the_model(translation: tuple[Result, Path]) -> None:
    result, folder = translation
    model = regard.load(result.folder, regard.Translator)
    sources = (folder / "test.en").read_text().splitlines()
    targets = (folder / "test.de").read_text().splitlines()
    scores = evaluate(model, list(zip(sources, targets, strict=True)), ["perplexity"]).scores
    assert scores["perplexity"] == pytest.approx(model.perplexity(sources, targets))


def test_classes_score_as_in_the_run(classifier: tuple[Result, Path]) -> None:
    result, folder = classifier
    own = result.scores["test"]
    assert isinstance(own, Score)
    again = regard.evaluate(result.folder, folder / "test.tsv")
    assert again.scores == {"accuracy": own.accuracy, "f1": own.f1}
    assert 50 < own.accuracy < 100
    assert result.metrics["test"] == {"accuracy": own.accuracy, "top_1": own.accuracy}
    assert set(result.metrics) == set(result.scores) == {"valid", "test"}


# --- intervals and paired tests ---


def test_intervals_contain_the_score(
    translation: tuple[Result, Path], classifier: tuple[Result, Path]
) -> None:
    result, folder = classifier
    pairs = (translation[1] / "test.en", translation[1] / "test.de")
    for evaluation in (
        regard.evaluate(translation[0].folder, pairs),
        regard.evaluate(result.folder, folder / "test.tsv"),
    ):
        for one in evaluation.results.values():
            assert one.interval.low <= one.score <= one.interval.high
        assert evaluation["accuracy" if "accuracy" in evaluation.scores else "bleu"] > 0
    narrow = regard.evaluate(result.folder, folder / "train.tsv").results["accuracy"].interval
    wide = evaluation.results["accuracy"].interval
    assert narrow.high - narrow.low < wide.high - wide.low


def test_a_model_does_not_differ_from_itself(classifier: tuple[Result, Path]) -> None:
    result, folder = classifier
    one = regard.evaluate(result.folder, folder / "test.tsv")
    tests = paired_tests(one, regard.evaluate(result.folder, folder / "test.tsv"))
    assert [(name, test.difference, test.p_value) for name, test in tests.items()] == [
        ("accuracy", 0.0, 1.0),
        ("f1", 0.0, 1.0),
    ]


def test_a_worse_model_differs(translation: tuple[Result, Path]) -> None:
    result, folder = translation
    data = (folder / "test.en", folder / "test.de")
    good = regard.evaluate(result.folder, data)
    model = regard.load(result.folder, regard.Translator)
    for parameter in model.model.parameters():
        parameter.data.zero_()
    bad = evaluate(model, data, settings=run_settings(result.folder).settings)
    test = paired_tests(good, bad)["chrf"]
    assert test.difference == pytest.approx(bad["chrf"] - good["chrf"])
    assert test.difference < 0
    assert test.p_value < 0.05


def test_only_the_same_metric_is_compared(translation: tuple[Result, Path]) -> None:
    result, folder = translation
    data = (folder / "test.en", folder / "test.de")
    one = regard.evaluate(result.folder, data, ["bleu:none", "chrf"])
    other = regard.evaluate(result.folder, data, ["bleu:13a", "chrf"])
    assert paired_tests(one, other).keys() == {"chrf"}


# --- the result ---


def test_the_repr_is_a_table(classifier: tuple[Result, Path]) -> None:
    result, folder = classifier
    evaluation = regard.evaluate(result.folder, folder / "test.tsv")
    title, head, *rows = repr(evaluation).splitlines()
    assert title == f"classify: 90 texts, {result.parameters:,} parameters"
    assert head.split()[:2] == ["metric", "score"]
    assert [row.split()[0] for row in rows] == ["accuracy", "f1"]
    assert f"{evaluation['accuracy']:.2f}" in rows[0]
    assert "predicted class is the label" in rows[0]
    assert json.loads(json.dumps(evaluation.report()))["accuracy"] == evaluation["accuracy"]


@dataclass(frozen=True)
class FirstWord(Metric):
    """A metric from outside the package."""

    name = "first_word"

    def signature(self) -> str:
        return "predictions that begin as the reference"

    def counts(self, predictions: Any, references: Any) -> ArrayLike:
        pairs = zip(predictions, references, strict=True)
        return [(p.split()[:1] == r.split()[:1], 1) for p, r in pairs]

    def score(self, totals: Array) -> float:
        return float(100 * totals[0] / totals[1])


def test_a_metric_from_outside(translation: tuple[Result, Path]) -> None:
    result, folder = translation
    data = (folder / "test.en", folder / "test.de")
    evaluation = regard.evaluate(result.folder, data, [FirstWord()])
    first_words = [text.split()[:1] == ["Tier"] for text in evaluation.predictions]
    assert evaluation["first_word"] == pytest.approx(100 * np.mean(first_words))


def test_metrics_of_tasks_exist() -> None:
    for task in TASKS.values():
        assert {
            name.partition(":")[0] for name in task.metrics + task.other_metrics
        } <= METRICS.keys()


# --- what is refused ---


def test_refused(translation: tuple[Result, Path], classifier: tuple[Result, Path]) -> None:
    folder = classifier[0].folder
    data = classifier[1] / "test.tsv"
    with pytest.raises(ModelError, match=r"does not support the task 'tag'.*\n.*classify"):
        regard.evaluate(folder, data, task="tag")
    with pytest.raises(SettingError, match="did you mean 'classify'"):
        regard.evaluate(folder, data, task="clasify")
    with pytest.raises(SettingError, match="bleu is not a metric of the task 'classify'"):
        regard.evaluate(folder, data, ["bleu"])
    with pytest.raises(SettingError, match="did you mean 'accuracy'"):
        regard.evaluate(folder, data, ["acuracy"])
    with pytest.raises(DataError, match="the label 'ein Hund' is not a class of the model"):
        (classifier[1] / "other.tsv").write_text("a dog\tein Hund\n")
        regard.evaluate(folder, classifier[1] / "other.tsv")
    with pytest.raises(DataError, match="at least one"):
        regard.evaluate(folder, [])
    with pytest.raises(SettingError, match="only tasks with parallel text read two files"):
        regard.evaluate(folder, (data, data))
    with pytest.raises(SettingError, match="target file too"):
        regard.evaluate(translation[0].folder, translation[1] / "test.en")
    with pytest.raises(SettingError, match="accuracy is not a metric of the task 'translate'"):
        regard.train("builtin", metrics=["accuracy"])


# --- the command ---


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("evaluate", *arguments)


def test_the_command_takes_the_settings_of_the_run(translation: tuple[Result, Path]) -> None:
    result, folder = translation
    own = result.scores["test"]
    assert isinstance(own, Score)
    files = ["--source", str(folder / "test.en"), "--target", str(folder / "test.de")]
    done = command(str(result.folder), *files, "--json")
    report = json.loads(done.stdout)
    assert report["bleu"] == own.bleu
    assert report["chrf"] == own.chrf
    assert report["signatures"]["bleu"] == own.signature
    assert report["intervals"]["bleu"][0] <= own.bleu <= report["intervals"]["bleu"][1]
    assert "beam 3, length penalty power:0.2, tokenize none" in done.stderr
    other = json.loads(command(str(result.folder), *files, "--json", "--tokenize", "13a").stdout)
    assert "tok:13a" in other["signatures"]["bleu"]


@pytest.mark.slow
def test_the_command_compares_classifiers(classifier: tuple[Result, Path]) -> None:
    result, folder = classifier
    data = ["--data", str(folder / "test.tsv"), "--metrics", "accuracy,top_k:1"]
    models = [str(result.folder), f"{result.folder}/."]
    done = command(*models, *data, "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["accuracy"] == second["top_1"] == result.metrics["test"]["accuracy"]
    assert second["p_values"] == {"accuracy": 1.0, "top_1": 1.0}
    assert "p_values" not in first
    done = command(*models, *data)
    head, _, row = done.stdout.splitlines()
    assert "accuracy" in head
    assert "p=1.000" in row
    assert "predicted class is the label" in done.stderr
    done = command(str(result.folder), *data, "--output", str(folder / "out.txt"))
    assert done.returncode == 0, done.stderr
    assert set((folder / "out.txt").read_text().split()) <= {"sky", "earth"}
    refused = command(str(result.folder), *data, "--beam", "2")
    assert refused.returncode == 2
    assert "--beam has no effect on the task 'classify'" in refused.stderr
    assert "--data" in command(str(result.folder)).stderr
    assert "twice" in command(models[0], models[0], *data).stderr
