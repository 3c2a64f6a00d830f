"""The context of a forward pass: what a call carries besides tensors.

Without one, `Context()` is used. Modules pass it on to their parts, and each part reads the fields
that it needs.
"""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from regard.core.caches.kv_cache import NO_LAYER_CACHE, DecoderState, LayerCache, Positions
from regard.core.encoder_output import EncoderOutput
from regard.core.masks.attention_mask import MaskAxes
from regard.core.masks.mask import Call, DocumentMask
from regard.core.probe import NO_PROBE, NullProbe, RowsOfInputs

Losses = MutableMapping[str, Tensor]
# What models return, by name: load balancing of experts, ponder cost.
AuxiliaryLosses = dict[str, Tensor]


class LayerContext(NamedTuple):
    """The context of one application of a block."""

    probe: NullProbe = NO_PROBE
    losses: Losses | None = None
    cache: LayerCache = NO_LAYER_CACHE
    # [B, T], True at tokens: for parts besides attention (BatchNorm, convolutions, experts).
    padding_mask: Tensor | None = None
    # Of its positions, if they are those of an image or of an alignment.
    grid: tuple[int, int] | None = None
    rows: RowsOfInputs | None = None  # how the batch is made of inputs, if it is another one

    def scope(self, name: str) -> LayerContext:
        """The same, seen from inside the sublayer called `name`."""
        if not self.probe.active:
            return self
        return self._replace(probe=self.probe.scope(name))

    def add_loss(self, name: str, loss: Tensor) -> None:
        """Adds to the auxiliary loss of this name, if losses are collected."""
        if self.losses is not None:
            self.losses[name] = self.losses[name] + loss if name in self.losses else loss


@dataclass
class Context:
    """The context of one call of a model: a probe, auxiliary losses, packed documents, caches."""

    # What is recorded and edited on the way.
    probe: NullProbe = NO_PROBE
    # Auxiliary losses by name (load balance, ponder cost, compression), filled by the parts; None
    # where nobody asks, as in a decoding step. Not a dict: FSDP2 copies those among the arguments
    # of a block, and what is added to a copy is lost.
    losses: Losses | None = field(default_factory=UserDict)
    # Packing: documents that share a row (of the source or the only sequence).
    documents: DocumentMask | None = None
    # The same for the target sequence of an encoder–decoder.
    target_documents: DocumentMask | None = None
    # [B, T], True at target tokens. Attention needs none: a causal mask hides padding on the right.
    target_padding_mask: Tensor | None = None
    # The padding mask of the stack at hand, for parts besides attention only, where it is another:
    # decoders need none for attention, and some models let convolutions read padding.
    token_mask: Tensor | None = None
    # The inputs of the model by name, for masks and positions that depend on them.
    inputs: Mapping[str, Tensor | None] = field(default_factory=dict)
    # Images of other sizes are read too: learned positions are interpolated.
    interpolates: bool = False
    # Longformer: tokens [B, S] that attend to everything and are attended to by all.
    global_tokens: Tensor | None = None
    # [B or 1, T, D], what attention adds to its queries and keys, where the front end says so.
    added: Tensor | None = None
    # Rows and columns of the positions of an image or an alignment, as the front end gives them.
    grid: tuple[int, int] | None = None
    # Caches of decoding, or what segments carry on.
    state: DecoderState | None = None
    # Filled with the output of each layer, if it is a list.
    layer_outputs: list[Tensor] | None = None

    def scope(self, name: str) -> Context:
        """The same context, seen from inside the part called `name`."""
        if not self.probe.active:
            return self
        return dataclasses.replace(self, probe=self.probe.scope(name))

    @classmethod
    def decoding(cls, state: DecoderState) -> Context:
        """The context of a decoding step: caches, and no auxiliary losses."""
        return cls(probe=state.probe.scope("decoder"), losses=None, state=state)

    def output(self, hidden: Tensor, padding_mask: Tensor | None) -> EncoderOutput:
        """The encoder output of this call, with its documents and its probe."""
        documents = None if self.documents is None else self.documents.document_ids
        return EncoderOutput(
            hidden, padding_mask, documents=documents, probe=self.probe, added=self.added
        )

    def target(self) -> Context:
        """The context of the decoder of an encoder–decoder."""
        inner = dataclasses.replace(
            self,
            documents=self.target_documents,
            global_tokens=None,
            token_mask=self.target_padding_mask,
        )
        return inner.scope("decoder")

    def positions(self, length: int) -> Positions:
        """The positions of the next `length` tokens of a sequence, as embeddings count them."""
        if self.state is None:
            return Positions(0, length, length)
        return self.state.positions(length)

    def axes(self, x: Tensor, layer: int) -> MaskAxes:
        """The positions of x [rows, T, D], and of the keys that a layer attends to."""
        return MaskAxes.counted(0, x) if self.state is None else self.state.axes(x, layer)

    def call(self, axes: MaskAxes, x: Tensor, padding_mask: Tensor | None) -> Call:
        """What masks and positions may know of a call on x [rows, T, D]."""
        if self.state is not None:
            padding_mask = self.state.join_padding(padding_mask, x)
        return Call(
            axes.length,
            x.device,
            axes.rows,
            padding_mask,
            self.documents,
            self.global_tokens,
            self.inputs,
            self.added,
        )

    def layer(self, number: int) -> LayerContext:
        """The context of the layer of this number."""
        cache = NO_LAYER_CACHE if self.state is None else self.state.layers[number]
        # An inactive probe is its own scope: no object is made for each layer.
        probe = self.probe.scope(str(number)) if self.probe.active else self.probe
        return LayerContext(probe, self.losses, cache, grid=self.grid)

    def layer_done(self, layer: LayerContext, hidden: Tensor) -> Tensor:
        """The output of a layer, on its way to the next one."""
        hidden = layer.probe.through("residual", hidden)
        if self.layer_outputs is not None:
            self.layer_outputs.append(hidden)
        return hidden
