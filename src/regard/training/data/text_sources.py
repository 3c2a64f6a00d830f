"""Sources of labelled texts: classes, numbers, tags of words, and answers in a context."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor

from regard.data import labelled
from regard.data.batching import Batch, Rows
from regard.data.corpus import (
    CHUNK,
    MANIFEST,
    Corpus,
    RowChunk,
    damaged_corpus,
    id_type,
    order_notes,
    write_chunks,
)
from regard.data.generated.algorithmic_tasks import ListOps
from regard.data.labelled import LabelledText, Question, RatedText, TaggedWords
from regard.data.padding import IGNORED, pad_rows, round_up
from regard.data.tag_alignment import align_tags
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.models import Model, TextEncoder
from regard.system.arguments import is_whole
from regard.system.errors import DataError
from regard.system.process_pool import ordered_map
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
from regard.training.setup import Setup

COLUMNS = ("ids", "segments", "labels")
# Labels are stored as the bits of one of these: classes (IGNORED is negative), or numbers.
INTEGERS = "<i4"
NUMBERS = "<f4"
BITS = "uint32"


@dataclass(frozen=True)
class Row:
    """A tokenized text with its special tokens, and its labels.

    The labels are one class, a class for each token (IGNORED for some), or the first and the last
    token of an answer.
    """

    ids: list[int]
    segments: list[int]
    labels: list[Any]  # of numbers


class StoredRows:
    """The rows of a corpus with the columns `ids`, `segments` and `labels`."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.examples = self._count("examples")  # a long one may make several rows
        self.truncated = self._count("full")  # rows of the greatest length
        label_type = corpus.about.get("labels")
        if label_type not in (NUMBERS, INTEGERS):
            raise damaged_corpus(corpus.folder, f"labels of {MANIFEST} is {label_type!r}")
        self._label_type: str = label_type

    def _count(self, name: str) -> int:
        value = self.corpus.about.get(name)
        if not is_whole(value, most=sys.maxsize):
            raise damaged_corpus(self.corpus.folder, f"{name} of {MANIFEST} is {value!r}")
        return value

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, index: int) -> Row:
        ids, segments, labels = (self.corpus.columns[name][index] for name in COLUMNS)
        return Row(ids.tolist(), segments.tolist(), labels.view(self._label_type).tolist())

    def lengths(self, rows: Rows) -> NDArray[np.int32]:
        """How many ids some rows have, [rows, 1]; the other columns do not count in a batch."""
        return self.corpus.columns["ids"].row_lengths(rows)[:, None]


def stored_rows(
    folder: Path,
    examples: Iterable[Any],
    tokenize: Callable[[Sequence[Any]], list[Row]],
    *,
    max_length: int,
    id_type: str,
    workers: int | None,
) -> StoredRows:
    """Tokenizes examples on the first call, in parallel and some at a time; later calls open them.

    `tokenize` makes the rows of some examples, none longer than `max_length`.
    """
    if (folder / MANIFEST).exists():
        corpus = Corpus.open(folder)
        if corpus.about.get("max_length") == max_length:
            return StoredRows(corpus)
    notes: dict[str, Any] = {"max_length": max_length, "examples": 0, "full": 0}

    def prepared(some: Sequence[Any]) -> tuple[tuple[RowChunk, ...], str, int, int]:
        rows = tokenize(some)
        all_labels = [label for row in rows for label in row.labels]
        is_number = any(isinstance(label, float) for label in all_labels)
        label_type = NUMBERS if is_number else INTEGERS
        columns = (
            RowChunk.of([row.ids for row in rows], id_type),
            RowChunk.of([row.segments for row in rows], "uint16"),
            RowChunk(
                np.array(all_labels, label_type).view("<u4"),
                np.array([len(row.labels) for row in rows], np.int64),
            ),
        )
        return columns, label_type, len(some), sum(len(row.ids) == max_length for row in rows)

    def chunks() -> Iterator[tuple[RowChunk, ...]]:
        source = iter(examples)
        some = iter(lambda: list(islice(source, CHUNK)), [])
        for columns, label_type, count, full in ordered_map(prepared, some, workers):
            notes["labels"] = label_type
            notes["examples"] += count
            notes["full"] += full
            notes["rows"] = notes.get("rows", 0) + len(columns[0].lengths)
            yield columns

    def about() -> dict[str, Any]:
        rows = notes.pop("rows")
        return notes | order_notes({"train": rows}, None)

    write_chunks(chunks(), COLUMNS, [id_type, "uint16", BITS], folder, about)
    return StoredRows(Corpus.open(folder))


NO_ANSWER = (0, 0)  # the first token, as in BERT for SQuAD 2.0


@dataclass(frozen=True)
class LabelledData:
    """Labelled examples by split, the names of their labels, and the tokenizer of their texts."""

    train: Iterable[Any]  # read anew by each iteration
    sets: Sets  # the other splits
    labels: list[str]
    tokenizer: Tokenizer


class LabelledSource(Source):
    """Labelled examples of a file, with texts; a subclass says what a row is made of them."""

    rounds_lengths = True
    model_class: ClassVar[Callable[..., Model]] = TextEncoder
    read: ClassVar[staticmethod[..., Any]]  # the examples of a file, one after the other
    tokenizer_kind: ClassVar[str] = "words"  # of new models, unless the recipe says otherwise
    data: LabelledData

    def __init__(self, model: Any, data: LabelledData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.max_length = model_spec.max_length(model, setup.recipe)
        self.splits = {"train": self.train_rows()}
        self.splits |= {name: self.rows(examples) for name, examples in data.sets.items()}

    # --- preparing a run --------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> LabelledData:
        train, others = labelled_splits(setup, cls.read, cls.generator(setup))
        # Sorted, so that a resumed run numbers the classes alike.
        labels = cls.label_names(train)
        if base is None:
            tokenizer = cls.new_tokenizer(
                setup, lambda: (text for example in train for text in cls.texts(example))
            )
        elif base.folder is not None and "generate" in base.tasks:
            # A language model needs no padding, but batches of texts do.
            tokenizer = open_encoder_tokenizer(base.folder)
        else:
            tokenizer = base.tokenizer
        return LabelledData(train, others, labels, tokenizer)

    @classmethod
    def generator(cls, setup: Setup) -> Generator | None:
        """Examples for a recipe that names no file."""
        return None

    @classmethod
    def texts(cls, example: Any) -> Iterable[str]:
        """The texts of an example, to learn a tokenizer from: one, or a pair."""
        return [text for text in (example.text, example.text2) if text is not None]

    @classmethod
    def new_tokenizer(cls, setup: Setup, texts: Callable[[], Iterable[str]]) -> Tokenizer:
        return encoder_tokenizer(setup, texts, default=cls.tokenizer_kind)

    @classmethod
    def label_names(cls, examples: Iterable[Any]) -> list[str]:
        """The names of the labels, if they have some."""
        return []

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: LabelledData) -> Any:
        if description.is_encoder_decoder:
            start = data.tokenizer.special_token_id("bos")
            config = {"decoder_start_token_id": start or 0, **config}
        return super().wrap(model, description, config, data)

    # --- rows -------------------------------------------------------------------------------------

    @abstractmethod
    def rows(self, examples: Sequence[Any]) -> list[Any]:
        """The rows of examples; a long example may make several."""

    def train_rows(self) -> Any:
        return self.rows(list(self.data.train))

    def example(self, row: int) -> dict[str, Any]:
        return vars(next(islice(self.data.train, row, None)))


class TextSource(LabelledSource):
    """Batches of labelled texts of similar lengths; a subclass says what the labels are.

    Lengths are rounded up to `pad_to_multiple_of`, but not beyond the model's.
    """

    truncates: ClassVar[bool] = True  # texts that are too long
    model: TextEncoder

    def train_rows(self) -> StoredRows:
        rows = stored_rows(
            self.setup.run_folder.data / "train_rows",
            self.data.train,
            self.rows,
            max_length=self.max_length,
            id_type=id_type(self.model.tokenizer),
            workers=self.setup.recipe.data.preprocessing_workers,
        )
        self.corpus = rows.corpus
        return rows

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

    def corpus_lengths(self, rows: Rows) -> NDArray[Any]:
        return self.splits["train"].lengths(rows)

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
        rows = self.splits["train"]
        counts = f"data: {rows.examples:,} examples to train on, {validation:,} to validate"
        if not rows.truncated or not self.truncates:
            return counts
        return (
            f"{counts}\n{rows.truncated:,} examples reach the limit of {self.max_length} tokens; "
            "longer ones were truncated (--max-length)"
        )

    def example(self, row: int) -> dict[str, Any]:
        return {"text": self.model.tokenizer.decode(self.splits["train"][row].ids)}

    def statistics(self) -> InputStatistics:
        return corpus_statistics(self.splits["train"].corpus, "ids", self.data.tokenizer)


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
        return class_names(tag for example in examples for tag in example.tags if tag)

    def rows(self, examples: Sequence[TaggedWords]) -> list[Row]:
        rows = []
        for encoding, tags in align_tags(self.model.tokenizer, examples, self.max_length):
            labels = [label_id(tag, self.label_ids) if tag else IGNORED for tag in tags]
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
