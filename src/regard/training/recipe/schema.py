"""A recipe: everything that decides a run, in one TOML file of commented sections.

`loading` reads one from a file and from flags, `consistency` checks it.
"""

from __future__ import annotations

import typing
from typing import Any, Literal

from regard.data.file_access import split_location
from regard.data.generated.algorithmic_tasks import GeneratedTask
from regard.decode.strategy import LengthPenalty, parse_length_penalty
from regard.training.recipe.objectives import (
    CELLS,
    DATA_KEYS,
    TASKS,
    ObjectiveSettings,
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
    STEPS_READ,
    DataSettings,
    DecodeSettings,
    ModelSettings,
    ParallelSettings,
    Section,
    TokenSettings,
    TrainSettings,
    TuneSettings,
)

DEFAULT_DISTILLATION_WEIGHT = 0.5  # the teacher's distributions and the labels count alike
DEFAULT_TEMPERATURE = 2.0
# T5's choice (Raffel et al. 2020, Section 3.3.4); BART draws lengths from Poisson(3).
TEXT_SPAN_LENGTH = 3.0
SOUND_SPAN_LENGTH = 10.0  # wav2vec 2.0 (Baevski et al. 2020, Section 4.2)


class Recipe(Section):
    """The sections together, and what follows from them."""

    # Every section may be left out of a recipe.
    data: DataSettings = DataSettings()
    tokens: TokenSettings = TokenSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    decode: DecodeSettings = DecodeSettings()
    tune: TuneSettings = TuneSettings()
    parallel: ParallelSettings = ParallelSettings()

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
        if self.train.distillation_weight is None:
            return DEFAULT_DISTILLATION_WEIGHT
        return self.train.distillation_weight

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
        return parse_weights(self.train.final_weights)

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
        if name in CELLS and "decoder" in self.objective_settings.kinds:
            name = f"{name}-lm"
        return f"{name}:{self.preset}"

    @property
    def initialization(self) -> Initialization:
        return parse_initialization(self.model.init or self.objective_settings.initialization)

    @property
    def generated_task(self) -> GeneratedTask | None:
        """The generated task that takes the place of files."""
        return parse_generated_task(self.data.generated) if self.data.generated else None

    @property
    def steps_read(self) -> int | None:
        """The steps of a trajectory that a policy reads at once."""
        if self.objective_settings.data != "trajectories":
            return None
        return self.data.context if "context" in self.data.model_fields_set else STEPS_READ

    @property
    def files(self) -> dict[str, list[str]]:
        """The files, folders or tables of each split; of pairs in two files, the sources."""
        tune = self.tune
        kind = self.objective_settings.data
        keys = ("pairs", "source") if kind == "pairs" else (DATA_KEYS[kind],)
        files = {}
        for split, before in (("train", ""), ("valid", "valid_"), ("test", "test_")):
            named = [getattr(self.data, f"{before}{key}", None) for key in keys]
            if tune.files:
                named = [*tune.files] if split == "train" else [getattr(tune, split)]
            files[split] = [file for file in named if file is not None]
        return {split: named for split, named in files.items() if named}

    @property
    def corpora(self) -> list[str]:
        """The training corpora that files name, by their locations."""
        return [part for file in self.files.get("train", ()) for part in split_location(file)]

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


def is_baseline(name: str | None) -> bool:
    """Whether this is a recurrent or convolutional model, from before the Transformer."""
    # Imported late: help does not wait for the classes of the spec.
    from regard.families.encoder_decoders.recurrent import FAMILIES

    return name in FAMILIES


# --- keys -----------------------------------------------------------------------------------------

SECTIONS: dict[str, type[Section]] = {
    name: type(field.default) for name, field in Recipe.model_fields.items()
}
# Each key with the name of its section.
KEYS: dict[str, str] = {
    key: name for name, section in SECTIONS.items() for key in section.model_fields
}
# Settings that are file names, by section.
FILE_KEYS = {
    "data": tuple(
        name
        for key in dict.fromkeys(("source", "target", *DATA_KEYS.values()))
        for split in ("", "valid_", "test_")
        if (name := f"{split}{key}") in DataSettings.model_fields
    ),
    "model": ("pretrained_embeddings", "spec"),
    "tune": ("base",),
}


def value_type(key: str) -> Any:
    """The plain type of a key, for the command line: int, float, bool, str, or its choices."""
    return _plain_type(SECTIONS[KEYS[key]].model_fields[key].annotation)


def _plain_type(annotation: Any) -> Any:
    origin = typing.get_origin(annotation)
    members = typing.get_args(annotation)
    if origin is None:
        return annotation
    if origin is Literal:
        return members
    if origin is tuple:
        return str  # written with commas
    return _plain_type(members[0])  # of `X | None`, and of a number with its limits
