"""Segment-level language modelling: recurrent networks, Transformer-XL, Compressive Transformer.

The text is cut into as many streams as a batch has rows, and a batch is the next segment of each.
The state of recurrent cells, or the memory of a Transformer-XL, is carried from segment to segment,
while gradients stay inside: truncated back-propagation through time (Williams and Peng 1990, Dai et
al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core.caches.kv_cache import DecoderState, LayerCache
from regard.core.context import Context
from regard.data.batching import Batch
from regard.data.training_coverage import InputStatistics
from regard.evaluation.metrics.perplexity import corpus_nll
from regard.models import LanguageModel
from regard.system.errors import CheckpointError, DataError, SettingError
from regard.training.data.plain_text import TextCorpora
from regard.training.objectives.causal_lm import CausalLM, next_token_loss, token_stream, windows
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup


class SegmentLM(CausalLM):
    """`carry` is the state of the layers after the last batch, which a checkpoint must hold."""

    def __init__(self, model: LanguageModel, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        if self.teacher is not None:
            raise SettingError(
                "a model with segment memory cannot have a teacher", "leave out the teacher"
            )
        # − 1: the label of the last token is the one after it.
        self.stream_length = (len(self.train_tokens) - 1) // self.rows
        if self.stream_length < self.context:
            raise DataError(
                f"{len(self.train_tokens):,} tokens are too few for "
                f"{self.rows} streams of {self.context}",
                "lower batch_tokens or context, or give more text",
            )
        self.carry = self._initial_carry(self.rows)

    def _initial_states(self, rows: int) -> list[LayerCache]:
        return self.model.stack.start_segments(rows, self.language_model.spec.d_model)

    def _initial_carry(self, rows: int) -> dict[str, Tensor]:
        tensors = _state_tensors(self._initial_states(rows))
        # Zeros, as a reset leaves them. Not on the model's device: a sharded one is on none yet.
        device = self.setup.device
        return {name: torch.zeros_like(tensor, device=device) for name, tensor in tensors.items()}

    def input_statistics(self) -> InputStatistics:
        # What is carried from segment to segment is one text, of any length.
        return replace(super().input_statistics(), longest=None)

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        if (index + 1) * self.context > self.stream_length:
            raise CheckpointError(
                f"the run is at segment {index:,} of a text with "
                f"{self.stream_length // self.context:,}",
                "start a new run; this one was trained on another text",
            )
        stream_starts = np.arange(self.rows) * self.stream_length  # [B]
        while True:
            # Segment `index` of every stream: row i goes on where it stopped in the batch before.
            starts = stream_starts + index * self.context
            batch = windows(self.train_tokens, starts, self.context)
            batch.tensors["goes_on"] = torch.tensor(index > 0)  # False resets the carried state
            index += 1
            if (index + 1) * self.context > self.stream_length:  # no further segment fits
                epoch += 1
                index = 0
            yield (epoch, index), batch

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        # A product and not a branch: a captured CUDA graph takes the same way each time.
        ranks = self.setup.ranks
        carry = {
            name: ranks.rows(tensor) * tensors["goes_on"] for name, tensor in self.carry.items()
        }
        loss, nll, carry = self.segment_loss(tensors, carry)
        for name, tensor in carry.items():
            # In place: a captured CUDA graph reads and writes these buffers. A rank that has no
            # rows of its own has computed another's.
            if ranks.weight:
                ranks.rows(self.carry[name]).copy_(tensor)
        return loss, nll

    def segment_loss(
        self, tensors: Mapping[str, Tensor], carry: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Loss, −log p, and the state that is carried on, without its gradient."""
        # New containers, filled with what is carried: the model updates them in place.
        states = self._initial_states(len(tensors["tokens"]))
        for layer, state in enumerate(states):
            prefix = f"{layer}."
            restored = {
                name.removeprefix(prefix): tensor
                for name, tensor in carry.items()
                if name.startswith(prefix)
            }
            state.self_attention = replace(state.self_attention, **restored)  # type: ignore[type-var]
        context = Context(state=DecoderState(states))
        loss, nll = self.total(next_token_loss(self.model, tensors, context))
        # detach: gradients stay inside the segment.
        after = {name: tensor.detach() for name, tensor in _state_tensors(states).items()}
        return loss, nll, after

    @torch.inference_mode()
    def nll(self, autocast: AbstractContextManager[Any]) -> tuple[float, int]:
        """−log p of every validation token but the first, read in streams as in training."""
        self.model.eval()
        return corpus_nll(self._segment_nlls(autocast))

    def _segment_nlls(self, autocast: AbstractContextManager[Any]) -> Iterator[tuple[Tensor, int]]:
        device = self.language_model.device
        count = len(self.validation_tokens) - 1
        # As many streams as in training, or fewer in a short text.
        length = max(1, count // self.rows)
        rows = count // length
        carry = self._initial_carry(rows)  # not that of training, which goes on afterwards
        for first in range(0, length, self.context):
            starts = np.arange(rows) * length + first
            width = min(self.context, length - first)
            batch = windows(self.validation_tokens, starts, width).to(device)
            with autocast:
                _, nll, carry = self.segment_loss(batch.tensors, carry)
            yield nll, batch.tokens
        # What the division into streams left over continues the last stream.
        rest = count - rows * length
        if rest:
            batch = windows(self.validation_tokens, np.array([count - rest]), rest).to(device)
            last_stream = {name: tensor[-1:] for name, tensor in carry.items()}
            with autocast:
                _, nll, _ = self.segment_loss(batch.tensors, last_stream)
            yield nll, batch.tokens


class LanguageModelling(CausalLM):
    """Factory of the objective `causal`: a SegmentLM if the model carries state between segments,
    otherwise a CausalLM. Here because `causal_lm` cannot import its own subclass."""

    @classmethod
    def create(cls, model: Any, data: TextCorpora, setup: Setup) -> Objective:
        if model.model.stack.carries_state:
            return SegmentLM(model, data, setup)
        return CausalLM(model, data, setup)

    @classmethod
    def fitting_batch_tokens(cls, model: Any, data: TextCorpora, setup: Setup) -> int:
        """A short text is cut into fewer streams."""
        size = setup.recipe.train.batch_tokens
        context = setup.recipe.data.context
        streams = (len(token_stream(data.train)) - 1) // context
        is_short = 1 <= streams < size // context
        return streams * context if is_short and model.model.stack.carries_state else size


def _state_tensors(states: list[LayerCache]) -> dict[str, Tensor]:
    """Every tensor of the layers' states, by `layer.name`."""
    tensors = {}
    for layer, state in enumerate(states):
        for field in fields(state.self_attention):  # type: ignore[arg-type]
            value = getattr(state.self_attention, field.name)
            if isinstance(value, Tensor):
                tensors[f"{layer}.{field.name}"] = value
    return tensors
