"""Base of the objectives that corrupt every row of a text: masked LM, denoising, ELECTRA.

It holds the order of the rows and each row's random numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from regard.data.batching import (
    Batch,
    BatchSampler,
    BlockSampler,
    Rows,
    batch_indices,
    corpus_sampler,
)
from regard.data.corpus import Corpus
from regard.data.padding import pad_rows
from regard.data.text_corruption import Ids, RandomStream
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.models import Model
from regard.training.data.plain_text import TextCorpora, text_corpora
from regard.training.objectives.objective import Objective
from regard.training.objectives.text_model_files import text_model_files
from regard.training.setup import Setup

# The epoch whose random numbers validation uses, which no training reaches.
VALIDATION_EPOCH = 2**40
MAX_SPECIAL_TOKENS = 3  # that frame a row: [CLS] A [SEP] B [SEP]


class CorruptedText(Objective):
    """Batches of rows, which `collate` corrupts anew in every epoch.

    With `pad_to_multiple_of` above 1 all batches are as wide as the context, so that few shapes
    occur.
    """

    # The unit: those tokens that are to be predicted.
    default_share = 0.15  # of the tokens, that is corrupted

    def __init__(self, model: Model, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.tokenizer = data.tokenizer
        self.train_corpus = data.train
        self.validation_corpus = data.valid
        self.context = setup.recipe.data.context
        self.device = setup.device
        self.corrupted_share = self.settings.mask_ratio or self.default_share

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> TextCorpora:
        return text_corpora(setup, base)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        return text_model_files(model, setup)

    def input_statistics(self) -> InputStatistics:
        special_tokens = len(self.tokenizer.frame([]))
        return corpus_statistics(self.train_corpus, "text", len(self.tokenizer), special_tokens)

    @abstractmethod
    def collate(self, corpus: Corpus, rows: Rows, epoch: int) -> Batch:
        """These rows, corrupted as they are in this epoch."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, rows in self._order().iterate(epoch, index):
            yield (now, i + 1), self.collate(self.train_corpus, rows, now)

    def batches_per_epoch(self) -> int:
        return self._order().batches_per_epoch()

    def _order(self) -> BatchSampler | BlockSampler:
        # Not rounded here: `_lengths` has done it, where it is wanted.
        return corpus_sampler(
            self.train_corpus,
            self.settings.batch_tokens,
            seed=self.settings.seed,
            lengths=partial(self._lengths, self.train_corpus),
        )

    def validation_batches(self) -> Iterator[Batch]:
        """All validation rows, corrupted in the same way each time."""
        lengths = self._lengths(self.validation_corpus, np.arange(len(self.validation_corpus)))
        budget = self.settings.batch_tokens
        for rows in batch_indices(lengths, budget, seed=0, epoch=0, shuffle=False):
            batch = self.collate(self.validation_corpus, rows, VALIDATION_EPOCH)
            yield batch.to(self.device)

    def _lengths(self, corpus: Corpus, rows: Rows) -> Any:
        """[rows, 1]: tokens of some rows with their special tokens."""
        lengths = corpus.columns["text"].row_lengths(rows)[:, None] + MAX_SPECIAL_TOKENS
        if self.pad_to_multiple_of == 1:
            return lengths
        return np.full_like(lengths, self.context)

    def row(self, corpus: Corpus, row: int) -> Ids:
        return corpus.columns["text"][row].astype(np.int64)

    def sentence_starts(self, corpus: Corpus, row: int) -> Ids:
        return corpus.columns["breaks"][row].astype(np.int64)

    def random_numbers(self, epoch: int, row: int) -> RandomStream:
        """A random stream of the row's own: a resumed run corrupts the same tokens."""
        return RandomStream(self.settings.seed, epoch, row)

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        examples = []
        for row in rows:
            ids = self.row(self.train_corpus, row).tolist()
            examples.append({"row": row, "text": self.tokenizer.decode(ids)})
        return examples

    # --- for subclasses ---------------------------------------------------------------------------

    @property
    def min_width(self) -> int:
        """Width of every batch where few shapes are wanted, otherwise 0."""
        return self.context if self.pad_to_multiple_of > 1 else 0

    def pad(
        self, rows: Sequence[Sequence[int]], pad_id: int, *, min_width: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The rows [B, T] and their padding mask [B, T], rounded up to the multiple."""
        return pad_rows(
            rows, pad_id, min_width=min_width, pad_to_multiple_of=self.pad_to_multiple_of
        )

    def decode_visibly(self, ids: Sequence[int]) -> str:
        """A text with its special tokens visible, except padding and those that frame it."""
        invisible = {self.tokenizer.special_token_id(role) for role in ("pad", "bos", "eos")}
        pieces: list[str] = []
        run: list[int] = []  # ordinary tokens since the last special one
        for token in ids:
            if token not in self.tokenizer.special_ids:
                run.append(token)
                continue
            pieces.append(self.tokenizer.decode(run))
            if token not in invisible:
                pieces.append(self.tokenizer.id_to_token(token))
            run = []
        pieces.append(self.tokenizer.decode(run))
        return "".join(pieces)
