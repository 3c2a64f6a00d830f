"""The stage of Ray Data: rows in their order, each once, also where a worker is killed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.data.generated import builtin
from regard.evaluation.ray import Predictor, predict
from regard.system.errors import DataError

ROOT = Path(__file__).parents[2]
DEMO = Path(regard.__file__).parent / "studio" / "demo"


def short_sentences(count: int) -> list[str]:
    """Of at most four words: a worker answers hundreds a second."""
    sentences = (sentence.source for sentence in builtin.sentences("train"))
    short = (text for text in sentences if len(text.split()) <= 4)
    unique = dict.fromkeys(itertools.islice(short, 4 * count))
    return list(unique)[:count]


# --- the callable class, without Ray ---


def test_a_predictor_answers_batches() -> None:
    texts = short_sentences(6)
    predictor = Predictor(str(DEMO), "translate", device="cpu", options={"beam": 1})
    batch = {"text": np.array([*texts, " "], dtype=object), "id": np.arange(7)}
    answers = predictor(batch)
    translator: Any = regard.load(DEMO, device="cpu")
    assert answers["prediction"].tolist() == [*translator.translate(texts, beam=1), ""]
    assert answers["id"].tolist() == list(range(7))
    with pytest.raises(DataError, match="no column 'text'") as caught:
        predictor({"sentence": batch["text"]})
    assert "sentence" in caught.value.repair


def test_other_tasks_have_their_own_answers(tmp_path: Path) -> None:
    predictor = Predictor(str(DEMO), device="cpu", column="line", output="answer")
    answers = predictor({"line": np.array(short_sentences(2), dtype=object)})
    assert all(isinstance(answer, str) for answer in answers["answer"])


# --- a local Ray of two workers ---


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    package = pytest.importorskip("ray", reason="pip install 'regard[ray]'")
    pytest.importorskip("ray.data", reason="pip install 'regard[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's own default is 15: to wait for everything else.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    source = str(Path(regard.__file__).parents[1])
    environment = {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    package.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={"env_vars": environment},
    )
    yield package
    package.shutdown()


class WatchedPredictor(Predictor):
    """Says which process has answered."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        answers = super().__call__(batch)
        return {**answers, "process": np.full(len(answers["id"]), os.getpid())}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text encoder, which answers thousands of sentences a second."""
    folder = tmp_path_factory.mktemp("encoder")
    examples = [f"{text}\t{len(text) % 2}\n" for text in short_sentences(150)]
    (folder / "labels.tsv").write_text("".join(examples))
    sizes = {"d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "steps": 2, "threads": 1}
    settings = {**sizes, "objective": "classify", "text": str(folder / "labels.tsv")}
    regard.train(settings, device="cpu", out=folder / "run")
    return folder / "run"


@pytest.mark.slow
def test_every_sentence_once_and_in_order_though_a_worker_is_killed(
    ray: Any, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10⁵ sentences, two workers; the first one that answers is killed by SIGKILL."""
    count = 100_000
    texts = short_sentences(500)
    model: Any = regard.load(encoder, device="cpu")
    expected = model.embed(texts).numpy()  # [500, 16]
    numbers = np.arange(count) * 7919 % len(texts)
    rows = [{"id": i, "text": texts[number]} for i, number in enumerate(numbers)]
    dataset = ray.data.from_items(rows, override_num_blocks=100)
    # The workers cannot import this file.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(regard.ray, "Predictor", WatchedPredictor)
    answers = predict(dataset, str(encoder), "embed", concurrency=2, batch_size=500)
    processes: set[int] = set()
    seen = 0
    for batch in answers.iter_batches(batch_size=500, batch_format="numpy"):
        ids = batch["id"]
        assert ids.tolist() == list(range(seen, seen + len(ids)))
        vectors = np.stack([np.asarray(vector) for vector in batch["prediction"]])
        np.testing.assert_allclose(vectors, expected[numbers[ids]], atol=1e-4)
        if not processes:
            os.kill(int(batch["process"][0]), signal.SIGKILL)
        processes |= set(batch["process"].tolist())
        seen += len(ids)
    assert seen == count
    # The one that was killed, the other one, and the one that took its place.
    assert len(processes) >= 3


@pytest.mark.slow
def test_the_example_runs_on_a_local_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="pip install 'regard[ray]'")
    texts = short_sentences(40)
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    source = str(Path(regard.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "RAY_worker_niceness": "0"}
    command = [sys.executable, str(ROOT / "examples" / "cluster" / "ray_batch.py"), str(DEMO),
               str(tmp_path / "in.txt"), str(tmp_path / "out.txt"), "--beam", "1"]  # fmt: skip
    subprocess.run(command, env=environment, check=True, timeout=600)
    translator: Any = regard.load(DEMO, device="cpu")
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert lines == translator.translate(texts, beam=1)
