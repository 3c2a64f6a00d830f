"""What the tasks share that hide a part of every row of a text: the order of rows, and a row's own chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batching import Batch, Order, Rows, plan
from regard.data.corpus import Corpus
from regard.data.text_corruption import Chance, Ids
from regard.training.data.plain_text import Texts
from regard.training.recipe.schema import Recipe

HELD_OUT = 2**40  # the epoch that validation draws from, which no training reaches


class TextRows(ABC):
    """Batches of rows, of which `collate` hides something. With a `multiple` above 1 all batches are as wide as the context,
    so that few shapes occur."""

    unit = "tokens"  # of those, the ones that were hidden

    def __init__(self, data: Texts, recipe: Recipe, device: torch.device, multiple: int) -> None:
        self.words, self.train, self.held_out = data.tokenizer, data.train, data.valid
        self.settings, self.context, self.multiple, self.device = (
            recipe.train,
            recipe.data.context,
            multiple,
            device,
        )
        self.share = recipe.train.hidden or (0.3 if recipe.train.objective == "denoise" else 0.15)

    @abstractmethod
    def collate(self, corpus: Corpus, rows: Rows, epoch: int) -> Batch:
        """These rows as they are in this epoch."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        order = Order(
            self._lengths(self.train), self.settings.batch_tokens, seed=self.settings.seed
        )
        for now, i, rows in order.iterate(epoch, index):
            yield (now, i + 1), self.collate(self.train, rows, now)

    def held_out_batches(self) -> Iterator[Batch]:
        """All of the held-out rows, with the same hidden each time."""
        lengths = self._lengths(self.held_out)
        for rows in plan(lengths, self.settings.batch_tokens, seed=0, epoch=0, shuffle=False):
            yield self.collate(self.held_out, rows, HELD_OUT).to(self.device)

    def _lengths(self, corpus: Corpus) -> Any:
        lengths = corpus.columns["text"].lengths[:, None] + 3
        return lengths if self.multiple == 1 else np.full_like(lengths, self.context)

    def row(self, corpus: Corpus, row: int) -> Ids:
        return corpus.columns["text"][row].astype(np.int64)

    def breaks(self, corpus: Corpus, row: int) -> Ids:
        return corpus.columns["breaks"][row].astype(np.int64)

    def chance(self, epoch: int, row: int) -> Chance:
        return Chance(self.settings.seed, epoch, row)

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {"row": row, "text": self.words.decode(self.row(self.train, row).tolist())}
            for row in rows
        ]

    def padded(self, rows: Sequence[Sequence[int] | Ids], value: int, *, least: int = 0) -> Tensor:
        """[B, T], as wide as the longest rounded up to the multiple, or `least`."""
        widest = max(least, *(len(row) for row in rows))
        width = -(-widest // self.multiple) * self.multiple
        cells = np.full((len(rows), width), value, dtype=np.int64)
        for i, row in enumerate(rows):
            cells[i, : len(row)] = row
        return torch.from_numpy(cells)

    def shown(self, ids: Sequence[int]) -> str:
        """A text with its special tokens visible, except those around it."""
        around = {self.words.special_token_id(role) for role in ("pad", "bos", "eos")}
        pieces: list[str] = []
        run: list[int] = []
        for token in ids:
            if token not in self.words.special_ids:
                run.append(token)
                continue
            pieces += [
                self.words.decode(run),
                "" if token in around else self.words.id_to_token(token),
            ]
            run = []
        return "".join([*pieces, self.words.decode(run)])
