"""Checks of a recipe: each value, and whether data, objective, model and teacher fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from regard.system.errors import SettingError, nearest_setting
from regard.training.recipe.objectives import DATA_KEYS, DATA_WORDS, OBJECTIVES, DataKind
from regard.training.recipe.schema import KEYS, SECTIONS, Recipe
from regard.training.recipe.sections import TRANSFORMER_ONLY, ModelSettings, TokenSettings

# Settings of [model] that say how training starts, and not what the model is.
STARTING_POINT = frozenset({"init", "pretrained_embeddings", "freeze_embeddings"})
# Settings that mean nothing without another one.
_NEEDS = {
    **dict.fromkeys(
        ("freeze", "layer_decay", "lora", "lora_alpha", "lora_dropout", "lora_in"), "base"
    ),
    **dict.fromkeys(("distillation_weight", "temperature", "teacher_translates"), "teacher"),
    "compressed": "memory",
}


def parse(values: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """A checked recipe, or an error that names the key and the repair."""
    recipe = validated(values)
    train = recipe.train
    metrics = recipe.objective_settings.metrics
    if train.metric not in metrics:
        raise SettingError(
            f"{train.metric} is not a score of {recipe.task}", f"choose: {', '.join(metrics)}"
        )
    if train.schedule != "paper" and train.learning_rate is None:
        raise SettingError(f"schedule = {train.schedule!r} needs a peak", "set learning_rate")
    _check_data(recipe)
    _check_teacher(recipe)
    for key in _READ_BY.keys() - _LEFT_OVER:
        if _is_set(recipe, key):
            _check_is_read(recipe, key)
    for key, needed in _NEEDS.items():
        if _is_set(recipe, key) and not _is_set(recipe, needed):
            raise SettingError(f"{key} has no effect without {needed}", f"give --{needed} too")
    _check_mixture(recipe)
    if train.optimizer == "muon" and recipe.parallel.strategy != "ddp":
        raise SettingError(
            f"Muon updates whole matrices, of which {recipe.parallel.strategy} ranks have parts",
            "set parallel strategy = 'ddp', or optimizer = 'adamw'",
        )
    if recipe.is_finetuning:
        # But for the horizon of a new head, and the size of images.
        _check_no_architecture(recipe, "the model that is fine-tuned", "horizon", "image_size")
        return recipe
    if recipe.model.spec is not None:
        _check_no_architecture(recipe, "the spec", "spec")
    _check_model(recipe)
    return recipe


def validated(values: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """The recipe of some settings, each of which has been checked by itself."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise _setting_error(error) from None


def _setting_error(error: ValidationError) -> SettingError:
    """The first of pydantic's errors, as one of ours."""
    first = error.errors()[0]  # one at a time: the others often follow from it
    # (section, key, …)
    location = [str(part) for part in first["loc"]]
    key = location[:2][-1]
    section = SECTIONS.get(location[0])
    if first["type"] == "extra_forbidden":
        options = section.model_fields if section else SECTIONS
        # A right key in the wrong section, or a misspelt one.
        repair = f"it belongs in [{KEYS[key]}]" if key in KEYS else nearest_setting(key, options)
        return SettingError(f"there is no setting {'.'.join(location)}", repair)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):  # raised by a check of ours
        return cause
    field = section.model_fields.get(key) if section else None
    repair = f"write [{key}], and its settings on the lines below"
    if field is not None:
        repair = f"correct {key}: {field.description}"
    message = first["msg"].lower().removeprefix("value error, ")
    return SettingError(f"{key} = {first['input']!r}: {message}", repair)


def _is_set(recipe: Recipe, key: str) -> bool:
    section = KEYS[key]
    return bool(
        getattr(getattr(recipe, section), key) != SECTIONS[section].model_fields[key].default
    )


# --- data -----------------------------------------------------------------------------------------


def _check_data(recipe: Recipe) -> None:
    """The recipe names the data of its objective, once, and no other."""
    kind = recipe.objective_settings.data
    tune = recipe.tune
    if tune.files:
        if kind == "series":
            raise SettingError(
                "series are fine-tuned by `regard train`", "give --base and --series"
            )
        # One file, which has all splits in it; of a text, those of validation may be another.
        unread = {"text": tune.test, "graph": tune.test or tune.valid}
        if kind in unread and (len(tune.files) > 1 or unread[kind]):
            raise SettingError(
                f"{recipe.task} learns from {DATA_WORDS[kind][0]}",
                "give one --data, of a text perhaps --valid, and nothing else",
            )
        return
    data = recipe.data
    for split in ("", "valid_", "test_"):
        if getattr(data, f"{split}pairs") and getattr(data, f"{split}source"):
            raise SettingError(
                f"{split}pairs and {split}source both name pairs", "give one file, or both sides"
            )
    named = [key for key in dict.fromkeys(("source", *DATA_KEYS.values())) if getattr(data, key)]
    if data.generated is not None:
        if named:
            raise SettingError(
                "a generated task replaces files", "leave the files or `generated` out"
            )
        _check_generated(recipe)
        return
    fitting = ("pairs", "source") if kind == "pairs" else (DATA_KEYS[kind],)
    what, flag = DATA_WORDS[kind]
    foreign = [key for key in named if key not in fitting]
    if foreign:
        raise SettingError(
            f"the objective {recipe.objective!r} learns from {what}, not from `{foreign[0]}`",
            f"give {flag}, or another --objective",
        )
    if not named and not recipe.objective_settings.generates:
        raise SettingError(f"the objective {recipe.objective!r} learns from {what}", f"give {flag}")


def _check_generated(recipe: Recipe) -> None:
    task = recipe.generated_task
    assert task is not None, "asked for where the recipe names one"
    # A label is a target of one word, but a target sequence is no label, and no text is sound.
    fits = recipe.objective_settings.data in ("pairs", "text")
    if task.kind == "texts":
        fits = recipe.objective_settings.data == "text"
    if not fits and (recipe.objective != "classify" or task.kind != "classify"):
        raise SettingError(
            f"{recipe.data.generated} has nothing for the objective {recipe.objective!r}",
            "choose another objective: translate or causal",
        )


def _check_mixture(recipe: Recipe) -> None:
    weights = recipe.mixture_weights
    if weights is None and recipe.data.mixture_temperature is None:
        return
    if weights is not None and recipe.data.mixture_temperature is not None:
        raise SettingError(
            "mixture_weights and mixture_temperature cannot be combined", "give one of them"
        )
    # A model with a memory reads its text from the beginning to the end.
    reads_on = recipe.model.memory is not None or (
        recipe.is_baseline and recipe.objective == "causal"
    )
    if recipe.objective_settings.data not in ("pairs", "text") or reads_on:
        raise SettingError(
            f"corpora are not mixed for {recipe.task} with {recipe.model_name}",
            "leave mixture_weights and mixture_temperature out",
        )
    count = len(recipe.corpora)
    if count < 2:
        raise SettingError("there is only one corpus: nothing to mix", "give several, with commas")
    if weights is not None and len(weights) != count:
        raise SettingError(
            f"{len(weights)} weights for {count} corpora", "give one weight for each"
        )


# --- settings that are not read -------------------------------------------------------------------


def _learning_from(*kinds: DataKind) -> tuple[str, ...]:
    return tuple(name for name, each in OBJECTIVES.items() if each.data in kinds)


# The objectives that read a setting, of those that not all do.
_READ_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("beam", "length_penalty", "languages"), _learning_from("pairs", "sounds")),
    **dict.fromkeys(
        ("tokenize", "joint", "target_tokenizer", "prefixes"), _learning_from("pairs")
    ),
    "tokenizer_examples": _learning_from("pairs", "text"),
    **dict.fromkeys(("held_out", "text_column"), _learning_from("text")),
    "max_length": tuple(name for name, each in OBJECTIVES.items() if each.data != "text"),
    "test_text": _learning_from("examples"),
    **dict.fromkeys(
        ("valid_images", "test_images", "crop_padding", "flip", "augment", "zoom"),
        _learning_from("images"),
    ),
    **dict.fromkeys(("speed_perturbation", "time_shift", "noise_snr"), _learning_from("sounds")),
    **dict.fromkeys(("series_split", "columns", "horizon"), _learning_from("series")),
    **dict.fromkeys(("environment", "condition_on_returns"), _learning_from("trajectories")),
    "span_length": ("span", "denoise", "speech_contrastive"),
    "label_smoothing": (
        "translate", "classify", "tag", "stories", "images", "clips", "segment", "sounds",
        "transcribe",
        "nodes", "graphs",
    ),
    "r_drop": ("translate", "nodes", "graphs"),
    "memory": ("causal",),
    "image_tokens": ("draw",),
    "next_sentence": ("masked",),
    "mask_ratio": tuple(name for name, each in OBJECTIVES.items() if each.corrupts),
    **dict.fromkeys(("mixup", "cutmix"), ("images", "clips")),
    # Contrastive learning has masks of its own (`mask_ratio`, `span_length`).
    **dict.fromkeys(("time_masks", "frequency_masks"), ("ctc", "transcribe", "sounds")),
}  # fmt: skip
# A recipe may have these for another objective than the one that a flag asks for.
_LEFT_OVER = {
    "beam", "length_penalty", "languages", "tokenize", "joint", "target_tokenizer", "held_out",
    "tokenizer_examples", "text_column", "max_length", "series_split", "span_length",
    "label_smoothing",
}  # fmt: skip


def check_changes(recipe: Recipe, changes: Mapping[str, Any]) -> None:
    """Refuses changes of a recipe that would have no effect on its run."""
    # The kinds of data whose tokenizer is that of the model that is fine-tuned.
    has_text = recipe.objective_settings.data in ("pairs", "text", "examples")
    for key, value in changes.items():
        # A value that switches off what is not there anyway; False may be a choice.
        if (key == "beam" and value == 1) or (value is not False and not value):
            continue
        if recipe.is_finetuning and has_text and key in TokenSettings.model_fields:
            raise SettingError(f"{key} is decided by the model that is fine-tuned", "leave it out")
        _check_is_read(recipe, key)


def _check_is_read(recipe: Recipe, key: str) -> None:
    is_read = recipe.objective in _READ_BY.get(key, (recipe.objective,))
    # Recurrent language models carry their state without a memory.
    if not is_read or (key == "memory" and recipe.is_baseline):
        raise SettingError(
            f"{key} is not a setting of the objective {recipe.objective!r}", "leave it out"
        )


# --- models ---------------------------------------------------------------------------------------


def _check_no_architecture(recipe: Recipe, decider: str, *allowed: str) -> None:
    for key in ModelSettings.model_fields:
        if key not in {*STARTING_POINT, *allowed} and _is_set(recipe, key):
            raise SettingError(f"{key} is decided by {decider}", "leave one of them out")


def _check_model(recipe: Recipe) -> None:
    if recipe.model.model is not None:
        # Imported late: the families come with torch.
        from regard.families import presets

        kinds = recipe.objective_settings.kinds
        if presets.about(recipe.preset_name).kind not in kinds:
            fitting = [preset for preset in presets.listing() if preset.kind in kinds]
            names = sorted({preset.name.partition(":")[0] for preset in fitting})
            raise SettingError(
                f"model = {recipe.model_name!r} is not for the objective {recipe.objective!r}",
                f"choose: {', '.join(names)}",
            )
    if not recipe.is_baseline:
        return
    for key in (*TRANSFORMER_ONLY, "gradient_checkpointing"):
        if _is_set(recipe, key):
            raise SettingError(f"{key} is not a setting of {recipe.model_name}", "leave it out")


def _check_teacher(recipe: Recipe) -> None:
    train = recipe.train
    if train.teacher is None:
        return
    translates = recipe.objective == "translate"
    # A recurrent language model carries state from segment to segment, as one with a memory does.
    is_plain_lm = recipe.objective == "causal" and not recipe.is_baseline
    classifies = recipe.is_finetuning and recipe.objective in ("classify", "tag")
    if recipe.model.memory is not None or not (translates or is_plain_lm or classifies):
        raise SettingError(
            "distillation only supports translators, language models without memory, "
            "and fine-tuning for classify or tag",
            "leave --teacher out",
        )
    if train.teacher_translates and (recipe.is_finetuning or not translates):
        raise SettingError(
            "--teacher-translates is only for training a new translation model", "leave it out"
        )
    # Each adds a forward pass and a weight of its own; nobody has tuned the two together.
    if train.r_drop:
        raise SettingError(
            "R-Drop and a teacher cannot be combined", "leave out --r-drop or --teacher"
        )
    if recipe.distillation_weight == 0 and not train.teacher_translates:
        raise SettingError(
            "the teacher has no effect", "raise --distillation-weight, or use --teacher-translates"
        )
