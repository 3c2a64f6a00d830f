"""The task of a language model that remembers: the next token, in streams of text that are read segment after segment.

The text is cut into as many streams as a batch has rows, and a batch is the next segment of each. What the layers remember
of the segments before is carried on; gradients stay inside a segment (Dai et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.api.writer import LanguageModel
from regard.core.stack import Stack
from regard.core.state import Inputs, LayerState
from regard.data.batch import Batch
from regard.errors import DataError
from regard.training.causal import Causal, windows
from regard.training.loss import beside, over_vocabulary
from regard.training.recipe import Recipe
from regard.training.texts import Texts


class Segments(Causal):
    """`carry` is what the layers remember after the last batch, which a checkpoint must hold."""

    def __init__(self, writer: LanguageModel, data: Texts, recipe: Recipe) -> None:
        super().__init__(writer, data, recipe)
        self.length = (len(self.tokens) - 1) // self.rows  # of each stream
        if self.length < self.context:
            raise DataError(
                f"{len(self.tokens):,} tokens make no {self.rows} streams of {self.context}",
                "lower batch_tokens or context, or give more text",
            )
        self.carry = self._nothing(self.rows)

    def _nothing(self, rows: int) -> dict[str, Tensor]:
        assert isinstance(self.model.stack, Stack)
        return _parts(self.model.stack.remember(rows, self.writer.spec.d_model))

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        each = np.arange(self.rows) * self.length
        while True:
            batch = windows(self.tokens, each + index * self.context, self.context)
            batch.tensors["goes_on"] = torch.tensor(index > 0)
            last = (index + 2) * self.context > self.length
            epoch, index = (epoch + 1, 0) if last else (epoch, index + 1)
            yield (epoch, index), batch

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        began = {**self.carry, "real": self.carry["real"] & tensors["goes_on"]}
        loss, surprise, after = self._read(tensors, began)
        for name, part in after.items():
            self.carry[name].copy_(part)  # the buffers stay where they are, so that a recorded step finds them
        return loss, surprise

    def _read(
        self, tensors: Mapping[str, Tensor], began: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        states = [LayerState(Inputs(began[str(i)], began["real"])) for i in range(self.model.stack.layers)]
        hidden, others = self.model(tensors["tokens"], states=states)
        loss, surprise = over_vocabulary(self.model.head, hidden, tensors["labels"])
        return beside(loss, others, tensors["labels"].numel()), surprise, _parts(states)

    @torch.inference_mode()
    def surprise(self, precision: AbstractContextManager[Any]) -> tuple[float, int]:
        """−log p of every held-out token but the first, read in streams as training reads."""
        self.model.eval()
        count, device = len(self.held_out) - 1, self.writer.device
        length = max(1, count // self.rows)
        rows = count // length
        total, carry = torch.zeros((), dtype=torch.float64, device=device), self._nothing(rows)
        for first in range(0, length, self.context):
            batch = windows(self.held_out, np.arange(rows) * length + first, min(self.context, length - first))
            with precision:
                _, surprise, carry = self._read(batch.to(device).tensors, carry)
            total += surprise.double()
        if rest := count - rows * length:
            batch = windows(self.held_out, np.array([count - rest]), rest).to(device)
            with precision:
                total += self._read(batch.tensors, {name: part[-1:] for name, part in carry.items()})[1].double()
        return total.item(), count


def _parts(states: list[LayerState]) -> dict[str, Tensor]:
    pasts = [state.past for state in states]
    assert all(isinstance(past, Inputs) for past in pasts)
    found = {str(i): past.x for i, past in enumerate(pasts)}  # type: ignore[attr-defined]
    return {name: part.clone() for name, part in {**found, "real": pasts[0].real}.items()}  # type: ignore[attr-defined]
