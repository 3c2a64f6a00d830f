"""Encoder output: the memory that a decoder's cross-attention reads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.caches.kv_cache import DecoderState
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import DocumentMask, PairMask, padding_pattern
from regard.core.probe import NO_PROBE, NullProbe


class EncoderOutput(NamedTuple):
    """Hidden states of the sources, and which of their positions are tokens."""

    hidden: Tensor  # [B, S, D]
    padding_mask: Tensor | None = None  # [B, S] bool; None when nothing is padded
    # What each layer made, where decoder layers attend to the encoder layer of their own height.
    layers: tuple[Tensor, ...] = ()
    documents: Tensor | None = None  # [B, S], which of the texts in its row a position belongs to
    probe: NullProbe = NO_PROBE  # that decoding from here goes on with
    added: Tensor | None = None  # [B or 1, S, D], what cross-attention adds to its keys
    visible: Tensor | None = None  # [B, T, S] bool, by which target; None where all see all

    def for_layer(self, layer: int) -> Tensor:
        """The encoder states that this decoder layer attends to."""
        if self.layers:
            return self.layers[layer]
        return self.hidden

    def mask(self, target_documents: DocumentMask | None = None) -> AttentionMask:
        """The cross-attention mask: every query attends to all source tokens, or to those of its
        document."""
        batch, length = self.hidden.shape[:2]
        keys = torch.arange(length, device=self.hidden.device)  # [S]
        if self.visible is not None:
            queries = torch.arange(self.visible.shape[1], device=keys.device)
            return AttentionMask(PairMask(self.visible), queries, keys, batch)
        both = (self.documents is None) == (target_documents is None)
        assert both, "sources and targets are packed alike"
        if self.documents is None or target_documents is None:
            return cross_mask(self.padding_mask, keys, batch)
        query_ids = target_documents.document_ids  # [B, T]
        pattern = padding_pattern(self.padding_mask) & DocumentMask(self.documents, query_ids)
        queries = torch.arange(query_ids.shape[1], device=query_ids.device)  # [T]
        return AttentionMask(pattern, queries, keys, batch)


def cross_attention_mask(
    memory: EncoderOutput | None, state: DecoderState | None, documents: DocumentMask | None
) -> AttentionMask | None:
    """The mask of cross-attention over a memory, or over its keys and values in the caches; None if
    there is nothing to attend to. `documents` are those of the target."""
    if memory is not None:
        return memory.mask(documents)
    if state is None:
        return None
    cached = state.layers[0].cross_attention
    if cached is None:
        return None
    batch, _, length, _ = cached.k.shape
    keys = torch.arange(length, device=cached.k.device)
    return cross_mask(state.padding_mask, keys, batch)


def cross_mask(padding_mask: Tensor | None, keys: Tensor, batch: int) -> AttentionMask:
    """The cross-attention mask: all queries attend to all source tokens; one row serves all."""
    return AttentionMask(padding_pattern(padding_mask), keys[:1], keys, batch)
