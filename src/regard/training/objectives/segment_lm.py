"""The task of a language model that carries something on: the next token, in streams of text, segment after segment.

The text is cut into as many streams as a batch has rows, and a batch is the next segment of each. What the layers carry, the
state of recurrent cells or the memory of a Transformer-XL, goes from segment to segment, while gradients stay inside:
truncated back-propagation through time (Williams and Peng 1990, Dai et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.core.cache import DecoderState, LayerCache
from regard.core.context import Context
from regard.data.batching import Batch
from regard.errors import DataError, SettingError
from regard.models.language_model import LanguageModel
from regard.training.data.plain_text import Texts
from regard.training.objectives.causal_lm import CausalLM, windows
from regard.training.objectives.distillation import Teacher
from regard.training.objectives.loss import beside, over_vocabulary
from regard.training.recipe.schema import Recipe


def next_token(
    writer: LanguageModel, data: Texts, recipe: Recipe, teacher: Teacher | None = None
) -> CausalLM:
    """The task of a language model: segments where it carries something on, otherwise windows at any place."""
    made = writer.spec
    carries = isinstance(made, spec.RecurrentDecoder) or made.stack.memory is not None
    if carries and teacher is not None:
        raise SettingError(
            "a model that carries something on learns from text alone", "leave the teacher out"
        )
    return SegmentLM(writer, data, recipe) if carries else CausalLM(writer, data, recipe, teacher)


class SegmentLM(CausalLM):
    """`carry` is what the layers carry after the last batch, which a checkpoint must hold."""

    def __init__(self, writer: LanguageModel, data: Texts, recipe: Recipe) -> None:
        super().__init__(writer, data, recipe)
        self.length = (len(self.tokens) - 1) // self.rows  # of each stream
        if self.length < self.context:
            raise DataError(
                f"{len(self.tokens):,} tokens make no {self.rows} streams of {self.context}",
                "lower batch_tokens or context, or give more text",
            )
        self.carry = self._nothing(self.rows)

    def _empty(self, rows: int) -> list[LayerCache]:
        return self.model.stack.start_segments(rows, self.writer.spec.d_model)

    def _nothing(self, rows: int) -> dict[str, Tensor]:
        return {name: part.clone() for name, part in _parts(self._empty(rows)).items()}

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        each = np.arange(self.rows) * self.length
        while True:
            batch = windows(self.tokens, each + index * self.context, self.context)
            batch.tensors["goes_on"] = torch.tensor(index > 0)
            last = (index + 2) * self.context > self.length
            epoch, index = (epoch + 1, 0) if last else (epoch, index + 1)
            yield (epoch, index), batch

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        began = {name: part * tensors["goes_on"] for name, part in self.carry.items()}
        loss, nll, after = self._read(tensors, began)
        for name, part in after.items():
            self.carry[name].copy_(
                part
            )  # the buffers stay where they are, so that a recorded step finds them
        return loss, nll

    def _read(
        self, tensors: Mapping[str, Tensor], began: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        states = self._empty(len(tensors["tokens"]))
        for i, state in enumerate(states):
            own = {
                name.partition(".")[2]: part
                for name, part in began.items()
                if name.startswith(f"{i}.")
            }
            state.self_attention = replace(state.self_attention, **own)  # type: ignore[type-var]
        hidden, others = self.model(tensors["tokens"], None, Context(state=DecoderState(states)))
        loss, nll = over_vocabulary(self.model.head, hidden, tensors["labels"])
        after = {name: part.detach() for name, part in _parts(states).items()}
        return beside(loss, others, tensors["labels"].numel()), nll, after

    @torch.inference_mode()
    def nll(self, precision: AbstractContextManager[Any]) -> tuple[float, int]:
        """−log p of every held-out token but the first, read in streams as training reads."""
        self.model.eval()
        count, device = len(self.held_out) - 1, self.writer.device
        length = max(1, count // self.rows)
        rows = count // length
        total, carry = torch.zeros((), dtype=torch.float64, device=device), self._nothing(rows)
        for first in range(0, length, self.context):
            batch = windows(
                self.held_out, np.arange(rows) * length + first, min(self.context, length - first)
            )
            with precision:
                _, nll, carry = self._read(batch.to(device).tensors, carry)
            total += nll.double()
        if rest := count - rows * length:
            batch = windows(self.held_out, np.array([count - rest]), rest).to(device)
            with precision:
                total += self._read(
                    batch.tensors, {name: part[-1:] for name, part in carry.items()}
                )[1].double()
        return total.item(), count


def _parts(states: list[LayerCache]) -> dict[str, Tensor]:
    """Every tensor that is carried, by layer and name."""
    return {
        f"{i}.{field.name}": part
        for i, state in enumerate(states)
        for field in fields(state.self_attention)  # type: ignore[arg-type]
        if isinstance(part := getattr(state.self_attention, field.name), Tensor)
    }
