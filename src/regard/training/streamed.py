"""The task of a recurrent language model: the next token, in streams of text whose state is carried on.

Back-propagation through time is truncated (Williams and Peng 1990): the text is cut into as many streams as a batch has
rows, a batch is the next window of each, and the state goes from window to window while gradients stay inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.api.writer import LanguageModel
from regard.core.recurrent import RecurrentDecoder
from regard.core.state import Carried, LayerState
from regard.data.batch import Batch
from regard.errors import DataError
from regard.model import Decoder
from regard.training.causal import stream, told, windows
from regard.training.loss import cross_entropy
from regard.training.recipe import Recipe
from regard.training.texts import Texts


class Streamed:
    """Windows of `context` tokens, in order. `carry` is the state after the last batch, which a checkpoint must hold."""

    def __init__(self, writer: LanguageModel, data: Texts, recipe: Recipe) -> None:
        self.writer, self.settings, self.context = writer, recipe.train, recipe.data.context
        self.tokens, self.held_out = stream(data.train), stream(data.valid)
        self.rows = max(1, recipe.train.batch_tokens // self.context)
        self.length = (len(self.tokens) - 1) // self.rows  # of each stream
        if self.length < self.context:
            raise DataError(
                f"{len(self.tokens):,} tokens make no {self.rows} streams of {self.context}",
                "lower batch_tokens or context, or give more text",
            )
        self.carry = self._nothing(self.rows)

    @property
    def model(self) -> Decoder:
        return self.writer.model

    def _nothing(self, rows: int) -> dict[str, Tensor]:
        assert isinstance(self.model.stack, RecurrentDecoder)
        start = self.model.stack.start(rows, 0)[0].past
        assert isinstance(start, Carried)
        parts = {"hidden": start.hidden, "cell": start.cell}
        return {name: part.clone() for name, part in parts.items() if part is not None}

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        each = np.arange(self.rows) * self.length
        while True:
            batch = windows(self.tokens, each + index * self.context, self.context)
            batch.tensors["goes_on"] = torch.tensor(float(index > 0))
            last = (index + 2) * self.context > self.length
            epoch, index = (epoch + 1, 0) if last else (epoch, index + 1)
            yield (epoch, index), batch

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        # The buffers stay where they are, so that a recorded step finds them.
        began = {name: part * tensors["goes_on"] for name, part in self.carry.items()}
        loss, surprise, after = self._read(tensors, began)
        for name, part in after.items():
            self.carry[name].copy_(part)
        return loss, surprise

    def _read(
        self, tensors: Mapping[str, Tensor], began: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        carried = Carried(**began)
        hidden, _ = self.model(tensors["tokens"], states=[LayerState(carried)])
        after = carried.detach()
        parts = {"hidden": after.hidden, "cell": after.cell}
        return (
            *cross_entropy(self.model.head(hidden), tensors["labels"]),
            {name: part for name, part in parts.items() if part is not None},
        )

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        decode = self.writer.words.decode
        return [{"row": row, "text": decode(self.tokens[row : row + self.context].tolist())} for row in rows]

    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any]:
        """loss (per token) over the whole held-out text, perplexity, and some text."""
        return told(self.writer, self.settings, self.held_out[:1].tolist(), *self.surprise(precision))

    @torch.inference_mode()
    def surprise(self, precision: AbstractContextManager[Any]) -> tuple[float, int]:
        """−log p of every held-out token but the first, read in streams as training reads."""
        self.model.eval()
        count = len(self.held_out) - 1
        length = max(1, count // self.rows)
        rows = count // length
        total = torch.zeros((), dtype=torch.float64, device=self.writer.device)
        carry = self._nothing(rows)
        for first in range(0, length, self.context):
            places = np.arange(rows) * length + first
            batch = windows(self.held_out, places, min(self.context, length - first)).to(self.writer.device)
            with precision:
                _, surprise, carry = self._read(batch.tensors, carry)
            total += surprise.double()
        if rest := count - rows * length:
            batch = windows(self.held_out, np.array([count - rest]), rest).to(self.writer.device)
            with precision:
                total += self._read(batch.tensors, {name: part[-1:] for name, part in carry.items()})[1].double()
        return total.item(), count
