"""Sources of labelled texts: classes, numbers, tags of words, and answers in a context."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor

from regard.data import labelled
from regard.data.batching import Batch, BatchSampler, BlockSampler, Rows, corpus_sampler
from regard.data.corpus import id_type
from regard.data.generated.algorithmic_tasks import ListOps
from regard.data.labelled import LabelledText, Question, RatedText, TaggedWords
from regard.data.padding import IGNORED, pad_rows, round_up
from regard.data.tag_alignment import align_tags
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.models import Model, TextEncoder
from regard.system.errors import DataError
from regard.training import model_spec
from regard.training.data.labelled_text import (
    Generator,
    Sets,
    class_names,
    encoder_tokenizer,
    label_id,
    labelled_splits,
)
from regard.training.data.source import ModelInputs, Position, Source
from regard.training.data.stored_rows import Row, stored_rows
from regard.training.setup import Setup

NO_ANSWER = (0, 0)  # the first token, as in BERT for SQuAD 2.0


@dataclass(frozen=True)
class LabelledData:
    """Labelled examples by split, the names of their labels, and the tokenizer of their texts."""

    train: Iterable[Any]  # read anew by each iteration
    sets: Sets  # the other splits
    labels: list[str]
    tokenizer: Tokenizer


class TextSource(Source):
    """Batches of labelled texts of similar lengths; a subclass says what the labels are.

    Lengths are rounded up to `pad_to_multiple_of`, but not beyond the model's.
    """

    read: ClassVar[staticmethod[..., Any]]  # the examples of a file, one after the other
    truncates: ClassVar[bool] = True  # texts that are too long
    tokenizer_kind: ClassVar[str] = "words"  # of new models, unless the recipe says otherwise
    data: LabelledData
    model: TextEncoder

    def __init__(self, model: TextEncoder, data: LabelledData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.max_length = model_spec.max_length(model, setup.recipe)
        self.label_ids = {name: i for i, name in enumerate(model.require_labels())}
        self.train_rows = stored_rows(
            setup.run_folder.data / "train_rows",
            data.train,
            self.rows,
            max_length=self.max_length,
            id_type=id_type(model.tokenizer),
            workers=setup.recipe.data.preprocessing_workers,
        )
        self.splits = {"train": self.train_rows}
        self.splits |= {name: self.rows(examples) for name, examples in data.sets.items()}

    # --- preparing a run --------------------------------------------------------------------------

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
        elif base.folder is not None and "generate" in base.tasks:
            # A language model needs no padding, but batches of texts do.
            tokenizer = open_encoder_tokenizer(base.folder)
        else:
            tokenizer = base.input_tokenizer
        return LabelledData(splits.train, splits.others, labels, tokenizer)

    @classmethod
    def generator(cls, setup: Setup) -> Generator | None:
        """Examples for a recipe that names no file."""
        return None

    @classmethod
    @abstractmethod
    def texts(cls, example: Any) -> Iterable[str]:
        """The texts of an example, to learn a tokenizer from."""

    @classmethod
    @abstractmethod
    def label_names(cls, examples: Iterable[Any]) -> list[str]:
        """The names of the labels."""

    @classmethod
    def wrap(
        cls, model: Any, description: Any, config: dict[str, Any], data: LabelledData
    ) -> TextEncoder:
        model_spec.check_vocabulary("vocabulary", description.tokens, len(data.tokenizer))
        if description.is_encoder_decoder:
            start = data.tokenizer.special_token_id("bos")
            config = {"decoder_start_token_id": start or 0, **config}
        return TextEncoder(model, description, data.tokenizer, config)

    # --- rows -------------------------------------------------------------------------------------

    @abstractmethod
    def rows(self, examples: Sequence[Any]) -> list[Row]:
        """The rows of examples; a long example may make several."""

    def labels(self, rows: Sequence[Row], width: int) -> Tensor:
        """The labels of rows whose tokens are so wide: [B, n]."""
        return torch.tensor([row.labels for row in rows])

    def text_rows(
        self, examples: Sequence[LabelledText | RatedText], label: Callable[[Any], float]
    ) -> list[Row]:
        """A row for each text or pair of texts, with one label."""
        texts = [example.whole for example in examples]
        encoded = self.model.tokenizer.encode_with_template(texts, self.max_length)
        return [
            Row(encoding.ids, encoding.type_ids, [label(example)])
            for encoding, example in zip(encoded, examples, strict=True)
        ]

    # --- batches ----------------------------------------------------------------------------------

    def lengths(self, split: str) -> NDArray[Any]:
        return np.array([[len(row.ids)] for row in self.splits[split]])

    def sampler(self) -> BatchSampler | BlockSampler:
        return corpus_sampler(
            self.train_rows.corpus,
            self.settings.batch_tokens,
            seed=self.settings.seed,
            multiple=self.setup.pad_to_multiple_of,
            lengths=self.train_rows.lengths,
        )

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        """`tokens`, `padding_mask` [B, T]; `labels` [B, T] or [B, n]; perhaps `segments` [B, T]."""
        selected = [self.splits[split][i] for i in rows]
        longest = max(len(row.ids) for row in selected)
        width = min(round_up(longest, self.setup.pad_to_multiple_of), self.max_length)
        pad_id = self.model.tokenizer.special_token_id("pad") or 0
        tokens, padding_mask = pad_rows([row.ids for row in selected], pad_id, min_width=width)
        labels = self.labels(selected, tokens.shape[1])
        tensors = {"tokens": tokens, "padding_mask": padding_mask, "labels": labels}
        if self.model.spec.tokens.segments > 1:
            segments, _ = pad_rows([row.segments for row in selected], 0, min_width=width)
            tensors["segments"] = segments
        return Batch(tensors, len(selected), np.asarray(rows))

    def model_inputs(self, tensors: Mapping[str, Tensor]) -> ModelInputs:
        more = self.model.side_tokens(tensors["tokens"])
        if "segments" in tensors:
            more["segments"] = tensors["segments"]
        return ModelInputs(tensors["tokens"], tensors["padding_mask"], more)

    def describe(self) -> str:
        validation = len(self.data.sets.get("valid", ()))
        count = self.train_rows.examples
        counts = f"data: {count:,} examples to train on, {validation:,} to validate"
        full = self.train_rows.truncated
        if not full or not self.truncates:
            return counts
        return (
            f"{counts}\n{full:,} examples reach the limit of {self.max_length} tokens; "
            "longer ones were truncated (--max-length)"
        )

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        decode = self.model.tokenizer.decode
        return [{"row": row, "text": decode(self.train_rows[row].ids)} for row in rows]

    def statistics(self) -> InputStatistics:
        return corpus_statistics(self.train_rows.corpus, "ids", len(self.data.tokenizer))


class LabelledTexts(TextSource):
    """Texts, or pairs of texts, of one class each; without a file, ListOps expressions."""

    read = staticmethod(labelled.labelled_texts)

    @classmethod
    def generator(cls, setup: Setup) -> Generator | None:
        recipe = setup.recipe
        is_named = recipe.data.text is not None or recipe.tune.files
        if is_named or setup.parts.source is not None or recipe.generated_task is not None:
            return None
        # As Long Range Arena's generator has them: 500 to 2,000 tokens.
        longest = min(2000, recipe.data.context - 1)  # one position is the start token's
        task = ListOps(min(500, longest // 4) + 1, longest - 1)
        setup.say(f"data: ListOps expressions of {task.min_length} to {task.max_length} tokens")
        return task.examples

    @classmethod
    def texts(cls, example: LabelledText) -> list[str]:
        return [text for text in (example.text, example.text2) if text is not None]

    @classmethod
    def label_names(cls, examples: Iterable[LabelledText]) -> list[str]:
        counts = Counter(example.label for example in examples)
        first = next(iter(examples), None)
        # Words that occur once, above labels that do not.
        others = [count for label, count in counts.items() if first and label != first.label]
        is_alone = first is not None and counts[first.label] == 1 < min(others, default=1)
        if first is not None and is_alone and len(first.text.split()) < 4:
            raise DataError(
                f"the first line looks like a header: no other example has the label "
                f"{first.label!r} of {first.text!r}",
                "remove that line, or call its last column label",
            )
        return class_names(counts)

    def rows(self, examples: Sequence[LabelledText]) -> list[Row]:
        ids = self.label_ids
        return self.text_rows(examples, lambda example: label_id(example.label, ids))

    def labels(self, rows: Sequence[Row], width: int) -> Tensor:
        return torch.tensor([row.labels[0] for row in rows])  # [B]


class RatedTexts(TextSource):
    """Texts, or pairs of texts, with a number each."""

    read = staticmethod(labelled.rated_texts)

    @classmethod
    def texts(cls, example: RatedText) -> list[str]:
        return [text for text in (example.text, example.text2) if text is not None]

    @classmethod
    def label_names(cls, examples: Iterable[RatedText]) -> list[str]:
        # transformers' name for the one output of a regression head.
        return ["LABEL_0"]

    def rows(self, examples: Sequence[RatedText]) -> list[Row]:
        return self.text_rows(examples, lambda example: example.score)

    def labels(self, rows: Sequence[Row], width: int) -> Tensor:
        return torch.tensor([row.labels for row in rows], dtype=torch.float32)  # [B, 1]


class TaggedTexts(TextSource):
    """Sentences with a tag for each word, at its first token; the other tokens are ignored."""

    unit = "sentences"
    read = staticmethod(labelled.tagged_words)

    @classmethod
    def texts(cls, example: TaggedWords) -> list[str]:
        # Words that are split already: the tokenizer only ever sees them between spaces.
        return [" ".join(example.tokens)]

    @classmethod
    def label_names(cls, examples: Iterable[TaggedWords]) -> list[str]:
        return class_names(tag for example in examples for tag in example.tags)

    def rows(self, examples: Sequence[TaggedWords]) -> list[Row]:
        rows = []
        for encoding, tags in align_tags(self.model.tokenizer, examples, self.max_length):
            labels = [IGNORED if tag is None else label_id(tag, self.label_ids) for tag in tags]
            rows.append(Row(encoding.ids, encoding.type_ids, labels))
        return rows

    def labels(self, rows: Sequence[Row], width: int) -> Tensor:
        # As wide as the tokens, which may be rounded up beyond the longest row: [B, T].
        labels, _ = pad_rows([row.labels for row in rows], IGNORED, min_width=width)
        return labels


class Questions(TextSource):
    """Questions about contexts, and the first and last token of the answer: windows of a context.

    A window that does not contain the answer completely has NO_ANSWER.
    """

    read = staticmethod(labelled.questions)
    truncates = False
    tokenizer_kind = "bpe"  # its template separates question and context

    @classmethod
    def texts(cls, example: Question) -> list[str]:
        return [example.question, example.context]

    @classmethod
    def label_names(cls, examples: Iterable[Question]) -> list[str]:
        return ["start", "end"]

    def rows(self, examples: Sequence[Question]) -> list[Row]:
        return [
            Row(encoding.ids, encoding.type_ids, list(span))
            for example in examples
            for encoding, span in answer_windows(self.model.tokenizer, example, self.max_length)
        ]


def answer_windows(
    tokenizer: Tokenizer, example: Question, max_length: int
) -> list[tuple[Encoding, tuple[int, int]]]:
    """The context in overlapping windows, each with the answer's first and last token."""
    windows = []
    start = example.answer_start
    end = start + len(example.text)
    stride = max_length // 4  # by which windows overlap
    for encoding in tokenizer.windows(example.question, example.context, max_length, stride):
        tokens = [
            i
            for i, sequence in enumerate(encoding.sequence_ids)
            if sequence == 1 and encoding.offsets[i][0] < end and encoding.offsets[i][1] > start
        ]
        span = NO_ANSWER
        if tokens and example.text:
            first = tokens[0]
            last = tokens[-1]
            # Where a window cuts the answer off there is none: another window may have all of it.
            if encoding.offsets[first][0] <= start and encoding.offsets[last][1] >= end:
                span = (first, last)
        windows.append((encoding, span))
    return windows
