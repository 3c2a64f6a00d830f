"""Every family is opened, trained, fine-tuned, evaluated, compared and looked into.

`pytest -s -m "slow or not slow" tests/training/test_every_family.py` prints the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import regard
from looked import wav
from regard.data.generated.clips import write_clips
from regard.data.generated.environments import episodes
from regard.data.generated.scenes import write_scenes
from regard.data.trajectories import write_trajectories
from regard.families import presets
from regard.families.presets import PRESET_FAMILIES as FAMILIES
from regard.lab.compare import cost
from regard.lab.compare.contenders import Contender
from regard.lab.compare.experiment import compare
from regard.lab.measure.budget import Budget
from regard.training.recipe import loading
from regard.training.recipe.consistency import parse

pytestmark = pytest.mark.thorough

TEXT = "".join(
    f"The {noun} {verb} the {thing}.\n"
    for noun in ("dog", "cat", "owl")
    for verb in ("sees", "eats", "hears")
    for thing in ("man", "woman", "child")
)
STORIES = "".join(
    f"{name} is in the {place}. Where is {name}?\t{place}\n"
    for name in ("Mary", "John", "Daniel")
    for place in ("garden", "kitchen", "office")
)
QUICK: dict[str, Any] = {
    "steps": 1, "warmup_steps": 1, "batch_tokens": 128, "context": 32, "samples": 0,
    "tokenizer": "characters", "vocabulary": 160, "validate_every": 1, "save_every": 1,
    "test_lines": 2, "threads": 1, "device": "cpu", "schedule": "constant", "learning_rate": 1e-3,
}  # fmt: skip
COLUMNS = ("opens", "trains", "fine-tunes", "evaluates", "compared", "looked into")
SPEECH = ("speech", "ctc", "speaker")
IMAGES = ("image", "video", "dual encoder", "detector", "captioner", "image and text")
REASONS = {"clip-text": "a tower of CLIP, which learns with its images"}
# Memory networks attend to sentences, and have no tokens to look at.
NOT_LOOKED_INTO = {
    "memory": "its positions are sentences, not tokens",
    "dlinear": "one linear map", "nlinear": "one linear map",
}  # fmt: skip
# Its smallest size has 17 million parameters: wav2vec2 is compared in its place.
NOT_COMPARED = {"whisper": "as wav2vec2"}
# What has no attention is looked into by its residual stream.
NO_ATTENTION = (
    "rnn", "rnn_relu", "gru", "lstm", "rnn-lm", "rnn_relu-lm", "gru-lm", "lstm-lm", "bytenet",
    "resnet", "resnet-cifar",
)  # fmt: skip
# The data of each kind, where it is not a text.
DATA = {
    "memory network": "stories", "speech": "sounds", "ctc": "sounds", "image": "images",
    "dual encoder": "captions", "detector": "boxes", "captioner": "captions", "video": "clips",
    "image and text": "questions", "speaker": "sounds", "series": "series", "graph": "graph",
    "policy": "trajectories",
}  # fmt: skip
# Of families that learn from other data than their kind.
OWN_DATA = {"segformer": "boxes"}  # beside which are masks
# At least one of each wiring and each kind of data; the others are among the slow tests.
FAST = (
    "transformer", "convs2s", "rnn", "gpt2", "llama", "transformer-xl", "lstm-lm", "bert",
    "electra", "longformer", "clip-text", "vit", "timesformer", "clip", "detr", "vit-gpt2", "vilt",
    "wav2vec2", "patchtst",
    "time-series-transformer", "dlinear", "graph", "memory", "resnet-cifar",
    "segformer", "fastspeech2", "decision-transformer",
)  # fmt: skip
TABLE: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    width = max(map(len, TABLE), default=0)
    print("\n" + " " * width, *(f"{column:12}" for column in COLUMNS))
    for name, row in TABLE.items():
        print(f"{name:{width}}", *(f"{row[column]:12}" for column in COLUMNS))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 3)
    stories = tmp_path / "stories.tsv"
    stories.write_text(STORIES * 3)
    (tmp_path / "tone.wav").write_bytes(wav())
    sounds = tmp_path / "sounds.tsv"
    sounds.write_text("tone.wav\tlow\n" * 4)
    images = write_images(tmp_path / "images")
    write_scenes(tmp_path / "scenes", {"train": 4}, size=32)
    write_clips(tmp_path / "clips", {"train": 6}, size=24, frames=6)
    return {
        "text": str(text), "stories": str(stories), "sounds": str(sounds), "images": str(images),
        "boxes": str(tmp_path / "scenes" / "train"), "clips": str(tmp_path / "clips" / "train"),
        "questions": str(tmp_path / "scenes" / "train" / "questions.tsv"),
        "captions": str(images / "captions.tsv"), "series": str(write_series(tmp_path)),
        "graph": str(write_graph(tmp_path / "graph")),
        "trajectories": str(write_episodes(tmp_path)),
    }  # fmt: skip


def write_series(folder: Path) -> Path:
    """Two channels of 120 steps."""
    path = folder / "series.csv"
    path.write_text("a,b\n" + "".join(f"{i % 7},{i % 5}\n" for i in range(120)))
    return path


def write_episodes(folder: Path) -> Path:
    """Six episodes of CartPole."""
    write_trajectories(folder / "episodes.npz", episodes("cartpole", 6))
    return folder / "episodes.npz"


def write_graph(folder: Path) -> Path:
    """A ring of twelve nodes of two classes."""
    folder.mkdir()
    splits = ("train", "train", "valid", "test")
    rows = [f"{i}\t{'ab'[i % 2]}\t{splits[i % 4]}\t{i % 3}\n" for i in range(12)]
    (folder / "nodes.tsv").write_text("".join(rows))
    (folder / "edges.tsv").write_text("".join(f"{i}\t{(i + 1) % 12}\n" for i in range(12)))
    return folder


def write_images(folder: Path) -> Path:
    """Two folders of plain images, and a table of their captions."""
    for name, grey in (("dark", 40), ("light", 200)):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (20, 16), (grey, grey, grey + i)).save(folder / name / f"{i}.png")
    rows = [f"{name}/{i}.png\ta {name} image\n" for name in ("dark", "light") for i in range(3)]
    (folder / "captions.tsv").write_text("".join(rows))
    return folder


@pytest.mark.parametrize("names", [FAST, FAMILIES], ids=["fast", "all"])
def test_every_kind_of_model_is_in_the_table(names: Iterable[str]) -> None:
    kinds = {type(presets.preset(f"{name}:tiny", 64, 32)).__name__ for name in names}
    assert kinds == {
        "TextToSpeech",
        "EncoderDecoder", "SequenceToSequence", "Encoder", "Decoder", "RecurrentDecoder",
        "DualEncoder", "MemoryNetwork", "LinearForecaster", "SeriesEncoderDecoder",
        "ConvolutionalEncoder",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in FAMILIES],
)
def test_a_family(
    name: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "BATCHES", 1)  # the cost of a step need not be exact here
    kind = FAMILIES[name].kind
    row = TABLE.setdefault(name, dict.fromkeys(COLUMNS, "–"))
    if name in REASONS:
        row.update(dict.fromkeys(COLUMNS, REASONS[name]))
        row["opens"] = "yes"
        model = presets.preset(f"{name}:tiny", 64, 32)
        regard.Model(regard.build(model), model).save(tmp_path / "model")
        assert regard.load(tmp_path / "model").spec == model
        return
    data = files[OWN_DATA.get(name) or DATA.get(kind, "text")]
    settings = QUICK | {"text": data}
    if kind == "memory network":
        settings |= {"valid_text": data}
    if kind in SPEECH:
        settings = QUICK | {"sounds": data, "valid_sounds": data}
    if kind in IMAGES:
        settings = QUICK | {"images": data, "valid_images": data}
    if kind in ("series", "graph"):
        settings = QUICK | {kind: data}
    if kind == "policy":
        settings = QUICK | {"trajectories": data, "environment": "cartpole"}
    if kind == "series":
        settings |= {"horizon": 4}
    if kind == "image and text":
        settings |= {"context": 64}  # the longest question
    run = tmp_path / "run"
    ask = ("*.residual",) if name in NO_ATTENTION else ("*.weights",)
    cells: dict[str, Callable[[], Any]] = {
        "trains": lambda: regard.train(settings, model=f"{name}:tiny", out=run),
        "opens": lambda: regard.load(run),
        "fine-tunes": lambda: _finetuned(run, settings, tmp_path / "tuned"),
        "evaluates": lambda: regard.evaluate(regard.load(run), data),
        "compared": lambda: _compared(name, settings, tmp_path / "compared"),
        "looked into": lambda: _looked_into(run, ask, files),
    }
    for column, cell in cells.items():
        reasons = {
            "looked into": NOT_LOOKED_INTO,
            "compared": NOT_COMPARED,
        }
        if name in reasons.get(column, {}):
            row[column] = reasons[column][name]
            continue
        assert cell() is not None
        row[column] = "yes"
    if kind == "encoder-decoder":
        pairs = QUICK | {"source": files["text"], "target": files["text"]}
        result = regard.train(pairs, model=f"{name}:tiny", out=tmp_path / "pairs")
        assert regard.load(result.folder).tasks[0] == "translate"


def _looked_into(run: Path, ask: tuple[str, ...], files: dict[str, str]) -> Any:
    model = regard.load(run)
    if isinstance(model, regard.models.SeriesModel | regard.models.GraphModel):
        data = files["graph" if isinstance(model, regard.models.GraphModel) else "series"]
        return model.look(data, ask=ask)
    if isinstance(model, regard.Policy):
        return model.look(f"{files['trajectories']}:1", ask=ask)
    if model.spec.reads == "input_ids pixel_values":
        picture = Path(files["images"]) / "dark" / "0.png"
        return model.look(f"{picture}\tis it dark?", ask=ask)
    if model.medium is None:
        return model.look("The dog sees.", ask=ask)
    if model.medium == "image":
        image = (Path(files["images"]) / "dark" / "0.png").read_bytes()
        return model.look(model.read_medium(image).inputs, ask=ask)
    target = "low" if model.spec.is_encoder_decoder else None
    return model.look(model.read_medium(wav()).inputs, target=target, ask=ask)


def _finetuned(run: Path, settings: dict[str, Any], out: Path) -> Any:
    objective = parse(_recipe(run)).objective
    kept = {key: value for key, value in settings.items() if key not in ("tokenizer", "vocabulary")}
    return regard.train(kept, base=str(run), objective=objective, out=out)


def _recipe(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / "state" / "recipe.json").read_text())
    values.pop("name")
    return values


def _compared(name: str, settings: dict[str, Any], out: Path) -> Any:
    recipe = loading.load(None, settings | {"model": f"{name}:tiny"})
    contender = Contender(f"{name}:tiny")
    comparison = compare(recipe, "test", [contender], Budget(steps=1), [1], out)
    assert comparison.contestants[0].runs
    return comparison
