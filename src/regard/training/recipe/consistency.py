"""Checks of a recipe that compare its settings: data, objective, model and teacher must fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.data.generated.generated_task import GeneratedTask
from regard.system.errors import SettingError
from regard.training.recipe.objectives import DATA_KEYS, OBJECTIVES, DataKind
from regard.training.recipe.sections import TRANSFORMER_ONLY, ModelSettings, TokenSettings
from regard.training.recipe.settings import Settings

# Settings of [model] that a new head of a fine-tuned model has.
NEW_HEAD = ("horizon",)
# Settings of [model] that say how training starts, and not what the model is.
STARTING_POINT = ("init", "pretrained_embeddings", "freeze_embeddings")


class _OtherInput(NamedTuple):
    """A kind of input other than text and sound, in the words of an error."""

    name: str
    option: str
    objectives: str


_OTHER_INPUTS = {
    "images": _OtherInput("images", "--images DIR", "images, masked_images or image_text"),
    "series": _OtherInput("time series", "--series FILE.csv", "forecast"),
    "graph": _OtherInput("graphs", "--graph DIR", "nodes, or graphs"),
}


def check(recipe: Settings) -> None:
    """Raises `SettingError` where settings of a recipe contradict each other."""
    _check_metric(recipe)
    _check_teacher(recipe)
    if recipe.train.schedule != "paper" and recipe.train.learning_rate is None:
        raise SettingError(
            f"schedule = {recipe.train.schedule!r} needs a peak", "set learning_rate"
        )
    if not recipe.tune.files:
        _check_data(recipe)
    elif recipe.objective_settings.data == "series":
        raise SettingError("series are fine-tuned by `regard train`", "give --base and --series")
    _check_settings_of_objective(recipe)
    _check_mixture(recipe)
    if recipe.is_finetuning:
        _check_no_architecture(recipe)
    else:
        _check_model(recipe)


def _check_metric(recipe: Settings) -> None:
    metrics = recipe.objective_settings.metrics
    if recipe.train.metric not in metrics:
        raise SettingError(
            f"{recipe.train.metric} is not a score of {recipe.task}",
            f"choose: {', '.join(metrics)}",
        )


def _check_data(recipe: Settings) -> None:
    data = recipe.data
    for kind in _OTHER_INPUTS:
        if kind == recipe.objective_settings.data or getattr(data, kind):
            _check_other_input(recipe, kind)
            return
    if recipe.generated_task is not None:
        _check_generated(recipe, recipe.generated_task)
        return
    has_sounds = data.sounds is not None
    if has_sounds or recipe.objective_settings.data == "sounds":
        _check_sounds(recipe, has_sounds)
        return
    if recipe.objective_settings.data == "pairs":
        if data.text:
            raise SettingError(
                "translation needs pairs, not a single text",
                "use --objective causal (a decoder), masked (an encoder), or span",
            )
        return
    has_text = data.text or recipe.objective_settings.generates
    if data.source or data.pairs or not has_text:
        raise SettingError(
            f"the objective {recipe.objective!r} learns from one text", "give --text FILE"
        )


def _check_other_input(recipe: Settings, kind: str) -> None:
    """Inputs other than text and sound: the objective fits, and nothing else is given."""
    inputs = _OTHER_INPUTS[kind]
    if recipe.objective_settings.data != kind:
        raise SettingError(
            f"the objective {recipe.objective!r} does not learn from {inputs.name}",
            f"use --objective {inputs.objectives}",
        )
    keys = {*DATA_KEYS.values(), "source", "generated"}
    if not getattr(recipe.data, kind) or any(getattr(recipe.data, key) for key in keys - {kind}):
        raise SettingError(
            f"{recipe.model_name} reads {inputs.name}", f"give {inputs.option}, and no other data"
        )


def _check_sounds(recipe: Settings, has_sounds: bool) -> None:
    learns_from_sounds = recipe.objective_settings.data == "sounds"
    if not learns_from_sounds:
        raise SettingError(
            f"the objective {recipe.objective!r} does not learn from recordings",
            "use --objective ctc, transcribe, sounds or speech_contrastive",
        )
    if not has_sounds or recipe.data.text or recipe.data.source or recipe.data.pairs:
        texts = {"sounds": " with classes", "speech_contrastive": ""}
        text = texts.get(recipe.objective, " with transcripts")
        raise SettingError(
            f"{recipe.model_name} reads sound: the objective {recipe.objective!r} learns from "
            f"recordings{text}",
            "give --sounds TABLE alone: FILE<TAB>TRANSCRIPT, or FILE<TAB>CLASS",
        )


def _check_generated(recipe: Settings, task: GeneratedTask) -> None:
    if recipe.data.text or recipe.data.source or recipe.data.pairs:
        raise SettingError("a generated task replaces files", "leave the files or `generated` out")
    # A label is a target of one word, but a target sequence is no label, and no text is sound.
    needs_labels = recipe.objective_settings.data in ("examples", "sounds")
    if needs_labels and (recipe.objective != "classify" or task.kind != "classify"):
        raise SettingError(
            f"{recipe.data.generated} has nothing for the objective {recipe.objective!r}",
            "choose another objective: translate or causal",
        )


# The kinds of data whose objectives read a setting, of those that not all do.
_READ_FOR_DATA: dict[str, tuple[DataKind, ...]] = {
    **dict.fromkeys(("beam", "length_penalty", "languages"), ("pairs", "sounds")),
    **dict.fromkeys(("tokenize", "joint", "target_tokenizer"), ("pairs",)),
    "tokenizer_examples": ("pairs", "text"),
    **dict.fromkeys(("held_out", "text_column"), ("text",)),
    "max_length": ("pairs", "examples", "images", "sounds", "series", "graph"),
    "test_text": ("examples",),
    **dict.fromkeys(
        ("valid_images", "test_images", "crop_padding", "flip", "mixup", "cutmix", "augment"),
        ("images",),
    ),
    **dict.fromkeys(
        ("speed_perturbation", "time_shift", "noise_snr", "time_masks", "frequency_masks"),
        ("sounds",),
    ),
    **dict.fromkeys(("series_split", "columns", "horizon"), ("series",)),
}
# The objectives that read a setting.
_READ_BY: dict[str, tuple[str, ...]] = {
    "span_length": ("span", "denoise", "speech_contrastive"),
    "label_smoothing": (
        "translate", "classify", "tag", "stories", "images", "sounds", "transcribe", "nodes",
        "graphs",
    ),
    "r_drop": ("translate", "nodes", "graphs"),
    "memory": ("causal",),
    "next_sentence": ("masked",),
    "mask_ratio": tuple(name for name, each in OBJECTIVES.items() if each.corrupts),
    **dict.fromkeys(("mixup", "cutmix"), ("images",)),
    # Contrastive learning has masks of its own (`mask_ratio`, `span_length`).
    **dict.fromkeys(("time_masks", "frequency_masks"), ("ctc", "transcribe", "sounds")),
}  # fmt: skip
# A recipe may have these for another objective than the one that a flag asks for.
_LEFT_OVER = (
    "beam", "length_penalty", "languages", "tokenize", "joint", "target_tokenizer", "held_out",
    "tokenizer_examples", "text_column", "max_length", "series_split", "span_length",
    "label_smoothing",
)  # fmt: skip
# The kinds of data whose tokenizer is that of the model that is fine-tuned.
_TEXT_DATA = ("pairs", "text", "examples")


def check_changes(recipe: Settings, changes: Mapping[str, Any]) -> None:
    """Refuses changes of a recipe that would have no effect on its run."""
    brings_tokenizer = recipe.is_finetuning and recipe.objective_settings.data in _TEXT_DATA
    for key, value in changes.items():
        if _is_off(key, value):
            continue
        if brings_tokenizer and key in TokenSettings.model_fields:
            raise SettingError(f"{key} is decided by the model that is fine-tuned", "leave it out")
        _check_is_read(recipe, key)


def _is_off(key: str, value: Any) -> bool:
    """Whether a value switches off what is not there anyway; False may be a choice."""
    is_greedy = key == "beam" and value == 1
    return is_greedy or (value is not False and not value)


def _check_is_read(recipe: Settings, key: str) -> None:
    data = recipe.objective_settings.data
    objective = recipe.objective
    is_read = data in _READ_FOR_DATA.get(key, (data,))
    # Recurrent language models carry their state without a memory.
    is_read = is_read and objective in _READ_BY.get(key, (objective,))
    if not is_read or (key == "memory" and recipe.is_baseline):
        raise SettingError(f"{key} is not a setting of the objective {objective!r}", "leave it out")


def _check_settings_of_objective(recipe: Settings) -> None:
    """Settings that only some objectives have."""
    for section in (recipe.data, recipe.model, recipe.train):
        for key, field in type(section).model_fields.items():
            may_be_ignored = key in _LEFT_OVER or key not in {**_READ_FOR_DATA, **_READ_BY}
            if not may_be_ignored and getattr(section, key) != field.default:
                _check_is_read(recipe, key)
    if recipe.model.compressed is not None and recipe.model.memory is None:
        raise SettingError(
            "`compressed` needs a memory",
            "give a memory too, e.g. --memory 128",
        )


def _check_mixture(recipe: Settings) -> None:
    data = recipe.data
    if data.mixture_weights is None and data.mixture_temperature is None:
        return
    if data.mixture_weights is not None and data.mixture_temperature is not None:
        raise SettingError(
            "mixture_weights and mixture_temperature cannot be combined",
            "give one of them",
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
    weights = recipe.mixture_weights
    if weights is not None and len(weights) != count:
        raise SettingError(
            f"{len(weights)} weights for {count} corpora", "give one weight for each"
        )


def _check_no_architecture(recipe: Settings) -> None:
    """The folder decides what the model is."""
    for key in ModelSettings.model_fields:
        is_set = getattr(recipe.model, key) not in (None, False)
        if is_set and key not in (*STARTING_POINT, *NEW_HEAD):
            raise SettingError(f"{key} is decided by the model that is fine-tuned", "leave it out")


def _check_model(recipe: Settings) -> None:
    if recipe.model.spec is not None and recipe.model.model is not None:
        raise SettingError("--spec and --model both name a model", "give one of them")
    if recipe.model.model is not None:
        _check_model_kind(recipe)
    if not recipe.is_baseline:
        return
    foreign = [key for key in TRANSFORMER_ONLY if getattr(recipe.model, key) is not None]
    if recipe.train.gradient_checkpointing:
        foreign.append("gradient_checkpointing")
    if foreign:
        raise SettingError(f"{foreign[0]} is not a setting of {recipe.model_name}", "leave it out")


def _check_model_kind(recipe: Settings) -> None:
    # Imported late: the families come with torch.
    from regard.families import presets

    about = presets.about(recipe.preset_name)
    kinds = recipe.objective_settings.kinds
    if about.kind not in kinds:
        names = sorted(
            {preset.name.partition(":")[0] for preset in presets.listing() if preset.kind in kinds}
        )
        raise SettingError(
            f"model = {recipe.model_name!r} is not for the objective {recipe.objective!r}",
            f"choose: {', '.join(names)}",
        )


def _check_teacher(recipe: Settings) -> None:
    train = recipe.train
    if train.teacher is None:
        _check_no_teacher(recipe)
        return
    translates = recipe.objective == "translate"
    if not _can_have_teacher(recipe, translates):
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


def _check_no_teacher(recipe: Settings) -> None:
    for key in ("distillation_weight", "temperature", "teacher_translates"):
        if getattr(recipe.train, key) not in (None, False):
            raise SettingError(f"{key} is only used in distillation", "give --teacher DIR")


def _can_have_teacher(recipe: Settings, translates: bool) -> bool:
    if recipe.model.memory is not None:
        return False
    if translates:
        return True
    if recipe.is_baseline:  # a recurrent language model carries state from segment to segment
        return False
    classifies = recipe.is_finetuning and recipe.objective in ("classify", "tag")
    return classifies or recipe.objective == "causal"
