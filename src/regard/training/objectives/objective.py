"""The training objective: what a model learns from data.

An objective is one class. Its class methods assemble a run: they prepare the data by its source,
and describe or adapt the model. Its instances give the training loop batches and losses, and score
the result. A new one is a subclass, from outside too: `regard.train(…, objective=Mine)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from regard import spec
from regard.builder import build
from regard.data.batching import Batch, Rows
from regard.data.training_coverage import InputStatistics
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.metrics.perplexity import perplexity
from regard.evaluation.scores import Score, scored
from regard.evaluation.task import Outputs, Settings
from regard.evaluation.tasks import TASKS
from regard.families import folder as folders
from regard.models import Model
from regard.models.inputs.input_warnings import without_example_warnings
from regard.models.saving import config_json
from regard.system.errors import ModelError, SettingError
from regard.training import model_spec
from regard.training.data.source import Position, Source
from regard.training.objectives.distillation import load_teacher
from regard.training.objectives.losses import (
    LossSums,
    LossTerms,
    Tensors,
    TokenLoss,
    linear_cross_entropy,
)
from regard.training.recipe.sections import TrainSettings
from regard.training.setup import Setup

Prediction = TypeVar("Prediction")
_HEADS = ("labels.", "pool.")
_BOXES = "labels.box."  # of a head of labels: where objects are, whatever they are called
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
    # The head that is trained: the task of a head of labels, or a field of the spec; none if any.
    head_task: ClassVar[spec.HeadTask | None] = None
    head: ClassVar[str] = ""
    head_fields: ClassVar[str] = ""  # what a spec needs to have that head
    source_class: ClassVar[type[Source]]
    source: Any  # of that class
    trained_model: Any  # with its tokenizer, as users hold it
    evaluation_epoch: ClassVar[int] = 0  # whose random numbers validation uses
    autocast: AbstractContextManager[Any] = nullcontext()  # the precision of validation

    def __init__(self, model: Any, data: Any, setup: Setup) -> None:
        self.trained_model = model
        self.data = data
        self.setup = setup
        self.pad_to_multiple_of = setup.pad_to_multiple_of
        self.teacher = load_teacher(setup.recipe, model, self.teacher_logits)
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
        if cls.head_task is not None:
            return bool(description.task == cls.head_task)
        return not cls.head or getattr(description, cls.head) is not None

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
        reads = base.spec.reads in cls.input_names
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

    # --- training ---------------------------------------------------------------------------------

    def input_statistics(self) -> InputStatistics | None:
        """Token statistics of training texts, for warnings of unlike inputs; None without text."""
        return self.source.statistics()  # type: ignore[no-any-return]

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
        return self.source.sampler().batches_per_epoch()  # type: ignore[no-any-return]

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        """The tensors of some rows of a split."""
        return self.source.collate(split, rows, position)

    @abstractmethod
    def loss(self, tensors: Tensors) -> LossSums:
        """The loss and −log p of the labels, both summed over the units that count."""

    @staticmethod
    def teacher_logits(teacher: Any, tensors: Tensors) -> Tensor:
        """What a teacher says of a batch, if the objective can learn from one."""
        raise NotImplementedError

    def token_loss(
        self, tensors: Tensors, smoothing: float = 0.0, r_drop: float = 0.0
    ) -> TokenLoss:
        """Cross-entropy of tokens; while training, with the teacher's distributions if any."""
        teacher = self.teacher
        if teacher is None or not self.model.training:
            return partial(linear_cross_entropy, smoothing=smoothing, r_drop_weight=r_drop)
        return lambda head, hidden, labels: teacher.loss(head(hidden), labels, tensors, smoothing)

    def checked_loss(self, tensors: Tensors) -> LossSums:
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

    def total(self, terms: LossTerms, averaged: Tensor | None = None) -> LossSums:
        """What `loss` returns of them.

        Where ranks share a batch, an auxiliary loss, a mean, counts by the rank's share of the rows
        (of `averaged` units, if it is over these), and the count is that of all ranks.
        """
        ranks = self.setup.ranks
        if terms.auxiliary and ranks.shares_batch:
            count = torch.as_tensor(terms.count, dtype=torch.float32, device=terms.loss.device)
            share: float | Tensor = ranks.row_share
            if averaged is not None:
                share = averaged / ranks.sum(averaged.float())
            terms = replace(terms, count=ranks.sum(count) * share)
        return terms.total(), terms.nll

    @property
    def indivisible(self) -> str | None:
        """Why the rows of a batch cannot be computed by several ranks; None where they can."""
        return None

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These training rows as text, for a report about them."""
        return [{"row": int(row), **self.source.example(row)} for row in rows]

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self) -> dict[str, Any] | None:
        """`loss` and other metrics on the validation data; None if there is none."""
        if not len(self.source.splits.get("valid", ())):
            return None
        return self.likelihood("valid") | self.measures()

    def likelihood(self, split: str) -> dict[str, Any]:
        """−log p of the labels of a split as the loss of a unit and as perplexity."""
        nll, count = self.nll(split)
        return {"loss": nll / max(1, count), "perplexity": perplexity(nll, count), "tokens": count}

    def measures(self) -> dict[str, Any]:
        """What validation measures besides the likelihood."""
        return {}

    def scores(self) -> dict[str, Score]:
        """The final scores of the weights now in the model, by split."""
        # In float32, whatever precision the training had.
        self.autocast = nullcontext()
        metrics = self.validate()
        if metrics is None:
            return {}
        result = Score(**{name: metrics[name] for name in ("loss", "perplexity", "tokens")})
        self.setup.say(f"validation: {result}  ({result.tokens:,} tokens)")
        return {"validation": result}

    def evaluation_batches(self, split: str) -> Iterator[Batch]:
        """Once over the rows of a split, on the device, with the model in eval mode."""
        self.model.eval()
        for number, rows in enumerate(self.source.evaluation_rows(split)):
            batch = self.collate(split, rows, (self.evaluation_epoch, number))
            yield batch.to(self.trained_model.device)

    def nll(self, split: str) -> tuple[float, int]:
        """−log p of the labels of a split, and the units that it counts."""
        nll, count = self.totals(split, lambda batch: (self.loss(batch.tensors)[1], batch.tokens))
        return nll, int(count)

    def text_measures(
        self,
        task: str,
        write: Callable[[int], list[str]],
        rows: Sequence[tuple[str, ...]],
        names: Sequence[str],
        always: bool = False,
    ) -> dict[str, Any]:
        """Scores of validation texts, if the metric of the recipe is one of them, and samples.

        `write` writes the texts of the first rows, which end with a reference; `names` are those of
        what a sample shows: its row with the text before the reference.
        """
        is_scored = always or self.settings.metric != "loss"
        # Decoding takes longer than the loss: without need, only the samples are written.
        texts = write(len(rows if is_scored else rows[: self.settings.samples]))
        metrics: dict[str, Any] = {}
        if is_scored:
            metrics |= vars(scored(task, texts, [row[-1] for row in rows]))
        shown = islice(zip(texts, rows, strict=False), self.settings.samples)
        samples = [dict(zip(names, (*row[:-1], text, row[-1]), strict=True)) for text, row in shown]
        return metrics | {"samples": samples}

    def totals(
        self, split: str, measure: Callable[[Batch], tuple[Tensor | float, ...]]
    ) -> list[float]:
        """The sums over a split of what is measured of each batch."""
        with torch.inference_mode(), self.autocast:
            sums = [measure(batch) for batch in self.evaluation_batches(split)]
        # In float64, at the end: until then the host does not wait for the device.
        return [sum(map(float, column)) for column in zip(*sums, strict=True)]

    def companions(self) -> dict[str, Model]:
        """Models that are trained along and exported too, by the name of their folder."""
        return {}


class ScoredObjective(Objective):
    """A row objective whose splits are scored by what is predicted of each row."""

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        """What the model predicts of the examples of a split, as `regard.evaluate` has it."""
        self.model.eval()
        [(kind, predict)] = TASKS[self.name].predict.items()
        settings = Settings(max_length=self.source.max_length)
        with self.autocast, without_example_warnings():
            return kind, predict(self.trained_model, self.data.sets[split], settings)

    def predictions(
        self, split: str, predict: Callable[[Tensors], Sequence[Prediction]]
    ) -> list[Prediction]:
        """What `predict` makes of a batch, one for each row, in the order of the rows."""
        by_row: dict[int, Prediction] = {}
        with torch.inference_mode(), self.autocast:
            for batch in self.evaluation_batches(split):
                # Batches are sorted by length: each prediction goes back to its row.
                by_row |= zip(batch.rows.tolist(), predict(batch.tensors), strict=True)
        return [by_row[row] for row in sorted(by_row)]

    def score(self, split: str) -> Score:
        """How good the predictions of a split are."""
        kind, outputs = self.outputs(split)
        return scored(self.name, outputs.values, outputs.references, kind)

    def final_score(self, split: str) -> Score:
        """What a split is scored by after training."""
        return self.score(split)

    def likelihood(self, split: str) -> dict[str, Any]:
        nll, count = self.nll(split)
        return {"loss": nll / max(1, count)}

    def measures(self) -> dict[str, Any]:
        return vars(self.score("valid"))

    def scores(self) -> dict[str, Score]:
        self.autocast = nullcontext()
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

    A pool stays where it fits, a series head, and what says where objects are; labels are always
    new.
    """
    old = dict(_tensors(base.model))
    for name, tensor in list(old.items()):
        part, dot, rest = name.partition(".")
        old.setdefault(_PARTS.get(part, part) + dot + rest, tensor)
    for name, parameter in _tensors(model):
        fits = name in old and old[name].shape == parameter.shape
        if fits and (name.startswith(_BOXES) or not name.startswith("labels.")):
            parameter.copy_(old[name])
        elif name.startswith(_HEADS):
            if parameter.ndim == 1:  # a bias
                parameter.zero_()
            else:
                parameter.normal_(std=0.02)  # BERT's initializer_range
        # Sinusoids are computed, for as many steps as there are now.
        elif parameter.requires_grad and not name.startswith("series."):
            raise ModelError(f"{base.folder} has no weights for {name}", "give a whole model")


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())
