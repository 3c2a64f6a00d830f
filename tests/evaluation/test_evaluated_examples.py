"""Examples of the wrong kind in a list: each task says what its examples are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import looked
import regard
from regard import build
from regard.data.boxes import Box, BoxedImage
from regard.data.graphs import GraphData, read_graphs
from regard.data.image_questions import ImageQuestion
from regard.data.labelled import (
    LabelledImage,
    LabelledText,
    Question,
    RatedText,
    TaggedWords,
    TextPair,
)
from regard.data.masks import SegmentedImage
from regard.data.series import Series
from regard.data.trajectories import Trajectory
from regard.evaluation.evaluation import read_examples
from regard.evaluation.tasks import TASKS
from regard.families.presets import preset
from regard.models import GraphModel, LanguageModel, SeriesModel
from regard.models.inputs.sound import read_samples
from regard.system.errors import DataError, SettingError

NO_EXAMPLES: dict[str, Any] = {
    "a dictionary": {"source": "a", "target": "b"},
    "a number": 5,
    "nothing": None,
    "one text in a tuple": ("a",),
    "four texts": ("a", "b", "c", "d"),
    "a text with a list": ("a", ["b"]),
    "bytes": b"a",
    "an array": np.zeros(3),
    "an object": object(),
}


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.predict])
@pytest.mark.parametrize("mistake", list(NO_EXAMPLES))
def test_what_is_no_example_is_answered_in_words(task: str, mistake: str) -> None:
    with pytest.raises(DataError, match="example 1 is ") as refused:
        read_examples(task, [_an_example(task), NO_EXAMPLES[mistake]])
    kind = TASKS[task].reads
    assert kind.description in refused.value.repair


def _an_example(task: str) -> Any:
    """What a list of the task may hold."""
    kinds: dict[str, Any] = {
        "regress": RatedText("a", None, 0.5),
        "mutations": RatedText("a", None, 0.5),
        "tag": TaggedWords(["Ada", "sleeps"], ["B-PER", "O"]),
        "answer": Question("Who?", "Ada sleeps.", 0, "Ada"),
        "images": LabelledImage(Path("a.png"), "cat"),
        "masked_images": LabelledImage(Path("a.png"), "cat"),
        "clips": LabelledImage(Path("a.gif"), "left"),
        "masked_clips": LabelledImage(Path("a.gif"), "left"),
        "detect": BoxedImage(Path("a.png"), (Box("cat", (0, 0, 2, 2)),)),
        "segment": SegmentedImage(Path("a.png"), np.zeros((2, 2), np.uint8), ("cat",)),
        "vqa": ImageQuestion(Path("a.png"), "is there a cat?", "yes"),
        "caption": LabelledImage(Path("a.png"), "a cat"),
        "image_text": LabelledImage(Path("a.png"), "a cat"),
        "draw": LabelledImage(Path("a.png"), "a cat"),
        "forecast": Series(np.zeros((9, 1), np.float32), ("x",)),
        "act": Trajectory(
            np.zeros((2, 1), np.float32), np.zeros(1, np.int64), np.zeros(1, np.float32)
        ),
        "contrastive": TextPair("a", "b"),
        "classify": LabelledText("a", None, "b"),
        "stories": LabelledText("Ada sleeps. Who?", None, "Ada"),
        "sounds": (Path("a.wav"), "yes"),
        "transcribe": (Path("a.wav"), "yes"),
        "speak": (Path("a.wav"), "yes\tAda"),
        "translate": ("a", "b"),
        "summarize": ("a", "b"),
        "pronounce": ("a", "b"),
    }
    if task in ("nodes", "graphs"):
        none = np.zeros(0, np.int64)
        return GraphData(np.zeros((0, 1), np.float32), none, none, (), (), "nodes")
    return kinds.get(task, "a text")


def test_plain_tuples_are_examples() -> None:
    assert read_examples("classify", [("a", "b")]) == [LabelledText("a", None, "b")]
    assert read_examples("classify", [("a", "b", "c")]) == [LabelledText("a", "b", "c")]
    assert read_examples("regress", [("a", 1)]) == [RatedText("a", None, 1)]
    assert read_examples("contrastive", [["a", "b"]]) == [TextPair("a", "b")]
    assert read_examples("images", [("a.png", "cat")]) == [LabelledImage("a.png", "cat")]
    assert read_examples("tag", [(["a"], ["O"])]) == [TaggedWords(["a"], ["O"])]
    with pytest.raises(DataError, match="example 0"):
        read_examples("tag", [(["a", "b"], ["O"])])
    with pytest.raises(DataError, match="example 0"):
        read_examples("regress", [("a", float("nan"))])


def test_token_ids_that_the_model_lacks() -> None:
    description = preset("gpt2:tiny", len(looked.WORDS), 32, layers=1, d_model=16, heads=2)
    model = LanguageModel(build(description), description, looked.WORDS)  # type: ignore[arg-type]
    assert regard.evaluate(model, [[1, 2, 3]])["loss"] > 0
    for ids in ([1, 2, 10**9], [1, -2, 3]):
        with pytest.raises(DataError, match="token id"):
            regard.evaluate(model, [ids])


def test_words_in_the_place_of_a_series() -> None:
    description = preset("patchtst:tiny", 1, 16)
    model = SeriesModel(build(description), description)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="example 0"):
        regard.evaluate(model, [Series(np.array([["a"]] * 140), ("x",))])
    with pytest.raises(SettingError, match="parallel text"):
        regard.evaluate(model, ("a.csv", "b.csv"))


def test_labels_of_a_graph_that_the_model_lacks(tmp_path: Path) -> None:
    (tmp_path / "nodes.tsv").write_text("0\tzebra\ttest\t0\n1\tyak\ttest\t1\n")
    (tmp_path / "edges.tsv").write_text("0\t1\n")
    description = preset("graph:tiny", 2, features=2)
    model = GraphModel(build(description), description)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="not a class of the model"):
        regard.evaluate(model, [read_graphs(tmp_path)])
    with pytest.raises(SettingError, match="parallel text"):
        regard.evaluate(model, ("a", "b"))


def test_samples_are_numbers_between_minus_one_and_one() -> None:
    assert read_samples(np.zeros(5)).dtype == np.float32  # type: ignore[arg-type]
    with pytest.raises(DataError, match="int16"):
        read_samples(np.zeros(5, np.int16))
    with pytest.raises(DataError, match="not a recording"):
        read_samples({"array": 5})  # type: ignore[arg-type]


def test_a_long_mistake_has_a_short_error(demo: Path) -> None:
    model = regard.load(demo, regard.Translator)
    for data in ([{"key": "value" * 1000}], np.zeros((1000, 1000))):
        with pytest.raises(DataError) as refused:
            regard.evaluate(model, data)  # type: ignore[arg-type]
        assert len(str(refused.value)) < 300
