"""Checks of a recipe that compare its settings: data, objective, model and teacher must fit."""

from __future__ import annotations

from typing import NamedTuple

from regard.data.generated_task import GeneratedTask
from regard.errors import SettingError
from regard.training.recipe.objectives import DATA_KEYS
from regard.training.recipe.sections import TRANSFORMER_ONLY, ModelSettings, TrainSettings
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


def _check_settings_of_objective(recipe: Settings) -> None:
    """Settings that only some objectives have."""
    objective = recipe.objective
    has_memory = objective == "causal" and not recipe.is_baseline
    agrees = objective in ("translate", "nodes", "graphs")
    has_test_text = recipe.objective_settings.data == "examples"
    has_images = recipe.objective_settings.data == "images"
    # key, whether it is set, whether the objective has it
    settings = (
        ("r_drop", recipe.train.r_drop > 0, agrees),
        ("memory", recipe.model.memory is not None, has_memory),
        ("next_sentence", recipe.train.next_sentence, objective == "masked"),
        ("mask_ratio", recipe.train.mask_ratio is not None, recipe.objective_settings.corrupts),
        ("test_text", recipe.data.test_text is not None, has_test_text),
        ("valid_images", recipe.data.valid_images is not None, has_images),
        ("test_images", recipe.data.test_images is not None, has_images),
        ("crop_padding", recipe.train.crop_padding is not None, has_images),
        ("flip", recipe.train.flip is not None, has_images),
        ("mixup", recipe.train.mixup > 0, objective == "images"),
        ("columns", recipe.data.columns is not None, objective == "forecast"),
        ("horizon", recipe.model.horizon is not None, objective == "forecast"),
        ("cutmix", recipe.train.cutmix > 0, objective == "images"),
        ("augment", recipe.train.augment != "none", has_images),
        *_sound_settings(recipe),
    )
    for key, is_set, fits in settings:
        if is_set and not fits:
            raise SettingError(
                f"{key} is not a setting of the objective {objective!r}", "leave it out"
            )
    if recipe.model.compressed is not None and recipe.model.memory is None:
        raise SettingError(
            "`compressed` needs a memory",
            "give a memory too, e.g. --memory 128",
        )


def _sound_settings(recipe: Settings) -> list[tuple[str, bool, bool]]:
    """Settings of sound: key, whether it is set, whether the objective has it."""
    has_sound = recipe.objective_settings.data == "sounds"
    # Contrastive learning has masks of its own (`mask_ratio`, `span_length`).
    has_masks = has_sound and recipe.objective != "speech_contrastive"
    keys = {
        "speed_perturbation": has_sound,
        "time_shift": has_sound,
        "noise_snr": has_sound,
        "time_masks": has_masks,
        "frequency_masks": has_masks,
    }
    fields = TrainSettings.model_fields
    return [
        (key, getattr(recipe.train, key) != fields[key].default, fits) for key, fits in keys.items()
    ]


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
