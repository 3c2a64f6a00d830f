"""Objectives with a head of labels: numbers, tags and answers of texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.data.batching import Batch, Rows
from regard.data.padding import IGNORED
from regard.data.text.tokenizer import Tokenizer
from regard.evaluation.scores import Score, scored_tags
from regard.families import folder as folders
from regard.models import Model, TextEncoder
from regard.models.labels import label_config
from regard.models.saving import config_json
from regard.system.errors import ModelError
from regard.training import model_spec
from regard.training.data.source import Position
from regard.training.data.text_sources import (
    LabelledData,
    Questions,
    RatedTexts,
    TaggedTexts,
    TextSource,
)
from regard.training.objectives.losses import LossSums, LossTerms, Tensors, cross_entropy
from regard.training.objectives.objective import ScoredObjective
from regard.training.setup import Setup


def label_logits(
    model: Any, inputs: Tensor, padding_mask: Tensor | None = None, more: Mapping[str, Any] = {}
) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits of a head of labels, and the auxiliary losses."""
    hidden, auxiliary = model(inputs, padding_mask=padding_mask, **more)  # [B, T, D]
    return model.classes(hidden, padding_mask, inputs), auxiliary


def squared_error(logits: Tensor, tensors: Tensors) -> LossSums:
    """The squared error; there is no −log p, so that it stands for both."""
    loss = (logits.float() - tensors["labels"]).square().sum()
    return loss, loss.detach()


def answer_loss(logits: Tensor, tensors: Tensors) -> LossSums:
    """The mean of −log p of the first and of the last token, each a softmax over the row."""
    padding = ~tensors["padding_mask"][..., None]
    logits = logits.float().masked_fill(padding, float("-inf"))  # [B, T, 2]
    # Over dimension 1, the positions; labels [B, 2].
    loss = functional.cross_entropy(logits, tensors["labels"], reduction="sum") / 2
    return loss, loss.detach()


class HeadObjective(ScoredObjective):
    """A head of labels, whatever the model reads; a subclass says what the loss is."""

    head_task: ClassVar[spec.HeadTask]
    describes_head = True
    spec_classes: ClassVar[tuple[type[spec.ModelSpec], ...]] = (spec.Encoder,)

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def with_tokenizer(cls, model: Any, description: Any, data: Any, setup: Setup) -> Model:
        if cls.head_config(data):
            model_spec.check_classes(description, cls.source_class.class_names(data))
        return super().with_tokenizer(model, description, data, setup)

    @classmethod
    def head_config(cls, data: Any) -> dict[str, Any]:
        return label_config(cls.source_class.class_names(data))

    # --- loss -------------------------------------------------------------------------------------

    def label_count(self, labels: Tensor) -> int | Tensor:
        """How many labels the loss is a mean over, on the device of the labels."""
        return len(labels)

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        batch = super().collate(split, rows, position)
        return replace(batch, tokens=int(self.label_count(batch.tensors["labels"])))

    def logits(self, tensors: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        """The head's logits, and the auxiliary losses."""
        return label_logits(self.model, *self.source.model_inputs(tensors))

    @abstractmethod
    def head_loss(self, logits: Tensor, tensors: Tensors) -> LossSums:
        """The loss of the head's logits, and −log p of the labels, both sums."""

    def loss(self, tensors: Tensors) -> LossSums:
        logits, auxiliary = self.logits(tensors)
        count = self.label_count(tensors["labels"])
        return self.total(LossTerms(*self.head_loss(logits, tensors), auxiliary, count))

    def class_loss(self, logits: Tensor, labels: Tensor, tensors: Tensors) -> LossSums:
        """Cross-entropy of classes; while training, with the teacher's distributions if any."""
        smoothing = self.settings.label_smoothing
        if self.teacher is None or not self.model.training:
            return cross_entropy(logits, labels, smoothing)
        return self.teacher.loss(logits, labels, tensors, smoothing)


class TextHead(HeadObjective):
    """A head of labels on a model of text, whatever its wiring."""

    unit = "examples"
    base_tasks = ("embed", "generate", "translate")
    base_advice = "give a model of text, such as BERT, GPT-2 or BART"
    spec_classes = model_spec.TEXT_READERS
    source: TextSource
    trained_model: TextEncoder

    @classmethod
    def describe(cls, setup: Setup, data: LabelledData) -> spec.Model:
        description = model_spec.describe_with_head(
            setup.recipe, len(data.tokenizer), cls.head_task, len(data.labels)
        )
        return with_end_token(description, data.tokenizer)

    @staticmethod
    def teacher_logits(teacher: TextEncoder, tensors: Tensors) -> Tensor:
        tokens = tensors["tokens"]
        more = teacher.side_tokens(tokens)
        # A student with segment embeddings may learn from a teacher without.
        # RoBERTa and DistilBERT have none.
        if teacher.spec.tokens.segments > 1 and "segments" in tensors:
            more["segments"] = tensors["segments"]
        logits, _ = label_logits(teacher.model, tokens, tensors["padding_mask"], more)
        return logits

    @classmethod
    def adapt(cls, base: Model, data: LabelledData, setup: Setup) -> Model:
        """The same model with a head of labels: its own if that fits, otherwise a new one.

        A pooler stays; a language model's LM head goes.
        """
        task = cls.head_task
        names = data.labels
        # The outputs of question answering have no names to compare.
        if base.spec.task == task and (task == "answer" or has_classes(base, names)):
            base.config |= cls.head_config(data)
            return base
        try:
            # The config keeps what this library does not read, for others that open the folder.
            description, config = folders.with_classifier(base.config, task, names)
        except ModelError:  # transformers has no such class
            description = spec.with_label_head(base.spec, task, len(names))
            config = config_json(description, base.config)
        config.setdefault("pad_token_id", data.tokenizer.special_token_id("pad") or 0)
        return cls.rebuilt(base, description, data, setup, config)


def with_end_token(description: Any, tokenizer: Tokenizer) -> Any:
    """The vector of a text may be that of its end token, whose id the tokenizer decides."""
    pool = description.pool
    if pool is None or not isinstance(pool.which, spec.EndToken):
        return description
    end_token = replace(pool.which, token=tokenizer.required_token_id("eos"))
    return description.with_head(replace(pool, which=end_token))


def has_classes(model: Any, names: Sequence[str]) -> bool:
    """Whether a model has a head for these classes already."""
    return model.spec.labels is not None and set(model.labels) == set(names)


class Regression(TextHead):
    """Text regression: one number per row, from the pooled vector, by the squared error."""

    name = "regress"
    source_class = RatedTexts
    head_task = "classify"  # transformers has one head for classes and for numbers
    head_fields = "heads=(Pool(), ClassifierHead(1))"

    @classmethod
    def head_config(cls, data: LabelledData) -> dict[str, Any]:
        return super().head_config(data) | {"problem_type": "regression"}

    head_loss = staticmethod(squared_error)


class TokenClassification(TextHead):
    """One class per word, at its first token; the other tokens are ignored (BERT, Section 5.3)."""

    name = "tag"
    unit = "words"
    source_class = TaggedTexts
    head_task = "tag"
    head_fields = "heads=(ClassifierHead(CLASSES, 'tag'),)"

    def label_count(self, labels: Tensor) -> Tensor:
        return (labels != IGNORED).sum().clamp_min(1)  # a batch may be cut before its first word

    def head_loss(self, logits: Tensor, tensors: Tensors) -> LossSums:
        return self.class_loss(logits, tensors["labels"], tensors)

    def score(self, split: str) -> Score:
        _, outputs = self.outputs(split)
        return scored_tags(outputs.values, outputs.references)


class QuestionAnswering(TextHead):
    """Extractive question answering (SQuAD): where in a context the answer begins and ends."""

    name = "answer"
    unit = "windows"
    source_class = Questions
    head_task = "answer"
    head_fields = "heads=(ClassifierHead(2, 'answer'),)"

    @classmethod
    def head_config(cls, data: LabelledData) -> dict[str, Any]:
        return {}  # a span has no label

    head_loss = staticmethod(answer_loss)
