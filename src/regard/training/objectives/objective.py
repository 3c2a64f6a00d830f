"""The training objective: what a model learns from data.

An objective is one class. Its class methods assemble a run: they prepare the data by its source,
and describe or adapt the model. Its instances give the training loop batches and losses, and score
the result. A new one is a subclass, from outside too: `regard.train(…, objective=Mine)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from regard import spec
from regard.builder import build
from regard.data.batching import Batch, Rows
from regard.data.training_coverage import InputStatistics
from regard.evaluation.metrics.perplexity import corpus_nll
from regard.evaluation.scores import Score
from regard.families import folder as folders
from regard.models import Model
from regard.models.saving import config_json
from regard.system.errors import ModelError, SettingError
from regard.training import model_spec
from regard.training.data.source import Position, Source
from regard.training.objectives.losses import LossTerms, add_auxiliary_losses
from regard.training.recipe.sections import TrainSettings
from regard.training.setup import Setup

Prediction = TypeVar("Prediction")
_HEADS = ("labels.", "pool.")
# What an encoder–decoder calls the parts of an encoder.
_PARTS = {"source": "input", "encoder": "stack"}


@runtime_checkable
class CarriesState(Protocol):
    """An objective with state from batch to batch (truncated back-propagation through time).

    What it carries is saved with the checkpoint.
    """

    carry: dict[str, Tensor]


class Objective(ABC):
    """A model and the rows of a source, which it learns from."""

    name: ClassVar[str]  # the word of --objective
    unit: ClassVar[str] = "tokens"  # what `Batch.tokens` counts and the loss is a mean over
    cuda_graphs: ClassVar[bool] = True  # whether the loss can be captured: no device sync
    # Whether a model that knows label frequencies alone has their entropy as its loss.
    labels_are_classes: ClassVar[bool] = True
    # What a model to fine-tune can do already, one of these; none of them needs to.
    base_tasks: ClassVar[tuple[str, ...]] = ()
    base_advice: ClassVar[str] = "give another model"  # the repair, where it is not one of them
    fills_context: ClassVar[bool] = False  # whether its texts have as many tokens as --context says
    spec_classes: ClassVar[tuple[type[spec.ModelSpec], ...]]  # the specs of new models for it
    # Other specs, of which `describe` makes one of those, if they come from a file.
    convertible_classes: ClassVar[tuple[type[spec.ModelSpec], ...]] = ()
    input_names: ClassVar[tuple[str, ...]] = ("input_ids",)  # the main inputs of all of them
    describes_head: ClassVar[bool] = False  # whether `describe` gives a spec its head
    head_fields: ClassVar[str] = ""  # what a spec needs to have that head
    source_class: ClassVar[type[Source]]
    source: Any  # of that class
    trained_model: Any  # with its tokenizer, as users hold it
    evaluation_epoch: ClassVar[int] = 0  # whose random numbers validation uses

    def __init__(self, model: Any, data: Any, setup: Setup) -> None:
        self.trained_model = model
        self.data = data
        self.setup = setup
        self.pad_to_multiple_of = setup.pad_to_multiple_of
        self.source = self.source_class(model, data, setup)
        for line in self.source.describe().splitlines():
            setup.say(line)

    @property
    def settings(self) -> TrainSettings:
        return self.setup.recipe.train

    # --- assembling a run, in this order ----------------------------------------------------------

    @classmethod
    def check_spec(cls, description: Any, from_file: bool = False) -> None:
        """Refuses a spec that cannot be trained; `describe` may make another of that of a file."""
        kinds = cls.spec_classes
        if from_file:
            kinds = (*kinds, *cls.convertible_classes)
        model_spec.check_kind(description, kinds, cls.input_names, cls.name)
        is_complete = not (from_file and cls.describes_head)
        if is_complete and not cls.has_head(description):
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
        if not cls.can_tune(base):
            raise ModelError(
                f"{base.folder} holds no model for {setup.recipe.task} ({base.family})",
                cls.base_advice,
            )
        if cls.fills_context:
            model_spec.check_context(base, setup.recipe)

    @classmethod
    def can_tune(cls, base: Model) -> bool:
        """Whether a model reads the data, and has what the objective does not make anew."""
        reads = base.spec.main_input_name in cls.input_names
        return reads and (not cls.base_tasks or any(task in base.tasks for task in cls.base_tasks))

    @classmethod
    def describe(cls, setup: Setup, data: Any) -> spec.Model:
        """The spec of a new model for this data."""
        return model_spec.describe(setup.recipe, len(data.tokenizer))

    @classmethod
    def with_tokenizer(cls, model: Any, description: Any, data: Any, setup: Setup) -> Model:
        """A new core model with the tokenizer of the data, and with its config.json."""
        source = cls.source_class
        tokenizer = getattr(data, "tokenizer", None)
        if tokenizer is not None:
            for tokens in description.embeddings.values():
                model_spec.check_vocabulary("vocabulary", tokens, len(tokenizer))
        ids = source.special_token_ids(data)
        config = folders.describe(description, ids, model_type=setup.recipe.model_name)
        return source.wrap(model, description, config | cls.head_config(data), data)

    @classmethod
    def head_config(cls, data: Any) -> dict[str, Any]:
        """What config.json says of the head: the names of its outputs."""
        return {}

    @classmethod
    def adapt(cls, base: Model, data: Any, setup: Setup) -> Model:
        """A model to fine-tune, with the head that the objective needs."""
        return base

    @classmethod
    def rebuilt(
        cls,
        base: Model,
        description: spec.Model,
        data: Any,
        setup: Setup,
        config: dict[str, Any] | None = None,
    ) -> Model:
        """The base model by another spec: its weights where they fit, new heads from the seed."""
        torch.manual_seed(setup.recipe.train.seed)
        model = build(description)
        copy_weights(base, model)
        if config is None:
            config = config_json(description, base.config)
        adapted = cls.source_class.wrap(model, description, config | cls.head_config(data), data)
        adapted.folder = base.folder
        adapted.say = base.say
        return adapted

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
        return cls.source_class.files(model, setup)

    # --- training ---------------------------------------------------------------------------------

    def input_statistics(self) -> InputStatistics | None:
        """Token statistics of training texts, for warnings of unlike inputs; None without text."""
        statistics: InputStatistics | None = self.source.statistics()
        return statistics

    @property
    def model(self) -> Any:
        """The module that is trained."""
        return self.trained_model.model

    @property
    def d_model(self) -> int:
        """The width that the paper's learning rate is scaled by."""
        return max(self.trained_model.spec.widths.values())

    def batches(self, epoch: int, index: int) -> Iterator[tuple[Position, Batch]]:
        """Batches without end from a position on, each with the position after it.

        A pure function of the recipe, so that a resumed run sees the same batches.
        """
        for now, i, rows in self.source.sampler().iterate(epoch, index):
            # The position of the next batch comes with each: a checkpoint stores that.
            yield (now, i + 1), self.collate("train", rows, (now, i))

    def batches_per_epoch(self) -> int:
        """How many batches one pass over the training data has."""
        count: int = self.source.sampler().batches_per_epoch()
        return count

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        """The tensors of some rows of a split."""
        return self.source.collate(split, rows, position)

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

    def total(self, terms: LossTerms) -> tuple[Tensor, Tensor]:
        """What `loss` returns of them."""
        return self.with_auxiliary(terms.loss, terms.auxiliary, terms.count), terms.nll

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

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These training rows as text, for a report about them."""
        return [{"row": int(row), **self.source.example(row)} for row in rows]

    # --- evaluation -------------------------------------------------------------------------------

    @abstractmethod
    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """`loss` and other metrics on the validation data; None if there is none."""

    def scores(self) -> dict[str, Score]:
        """The final scores of the weights now in the model, by split."""
        # In float32, whatever precision the training had.
        metrics = self.validate(nullcontext())
        if metrics is None:
            return {}
        result = Score(
            loss=metrics["loss"], perplexity=metrics["perplexity"], tokens=metrics["tokens"]
        )
        self.setup.say(f"validation: {result}  ({result.tokens:,} tokens)")
        return {"validation": result}

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        """Once over the rows of a split, on the device, with the model in eval mode."""
        self.model.eval()
        for number, rows in enumerate(self.source.evaluation_rows(split)):
            batch = self.collate(split, rows, (self.evaluation_epoch, number))
            yield batch.to(self.trained_model.device)

    def nll(self, split: str, autocast: AbstractContextManager[Any]) -> tuple[float, int]:
        """−log p of the labels of a split, and the units that it counts."""
        return corpus_nll(self._batch_nlls(split, autocast))

    def _batch_nlls(
        self, split: str, autocast: AbstractContextManager[Any]
    ) -> Iterator[tuple[Tensor, int]]:
        for batch in self.evaluation_batches(split):
            with torch.inference_mode(), autocast:
                _, nll = self.loss(batch.tensors)
            yield nll, batch.tokens

    def companions(self) -> dict[str, Model]:
        """Models that are trained along and exported too, by the name of their folder."""
        return {}


class ScoredObjective(Objective):
    """A row objective whose splits are scored by what is predicted of each row."""

    def predictions(
        self,
        split: str,
        autocast: AbstractContextManager[Any],
        predict: Callable[[Mapping[str, Tensor]], Sequence[Prediction]],
    ) -> list[Prediction]:
        """What `predict` makes of a batch, one for each row, in the order of the rows."""
        by_row: dict[int, Prediction] = {}
        for batch in self.evaluation_batches(split):
            with torch.inference_mode(), autocast:
                predicted = predict(batch.tensors)
            # Batches are sorted by length: each prediction goes back to its row.
            by_row |= zip(batch.rows.tolist(), predicted, strict=True)
        return [by_row[row] for row in sorted(by_row)]

    @abstractmethod
    def score(self, split: str, autocast: AbstractContextManager[Any]) -> Any:
        """How good the predictions of a split are."""

    def final_score(self, split: str) -> Any:
        """What a split is scored by after training, in float32."""
        return self.score(split, torch.no_grad())

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if not len(self.source.splits.get("valid", ())):
            return None
        values = vars(self.score("valid", autocast))
        if "loss" in values:
            return values
        nll, count = self.nll("valid", autocast)
        return {"loss": nll / max(1, count), **values}

    def scores(self) -> dict[str, Score]:
        results: dict[str, Score] = {}
        for split in self.source.splits:
            if split == "train":
                continue
            results[split] = self.final_score(split)
            count = results[split].examples
            self.setup.say(f"{split}: {results[split]}  ({count:,} {self.source.unit})")
        return results


@torch.no_grad()
def copy_weights(base: Model, model: nn.Module) -> None:
    """Copies the weights of the base model; new labels and pools are normal of deviation 0.02.

    A pool stays where it fits, and a series head; labels are always new.
    """
    old = dict(base.model.named_parameters())
    for name, parameter in list(old.items()):
        part, dot, rest = name.partition(".")
        old.setdefault(_PARTS.get(part, part) + dot + rest, parameter)
    for name, parameter in model.named_parameters():
        fits = name in old and old[name].shape == parameter.shape
        if fits and not name.startswith("labels."):
            parameter.copy_(old[name])
        elif name.startswith(_HEADS):
            if parameter.ndim == 1:  # a bias
                parameter.zero_()
            else:
                parameter.normal_(std=0.02)  # BERT's initializer_range
        # Sinusoids are computed, for as many steps as there are now.
        elif parameter.requires_grad and not name.startswith("series."):
            raise ModelError(f"{base.folder} has no weights for {name}", "give a whole model")
    buffers = dict(base.model.named_buffers())
    for name, buffer in model.named_buffers():
        if name in buffers and buffers[name].shape == buffer.shape:
            buffer.copy_(buffers[name])
