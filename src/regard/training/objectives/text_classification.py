"""The objective that learns classes from nothing: an encoder whose first token says what a text is.

Without a file, the texts are ListOps of Long Range Arena, generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch

from regard import disk
from regard.build import build
from regard.data import labelled, listops
from regard.data.labelled import Classed
from regard.families import bert
from regard.families import folder as folders
from regard.metrics.classification import ClassificationAgainstMajority
from regard.metrics.scores import AnyScore
from regard.models import choose_device
from regard.models.text_encoder import TextEncoder
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import open_encoder_tokenizer
from regard.text.tokenizer_training import word_level_json
from regard.training.engine.initialization import draw
from regard.training.engine.logging import ProgressLog
from regard.training.job import Job, multiple
from regard.training.objectives.finetuning_heads import Classification
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder

VALID, TEST = 2000, 10_000  # expressions, when they are generated


def classes(place: RunFolder, recipe: Recipe, talk: ProgressLog, changes: dict[str, object]) -> Job:
    most = min(2000, recipe.data.context - 1)
    shape = listops.Shape(min(500, most // 4), most)
    made = f"ListOps expressions of {shape.least} to {shape.most} tokens"
    given = files(
        place, recipe, made, lambda split: listops.expressions(split, shape=shape), talk.say
    )
    sets = {name: labelled.classed(path) for name, path in given.items()}
    names = sorted({example.label for example in sets["train"]})
    text, context = _tokenizer(place, sets["train"]), recipe.data.context
    description = bert.classifier(recipe.preset, len(text), context, len(names), **changes)
    config = folders.describe(description) | {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    disk.write_json(place.folder / "config.json", config)
    torch.manual_seed(recipe.train.seed)
    model = build(description)
    draw(model, recipe.first_weights)
    model.stack.activation_checkpointing = recipe.train.recompute
    device = choose_device(recipe.train.device)
    reader = TextEncoder(model, description, text, config)
    reader.to(device)
    sides = sets["train"], sets["valid"]
    task = Classification(reader, *sides, recipe.train, multiple(recipe, device), context)
    talk.say(
        f"data: {len(sides[0]):,} examples of {len(names)} classes to train on, {len(sides[1]):,} to validate"
    )

    def scores() -> dict[str, AnyScore]:
        found: dict[str, AnyScore] = {}
        for name in (name for name in ("valid", "test") if name in sets):
            score, most = (
                task.score(sets[name], torch.no_grad()),
                majority(sets["train"], sets[name]),
            )
            found[name] = ClassificationAgainstMajority(**vars(score), majority=most)
            talk.say(
                f"{name}: accuracy {score.accuracy:.2f}  (majority class {most:.2f}, {score.examples:,} examples)"
            )
        return found

    return Job(
        task,
        description.d_model,
        lambda: folders.write_weights(place.weights, model, description),
        scores,
    )


def majority(train: list[Classed], held_out: list[Classed]) -> float:
    """Of 100 held-out examples, how many are of the class that is the most frequent in training."""
    usual = Counter(example.label for example in train).most_common(1)[0][0]
    return 100.0 * sum(example.label == usual for example in held_out) / max(1, len(held_out))


def files(
    place: RunFolder,
    recipe: Recipe,
    what: str,
    make: Callable[[str], Iterator[tuple[str, str | int]]],
    say: Callable[[str], None],
) -> dict[str, str]:
    """Those of the recipe, or examples that `make` generates of a split, once, and a resumed run finds."""
    data = recipe.data
    given = {"train": data.text, "valid": data.valid_text, "test": data.test_text}
    if data.text is not None:
        return {name: path for name, path in given.items() if path is not None}
    counts = {
        "test": data.test_lines or TEST,
        "valid": data.test_lines or VALID,
        "train": data.builtin_lines,
    }
    if not (place.data / "train.jsonl").exists():
        place.data.mkdir(parents=True, exist_ok=True)
        say(f"data: {counts['train']:,} {what}")
        for (
            name,
            count,
        ) in counts.items():  # the training set is written last: it says that all are there
            made = islice(make(name), count)
            disk.write_file(
                place.data / f"{name}.jsonl",
                labelled.write(Classed(text, None, str(value)) for text, value in made),
            )
    return {name: str(place.data / f"{name}.jsonl") for name in counts}


def _tokenizer(place: RunFolder, train: list[Classed]) -> Tokenizer:
    path: Path = place.folder / "tokenizer.json"
    if not path.exists():
        disk.write_file(path, word_level_json(example.text for example in train))
    return open_encoder_tokenizer(place.folder)
