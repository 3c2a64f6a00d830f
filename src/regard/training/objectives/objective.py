"""The training objective: what a model learns from data.

An objective is one class. Its class methods assemble a run: they prepare the data, and describe or
adapt the model. Its instances give the training loop batches and losses, and score the result. A
new one is a subclass, from outside the package too: `regard.train(…, objective=MyObjective)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard import spec
from regard.data.batching import Batch
from regard.data.training_coverage import InputStatistics
from regard.errors import ModelError, SettingError
from regard.metrics.perplexity import NegativeLogLikelihood
from regard.metrics.scores import AnyScore
from regard.models import Model
from regard.training import model_spec
from regard.training.objectives.label_smoothed_cross_entropy import add_auxiliary_losses
from regard.training.recipe.sections import TrainSettings
from regard.training.setup import Setup


@runtime_checkable
class CarriesState(Protocol):
    """An objective with state from batch to batch (truncated back-propagation through time).

    What it carries is saved with the checkpoint.
    """

    carry: dict[str, Tensor]


class Objective(ABC):
    """A model and the data it is trained on."""

    name: ClassVar[str]  # the word of --objective
    unit: ClassVar[str] = "tokens"  # what `Batch.tokens` counts and the loss is a mean over
    cuda_graphs: ClassVar[bool] = True  # whether the loss can be captured: no device sync
    # Whether a model that knows label frequencies alone has their entropy as its loss.
    labels_are_classes: ClassVar[bool] = True
    model_classes: ClassVar[tuple[type[Model], ...]]  # the models that can be fine-tuned for it
    base_advice: ClassVar[str] = "give another model"  # the repair, where it is not one of them
    spec_classes: ClassVar[tuple[type[spec.ModelSpec], ...]]  # the specs of new models for it
    # Other specs, of which `describe` makes one of those, if they come from a file.
    convertible_classes: ClassVar[tuple[type[spec.ModelSpec], ...]] = ()
    input_names: ClassVar[tuple[str, ...]] = ("input_ids",)  # the main inputs of all of them
    describes_head: ClassVar[bool] = False  # whether `describe` gives a spec its head
    head_fields: ClassVar[str] = ""  # what a spec needs to have that head

    def __init__(self, model: Model, data: Any, setup: Setup) -> None:
        self.trained_model = model  # with its tokenizer, as users hold it
        self.data = data
        self.setup = setup
        self.pad_to_multiple_of = setup.pad_to_multiple_of

    @property
    def settings(self) -> TrainSettings:
        return self.setup.recipe.train

    # --- assembling a run, in this order ----------------------------------------------------------

    @classmethod
    def check_spec(cls, description: spec.Model) -> None:
        """Refuses a spec that cannot be trained as it is."""
        cls.check_kind(description, cls.spec_classes)
        cls._check_head(description)

    @classmethod
    def check_spec_file(cls, description: spec.Model) -> None:
        """Refuses the spec of a file that `describe` cannot use."""
        cls.check_kind(description, (*cls.spec_classes, *cls.convertible_classes))
        if not cls.describes_head:
            cls._check_head(description)

    @classmethod
    def check_kind(cls, description: Any, kinds: tuple[type[spec.ModelSpec], ...]) -> None:
        """Refuses a spec that is not of these kinds, or reads something else."""
        model_spec.check_kind(description, kinds, cls.input_names, cls.name)

    @classmethod
    def _check_head(cls, description: spec.Model) -> None:
        if not cls.has_head(description):
            raise SettingError(
                f"the spec has no head for the objective {cls.name!r}", f"give it {cls.head_fields}"
            )

    @classmethod
    def has_head(cls, description: Any) -> bool:
        """Whether a spec has the head that the objective trains."""
        return True

    @classmethod
    def check_base(cls, base: Model, setup: Setup) -> None:
        """Refuses a model that cannot be fine-tuned for this objective."""
        if not isinstance(base, cls.model_classes):
            raise ModelError(
                f"{base.folder} holds no model for {setup.recipe.task} ({base.family})",
                cls.base_advice,
            )

    @classmethod
    @abstractmethod
    def prepare(cls, setup: Setup, base: Model | None) -> Any:
        """Tokenizers and tokenized examples, stored in the run folder and read from there.

        A model that is fine-tuned, `base`, brings its tokenizer.
        """

    @classmethod
    @abstractmethod
    def describe(cls, setup: Setup, data: Any) -> spec.Model:
        """The spec of a new model for this data."""

    @classmethod
    @abstractmethod
    def with_tokenizer(cls, model: Any, description: Any, data: Any, setup: Setup) -> Model:
        """A new core model with the tokenizer of the data, and with its config.json."""

    @classmethod
    def adapt(cls, base: Model, data: Any, setup: Setup) -> Model:
        """A model to fine-tune, with the head that the objective needs."""
        return base

    @classmethod
    def fitting_batch_tokens(cls, model: Model, data: Any, setup: Setup) -> int:
        """The batch size of a run that names none."""
        return setup.recipe.train.batch_tokens

    @classmethod
    def create(cls, model: Model, data: Any, setup: Setup) -> Objective:
        """The objective of this model and data."""
        return cls(model, data, setup)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        """What makes the folder of a new model a Hugging Face repository, besides weights and
        tokenizer."""
        return {"config.json": model.config}

    # --- training ---------------------------------------------------------------------------------

    def input_statistics(self) -> InputStatistics | None:
        """Token statistics of training texts, for warnings of unlike inputs; None without text."""
        return None

    @property
    def model(self) -> nn.Module:
        """The module that is trained."""
        return self.trained_model.model

    @property
    def d_model(self) -> int:
        """The width that the paper's learning rate is scaled by."""
        return max(self.trained_model.spec.widths.values())

    @abstractmethod
    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        """Batches without end from a position on, each with the position after it.

        A pure function of the recipe, so that a resumed run sees the same batches.
        """

    @abstractmethod
    def batches_per_epoch(self) -> int:
        """How many batches one pass over the training data has."""

    @abstractmethod
    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss and −log p of the labels, both summed over the units that count."""

    def checked_loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What `loss` returns, if it is two sums; a class from outside may return anything."""
        result: Any = self.loss(tensors)
        is_pair = isinstance(result, tuple) and len(result) == 2
        if not is_pair or not all(isinstance(one, Tensor) and one.dim() == 0 for one in result):
            raise SettingError(
                f"`loss` of {type(self).__name__} does not return two sums",
                "return (loss, nll), tensors without dimensions, summed over the units that count",
            )
        loss, nll = result
        return loss, nll

    def with_auxiliary(
        self, loss: Tensor, auxiliary: Mapping[str, Tensor], count: int | Tensor
    ) -> Tensor:
        """The loss with the auxiliary losses of the model's parts, which are means over positions.

        Where ranks share a batch, a mean counts by the rank's rows, and `count` is that of all.
        """
        ranks = self.setup.ranks
        if auxiliary and ranks.shares_batch:
            labels = torch.as_tensor(count, dtype=torch.float32, device=loss.device)
            count = ranks.sum(labels) * ranks.row_share
        return add_auxiliary_losses(loss, auxiliary, count)

    def auxiliary_count(self, labels: Tensor, averaged: Tensor) -> Tensor:
        """The weight of a mean over `averaged` units in a loss that is a sum over `labels`.

        With several ranks, a rank's mean is weighted by its share of all units.
        """
        ranks = self.setup.ranks
        if not ranks.shares_batch:
            return labels
        all_labels, all_averaged = ranks.sum(torch.stack([labels, averaged]).float())
        return all_labels * averaged / all_averaged

    @property
    def indivisible(self) -> str | None:
        """Why the rows of a batch cannot be computed by several ranks; None where they can."""
        return None

    @abstractmethod
    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These training rows as text, for a report about them."""

    # --- evaluation -------------------------------------------------------------------------------

    @abstractmethod
    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """`loss` and other metrics on the validation data; None if there is none."""

    def scores(self) -> dict[str, AnyScore]:
        """The final scores of the weights now in the model, by split."""
        # In float32, whatever precision the training had.
        metrics = self.validate(nullcontext())
        if metrics is None:
            return {}
        result = NegativeLogLikelihood(metrics["loss"], metrics["perplexity"], metrics["tokens"])
        self.setup.say(
            f"validation: loss {result.loss:.4f}  perplexity {result.perplexity:.3f}  "
            f"({result.tokens:,} tokens)"
        )
        return {"validation": result}

    def companions(self) -> dict[str, Model]:
        """Models that are trained along and exported too, by the name of their folder."""
        return {}
