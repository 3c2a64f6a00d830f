"""Every family is opened, trained, fine-tuned, evaluated, compared and looked into.

`pytest -s tests/training/test_every_family.py` prints the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import regard
from regard.compare.contenders import Contender, parse_budget
from regard.compare.experiment import compare
from regard.families import presets
from regard.families.preset_list import PRESET_FAMILIES as FAMILIES
from regard.training.recipe import schema as recipes

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
    "steps": 1, "warmup": 1, "batch_tokens": 128, "context": 32, "max_length": 32, "samples": 0,
    "tokenizer": "characters", "vocabulary": 160, "validate_every": 1, "save_every": 1,
    "test_lines": 2, "threads": 1, "device": "cpu", "schedule": "constant", "learning_rate": 1e-3,
}  # fmt: skip
COLUMNS = ("opens", "trains", "fine-tunes", "evaluates", "compared", "looked into")
# What reads no text is trained on other data: sound.
NO_TEXT = {
    "speech": "reads sound",
    "ctc": "reads sound",
}
REASONS = {"clip-text": "a tower of CLIP, which learns with its images"}
# Memory networks attend to sentences, and have no tokens to look at.
NOT_LOOKED_INTO = {"memory": "its positions are sentences, not tokens"}
# A discriminator is scored on what its generator replaces, by the validation of its own run.
NOT_EVALUATED = {"electra": "needs its generator"}
# A comparison scales one width.
NOT_COMPARED = {"clip": "its towers have two widths"}
# What has no attention is looked into by its residual stream.
NO_ATTENTION = ("rnn", "gru", "lstm", "rnn-lm", "gru-lm", "lstm-lm", "bytenet")
IMAGES = ("image", "dual encoder")  # kinds that read images
# The data of each kind, where it is not a text.
DATA = {"memory network": "stories", "image": "images", "dual encoder": "captions"}
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
    images = write_images(tmp_path / "images")
    captions = images / "captions.tsv"
    return {
        "text": str(text), "stories": str(stories), "images": str(images),
        "captions": str(captions),
    }  # fmt: skip


def write_images(folder: Path) -> Path:
    """Two folders of plain images, and a table of their captions."""
    for name, grey in (("dark", 40), ("light", 200)):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (20, 16), (grey, grey, grey + i)).save(folder / name / f"{i}.png")
    rows = [f"{name}/{i}.png\ta {name} image\n" for name in ("dark", "light") for i in range(3)]
    (folder / "captions.tsv").write_text("".join(rows))
    return folder


def test_every_kind_of_model_is_in_the_table() -> None:
    kinds = {type(presets.preset(f"{name}:tiny", 64, 32)).__name__ for name in FAMILIES}
    assert kinds == {
        "EncoderDecoder", "SequenceToSequence", "Encoder", "Decoder", "RecurrentDecoder",
        "DualEncoder", "MemoryNetwork",
    }  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str, files: dict[str, str], tmp_path: Path) -> None:
    kind = FAMILIES[name].kind
    row = TABLE.setdefault(name, dict.fromkeys(COLUMNS, "–"))
    if kind in NO_TEXT or name in REASONS:
        reason = REASONS.get(name) or NO_TEXT[kind]
        row.update(dict.fromkeys(COLUMNS, reason))
        row["opens"] = "yes"
        model = presets.preset(f"{name}:tiny")
        assert model == presets.preset(f"{name}:tiny")
        return
    data = files[DATA.get(kind, "text")]
    key = "images" if kind in IMAGES else "text"
    settings = QUICK | {key: data}
    if kind in IMAGES:
        settings |= {"valid_images": data}
    if kind == "memory network":
        settings |= {"valid_text": data}
    run = tmp_path / "run"
    ask = ("*.residual",) if name in NO_ATTENTION else ("*.weights",)
    cells: dict[str, Callable[[], Any]] = {
        "trains": lambda: regard.train(settings, model=f"{name}:tiny", out=run),
        "opens": lambda: regard.load(run),
        "fine-tunes": lambda: _finetuned(run, settings, tmp_path / "tuned"),
        "evaluates": lambda: regard.evaluate(regard.load(run), data),
        "compared": lambda: _compared(name, settings, tmp_path / "compared"),
        "looked into": lambda: regard.load(run).look(_shown(run, kind, files), ask=ask),
    }
    for column, cell in cells.items():
        reasons = {
            "looked into": NOT_LOOKED_INTO, "evaluates": NOT_EVALUATED, "compared": NOT_COMPARED,
        }  # fmt: skip
        if name in reasons.get(column, {}):
            row[column] = reasons[column][name]
            continue
        assert cell() is not None
        row[column] = "yes"
    if kind == "encoder-decoder":
        pairs = QUICK | {"source": files["text"], "target": files["text"]}
        result = regard.train(pairs, model=f"{name}:tiny", out=tmp_path / "pairs")
        assert regard.load(result.folder).tasks[0] == "translate"


def _shown(run: Path, kind: str, files: dict[str, str]) -> Any:
    """What a model is looked into with."""
    if kind not in IMAGES:
        return "The dog sees."
    image = (Path(files["images"]) / "dark" / "0.png").read_bytes()
    return regard.load(run).read_medium(image).inputs


def _finetuned(run: Path, settings: dict[str, Any], out: Path) -> Any:
    objective = recipes.parse(_recipe(run)).objective
    kept = {key: value for key, value in settings.items() if key not in ("tokenizer", "vocabulary")}
    return regard.train(kept, base=str(run), objective=objective, out=out)


def _recipe(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / "state" / "recipe.json").read_text())
    values.pop("name")
    return values


def _compared(name: str, settings: dict[str, Any], out: Path) -> Any:
    recipe = recipes.load(None, settings | {"model": f"{name}:tiny"})
    contender = Contender(f"{name}:tiny")
    comparison = compare(recipe, "test", [contender], parse_budget("steps:1"), [1], out)
    assert comparison.contestants[0].runs
    return comparison
