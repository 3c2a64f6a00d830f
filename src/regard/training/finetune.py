"""Fine-tuning: a finished model, edited (a new head, frozen blocks, low-rank changes), learns a task from examples.

Data is read twice: when a run begins, to see that it is sound and to count the steps; and from the run folder, where it is
kept, each time the run starts or goes on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard import disk, edit
from regard import spec as kinds
from regard.build import build
from regard.core.stack import Stack
from regard.data import labelled, text_files
from regard.data.batching import plan
from regard.data.corpus import Corpus, prepare
from regard.data.labelled import Classed, Words
from regard.errors import DataError, ModelError, SettingError, did_you_mean
from regard.families import folder as folders
from regard.metrics.scores import AnyScore
from regard.models import LanguageModel, Translator, choose_device, load
from regard.models.base import Model
from regard.models.saving import TEXT_FILES, config_json, copy_companion_files, write_weights
from regard.models.text_encoder import TextEncoder
from regard.text.tokenizer_files import open_encoder_tokenizer
from regard.training import run_folder
from regard.training.data.parallel_text import Pair, Prepared
from regard.training.data.plain_text import texts
from regard.training.engine import layerwise_lr_decay
from regard.training.engine.logging import ProgressLog
from regard.training.job import Job, multiple
from regard.training.language import final
from regard.training.objectives import distillation
from regard.training.objectives.finetuning_heads import (
    Classification,
    HeadObjective,
    QuestionAnswering,
    TokenClassification,
)
from regard.training.objectives.objective import Objective
from regard.training.objectives.segment_lm import next_token
from regard.training.objectives.sequence_to_sequence import SequenceToSequence, final_scores
from regard.training.recipe import schema as recipes
from regard.training.recipe.schema import Recipe, Tune
from regard.training.run_folder import RunFolder

# The usual recipe: AdamW at a small rate, a tenth of the steps to warm up, then straight down to 0.
DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw", "schedule": "linear", "learning_rate": 3e-5, "weight_decay": 0.01, "betas": (0.9, 0.999),
    "adam_eps": 1e-8, "clip": 1.0, "label_smoothing": 0.0, "batch_tokens": 1024,
}  # fmt: skip
LORA_RATE = 5e-4  # few parameters that start at zero have farther to go
METRICS = {"classify": "accuracy", "tag": "f1", "answer": "f1"}
HELD_OUT_EVERY, HELD_OUT_MOST, HELD_OUT_FROM = 10, 1000, 100

_READ: dict[str, Callable[[str], list[Any]]] = {
    "classify": labelled.classed, "tag": labelled.tagged, "answer": labelled.questions,
}  # fmt: skip
_TASKS: dict[str, type[HeadObjective[Any]]] = {
    "classify": Classification,
    "tag": TokenClassification,
    "answer": QuestionAnswering,
}
Sets = dict[str, list[Any]]  # train, valid, test → examples, or pairs


def start(values: Mapping[str, Any], out: Path | None) -> tuple[RunFolder, Recipe, str]:
    """A run folder with its recipe and its data in it, from plain keys: those of `Tune`, and of the other sections."""
    draft = _recipe(values)
    tune = _tune(draft)
    sets = {} if tune.task == "lm" else _sets(tune)
    batches = _count(draft, sets)
    each = math.ceil(batches / draft.train.accumulate)
    steps = max(1, math.ceil(tune.epochs * each))
    warmup = max(1, int(tune.warm_up * steps))
    often = {
        "validate_every": min(each, steps),
        "save_every": min(each, steps),
        "log_every": min(10, each),
    }
    recipe = _recipe({**often, **values, "steps": steps, "warmup": warmup})
    where = run_folder.begin(recipe, out, tune.task)
    where.data.mkdir(parents=True, exist_ok=True)
    for name, examples in sets.items():
        disk.write_file(where.data / f"{name}.jsonl", _written(tune, examples))
    return where, recipe, tune.task


def job(where: RunFolder, recipe: Recipe, talk: ProgressLog) -> Job:
    tune = _tune(recipe)
    if tune.task == "lm":
        return _language(where, recipe, talk)
    return (
        _pairs(where, recipe, talk)
        if tune.task in ("translate", "summarize")
        else _labels(where, recipe, talk)
    )


def _recipe(values: Mapping[str, Any]) -> Recipe:
    sections: dict[str, dict[str, Any]] = {name: {} for name in (*recipes.SECTIONS, "tune")}
    usual = DEFAULTS | {"metric": METRICS.get(str(values.get("task")), "loss")}
    usual |= {"learning_rate": LORA_RATE} if values.get("lora") else {}
    for key, value in {**usual, **values}.items():
        if key not in recipes.KEYS and key not in Tune.model_fields:
            raise SettingError(
                f"there is no setting {key!r}",
                did_you_mean(key, [*recipes.KEYS, *Tune.model_fields]),
            )
        sections["tune" if key in Tune.model_fields else recipes.KEYS[key]][key] = value
    if values.get("task") == "lm":
        sections["data"] |= {"text": values["files"][0], "valid_text": values.get("valid")}
        sections["tokens"]["tokenizer"] = str(Path(values["base"]) / "tokenizer.json")
        sections["train"]["objective"] = "causal"
    return recipes.parse(sections)


def _tune(recipe: Recipe) -> Tune:
    assert recipe.tune is not None, "only tuned recipes come here"
    return recipe.tune


# ------------------------------------------------------------------ data


def _sets(tune: Tune) -> Sets:
    """Examples to train on, and those to validate and to test with, if there are."""
    if tune.prefixes and len(tune.prefixes) != len(tune.files):
        raise SettingError(
            f"{len(tune.prefixes)} prefixes for {len(tune.files)} files", "give one for each --data"
        )
    if tune.prefixes and tune.task in _READ:
        raise SettingError(f"{tune.task} has no prefixes", "leave --prefix out")
    prefixes = tune.prefixes or ("",) * len(tune.files)
    alone = prefixes[0] if len(prefixes) == 1 else ""
    sets: Sets = {
        "train": [
            e
            for p, file in zip(prefixes, tune.files, strict=True)
            for e in _examples(tune, file, p)
        ]
    }
    for name, file in (("valid", tune.valid), ("test", tune.test)):
        if file is not None:
            sets[name] = _examples(tune, file, alone)
    if "valid" not in sets and len(sets["train"]) >= HELD_OUT_FROM:
        sets["valid"] = sets["train"][HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY][:HELD_OUT_MOST]
        last = len(sets["valid"]) * HELD_OUT_EVERY
        sets["train"] = [
            e for i, e in enumerate(sets["train"], 1) if i % HELD_OUT_EVERY or i > last
        ]
    return sets


def _examples(tune: Tune, file: str, prefix: str) -> list[Any]:
    if tune.task in _READ:
        return _READ[tune.task](file)
    return [(prefix + source, target) for source, target in text_files.pairs(file)]


def _written(tune: Tune, examples: Sequence[Any]) -> str:
    if tune.task in _READ:
        return labelled.write(examples)
    return "".join(disk.json_line({"source": s, "target": t}) for s, t in examples)


def _kept(where: RunFolder, tune: Tune) -> Sets:
    paths = {name: where.data / f"{name}.jsonl" for name in ("train", "valid", "test")}
    return {name: _examples(tune, str(path), "") for name, path in paths.items() if path.is_file()}


def _count(recipe: Recipe, sets: Sets) -> int:
    """Batches of an epoch; on the way all examples are tokenised and all labels looked up, so that errors come early."""
    tune, where = _tune(recipe), choose_device(recipe.train.device)
    if tune.task in _READ:
        task = _reading(recipe, sets)
        if "test" in sets:
            task.rows(sets["test"])
        return len(task.order().batches(0))
    held = load(tune.base, device="cpu")
    if isinstance(held, Translator) and tune.task != "lm":
        left = held.encode([source for source, _ in sets["train"]])
        right = held.target_tokenizer.encode_batch([target for _, target in sets["train"]])
        sizes = np.array([[len(a), len(b) + 1] for a, b in zip(left, right, strict=True)])
        sizes = sizes[sizes.max(axis=1) <= _most(held, recipe)]
        budget, rounded = recipe.train.batch_tokens, multiple(recipe, where)
        return len(plan(sizes, budget, seed=0, epoch=0, multiple=rounded)) if len(sizes) else 1
    writer = _writer(held, tune)
    count = sum(len(writer.words.encode(block)) for block in text_files.text(tune.files[0]))
    share = 1.0 if tune.valid else 1 - recipe.data.held_out
    return max(1, round(count * share / recipe.train.batch_tokens))


def _most(held: Model, recipe: Recipe) -> int:
    """Tokens a text may have."""
    inputs = {
        kinds.EncoderDecoder: lambda s: (s.source, s.target),
        kinds.SequenceToSequence: lambda s: (s.source, s.target), kinds.Encoder: lambda s: (s.input,),
        kinds.Decoder: lambda s: (s.tokens,), kinds.RecurrentDecoder: lambda s: (s.tokens,),
    }[type(held.spec)](held.spec)  # fmt: skip
    lengths = [
        part.position.length
        for part in inputs
        if isinstance(
            part.position, kinds.LearnedPosition | kinds.FixedPosition | kinds.AxialPosition
        )
    ]
    return min([recipe.data.max_length, *lengths])


# ------------------------------------------------------------------ labels


def _labels(where: RunFolder, recipe: Recipe, talk: ProgressLog) -> Job:
    sets = _kept(where, _tune(recipe))
    task = _reading(recipe, sets)
    talk.say(
        f"data: {len(sets['train']):,} examples to train on, {len(sets.get('valid', [])):,} to validate"
    )
    full = sum(len(row.ids) == task.most for row in task.train)
    if full and not isinstance(task, QuestionAnswering):  # which reads long contexts in parts
        talk.say(
            f"{full:,} examples fill the limit of {task.most} tokens; what is longer was cut off (--max-length)"
        )
    reader = task.reader

    def scores() -> dict[str, AnyScore]:
        names = [name for name in ("valid", "test") if name in sets]
        found: dict[str, AnyScore] = {
            name: task.score(sets[name], torch.no_grad()) for name in names
        }
        for name, score in found.items():
            shown = "  ".join(
                f"{key} {value:.2f}"
                for key, value in vars(score).items()
                if isinstance(value, float)
            )
            talk.say(f"{name}: {shown}  ({len(sets[name]):,} examples)")
        return found

    return _job(where, reader, task, scores, recipe)


def _reading(recipe: Recipe, sets: Sets) -> HeadObjective[Any]:
    tune, device = _tune(recipe), choose_device(recipe.train.device)
    held = load(tune.base, device="cpu")
    if not isinstance(held, TextEncoder | LanguageModel):
        raise ModelError(
            f"{tune.base} holds a model that does not read text ({tune.task})",
            "give an encoder as BERT",
        )
    reader = with_head(held, tune.task, _names(tune.task, sets["train"]), recipe.train.seed)  # type: ignore[arg-type]
    _edit(reader.model, recipe, ("labels.", "pool."))
    reader.to(device)
    most = _most(reader, recipe)
    sides = sets["train"], sets.get("valid", [])
    told = distillation.of_reader(recipe, reader)
    return _TASKS[tune.task](reader, *sides, recipe.train, multiple(recipe, device), most, told)


def _names(task: str, examples: Sequence[Any]) -> list[str]:
    """The labels of the training data, sorted."""
    if task == "answer":
        return ["start", "end"]
    found: set[str] = set()
    for example in examples:
        found |= {example.label} if isinstance(example, Classed) else set(example.tags)
        assert isinstance(example, Classed | Words)
    if len(found) < 2:
        raise DataError(
            f"there is one label only: {', '.join(found)}", "give examples of two labels or more"
        )
    return sorted(found)


def with_head(
    held: TextEncoder | LanguageModel, task: kinds.HeadTask, names: Sequence[str], seed: int
) -> TextEncoder:
    """The same stack with labels on top: those it has, if they are these; otherwise new ones, small and normal. A pooler
    stays; of a language model, the vocabulary goes."""
    labels = held.spec.labels if isinstance(held, TextEncoder) else None
    known = isinstance(labels, kinds.ClassifierHead) and labels.task == task
    if (
        isinstance(held, TextEncoder)
        and known
        and (task == "answer" or set(held.labels) == set(names))
    ):
        return held
    description, config = folders.with_classifier(held.config, task, names)
    assert isinstance(description, kinds.Encoder)
    torch.manual_seed(seed)
    model = build(description)
    old = {
        name.replace("tokens.", "input.", 1): value for name, value in held.model.named_parameters()
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (
                name in old
                and old[name].shape == parameter.shape
                and not name.startswith("labels.")
            ):
                parameter.copy_(old[name])
            elif name.startswith(("labels.", "pool.")):
                parameter.zero_() if parameter.ndim == 1 else parameter.normal_(std=0.02)
            else:
                raise ModelError(f"{held.folder} holds nothing for {name}", "give a whole encoder")
    if isinstance(held, TextEncoder):
        text = held.text
    else:  # whose rows were never filled: others must know what with
        assert held.folder is not None, "models to fine-tune come from folders"
        text = open_encoder_tokenizer(held.folder)
        config.setdefault("pad_token_id", text.special_token_id("pad") or 0)
    reader = TextEncoder(model, description, text, config)
    reader.folder, reader.say = held.folder, held.say
    return reader


# ------------------------------------------------------------------ pairs and plain text


def _pairs(where: RunFolder, recipe: Recipe, talk: ProgressLog) -> Job:
    tune = _tune(recipe)
    translator = load(tune.base, device="cpu")
    if not isinstance(translator, Translator):
        raise ModelError(
            f"{tune.base} holds no encoder–decoder over text", "give one, such as Marian or T5"
        )
    _edit(translator.model, recipe, ())
    translator.to(choose_device(recipe.train.device))
    sets, tokenizers = (
        _kept(where, tune),
        (translator.source_tokenizer, translator.target_tokenizer),
    )
    corpora: dict[str, Corpus] = {}
    for name in (name for name in ("train", "valid") if name in sets):
        if not (where.data / name / "corpus.json").exists():
            report = prepare(
                sets[name], *tokenizers, where.data / name, max_length=_most(translator, recipe)
            )
            talk.say(f"{name}: {report}")
        corpora[name] = Corpus.open(where.data / name)
    data = Prepared(*tokenizers, corpora["train"], corpora.get("valid"), sets.get("valid", []))
    tests: dict[str, list[Pair]] = {"test": sets["test"]} if "test" in sets else {}
    told = distillation.of_translator(recipe, translator)
    task = SequenceToSequence(
        translator, data, recipe.train, multiple(recipe, translator.device), told
    )
    return _job(
        where, translator, task, lambda: final_scores(tests, translator, recipe, talk), recipe
    )


def _language(where: RunFolder, recipe: Recipe, talk: ProgressLog) -> Job:
    tune = _tune(recipe)
    writer = _writer(load(tune.base, device="cpu"), tune)
    most = writer.positions
    if most is not None and recipe.data.context > most:
        raise SettingError(
            f"context {recipe.data.context} is more than the {most} tokens the model sees",
            "lower it",
        )
    _edit(writer.model, recipe, ())
    writer.to(choose_device(recipe.train.device))
    task = next_token(
        writer, texts(where, recipe, talk.say), recipe, distillation.of_writer(recipe, writer)
    )
    return _job(where, writer, task, lambda: dict(final(task, talk)), recipe)


def _writer(held: Model, tune: Tune) -> LanguageModel:
    if not isinstance(held, LanguageModel):
        raise ModelError(
            f"{tune.base} holds no model for {tune.task}", "give a language model, such as GPT-2"
        )
    if len(tune.files) != 1 or tune.prefixes or tune.test:
        raise SettingError(
            "lm learns from one text", "give one --data, perhaps --valid, and nothing else"
        )
    return held


# ------------------------------------------------------------------ all


def _edit(model: torch.nn.Module, recipe: Recipe, new: tuple[str, ...]) -> None:
    """What of the model trains: all of it, or what stands above frozen blocks, or low-rank changes and what is `new`."""
    tune = _tune(recipe)
    if tune.lora:
        torch.manual_seed(recipe.train.seed)
        edit.lora(model, tune.lora, tune.lora_alpha, tune.lora_dropout, tune.lora_in.split(","))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad or name.startswith(new))
    if tune.freeze is not None:
        layerwise_lr_decay.freeze(model, tune.freeze)
    for stack in model.modules():
        if isinstance(stack, Stack):
            stack.activation_checkpointing = recipe.train.recompute


def _job(
    where: RunFolder,
    held: Model,
    task: Objective,
    scores: Callable[[], dict[str, AnyScore]],
    recipe: Recipe,
) -> Job:
    """The run folder is the model's, whole and in the layout it came in; low-rank changes are merged."""
    if held.folder is not None:
        copy_companion_files(held.folder, where.folder, TEXT_FILES)
    disk.write_json(where.folder / "config.json", config_json(held.spec, held.config))
    if isinstance(held, TextEncoder):
        for name, content in held.text.files().items():
            if name == "tokenizer.json" and not (where.folder / name).exists():
                disk.write_file(where.folder / name, str(content))

    def export() -> None:
        model = held.model
        if _tune(recipe).lora:
            model = copy.deepcopy(model)
            edit.merge(model)
        write_weights(where.weights, model, held.spec, held.config)

    assert not isinstance(held.spec, kinds.DualEncoder)
    return Job(task, held.spec.d_model, export, scores)
