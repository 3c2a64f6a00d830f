"""A text classifier trained from scratch: an encoder whose first token carries the class.

Without a file, the texts are generated ListOps expressions (Long Range Arena, Tay et al. 2021).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import torch

from regard import disk
from regard.builder import build
from regard.data import labelled, listops
from regard.data.labelled import Classed
from regard.families import bert
from regard.families import folder as folders
from regard.metrics.classification import ClassificationAgainstMajority, ClassificationScore
from regard.metrics.scores import AnyScore
from regard.models import choose_device
from regard.models.text_encoder import TextEncoder
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import open_encoder_tokenizer
from regard.text.tokenizer_training import word_level_json
from regard.training.engine.initialization import initialize
from regard.training.engine.progress_bar import ProgressBar
from regard.training.job import Job, pad_to_multiple_of
from regard.training.objectives.classification import Classification
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder

GENERATED_VALIDATION = 2000  # expressions
GENERATED_TEST = 10_000


def classifier_job(
    run_folder: RunFolder, recipe: Recipe, progress_bar: ProgressBar, changes: dict[str, object]
) -> Job:
    context = recipe.data.context
    longest = min(2000, context - 1)  # one position is the start token's
    shape = listops.Shape(min(500, longest // 4), longest)
    paths = example_files(
        run_folder,
        recipe,
        f"ListOps expressions of {shape.least} to {shape.most} tokens",
        lambda split: listops.expressions(split, shape=shape),
        progress_bar.say,
    )
    sets = {name: labelled.classed(path) for name, path in paths.items()}
    # Sorted, so that a resumed run numbers the classes alike.
    classes = sorted({example.label for example in sets["train"]})
    tokenizer = _tokenizer(run_folder, sets["train"])
    description = bert.classifier(recipe.preset, len(tokenizer), context, len(classes), **changes)
    # The names of the classes, under the keys of Hugging Face.
    config = folders.describe(description) | {
        "id2label": {str(i): name for i, name in enumerate(classes)},
        "label2id": {name: i for i, name in enumerate(classes)},
    }
    disk.write_json(run_folder.folder / "config.json", config)
    # Weights are drawn on the CPU: the same on every device.
    torch.manual_seed(recipe.train.seed)
    model = build(description)
    initialize(model, recipe.initialization)
    model.stack.activation_checkpointing = recipe.train.recompute
    device = choose_device(recipe.train.device)
    encoder = TextEncoder(model, description, tokenizer, config)
    encoder.to(device)
    objective = Classification(
        encoder,
        sets["train"],
        sets["valid"],
        recipe.train,
        pad_to_multiple_of(recipe, device),
        context,
    )
    progress_bar.say(
        f"data: {len(sets['train']):,} examples of {len(classes)} classes to train on, "
        f"{len(sets['valid']):,} to validate"
    )

    def final_scores() -> dict[str, AnyScore]:
        return scores_with_majority(
            sets,
            lambda examples: objective.score(examples, torch.no_grad()),
            lambda name, score: progress_bar.say(
                f"{name}: accuracy {score.accuracy:.2f}  "
                f"(majority class {score.majority:.2f}, {score.examples:,} examples)"
            ),
        )

    return Job(
        objective,
        description.d_model,
        lambda: folders.write_weights(run_folder.weights, model, description),
        final_scores,
    )


def scores_with_majority(
    sets: Mapping[str, list[Classed]],
    score: Callable[[list[Classed]], ClassificationScore],
    report: Callable[[str, ClassificationAgainstMajority], None],
) -> dict[str, AnyScore]:
    """Validation and test scores, next to those of always answering the most frequent class."""
    scores: dict[str, AnyScore] = {}
    for name in ("valid", "test"):
        if name not in sets:
            continue
        baseline = majority(sets["train"], sets[name])
        result = ClassificationAgainstMajority(**vars(score(sets[name])), majority=baseline)
        report(name, result)
        scores[name] = result
    return scores


def majority(train: Sequence[Classed], examples: Sequence[Classed]) -> float:
    """Majority baseline: the percentage of examples with the most frequent class of training."""
    most_frequent = Counter(example.label for example in train).most_common(1)[0][0]
    hits = sum(example.label == most_frequent for example in examples)
    return 100.0 * hits / max(1, len(examples))


def example_files(
    run_folder: RunFolder,
    recipe: Recipe,
    description: str,
    generate: Callable[[str], Iterator[tuple[str, str | int]]],
    say: Callable[[str], None],
) -> dict[str, str]:
    """The recipe's files by split, or files of generated examples in the run folder.

    `generate` yields the (text, label) pairs of a split. They are written once; a resumed run finds
    them again.
    """
    data = recipe.data
    if data.text is not None:
        paths = {"train": data.text, "valid": data.valid_text, "test": data.test_text}
        return {name: path for name, path in paths.items() if path is not None}
    # The training set is written last: its presence says that all are there.
    counts = {
        "test": data.test_lines or GENERATED_TEST,
        "valid": data.test_lines or GENERATED_VALIDATION,
        "train": data.builtin_lines,
    }
    if not (run_folder.data / "train.jsonl").exists():
        run_folder.data.mkdir(parents=True, exist_ok=True)
        say(f"data: {counts['train']:,} {description}")
        for name, count in counts.items():
            pairs = islice(generate(name), count)
            examples = (Classed(text, None, str(label)) for text, label in pairs)
            disk.write_file(run_folder.data / f"{name}.jsonl", labelled.write(examples))
    return {name: str(run_folder.data / f"{name}.jsonl") for name in counts}


def _tokenizer(run_folder: RunFolder, train: Sequence[Classed]) -> Tokenizer:
    path = run_folder.folder / "tokenizer.json"
    if not path.exists():
        disk.write_file(path, word_level_json(example.text for example in train))
    return open_encoder_tokenizer(run_folder.folder)
