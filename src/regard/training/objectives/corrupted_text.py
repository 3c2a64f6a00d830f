"""Base of the objectives that corrupt every row of a text: masked LM, denoising, ELECTRA.

It holds the order of the rows and each row's random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import Batch, BatchSampler, BlockSampler, Rows, corpus_sampler
from regard.data.corpus import Corpus
from regard.data.corruption import Ids, RandomStream
from regard.data.padding import pad_rows
from regard.data.training_coverage import InputStatistics, corpus_statistics
from regard.models import Model, TextEncoder
from regard.training import model_spec
from regard.training.data.plain_text import TextCorpora, text_corpora
from regard.training.data.source import Position, Source, special_token_ids, text_model_files
from regard.training.objectives.objective import RowObjective
from regard.training.setup import Setup

# The epoch whose random numbers validation uses, which no training reaches.
VALIDATION_EPOCH = 2**40
MAX_SPECIAL_TOKENS = 3  # that frame a row: [CLS] A [SEP] B [SEP]


class PackedText(Source):
    """Rows of sentences that fit the context.

    With `pad_to_multiple_of` above 1 all batches are as wide as the context, so that few shapes
    occur.
    """

    unit = "rows"
    evaluation_factor = 1
    data: TextCorpora

    def __init__(self, model: Model, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.splits = {"train": data.train, "valid": data.valid}

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> TextCorpora:
        return text_corpora(setup, base)

    @classmethod
    def wrap(
        cls, model: Any, description: Any, config: dict[str, Any], data: TextCorpora
    ) -> TextEncoder:
        model_spec.check_vocabulary("vocabulary", description.input, len(data.tokenizer))
        config |= special_token_ids(data.tokenizer)
        return TextEncoder(model, description, data.tokenizer, config)

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        return text_model_files(model, setup)

    def lengths(self, split: str) -> NDArray[Any]:
        corpus = self.splits[split]
        return self._row_lengths(corpus, np.arange(len(corpus)))

    def _row_lengths(self, corpus: Corpus, rows: Rows) -> NDArray[Any]:
        """[rows, 1]: tokens of some rows with their special tokens."""
        lengths = corpus.columns["text"].row_lengths(rows)[:, None] + MAX_SPECIAL_TOKENS
        if self.setup.pad_to_multiple_of == 1:
            return lengths
        return np.full_like(lengths, self.setup.recipe.data.context)

    def sampler(self) -> BatchSampler | BlockSampler:
        # Not rounded here: `_row_lengths` has done it, where it is wanted.
        return corpus_sampler(
            self.data.train,
            self.settings.batch_tokens,
            seed=self.settings.seed,
            lengths=partial(self._row_lengths, self.data.train),
        )

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        raise NotImplementedError("rows become tensors as they are corrupted")

    def describe(self) -> str:
        return ""  # said when the corpora were written

    def row(self, split: str, row: int) -> Ids:
        ids: Ids = self.splits[split].columns["text"][row].astype(np.int64)
        return ids

    def sentence_starts(self, split: str, row: int) -> Ids:
        starts: Ids = self.splits[split].columns["breaks"][row].astype(np.int64)
        return starts

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        decode = self.data.tokenizer.decode
        return [{"row": row, "text": decode(self.row("train", row).tolist())} for row in rows]

    def statistics(self) -> InputStatistics:
        tokenizer = self.data.tokenizer
        special_tokens = len(tokenizer.frame([]))
        return corpus_statistics(self.data.train, "text", len(tokenizer), special_tokens)


class CorruptedText(RowObjective):
    """Batches of rows, which `collate` corrupts anew in every epoch."""

    # The unit: those tokens that are to be predicted.
    fills_context = True
    default_share = 0.15  # of the tokens, that is corrupted
    source_class = PackedText
    source: PackedText
    evaluation_epoch = VALIDATION_EPOCH

    def __init__(self, model: Model, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.tokenizer = data.tokenizer
        self.context = setup.recipe.data.context
        self.corrupted_share = self.settings.mask_ratio or self.default_share

    def random_numbers(self, epoch: int, row: int) -> RandomStream:
        """A random stream of the row's own: a resumed run corrupts the same tokens."""
        return RandomStream(self.settings.seed, epoch, row)

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
