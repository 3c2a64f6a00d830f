"""Fine-tuning: a finished model, with a new head, frozen layers or LoRA, learns from examples.

Data is read twice: when a run begins, to check it and to count the steps; and from the copy in the
run folder each time the run starts or is resumed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import disk, edit, spec
from regard.builder import build
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
from regard.training.data.parallel_text import Pair, ParallelCorpora
from regard.training.data.plain_text import text_corpora
from regard.training.engine import layerwise_lr_decay
from regard.training.engine.progress_bar import ProgressBar
from regard.training.job import Job, pad_to_multiple_of
from regard.training.language import validation_score
from regard.training.objectives.classification import Classification
from regard.training.objectives.distillation import (
    classification_teacher,
    language_model_teacher,
    translation_teacher,
)
from regard.training.objectives.head_objective import HeadObjective
from regard.training.objectives.objective import Objective
from regard.training.objectives.question_answering import QuestionAnswering
from regard.training.objectives.segment_lm import language_modelling
from regard.training.objectives.sequence_to_sequence import SequenceToSequence, final_scores
from regard.training.objectives.token_classification import TokenClassification
from regard.training.recipe import schema as recipes
from regard.training.recipe.schema import Recipe
from regard.training.recipe.sections import Tune
from regard.training.run_folder import RunFolder, begin

# The usual recipe: AdamW at a small rate, a tenth of the steps to warm up, then linear decay.
DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "linear",
    "learning_rate": 3e-5,
    "weight_decay": 0.01,
    "betas": (0.9, 0.999),
    "adam_eps": 1e-8,
    "clip": 1.0,
    "label_smoothing": 0.0,
    "batch_tokens": 1024,
}
LORA_LEARNING_RATE = 5e-4  # few parameters, which start at zero, have farther to go
METRICS = {"classify": "accuracy", "tag": "f1", "answer": "f1"}
# Without validation data, every tenth of 100 or more examples validates, but not more than 1,000.
HOLD_OUT_EVERY = 10
MAX_HELD_OUT = 1000
MIN_TO_HOLD_OUT = 100

_READERS: dict[str, Callable[[str], list[Any]]] = {
    "classify": labelled.classed,
    "tag": labelled.tagged,
    "answer": labelled.questions,
}
_OBJECTIVES: dict[str, type[HeadObjective[Any]]] = {
    "classify": Classification,
    "tag": TokenClassification,
    "answer": QuestionAnswering,
}
Sets = dict[str, list[Any]]  # train, valid, test → examples, or pairs of texts


def start(values: Mapping[str, Any], out: Path | None) -> tuple[RunFolder, Recipe, str]:
    """A run folder with its recipe and its data, from plain settings: those of any section."""
    # A draft first: steps, warm-up and intervals follow from the number of batches.
    draft = _recipe(values)
    tune = _tune(draft)
    # A language model reads its text in blocks, which is not held in memory.
    sets = {} if tune.task == "lm" else _read_sets(tune)
    updates_per_epoch = math.ceil(_batches_per_epoch(draft, sets) / draft.train.accumulate)
    steps = max(1, math.ceil(tune.epochs * updates_per_epoch))
    intervals = {
        "validate_every": min(updates_per_epoch, steps),
        "save_every": min(updates_per_epoch, steps),
        "log_every": min(10, updates_per_epoch),
    }
    warmup = max(1, int(tune.warm_up * steps))
    # What the user set stands over the intervals, but not over the counted steps.
    recipe = _recipe({**intervals, **values, "steps": steps, "warmup": warmup})
    run_folder = begin(recipe, out, tune.task)
    run_folder.data.mkdir(parents=True, exist_ok=True)
    for name, examples in sets.items():
        disk.write_file(run_folder.data / f"{name}.jsonl", _jsonl(tune, examples))
    return run_folder, recipe, tune.task


def make_job(run_folder: RunFolder, recipe: Recipe, progress_bar: ProgressBar) -> Job:
    """The job of a fine-tuning recipe."""
    task = _tune(recipe).task
    if task == "lm":
        return _language_model_job(run_folder, recipe, progress_bar)
    if task in ("translate", "summarize"):
        return _translation_job(run_folder, recipe, progress_bar)
    return _head_job(run_folder, recipe, progress_bar)


def _recipe(values: Mapping[str, Any]) -> Recipe:
    """A recipe from plain settings on top of the defaults of fine-tuning."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in (*recipes.SECTIONS, "tune")}
    defaults = {**DEFAULTS, "metric": METRICS.get(str(values.get("task")), "loss")}
    if values.get("lora"):
        defaults["learning_rate"] = LORA_LEARNING_RATE
    for key, value in {**defaults, **values}.items():
        if key in Tune.model_fields:
            sections["tune"][key] = value
        elif key in recipes.KEYS:
            sections[recipes.KEYS[key]][key] = value
        else:
            raise SettingError(
                f"there is no setting {key!r}",
                did_you_mean(key, [*recipes.KEYS, *Tune.model_fields]),
            )
    # A language model is trained on as it was: on plain text, with its own tokenizer.
    if values.get("task") == "lm":
        sections["data"] |= {"text": values["files"][0], "valid_text": values.get("valid")}
        sections["tokens"]["tokenizer"] = str(Path(values["base"]) / "tokenizer.json")
        sections["train"]["objective"] = "causal"
    return recipes.parse(sections)


def _tune(recipe: Recipe) -> Tune:
    assert recipe.tune is not None, "only fine-tuning recipes come here"
    return recipe.tune


# --- data -----------------------------------------------------------------------------------------


def _read_sets(tune: Tune) -> Sets:
    """Examples to train on, and those to validate and to test with, if there are any."""
    if tune.prefixes and len(tune.prefixes) != len(tune.files):
        raise SettingError(
            f"{len(tune.prefixes)} prefixes for {len(tune.files)} files", "give one for each --data"
        )
    if tune.prefixes and tune.task in _READERS:
        raise SettingError(f"{tune.task} has no prefixes", "leave --prefix out")
    # T5 was pretrained with prefixes such as "summarize: ", which name the task.
    prefixes = tune.prefixes or ("",) * len(tune.files)
    train = []
    for prefix, file in zip(prefixes, tune.files, strict=True):
        train += _read_examples(tune, file, prefix)
    sets: Sets = {"train": train}
    # Several prefixes mean several tasks; validation files come with their prefixes written out.
    prefix = prefixes[0] if len(prefixes) == 1 else ""
    if tune.valid is not None:
        sets["valid"] = _read_examples(tune, tune.valid, prefix)
    if tune.test is not None:
        sets["test"] = _read_examples(tune, tune.test, prefix)
    if tune.valid is None and len(train) >= MIN_TO_HOLD_OUT:
        sets["train"], sets["valid"] = _hold_out(train)
    return sets


def _hold_out(examples: list[Any]) -> tuple[list[Any], list[Any]]:
    """Training and validation examples: every tenth validates, up to a limit."""
    valid = examples[HOLD_OUT_EVERY - 1 :: HOLD_OUT_EVERY][:MAX_HELD_OUT]
    last = len(valid) * HOLD_OUT_EVERY  # behind the limit, every tenth trains again
    train = [
        example
        for number, example in enumerate(examples, 1)
        if number % HOLD_OUT_EVERY or number > last
    ]
    return train, valid


def _read_examples(tune: Tune, file: str, prefix: str) -> list[Any]:
    if tune.task in _READERS:
        return _READERS[tune.task](file)
    return [(prefix + source, target) for source, target in text_files.pairs(file)]


def _jsonl(tune: Tune, examples: Sequence[Any]) -> str:
    if tune.task in _READERS:
        return labelled.write(examples)
    return "".join(disk.json_line({"source": s, "target": t}) for s, t in examples)


def _stored_sets(run_folder: RunFolder, tune: Tune) -> Sets:
    """The examples as `start` wrote them into the run folder."""
    sets = {}
    for name in ("train", "valid", "test"):
        path = run_folder.data / f"{name}.jsonl"
        if path.is_file():
            sets[name] = _read_examples(tune, str(path), "")
    return sets


def _batches_per_epoch(recipe: Recipe, sets: Sets) -> int:
    """Counts batches. All examples are tokenized and all labels looked up, so errors come early."""
    tune = _tune(recipe)
    if tune.task in _READERS:
        objective = _head_objective(recipe, sets)
        if "test" in sets:
            objective.rows(sets["test"])  # only for its errors
        return len(objective.order().batches(0))
    model = load(tune.base, device="cpu")
    if isinstance(model, Translator) and tune.task != "lm":
        return _pair_batches(recipe, model, sets["train"])
    language_model = _checked_language_model(model, tune)
    encode = language_model.tokenizer.encode
    tokens = sum(len(encode(block)) for block in text_files.text(tune.files[0]))
    # Without validation data, the end of the text is held out.
    train_share = 1.0 if tune.valid else 1 - recipe.data.held_out
    return max(1, round(tokens * train_share / recipe.train.batch_tokens))


def _pair_batches(recipe: Recipe, translator: Translator, pairs: list[Pair]) -> int:
    sources = translator.encode([source for source, _ in pairs])
    targets = translator.target_tokenizer.encode_batch([target for _, target in pairs])
    lengths = np.array(
        [[len(s), len(t) + 1] for s, t in zip(sources, targets, strict=True)]
    )  # [pairs, 2]; + 1: the end token
    # Longer pairs are skipped, as `corpus.prepare` will do.
    lengths = lengths[lengths.max(axis=1) <= _max_length(translator, recipe)]
    if not len(lengths):
        return 1
    multiple = pad_to_multiple_of(recipe, choose_device(recipe.train.device))
    budget = recipe.train.batch_tokens
    return len(plan(lengths, budget, seed=0, epoch=0, multiple=multiple))


def _max_length(model: Model, recipe: Recipe) -> int:
    """Tokens that a text may have: the recipe's limit, or that of the model's positions."""
    inputs: list[Any]  # the embeddings, whose positions may be limited
    match model.spec:
        case spec.EncoderDecoder() | spec.SequenceToSequence():
            inputs = [model.spec.source, model.spec.target]
        case spec.Encoder():
            inputs = [model.spec.input]
        case spec.Decoder() | spec.RecurrentDecoder():
            inputs = [model.spec.tokens]
        case _:
            raise ModelError("this model reads no text", "give one that does")
    limits = [recipe.data.max_length]
    for part in inputs:
        position = part.position
        if isinstance(position, spec.LearnedPosition | spec.FixedPosition | spec.AxialPosition):
            limits.append(position.length)
    return min(limits)


# --- classification, token classification, question answering -------------------------------------


def _head_job(run_folder: RunFolder, recipe: Recipe, progress_bar: ProgressBar) -> Job:
    sets = _stored_sets(run_folder, _tune(recipe))
    objective = _head_objective(recipe, sets)
    progress_bar.say(
        f"data: {len(sets['train']):,} examples to train on, "
        f"{len(sets.get('valid', [])):,} to validate"
    )
    max_length = objective.max_length
    full = sum(len(row.ids) == max_length for row in objective.train_rows)
    # Question answering reads long contexts in windows; the other tasks truncate.
    if full and not isinstance(objective, QuestionAnswering):
        progress_bar.say(
            f"{full:,} examples fill the limit of {max_length} tokens; "
            "what is longer was cut off (--max-length)"
        )

    def scores() -> dict[str, AnyScore]:
        results: dict[str, AnyScore] = {}
        for name in ("valid", "test"):
            if name not in sets:
                continue
            score = objective.score(sets[name], torch.no_grad())
            values = vars(score).items()
            shown = [f"{key} {value:.2f}" for key, value in values if isinstance(value, float)]
            progress_bar.say(f"{name}: {'  '.join(shown)}  ({len(sets[name]):,} examples)")
            results[name] = score
        return results

    return _job(run_folder, objective.encoder, objective, scores, recipe)


def _head_objective(recipe: Recipe, sets: Sets) -> HeadObjective[Any]:
    tune = _tune(recipe)
    device = choose_device(recipe.train.device)
    base = load(tune.base, device="cpu")
    if not isinstance(base, TextEncoder | LanguageModel):
        raise ModelError(
            f"{tune.base} holds a model that does not read text ({tune.task})",
            "give an encoder as BERT",
        )
    labels = _labels(tune.task, sets["train"])
    encoder = with_head(base, tune.task, labels, recipe.train.seed)  # type: ignore[arg-type]
    _set_trainable(encoder.model, recipe, new=("labels.", "pool."))
    encoder.to(device)
    return _OBJECTIVES[tune.task](
        encoder,
        sets["train"],
        sets.get("valid", []),
        recipe.train,
        pad_to_multiple_of(recipe, device),
        _max_length(encoder, recipe),
        classification_teacher(recipe, encoder),
    )


def _labels(task: str, examples: Sequence[Classed | Words]) -> list[str]:
    """The labels of the training data, sorted."""
    if task == "answer":
        return ["start", "end"]
    labels: set[str] = set()
    for example in examples:
        if isinstance(example, Classed):
            labels.add(example.label)
        else:
            labels.update(example.tags)
    if len(labels) < 2:
        raise DataError(
            f"there is one label only: {', '.join(labels)}", "give examples of two labels or more"
        )
    return sorted(labels)


def with_head(
    base: TextEncoder | LanguageModel, task: spec.HeadTask, names: Sequence[str], seed: int
) -> TextEncoder:
    """The same stack with a task head: that of the model if it fits, otherwise a new one.

    A new head is normal with deviation 0.02. A pooler stays; a language model's LM head goes.
    """
    if isinstance(base, TextEncoder) and _has_head(base, task, names):
        return base
    # The config keeps what this library does not read, for others that open the folder.
    description, config = folders.with_classifier(base.config, task, names)
    assert isinstance(description, spec.Encoder)
    torch.manual_seed(seed)  # for the new head
    model = build(description)
    _copy_weights(base, model)
    if isinstance(base, TextEncoder):
        tokenizer = base.tokenizer
    else:
        # A language model needs no padding, but batches of texts do.
        assert base.folder is not None, "models to fine-tune come from folders"
        tokenizer = open_encoder_tokenizer(base.folder)
        config.setdefault("pad_token_id", tokenizer.special_token_id("pad") or 0)
    encoder = TextEncoder(model, description, tokenizer, config)
    encoder.folder = base.folder
    encoder.say = base.say
    return encoder


def _has_head(encoder: TextEncoder, task: spec.HeadTask, names: Sequence[str]) -> bool:
    head = encoder.spec.labels
    if not isinstance(head, spec.ClassifierHead) or head.task != task:
        return False
    # The outputs of question answering have no names to compare.
    return task == "answer" or set(encoder.labels) == set(names)


@torch.no_grad()
def _copy_weights(base: TextEncoder | LanguageModel, model: nn.Module) -> None:
    """Copies the weights of the base model; what is new in `model` is drawn."""
    # A decoder calls its embeddings `tokens`, an encoder `input`.
    old = {
        name.replace("tokens.", "input.", 1): parameter
        for name, parameter in base.model.named_parameters()
    }
    for name, parameter in model.named_parameters():
        fits = name in old and old[name].shape == parameter.shape
        if fits and not name.startswith("labels."):
            parameter.copy_(old[name])
        elif not name.startswith(("labels.", "pool.")):
            raise ModelError(f"{base.folder} holds nothing for {name}", "give a whole encoder")
        elif parameter.ndim == 1:  # a bias
            parameter.zero_()
        else:
            parameter.normal_(std=0.02)  # BERT's initializer_range


# --- translation, summarization and language models -----------------------------------------------


def _translation_job(run_folder: RunFolder, recipe: Recipe, progress_bar: ProgressBar) -> Job:
    tune = _tune(recipe)
    translator = load(tune.base, device="cpu")
    if not isinstance(translator, Translator):
        raise ModelError(
            f"{tune.base} holds no encoder–decoder over text", "give one, such as Marian or T5"
        )
    _set_trainable(translator.model, recipe)
    translator.to(choose_device(recipe.train.device))
    sets = _stored_sets(run_folder, tune)
    tokenizers = (translator.source_tokenizer, translator.target_tokenizer)
    max_length = _max_length(translator, recipe)
    corpora: dict[str, Corpus] = {}
    for name in ("train", "valid"):
        if name not in sets:
            continue
        folder = run_folder.data / name
        if not (folder / "corpus.json").exists():
            report = prepare(sets[name], *tokenizers, folder, max_length=max_length)
            progress_bar.say(f"{name}: {report}")
        corpora[name] = Corpus.open(folder)
    valid_pairs = sets.get("valid", [])
    data = ParallelCorpora(*tokenizers, corpora["train"], corpora.get("valid"), valid_pairs)
    test_sets: dict[str, list[Pair]] = {"test": sets["test"]} if "test" in sets else {}
    objective = SequenceToSequence(
        translator,
        data,
        recipe.train,
        pad_to_multiple_of(recipe, translator.device),
        translation_teacher(recipe, translator),
    )

    def scores() -> dict[str, AnyScore]:
        return final_scores(test_sets, translator, recipe, progress_bar)

    return _job(run_folder, translator, objective, scores, recipe)


def _language_model_job(run_folder: RunFolder, recipe: Recipe, progress_bar: ProgressBar) -> Job:
    tune = _tune(recipe)
    language_model = _checked_language_model(load(tune.base, device="cpu"), tune)
    positions = language_model.positions
    if positions is not None and recipe.data.context > positions:
        raise SettingError(
            f"context {recipe.data.context} is more than the {positions} tokens the model sees",
            "lower it",
        )
    _set_trainable(language_model.model, recipe)
    language_model.to(choose_device(recipe.train.device))
    data = text_corpora(run_folder, recipe, progress_bar.say)
    teacher = language_model_teacher(recipe, language_model)
    objective = language_modelling(language_model, data, recipe, teacher)

    def scores() -> dict[str, AnyScore]:
        return validation_score(objective, progress_bar)

    return _job(run_folder, language_model, objective, scores, recipe)


def _checked_language_model(model: Model, tune: Tune) -> LanguageModel:
    if not isinstance(model, LanguageModel):
        raise ModelError(
            f"{tune.base} holds no model for {tune.task}", "give a language model, such as GPT-2"
        )
    if len(tune.files) != 1 or tune.prefixes or tune.test:
        raise SettingError(
            "lm learns from one text", "give one --data, perhaps --valid, and nothing else"
        )
    return model


# --- what they share ------------------------------------------------------------------------------


def _set_trainable(model: nn.Module, recipe: Recipe, new: tuple[str, ...] = ()) -> None:
    """What is trained: everything, what is above the frozen blocks, or LoRA and what is `new`."""
    tune = _tune(recipe)
    if tune.lora:
        torch.manual_seed(recipe.train.seed)
        modules = tune.lora_in.split(",")
        # Freezes the model and adds trainable low-rank factors.
        edit.lora(model, tune.lora, tune.lora_alpha, tune.lora_dropout, modules)
        for name, parameter in model.named_parameters():
            if name.startswith(new):
                parameter.requires_grad_(True)
    if tune.freeze is not None:
        layerwise_lr_decay.freeze(model, tune.freeze)
    for module in model.modules():
        if isinstance(module, Stack):
            module.activation_checkpointing = recipe.train.recompute


def _job(
    run_folder: RunFolder,
    model: Model,
    objective: Objective,
    scores: Callable[[], dict[str, AnyScore]],
    recipe: Recipe,
) -> Job:
    """The run folder holds the complete model in the layout it came in, with LoRA merged."""
    folder = run_folder.folder
    # Tokenizer and processor files, as they came.
    if model.folder is not None:
        copy_companion_files(model.folder, folder, TEXT_FILES)
    disk.write_json(folder / "config.json", config_json(model.spec, model.config))
    if isinstance(model, TextEncoder):
        for name, content in model.tokenizer.files().items():
            if name == "tokenizer.json" and not (folder / name).exists():
                disk.write_file(folder / name, str(content))

    def export() -> None:
        exported = model.model
        if _tune(recipe).lora:
            # Of a copy: training goes on with the factors apart.
            exported = copy.deepcopy(exported)
            edit.merge(exported)
        write_weights(run_folder.weights, exported, model.spec, model.config)

    assert not isinstance(model.spec, spec.DualEncoder)
    return Job(objective, model.spec.d_model, export, scores)
