"""Base of the objectives with a task head on an encoder, which learns from labelled examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard import spec
from regard.builder import build
from regard.data.batching import (
    Batch,
    BatchSampler,
    BlockSampler,
    Rows,
    batch_indices,
    corpus_sampler,
)
from regard.data.corpus import id_type
from regard.data.padding import pad_rows, round_up
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.encoder import Encoder
from regard.errors import DataError, ModelError
from regard.families import folder as folders
from regard.metrics.classification import ClassificationScore
from regard.metrics.perplexity import corpus_nll
from regard.metrics.question_answering import AnswerScore
from regard.metrics.regression import RegressionScore
from regard.metrics.scores import AnyScore
from regard.models import LanguageModel, Model, TextEncoder
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import open_encoder_tokenizer
from regard.training import model_spec
from regard.training.data.labelled_text import (
    Generator,
    Sets,
    encoder_tokenizer,
    labelled_splits,
)
from regard.training.data.stored_rows import Row, stored_rows
from regard.training.model_spec import max_length
from regard.training.objectives.distillation import classification_teacher
from regard.training.objectives.label_smoothed_cross_entropy import cross_entropy
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup

Example = TypeVar("Example")

# A validation batch has no gradients and may be this much larger than a training batch.
EVALUATION_BATCH_FACTOR = 4


@dataclass(frozen=True)
class LabelledData:
    """Labelled examples by split, the names of their labels, and the tokenizer of their texts."""

    train: Iterable[Any]  # read anew by each iteration
    sets: Sets  # the other splits
    labels: list[str]
    tokenizer: Tokenizer


class HeadObjective(Objective, Generic[Example]):
    """Batches of rows of similar lengths; a subclass says what the labels and the loss are.

    Lengths are rounded up to `pad_to_multiple_of`, but not beyond `max_length`.
    """

    unit = "examples"
    head_task: ClassVar[spec.HeadTask]
    truncates = True  # texts that are too long
    model_classes = (TextEncoder, LanguageModel)
    spec_classes = (spec.Encoder, spec.RecurrentEncoder)
    convertible_classes = (spec.Decoder, spec.RecurrentDecoder)
    describes_head = True
    trained_model: TextEncoder
    data: LabelledData

    def __init__(self, model: TextEncoder, data: LabelledData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.encoder = model
        self.max_length = max_length(model, setup.recipe)
        self.teacher = classification_teacher(setup.recipe, model)
        self.train_rows = stored_rows(
            setup.run_folder.data / "train_rows",
            data.train,
            self.rows,
            max_length=self.max_length,
            id_type=id_type(model.tokenizer),
            workers=setup.recipe.data.preprocessing_workers,
        )
        self.validation_examples = data.sets.get("valid", [])
        self.validation_rows = self.rows(self.validation_examples)
        for name, examples in data.sets.items():
            if name != "valid":
                self.rows(examples)  # only for its errors, which are to come early
        self._report()

    def _report(self) -> None:
        say = self.setup.say
        say(
            f"data: {self.train_rows.examples:,} examples to train on, "
            f"{len(self.validation_examples):,} to validate"
        )
        full = self.train_rows.truncated
        if full and self.truncates:
            say(
                f"{full:,} examples reach the limit of {self.max_length} tokens; "
                "longer ones were truncated (--max-length)"
            )

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def check_base(cls, base: Model, setup: Setup) -> None:
        if not isinstance(base, cls.model_classes):
            raise ModelError(
                f"{base.folder} takes no head for {setup.recipe.task}: it is neither an encoder "
                f"nor a language model of text ({base.family})",
                "give an encoder such as BERT, or a decoder such as GPT-2",
            )

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> LabelledData:
        splits = labelled_splits(setup, cls.read, cls.generator(setup))
        # Sorted, so that a resumed run numbers the classes alike.
        labels = cls.label_names(splits.train)
        if base is None:
            tokenizer = encoder_tokenizer(
                setup,
                lambda: (text for example in splits.train for text in cls.texts(example)),
                default=cls.tokenizer_kind,
            )
        else:
            tokenizer = _base_tokenizer(base)
        return LabelledData(splits.train, splits.others, labels, tokenizer)

    tokenizer_kind: ClassVar[str] = "words"  # of new models, unless the recipe says otherwise

    @classmethod
    def generator(cls, setup: Setup) -> Generator | None:
        """Examples for a recipe that names no file."""
        return None

    @classmethod
    @abstractmethod
    def read(cls, path: str) -> Iterable[Any]:
        """The examples of a file, one after the other."""

    @classmethod
    @abstractmethod
    def texts(cls, example: Any) -> Iterable[str]:
        """The texts of an example, to learn a tokenizer from."""

    @classmethod
    @abstractmethod
    def label_names(cls, examples: Iterable[Any]) -> list[str]:
        """The names of the head's outputs."""

    @classmethod
    def has_head(cls, description: spec.Encoder | spec.RecurrentEncoder) -> bool:
        return description.task == cls.head_task

    @classmethod
    def describe(cls, setup: Setup, data: LabelledData) -> spec.Model:
        return model_spec.describe_with_head(
            setup.recipe, len(data.tokenizer), cls.head_task, len(data.labels)
        )

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: LabelledData, setup: Setup
    ) -> TextEncoder:
        model_spec.check_vocabulary("vocabulary", description.input, len(data.tokenizer))
        if cls.head_task != "answer":  # its outputs are the start and the end
            model_spec.check_classes(description, data.labels)
        config = folders.describe(description, model_type=setup.recipe.model_name)
        return TextEncoder(model, description, data.tokenizer, cls.label_config(config, data))

    @classmethod
    def label_config(cls, config: dict[str, Any], data: LabelledData) -> dict[str, Any]:
        """config.json with the names of the labels, under the keys of Hugging Face."""
        return config | {
            "id2label": {str(i): name for i, name in enumerate(data.labels)},
            "label2id": {name: i for i, name in enumerate(data.labels)},
        }

    @classmethod
    def adapt(cls, base: Model, data: LabelledData, setup: Setup) -> TextEncoder:
        assert isinstance(base, TextEncoder | LanguageModel), "checked before"
        return with_head(base, cls.head_task, data.labels, data.tokenizer, setup.recipe.train.seed)

    def input_statistics(self) -> InputStatistics:
        return corpus_statistics(self.train_rows.corpus, "ids", len(self.data.tokenizer))

    @property
    def model(self) -> Encoder:
        return self.encoder.model

    # --- what a subclass defines ------------------------------------------------------------------

    @abstractmethod
    def rows(self, examples: Sequence[Example]) -> list[Row]:
        """The rows of examples; a long example may make several."""

    @abstractmethod
    def logits_loss(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss of the head's logits, and −log p of the labels, both sums."""

    @abstractmethod
    def score(
        self, examples: Sequence[Example], autocast: AbstractContextManager[Any]
    ) -> ClassificationScore | AnswerScore | RegressionScore:
        """How good the predictions are, from 0 to 100."""

    def label_tensor(self, rows: Sequence[Row], width: int) -> Tensor:
        return torch.tensor([row.labels for row in rows])

    def label_count(self, labels: Tensor) -> int | Tensor:
        """How many labels the loss is a mean over, on the device of the labels."""
        return len(labels)

    # --- batches ----------------------------------------------------------------------------------

    def order(self) -> BatchSampler | BlockSampler:
        return corpus_sampler(
            self.train_rows.corpus,
            self.settings.batch_tokens,
            seed=self.settings.seed,
            multiple=self.pad_to_multiple_of,
            lengths=self.train_rows.lengths,
        )

    def batches_per_epoch(self) -> int:
        return self.order().batches_per_epoch()

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, indices in self.order().iterate(epoch, index):
            yield (now, i + 1), self.collate(self.train_rows, indices)

    def collate(self, rows: Sequence[Row], indices: Rows) -> Batch:
        """`tokens`, `padding_mask` [B, T]; `labels` [B, T] or [B, n]; perhaps `segments` [B, T]."""
        selected = [rows[i] for i in indices]
        longest = max(len(row.ids) for row in selected)
        width = min(round_up(longest, self.pad_to_multiple_of), self.max_length)
        pad_id = self.encoder.tokenizer.special_token_id("pad") or 0
        tokens, padding_mask = pad_rows([row.ids for row in selected], pad_id, min_width=width)
        labels = self.label_tensor(selected, tokens.shape[1])
        tensors = {"tokens": tokens, "padding_mask": padding_mask, "labels": labels}
        if self.encoder.spec.tokens.segments > 1:
            segments, _ = pad_rows([row.segments for row in selected], 0, min_width=width)
            tensors["segments"] = segments
        # The loss is a mean over labels, not over tokens.
        return Batch(tensors, int(self.label_count(labels)), np.asarray(indices))

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        decode = self.encoder.tokenizer.decode
        return [{"row": row, "text": decode(self.train_rows[row].ids)} for row in rows]

    # --- loss -------------------------------------------------------------------------------------

    def logits(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The head's logits, and the auxiliary losses."""
        segments = {"segments": tensors["segments"]} if "segments" in tensors else {}
        padding_mask = tensors["padding_mask"]
        hidden, auxiliary = self.model(tensors["tokens"], padding_mask, **segments)  # [B, T, D]
        return self.model.classes(hidden, padding_mask, tensors["tokens"]), auxiliary

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits, auxiliary = self.logits(tensors)
        loss, nll = self.logits_loss(logits, tensors)
        count = self.label_count(tensors["labels"])
        return self.with_auxiliary(loss, auxiliary, count), nll

    def class_loss(
        self, logits: Tensor, labels: Tensor, tensors: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of classes; while training, with the teacher's distributions if any."""
        smoothing = self.settings.label_smoothing
        if self.teacher is None or not self.model.training:
            return cross_entropy(logits, labels, smoothing)
        return self.teacher.loss(logits, labels, tensors, smoothing)

    # --- validation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if not self.validation_rows:
            return None
        nll, count = corpus_nll(self._batch_nlls(autocast))
        score = self.score(self.validation_examples, autocast)
        return {"loss": nll / max(1.0, count), **vars(score)}

    def _batch_nlls(self, autocast: AbstractContextManager[Any]) -> Iterator[tuple[Tensor, int]]:
        for batch in self.evaluation_batches(self.validation_rows):
            with torch.inference_mode(), autocast:
                _, nll = self.loss(batch.tensors)
            yield nll, batch.tokens

    def evaluation_batches(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """Once over the rows, on the device, with the model in eval mode."""
        self.model.eval()
        budget = EVALUATION_BATCH_FACTOR * self.settings.batch_tokens
        for indices in batch_indices(_lengths(rows), budget, seed=0, epoch=0, shuffle=False):
            yield self.collate(rows, indices).to(self.encoder.device)

    def predict(
        self, rows: Sequence[Row], autocast: AbstractContextManager[Any]
    ) -> list[list[int]]:
        """The likeliest label of each row, or of each of its tokens."""
        predictions: list[list[int]] = [[] for _ in rows]
        for batch in self.evaluation_batches(rows):
            with torch.inference_mode(), autocast:
                logits, _ = self.logits(batch.tensors)
            best = logits.argmax(dim=-1).reshape(len(batch.rows), -1).tolist()  # [B, 1] or [B, T]
            for row, labels in zip(batch.rows, best, strict=True):
                predictions[row] = labels
        return predictions

    def scores(self) -> dict[str, AnyScore]:
        results: dict[str, AnyScore] = {}
        for name, examples in self.data.sets.items():
            score = self.score(examples, torch.no_grad())
            results[name] = score
            values = vars(score).items()
            shown = [f"{key} {value:.2f}" for key, value in values if isinstance(value, float)]
            self.setup.say(f"{name}: {'  '.join(shown)}  ({len(examples):,} examples)")
        return results

    def label_ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.encoder.labels)}


def class_names(labels: Iterable[str]) -> list[str]:
    """The classes of the training data, sorted."""
    names = sorted(set(labels))
    if len(names) < 2:
        raise DataError(
            f"there is only one label: {', '.join(names)}", "give examples of two labels or more"
        )
    return names


def label_id(label: str, ids: Mapping[str, int]) -> int:
    """The id of a label, which must be one of the training data."""
    if label not in ids:
        raise DataError(
            f"the label {label!r} is not in the training data",
            f"correct it, or train with it; known: {', '.join(ids)}",
        )
    return ids[label]


# --- a model with a new head ----------------------------------------------------------------------


def _base_tokenizer(base: Model) -> Tokenizer:
    if isinstance(base, LanguageModel):
        # A language model needs no padding, but batches of texts do.
        assert base.folder is not None, "models to fine-tune come from folders"
        return open_encoder_tokenizer(base.folder)
    return base.input_tokenizer


def with_head(
    base: TextEncoder | LanguageModel,
    task: spec.HeadTask,
    names: Sequence[str],
    tokenizer: Tokenizer,
    seed: int,
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
    copy_weights(base, model)
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
def copy_weights(base: Model, model: nn.Module) -> None:
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
            raise ModelError(f"{base.folder} has no weights for {name}", "give a whole encoder")
        elif parameter.ndim == 1:  # a bias
            parameter.zero_()
        else:
            parameter.normal_(std=0.02)  # BERT's initializer_range


def _lengths(rows: Sequence[Row]) -> Any:
    """[rows, 1]"""
    return np.array([[len(row.ids)] for row in rows])
