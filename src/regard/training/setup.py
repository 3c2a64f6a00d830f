"""The setup of a run: its recipe, its folder, and the parts that come from outside the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from regard.models import Model, choose_device
from regard.training.parallel.launch import rank_device
from regard.training.parallel.ranks import ONE_RANK, Ranks
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder
from regard.training.source_splits import source_splits

SHARDING = ("fsdp", "tensor")  # strategies
Say = Callable[[str], None]
# The examples of a split from the first one on, whenever it is called.
Split = Callable[[], Iterator[Any]]


@runtime_checkable
class DataSource(Protocol):
    """Where examples come from: files, a generator, or an object from outside the package.

    What an example is depends on the objective: a pair of texts, a piece of a text, or one of the
    examples of `regard.data.labelled`. A split may be read more than once and must yield the same
    examples each time. All are read before the first step and stored in the run folder: the
    position of a run is a number, so that it resumes exactly, and without its source.
    """

    def splits(self) -> Mapping[str, Split]:
        """`train`, perhaps `valid`; of pairs and labelled examples, also what is to be scored."""


@dataclass(frozen=True)
class Setup:
    """What a run is assembled from. `say` receives messages.

    `source` takes the place of the files that the recipe names; `kinds` are the dataclasses of
    model parts from outside the package; `ranks` are the processes that train together. `model` is
    trained in place of the one in the recipe's `base`.
    """

    run_folder: RunFolder
    recipe: Recipe
    say: Say
    source: DataSource | None = None
    kinds: Sequence[type] = ()
    ranks: Ranks = ONE_RANK
    model: Model | None = None

    @property
    def base(self) -> Path:
        """The folder of the model to fine-tune: of one given in Python, the copy in the run."""
        if self.run_folder.base.exists():
            return self.run_folder.base
        return Path(str(self.recipe.tune.base))

    @property
    def device(self) -> torch.device:
        # By name, not stored: a run may be resumed on another machine.
        return rank_device(choose_device(self.recipe.train.device))

    @property
    def shards_model(self) -> bool:
        """Whether no rank is to hold all parameters on its device."""
        return self.ranks.several and self.recipe.parallel.strategy in SHARDING

    @property
    def pad_to_multiple_of(self) -> int:
        """What lengths are rounded up to: on a GPU, so that few shapes occur."""
        # Tensor cores work on tiles whose sides are multiples of 8 in half precision.
        default = 8 if self.device.type == "cuda" else 1
        return self.recipe.train.pad_to_multiple_of or default

    def splits(self, from_recipe: Callable[[Setup], Mapping[str, Split]]) -> Mapping[str, Split]:
        """The examples of the given source, otherwise those that the recipe names."""
        if self.source is not None:
            return source_splits(self.source, self.recipe.objective_settings.data)
        return from_recipe(self)
