"""A recipe: everything that decides a run, in one TOML file of commented sections.

Flags override the recipe, and the recipe overrides the defaults of `sections`.
"""

from __future__ import annotations

import importlib.resources
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError, field_validator, model_validator

from regard import disk
from regard.data.file_access import below, split_location
from regard.data.generated_task import GeneratedTask
from regard.decode.length_penalty import LengthPenalty, parse_length_penalty
from regard.errors import SettingError, did_you_mean
from regard.training.recipe.objectives import (
    CELLS,
    DATA_KEYS,
    OBJECTIVES,
    TASKS,
    ObjectiveSettings,
    objective_of,
    objective_settings,
)
from regard.training.recipe.options import (
    ExportedWeights,
    Initialization,
    parse_generated_task,
    parse_initialization,
    parse_mixture_weights,
    parse_weights,
)
from regard.training.recipe.sections import (
    TRANSFORMER_ONLY,
    DataSettings,
    DecodeSettings,
    ModelSettings,
    ParallelSettings,
    Section,
    TokenSettings,
    TrainSettings,
    TuneSettings,
)
from regard.training.recipe.unread_settings import check_settings_are_read

DEFAULT_DISTILLATION_WEIGHT = 0.5  # the teacher's distributions and the labels count alike
DEFAULT_TEMPERATURE = 2.0
# T5's choice (Raffel et al. 2020, Section 3.3.4); BART draws lengths from Poisson(3).
TEXT_SPAN_LENGTH = 3.0
SOUND_SPAN_LENGTH = 10.0  # wav2vec 2.0 (Baevski et al. 2020, Section 4.2)

# The usual recipe of fine-tuning: AdamW at a small rate, a tenth of the steps to warm up, then
# linear decay.
FINETUNING_DEFAULTS: dict[str, Any] = {
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
FINETUNING_EPOCHS = 3.0
# Settings that mean something only where there are weights to start from.
FINETUNING_ONLY = ("freeze", "layer_decay", "lora", "lora_alpha", "lora_dropout", "lora_in")
LORA_LEARNING_RATE = 5e-4  # few parameters, which start at zero, have farther to go
LINEAR_FORECASTERS = ("dlinear", "nlinear")
SIDES = ("source", "target")  # of pairs in two files
# Settings of [model] that a new head of a fine-tuned model has.
NEW_HEAD = ("horizon",)
# Settings of [model] that say how training starts, and not what the model is.
STARTING_POINT = ("start", "vectors", "freeze_embeddings")


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


class Recipe(Section):
    """The sections together, checked against each other."""

    # Every section may be left out of a recipe.
    data: DataSettings = DataSettings()
    tokens: TokenSettings = TokenSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    decode: DecodeSettings = DecodeSettings()
    tune: TuneSettings = TuneSettings()
    parallel: ParallelSettings = ParallelSettings()

    @field_validator("tune", mode="before")
    @classmethod
    def _tune(cls, value: Any) -> Any:
        # Recipes of earlier versions have null where nothing is fine-tuned.
        return TuneSettings() if value is None else value

    # --- checks -----------------------------------------------------------------------------------

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        self._check_metric()
        self._check_teacher()
        if self.train.schedule != "paper" and self.train.learning_rate is None:
            raise SettingError(
                f"schedule = {self.train.schedule!r} needs a peak", "set learning_rate"
            )
        if not self.tune.files:
            self._check_data()
        elif self.objective_settings.data == "series":
            raise SettingError(
                "series are fine-tuned by `regard train`", "give --base and --series"
            )
        self._check_settings_of_objective()
        self._check_mixture()
        if self.is_finetuning:
            self._check_no_architecture()
        else:
            self._check_model()
        return self

    def _check_metric(self) -> None:
        metrics = self.objective_settings.metrics
        if self.train.metric not in metrics:
            raise SettingError(
                f"{self.train.metric} is no score of {self.task}", f"choose: {', '.join(metrics)}"
            )

    def _check_data(self) -> None:
        data = self.data
        for kind in _OTHER_INPUTS:
            if kind == self.objective_settings.data or getattr(data, kind):
                self._check_other_input(kind)
                return
        if self.generated_task is not None:
            self._check_generated(self.generated_task)
            return
        has_sounds = data.sounds is not None
        if has_sounds or self.objective_settings.data == "sounds":
            self._check_sounds(has_sounds)
            return
        if self.objective_settings.data == "pairs":
            if data.text:
                raise SettingError(
                    "a translation is learnt from pairs, not from one text",
                    "say --objective causal (a decoder), masked (an encoder), or span",
                )
            return
        has_text = data.text or self.objective_settings.generates
        if data.source or data.pairs or not has_text:
            raise SettingError(
                f"the objective {self.objective!r} learns from one text", "give --text FILE"
            )

    def _check_other_input(self, kind: str) -> None:
        """Inputs other than text and sound: the objective fits, and nothing else is given."""
        inputs = _OTHER_INPUTS[kind]
        if self.objective_settings.data != kind:
            raise SettingError(
                f"the objective {self.objective!r} does not learn from {inputs.name}",
                f"say --objective {inputs.objectives}",
            )
        keys = {*DATA_KEYS.values(), "source", "generated"}
        if not getattr(self.data, kind) or any(getattr(self.data, key) for key in keys - {kind}):
            raise SettingError(
                f"{self.model_name} reads {inputs.name}", f"give {inputs.option}, and no other data"
            )

    def _check_sounds(self, has_sounds: bool) -> None:
        learns_from_sounds = self.objective_settings.data == "sounds"
        if not learns_from_sounds:
            raise SettingError(
                f"the objective {self.objective!r} does not learn from recordings",
                "say --objective ctc, transcribe, sounds or speech_contrastive",
            )
        if not has_sounds or self.data.text or self.data.source or self.data.pairs:
            texts = {"sounds": " with classes", "speech_contrastive": ""}
            text = texts.get(self.objective, " with transcripts")
            raise SettingError(
                f"{self.model_name} reads sound: the objective {self.objective!r} learns from "
                f"recordings{text}",
                "give --sounds TABLE alone: FILE<TAB>TRANSCRIPT, or FILE<TAB>CLASS",
            )

    def _check_generated(self, task: GeneratedTask) -> None:
        if self.data.text or self.data.source or self.data.pairs:
            raise SettingError(
                "a generated task takes the place of files", "leave the files or `generated` out"
            )
        # A label is a target of one word, but a target sequence is no label, and no text is sound.
        needs_labels = self.objective_settings.data in ("examples", "sounds")
        if needs_labels and (self.objective != "classify" or task.kind != "classify"):
            raise SettingError(
                f"{self.data.generated} has nothing for the objective {self.objective!r}",
                "choose another objective: translate or causal",
            )

    def _check_settings_of_objective(self) -> None:
        """Settings that only some objectives have."""
        objective = self.objective
        has_memory = objective == "causal" and not self.is_baseline
        agrees = objective in ("translate", "nodes", "graphs")
        has_test_text = self.objective_settings.data == "examples"
        has_images = self.objective_settings.data == "images"
        # key, whether it is set, whether the objective has it
        settings = (
            ("agreement", self.train.agreement > 0, agrees),
            ("memory", self.model.memory is not None, has_memory),
            ("next_sentence", self.train.next_sentence, objective == "masked"),
            ("hidden", self.train.hidden is not None, self.objective_settings.corrupts),
            ("test_text", self.data.test_text is not None, has_test_text),
            ("valid_images", self.data.valid_images is not None, has_images),
            ("test_images", self.data.test_images is not None, has_images),
            ("crop_padding", self.train.crop_padding is not None, has_images),
            ("flip", self.train.flip is not None, has_images),
            ("mixup", self.train.mixup > 0, objective == "images"),
            ("columns", self.data.columns is not None, objective == "forecast"),
            ("horizon", self.model.horizon is not None, objective == "forecast"),
            ("cutmix", self.train.cutmix > 0, objective == "images"),
            ("augment", self.train.augment != "none", has_images),
            *self._sound_settings(),
        )
        for key, is_set, fits in settings:
            if is_set and not fits:
                raise SettingError(
                    f"{key} is no setting of the objective {objective!r}", "leave it out"
                )
        if self.model.compressed is not None and self.model.memory is None:
            raise SettingError(
                "only what leaves a memory can be compressed",
                "give a memory too, e.g. --memory 128",
            )

    def _sound_settings(self) -> list[tuple[str, bool, bool]]:
        """Settings of sound: key, whether it is set, whether the objective has it."""
        has_sound = self.objective_settings.data == "sounds"
        # Contrastive learning has masks of its own (`hidden`, `span_length`).
        has_masks = has_sound and self.objective != "speech_contrastive"
        keys = {
            "speed_perturbation": has_sound,
            "time_shift": has_sound,
            "noise_snr": has_sound,
            "time_masks": has_masks,
            "frequency_masks": has_masks,
        }
        fields = TrainSettings.model_fields
        return [
            (key, getattr(self.train, key) != fields[key].default, fits)
            for key, fits in keys.items()
        ]

    def _check_mixture(self) -> None:
        data = self.data
        if data.mixture_weights is None and data.mixture_temperature is None:
            return
        if data.mixture_weights is not None and data.mixture_temperature is not None:
            raise SettingError(
                "mixture_weights and mixture_temperature both say how corpora are mixed",
                "give one of them",
            )
        # A model with a memory reads its text from the beginning to the end.
        reads_on = self.model.memory is not None or (
            self.is_baseline and self.objective == "causal"
        )
        if self.objective_settings.data not in ("pairs", "text") or reads_on:
            raise SettingError(
                f"corpora are not mixed for {self.task} with {self.model_name}",
                "leave mixture_weights and mixture_temperature out",
            )
        count = len(self.corpora)
        if count < 2:
            raise SettingError(
                "there is one corpus, and nothing to mix it with", "give several, with commas"
            )
        weights = self.mixture_weights
        if weights is not None and len(weights) != count:
            raise SettingError(
                f"{len(weights)} weights for {count} corpora", "give one weight for each"
            )

    def _check_no_architecture(self) -> None:
        """The folder decides what the model is."""
        for key in ModelSettings.model_fields:
            is_set = getattr(self.model, key) not in (None, False)
            if is_set and key not in (*STARTING_POINT, *NEW_HEAD):
                raise SettingError(
                    f"{key} is decided by the model that is fine-tuned", "leave it out"
                )

    def _check_model(self) -> None:
        if self.model.spec is not None and self.model.model is not None:
            raise SettingError("--spec and --model both name a model", "give one of them")
        if self.model.model is not None:
            self._check_model_kind()
        if not self.is_baseline:
            return
        foreign = [key for key in TRANSFORMER_ONLY if getattr(self.model, key) is not None]
        if self.train.recompute:
            foreign.append("recompute")
        if foreign:
            raise SettingError(f"{foreign[0]} is no setting of {self.model_name}", "leave it out")

    def _check_model_kind(self) -> None:
        # Imported late: the families come with torch.
        from regard.families import presets

        about = presets.about(self.preset_name)
        kinds = self.objective_settings.kinds
        if about.kind not in kinds:
            names = sorted(
                {
                    preset.name.partition(":")[0]
                    for preset in presets.listing()
                    if preset.kind in kinds
                }
            )
            raise SettingError(
                f"model = {self.model_name!r} is not for the objective {self.objective!r}",
                f"choose: {', '.join(names)}",
            )

    def _check_teacher(self) -> None:
        train = self.train
        if train.teacher is None:
            self._check_no_teacher()
            return
        translates = self.objective == "translate"
        if not self._can_have_teacher(translates):
            raise SettingError(
                "only translators, language models without a memory, "
                "and models fine-tuned to classify or tag have teachers",
                "leave --teacher out",
            )
        if train.teacher_translates and (self.is_finetuning or not translates):
            raise SettingError(
                "a teacher translates the text that a new translator learns from", "leave it out"
            )
        # Each adds a forward pass and a weight of its own; nobody has tuned the two together.
        if train.agreement:
            raise SettingError(
                "R-Drop and a teacher are two extra losses", "leave --agreement or --teacher out"
            )
        if self.distillation_weight == 0 and not train.teacher_translates:
            raise SettingError(
                "this teacher teaches nothing", "raise --teaching, or say --teacher-translates"
            )

    def _check_no_teacher(self) -> None:
        for key in ("teaching", "temperature", "teacher_translates"):
            if getattr(self.train, key) not in (None, False):
                raise SettingError(
                    f"{key} is a setting of learning from a teacher", "give --teacher DIR"
                )

    def _can_have_teacher(self, translates: bool) -> bool:
        if self.model.memory is not None:
            return False
        if translates:
            return True
        if self.is_baseline:  # a recurrent language model carries state from segment to segment
            return False
        classifies = self.is_finetuning and self.objective in ("classify", "tag")
        return classifies or self.objective == "causal"

    # --- derived settings -------------------------------------------------------------------------

    @property
    def task(self) -> str:
        """The objective, by the word that the user chose."""
        return self.tune.task or self.train.objective

    @property
    def objective(self) -> str:
        """The name of the objective."""
        return TASKS.get(self.task, self.task)

    @property
    def objective_settings(self) -> ObjectiveSettings:
        return objective_settings(self.objective)

    @property
    def is_finetuning(self) -> bool:
        """Whether training starts from the folder of a finished model."""
        return self.tune.base is not None

    @property
    def distillation_weight(self) -> float:
        """The share of the teacher's distributions in the loss."""
        if self.train.teacher is None:
            return 0.0
        if self.train.teaching is None:
            return DEFAULT_DISTILLATION_WEIGHT
        return self.train.teaching

    @property
    def temperature(self) -> float:
        return self.train.temperature or DEFAULT_TEMPERATURE

    @property
    def model_name(self) -> str:
        """The architecture, without its size."""
        return (self.model.model or self.objective_settings.model).partition(":")[0]

    @property
    def is_baseline(self) -> bool:
        """Whether the model is recurrent or convolutional, from before the Transformer."""
        return is_baseline(self.model_name)

    @property
    def tensor_ranks(self) -> int:
        """How many ranks share a copy of the model; 0: all of them."""
        return self.parallel.tensor_parallel_degree if self.parallel.strategy == "tensor" else 1

    @property
    def exported_weights(self) -> ExportedWeights:
        return parse_weights(self.train.weights)

    @property
    def span_length(self) -> float:
        """The mean length of a masked span, of tokens or of positions of sound."""
        if self.train.span_length is not None:
            return self.train.span_length
        return SOUND_SPAN_LENGTH if self.objective_settings.data == "sounds" else TEXT_SPAN_LENGTH

    @property
    def length_penalty(self) -> LengthPenalty:
        return parse_length_penalty(self.decode.length_penalty)

    @property
    def preset(self) -> str:
        """The size of the model, by name."""
        size = (self.model.model or "").partition(":")[2] or self.model.preset
        if size:
            return size
        # Unless it is named, of the objective's default model, a small one of any other.
        name = self.model.model
        if name in (None, "transformer") or is_baseline(name):
            return self.objective_settings.size
        return "tiny"

    @property
    def preset_name(self) -> str:
        """NAME:SIZE of the model. A cell alone is a language model, or an encoder–decoder."""
        name = self.model_name
        if name in CELLS and "encoder-decoder" not in self.objective_settings.kinds:
            name = f"{name}-lm"
        return f"{name}:{self.preset}"

    @property
    def initialization(self) -> Initialization:
        return parse_initialization(self.model.start or self.objective_settings.initialization)

    @property
    def generated_task(self) -> GeneratedTask | None:
        """The generated task that takes the place of files."""
        return parse_generated_task(self.data.generated) if self.data.generated else None

    @property
    def corpora(self) -> list[str]:
        """The training corpora that files name, by their locations."""
        data = self.data
        if self.tune.files:
            return list(self.tune.files)
        location = data.pairs or data.source or data.text
        return [] if location is None else split_location(location)

    @property
    def mixture_weights(self) -> tuple[float, ...] | None:
        if self.data.mixture_weights is None:
            return None
        return parse_mixture_weights(self.data.mixture_weights)

    @property
    def builtin(self) -> bool:
        """Whether the pairs are of the built-in language."""
        data = self.data
        return data.source is None and data.pairs is None and data.generated is None


SECTIONS: dict[str, type[Section]] = {
    "data": DataSettings,
    "tokens": TokenSettings,
    "model": ModelSettings,
    "train": TrainSettings,
    "decode": DecodeSettings,
    "tune": TuneSettings,
    "parallel": ParallelSettings,
}
# Each key with the name of its section.
KEYS: dict[str, str] = {
    key: name for name, section in SECTIONS.items() for key in section.model_fields
}


# --- reading recipes ------------------------------------------------------------------------------


def packaged() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = importlib.resources.files("regard") / "recipes"
    paths = [Path(str(file)) for file in folder.iterdir() if file.name.endswith(".toml")]
    return {path.stem: path for path in paths}


def load(
    name: str | Path | None, changes: Mapping[str, Any], data_root: str | None = None
) -> Recipe:
    """A recipe by name or TOML file, with `changes` (plain keys, as flags have them) on top.

    File names in a recipe are relative to the data root: `data_root`, else $REGARD_DATA, else the
    recipe's folder.
    """
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    if name is not None:
        for section, entries in _read(name).items():
            if section not in SECTIONS:
                raise _no_section(name, section)
            if not isinstance(entries, dict):
                raise SettingError(
                    f"{name}: {section} is a section, and not one value or a list",
                    f"write [{section}], and its settings on the lines below",
                )
            values[section].update(entries)
        _check_read_first(values)
        _resolve_paths(values, name, data_root)
    # `--model gru` on a recipe of a Transformer: its heads and the like do not apply.
    values["model"] = applicable_settings(values["model"], changes.get("model"))
    _choose_size(values["model"], changes)
    values["data"] = _without_replaced_pairs(values["data"], changes)
    # Keys are unique across sections, so a flag needs no section.
    for key, value in changes.items():
        if key not in KEYS:
            raise SettingError(f"there is no setting {key!r}", did_you_mean(key, KEYS))
        values[KEYS[key]][key] = value
    _check_read_first(values)
    _check_not_ignored(values, changes)
    if values["data"].get("generated") is not None:
        _add_generated_defaults(values)
    _add_objective(values)
    if values["tune"].get("base") is not None:
        _add_finetuning_defaults(values)
    # Only now, with all values in place: some checks compare sections.
    recipe = parse(values)
    check_settings_are_read(recipe.objective, changes, has_base=recipe.is_finetuning)
    return recipe


def _check_no_sizes_with_spec(model: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """A spec decides all of the architecture; one that is a flag replaces what a recipe has."""
    if model.get("spec") is None:
        return
    named = changes if changes.get("spec") is not None else {**model, **changes}
    # That `model` names another one is checked where all settings are.
    sizes = ModelSettings.model_fields.keys() - {*STARTING_POINT, "spec", "model"}
    for key, value in named.items():
        if key in sizes and value not in (None, False):
            flag = "--" + key.replace("_", "-")
            raise SettingError(f"{key} is decided by the spec", f"leave {flag} or --spec out")


def _check_not_ignored(values: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Any]) -> None:
    """Refuses settings of a new run that others would leave without effect."""
    _check_no_sizes_with_spec(values["model"], changes)
    data = {key for key, value in values["data"].items() if value is not None}
    for before in ("", "valid_"):
        sides = [f"{before}{side}" for side in SIDES if f"{before}{side}" in data]
        if f"{before}pairs" in data and sides:
            raise SettingError(
                f"{before}pairs and {sides[0]} both name pairs", "give one file, or both sides"
            )
    if "text_column" in data and "text" not in data:
        raise SettingError("text_column is of tables that hold `text`", "leave it out")
    if changes.get("steps") is not None and changes.get("epochs") is not None:
        raise SettingError("steps and epochs both say how long a run is", "give one of them")
    if values["tune"].get("base") is None:
        for key in FINETUNING_ONLY:
            if values["tune"].get(key):
                raise SettingError(
                    f"{key} is a setting of fine-tuning", "give the model to start from: --base"
                )


def _no_section(name: str | Path, section: str) -> SettingError:
    """The error of a recipe's unknown section, or of a setting that stands in none."""
    if section in KEYS:
        return SettingError(
            f"{name}: the setting {section!r} is in no section", f"it belongs in [{KEYS[section]}]"
        )
    return SettingError(f"{name}: there is no section [{section}]", did_you_mean(section, SECTIONS))


# Settings that the defaults of others depend on: they are read before all values are checked.
_READ_FIRST = ("model", "preset", "generated", "objective", "task", "base")


def _check_read_first(values: dict[str, dict[str, Any]]) -> None:
    """Refuses numbers, lists and tables where a word decides which defaults hold."""
    for key in _READ_FIRST:
        value = values[KEYS[key]].get(key)
        if value is not None and not isinstance(value, str | Path):
            raise SettingError(f"{key} = {value!r} is no word", f'write it in quotes: {key} = "…"')


def _choose_size(model: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """`--preset` replaces the size in a recipe's NAME:SIZE; with `--model` it must agree."""
    size = changes.get("preset")
    if size is None:
        return
    name, _, named_size = str(changes.get("model") or "").partition(":")
    if named_size and named_size != size:
        raise SettingError(
            f"{name} cannot be both {named_size!r} and {size!r}", "give its size once: NAME:SIZE"
        )
    if "model" in model:
        model["model"] = model["model"].partition(":")[0]


def _without_replaced_pairs(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a recipe without its two files where a flag names one, or the reverse."""
    replaced = set()
    for before in ("", "valid_"):
        sides = [f"{before}{side}" for side in SIDES]
        if f"{before}pairs" in changes:
            replaced.update(sides)
        elif any(side in changes for side in sides):
            replaced.add(f"{before}pairs")
    return {key: value for key, value in data.items() if key not in replaced}


def _add_generated_defaults(values: dict[str, dict[str, Any]]) -> None:
    """Words as tokens, and classes where the task has them, below what is set."""
    # The tokens of these tasks have spaces between them.
    values["tokens"].setdefault("tokenizer", "words")
    if parse_generated_task(values["data"]["generated"]).kind == "classify":
        values["train"].setdefault("objective", "classify")


def _add_objective(values: dict[str, dict[str, Any]]) -> None:
    """Where no objective is named, that of the model."""
    if "objective" in values["train"]:
        return
    task = values["tune"].get("task")
    if task is not None:
        values["train"]["objective"] = TASKS.get(task, task)
        return
    model = values["model"].get("model")
    if model is not None:
        has_text = values["data"].get("text") is not None
        values["train"]["objective"] = objective_of_model(model, has_text)


def objective_of_model(model: str, has_text: bool) -> str:
    """The objective of a run that names NAME[:SIZE] only; `has_text` where its data is one text."""
    # Imported late: the families come with torch.
    from regard.families import presets

    return objective_of(model.partition(":")[0], presets.about(model).kind, has_text)


def _add_finetuning_defaults(values: dict[str, dict[str, Any]]) -> None:
    """The defaults of fine-tuning, below what is set."""
    objective = values["train"].get("objective")
    if objective is None:
        raise SettingError(
            "what the model is fine-tuned for is not named",
            f"say --objective: {', '.join(OBJECTIVES)}",
        )
    defaults: dict[str, Any] = {
        **FINETUNING_DEFAULTS,
        "metric": objective_settings(objective).finetuning_metric,
    }
    if values["tune"].get("lora"):
        defaults["learning_rate"] = LORA_LEARNING_RATE
    values["train"] = {**defaults, **values["train"]}
    if "steps" not in values["train"]:
        values["tune"].setdefault("epochs", FINETUNING_EPOCHS)


def is_baseline(name: str | None) -> bool:
    """Whether this is a recurrent or convolutional model, from before the Transformer."""
    # Imported late: help does not wait for the classes of the spec.
    from regard.families.recurrent import FAMILIES

    return name in FAMILIES


def applicable_settings(settings: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """The model settings of a recipe that another model than the recipe's can take.

    A baseline takes what it shares with a Transformer, and nothing else.
    """
    name = (model or "").partition(":")[0]
    if name in LINEAR_FORECASTERS:
        return {key: value for key, value in settings.items() if key in ("horizon", "forecast")}
    if not is_baseline(name) or is_baseline(settings.get("model")):
        return dict(settings)
    return {key: value for key, value in settings.items() if key not in TRANSFORMER_ONLY}


def choose(
    recipe: str | Path | None, changes: Mapping[str, Any], data_root: str | None = None
) -> tuple[Recipe, str]:
    """The recipe a user asked for, and a name for the run.

    Without a recipe: the user's files with the defaults, or a recipe that generates its data.
    """
    name: str | Path | None = recipe
    data_keys = {*DATA_KEYS.values(), "source", "files", "generated"}
    has_files = any(key in changes for key in data_keys)
    if not name and not has_files:
        name = _recipe_without_files(changes)
    if not name:
        return load(None, changes, data_root), "run"
    return load(name, changes, data_root), Path(name).stem


def _recipe_without_files(changes: Mapping[str, Any]) -> str | None:
    """The recipe that generates what a run learns; None where the defaults do, or a file lacks."""
    objective = changes.get("objective")
    model = changes.get("model")
    if objective is None and model is not None:
        objective = objective_of_model(model, has_text=False)
    return {None: "builtin", "translate": "builtin", "stories": "stories"}.get(objective)


# Settings that are file names, by section.
FILE_KEYS = {
    "data": (
        "source",
        "target",
        "pairs",
        "valid_source",
        "valid_target",
        "valid_pairs",
        "test_source",
        "test_target",
        "text",
        "valid_text",
        "test_text",
        "images",
        "valid_images",
        "test_images",
        "sounds",
        "valid_sounds",
        "test_sounds",
        "series",
        "graph",
    ),
    "model": ("vectors", "spec"),
    "tune": ("base",),
}


def _resolve_paths(
    values: dict[str, dict[str, Any]], name: str | Path, data_root: str | None
) -> None:
    """Puts the data root before the relative file names of a recipe."""
    paths = [
        (section, key)
        for section, keys in FILE_KEYS.items()
        for key in keys
        if key in values[section] and str(values[section][key]) != "-"  # standard input
    ]
    if not paths:
        return
    root = data_root or os.environ.get("REGARD_DATA") or None
    if root is None and str(name) in packaged():
        # A recipe of the package has no data beside it.
        raise SettingError(
            f"the recipe {name!r} reads files, but no data root is set",
            "give --data DIR, or set REGARD_DATA",
        )
    for section, key in paths:
        value = values[section][key]
        if isinstance(value, str):  # anything else is refused with the other values
            values[section][key] = below(root or Path(name).parent, value)


def parse(values: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Checked values, or an error that names the key and the repair."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise _setting_error(error) from None


def _setting_error(error: ValidationError) -> SettingError:
    """The first of pydantic's errors, as one of ours."""
    first = error.errors()[0]  # one at a time: the others often follow from it
    # (section, key, …)
    location = [str(part) for part in first["loc"]]
    key = location[1] if len(location) > 1 else location[0]
    if first["type"] == "extra_forbidden":
        section = SECTIONS.get(location[0])
        options = section.model_fields if section else SECTIONS
        # A right key in the wrong section, or a misspelt one.
        repair = f"it belongs in [{KEYS[key]}]" if key in KEYS else did_you_mean(key, options)
        return SettingError(f"there is no setting {key!r} in [{location[0]}]", repair)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):  # raised by a check of ours
        return cause
    return SettingError(
        f"{key} = {first['input']!r}: {first['msg'].lower()}",
        f"see `regard train --help` for {key}",
    )


def _read(name: str | Path) -> dict[str, Any]:
    recipes = packaged()
    path = recipes.get(str(name), Path(name))
    if not path.is_file():
        hint = did_you_mean(str(name), recipes)
        raise SettingError(
            f"there is no recipe {str(name)!r}",
            f"give the path of a TOML file, or a packaged one; {hint}",
        )
    try:
        return tomllib.loads(disk.read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {error}", "correct that line") from None


def value_type(key: str) -> Any:
    """The plain type of a key, for the command line: int, float, bool, str, or its choices."""
    annotation = SECTIONS[KEYS[key]].model_fields[key].annotation
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return typing.get_args(annotation)
    if origin is tuple:
        return str  # written with commas
    members = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    if not members:
        return annotation
    # Of `X | None`, X.
    member = members[0]
    return typing.get_args(member) if typing.get_origin(member) is Literal else member
