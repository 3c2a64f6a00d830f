"""The wirings. A forward names the stations of the drawing in the paper, bottom to top."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.baselines.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from regard.baselines.memory_network import MemoryHops
from regard.baselines.recurrent import RecurrentDecoder, RecurrentEncoder
from regard.core.cache import DecoderState, LayerCache, TokenHistory, remembers, told
from regard.core.embedding import Embedding
from regard.core.frontend import FrontEnd
from regard.core.head import ClassifierHead, DistilledHead, LMHead, Pool
from regard.core.mask import AttentionMask, FullMask, MaskPattern, PaddingMask
from regard.core.mask_patterns import DocumentMask
from regard.core.probe import Probe
from regard.core.stack import Stack
from regard.errors import ModelError

EncoderPart = Stack | RecurrentEncoder | ConvolutionalEncoder
DecoderPart = Stack | RecurrentDecoder | ConvolutionalDecoder


class Encoded(NamedTuple):
    """What the encoder made of a batch of sources: the memory, and which of its positions are real."""

    memory: Tensor  # [B, S, D]
    padding_mask: Tensor | None  # [B, S] bool; None when nothing is padded
    layers: tuple[
        Tensor, ...
    ] = ()  # what each layer made, where the decoder's layers look at those of their own height
    of: Tensor | None = None  # [B, S], to which of the texts in its row each place belongs

    @property
    def seen(self) -> Tensor | tuple[Tensor, ...]:
        """What the decoder's layers look at: one for all, or one each."""
        return self.layers or self.memory


class Prompt(NamedTuple):
    """What a language model goes on from: tokens, with padding in front of the shorter rows."""

    tokens: Tensor  # [B, T]
    padding_mask: Tensor | None  # [B, T] bool; None when nothing is padded


class EncoderDecoder(nn.Module):
    """Figure 1 of "Attention Is All You Need"; its two sides may also be what came before."""

    padding_side = "right"  # where the shorter rows of a batch of inputs are padded

    def __init__(
        self,
        source: FrontEnd,
        target: Embedding,
        encoder: EncoderPart,
        decoder: DecoderPart,
        head: LMHead,
        *,
        matching: bool = False,
    ) -> None:
        super().__init__()
        self.matching = matching
        self.source = source
        self.target = target
        self.encoder = encoder
        self.decoder = decoder
        self.head = head

    def encode(
        self,
        source: Tensor,
        padding_mask: Tensor | None = None,
        probe: Probe | None = None,
        losses: dict[str, Tensor] | None = None,
        *,
        documents: DocumentMask | None = None,
    ) -> Encoded:
        """source [B, S] token ids, or [B, mels, N] frames of sound; `real` [B, S or N] is True at them, False at padding.
        `within`: several sources in one row, each as if alone."""
        x = self.source(source, **_restarted(documents))
        padding_mask = self.source.places(padding_mask)
        attention_mask = _told(
            self.encoder.attention_mask(
                0, x.shape[1], x.shape[0], _padding(padding_mask, documents)
            ),
            documents,
            self.encoder,
        )
        look, part = probe.scope("encoder") if probe else None, self.encoder
        if not isinstance(part, Stack):
            return Encoded(part(x, attention_mask, probe=look), padding_mask)
        each: list[Tensor] = []
        memory = part(
            x, attention_mask, probe=look, losses=losses, each=each if self.matching else None
        )
        layers = (*map(part.finish, each[:-1]), memory) if each else ()
        return Encoded(
            memory, padding_mask, layers, documents.of if documents is not None else None
        )

    def decode(
        self,
        target: Tensor,
        encoded: Encoded,
        probe: Probe | None = None,
        losses: dict[str, Tensor] | None = None,
        *,
        documents: DocumentMask | None = None,
    ) -> Tensor:
        """target [B, T] token ids → hidden states [B, T, D]; position t has seen targets up to t and the whole memory.
        `within`: several targets in one row, each of which sees the source of its number."""
        x = self.target(target, **_restarted(documents))
        attention_mask = self.decoder.attention_mask(
            0, target.shape[1], target.shape[0], _padding(None, documents)
        )
        attention_mask, by = (
            _told(attention_mask, documents, self.decoder),
            None if documents is None else documents.of,
        )
        over_memory = _over_memory(encoded.padding_mask, encoded.memory[:, :, 0], encoded.of, by)
        look = probe.scope("decoder") if probe else None
        if not isinstance(self.decoder, Stack):
            return self.decoder(x, attention_mask, encoded.memory, over_memory, probe=look)
        return self.decoder(x, attention_mask, encoded.seen, over_memory, probe=look, losses=losses)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        padding_mask: Tensor | None = None,
        probe: Probe | None = None,
        *,
        documents: tuple[DocumentMask, DocumentMask] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Hidden states [B, T, D], from which `head` makes logits, and auxiliary losses, those of both sides summed up.
        `within`: which of the sources, and which of the targets, in one row belong together."""
        losses: list[dict[str, Tensor]] = [{}, {}]
        sources, targets = documents or (None, None)
        encoded = self.encode(source, padding_mask, probe, losses[0], documents=sources)
        hidden = self.decode(target, encoded, probe, losses[1], documents=targets)
        names = sorted({*losses[0], *losses[1]})
        return hidden, {name: sum(each[name] for each in losses if name in each) for name in names}  # type: ignore[misc]

    def start(self, encoded: Encoded, *, width: int = 1, capacity: int) -> DecoderState:
        """The state before the first token, for `width` rows a sentence."""
        rows = encoded.memory.shape[0] * width
        over_memory = _over_memory(encoded.padding_mask, encoded.memory[:, :, 0])
        part = self.decoder
        if isinstance(part, Stack):
            return DecoderState(
                part.start(rows, capacity, encoded.seen, over_memory), width, encoded.padding_mask
            )
        return DecoderState(
            part.start(rows, capacity, encoded.memory, over_memory), width, encoded.padding_mask
        )

    def step(self, tokens: Tensor, state: DecoderState, probe: Probe | None = None) -> Tensor:
        """tokens [rows, T], the next of each row → logits [rows, T, V]; advances the state."""
        (batch, new), end = tokens.shape, state.end(tokens.shape[1])
        x = self.target(tokens, state.next, end=end)
        shared = {} if state.line is None else {"descent": state.descent(end)}
        attention_mask = self.decoder.attention_mask(
            state.next, new, batch // state.beams, FullMask(), end=end, **shared
        )
        memory = state.layers[0].memory  # a decoder without attention has none
        over_memory = (
            _over_memory(state.padding_mask, memory.k[:, 0, :, 0]) if memory is not None else None
        )
        look = probe.scope("decoder") if probe else None
        x = self.decoder(x, attention_mask, None, over_memory, states=state.layers, probe=look)
        state.advance(new)
        return self.head(x)


class Encoder(nn.Module):
    """A front end and a stack that sees its whole input: BERT, ViT and their kin. What stands on top is applied to what
    `forward` gives: `head(hidden)` makes scores over the vocabulary, `classes` those of labels; `vector` is one for each
    input."""

    def __init__(
        self,
        input: FrontEnd,
        stack: Stack,
        pool: Pool | None,
        head: LMHead | None,
        labels: ClassifierHead | DistilledHead | None,
    ) -> None:
        super().__init__()
        self.input = input
        self.stack = stack
        self.pool = pool
        self.head = head
        self.labels = labels

    def forward(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        *,
        documents: MaskPattern | None = None,
        global_tokens: Tensor | None = None,
        probe: Probe | None = None,
        **beside: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Hidden states [B, T, D] and auxiliary losses. `real` says which of the inputs (tokens, samples) are no
        padding; `within` is what else this batch may not see, as a graph, or documents in one row, each of which is as if
        alone; `global_tokens` [B, T] see all places and are seen by all; `beside` is what this front end takes with them, as
        segments are with tokens."""
        x = self.input(inputs, padding_mask=padding_mask, **beside, **_restarted(documents))
        seen = _padding(self.input.places(padding_mask), documents)
        attention_mask = _told(
            self.stack.attention_mask(0, x.shape[1], x.shape[0], seen, global_tokens=global_tokens),
            documents,
            self.stack,
        )
        losses: dict[str, Tensor] = {}
        return self.stack(
            x, attention_mask, probe=probe.scope("encoder") if probe else None, losses=losses
        ), losses

    def vector(self, inputs: Tensor, padding_mask: Tensor | None = None, **given: Any) -> Tensor:
        """One vector for each input: [B, D], or as wide as the pool makes it; `given` is what `forward` takes."""
        assert self.pool is not None, "this model has no pool"
        hidden, _ = self(inputs, padding_mask, **given)
        return self.pool(hidden, self.input.places(padding_mask), inputs)

    def classes(
        self, hidden: Tensor, padding_mask: Tensor | None = None, inputs: Tensor | None = None
    ) -> Tensor:
        """Scores of the labels: [B, T, count] if each position has one, else [B, count]. A pool that looks for the end
        token needs the `inputs`."""
        assert self.labels is not None, "this model has no labels"
        if self.pool is None or isinstance(self.labels, DistilledHead) or self.labels.each:
            return self.labels(hidden)
        return self.labels(self.pool(hidden, self.input.places(padding_mask), inputs))


class Decoder(nn.Module):
    """A language model: each position has seen what came before it."""

    padding_side = "left"  # so that all rows of a batch continue at the same place

    def __init__(self, tokens: Embedding, stack: Stack | RecurrentDecoder, head: LMHead) -> None:
        super().__init__()
        self.tokens = tokens
        self.stack = stack
        self.head = head

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        probe: Probe | None = None,
        *,
        documents: MaskPattern | None = None,
        states: Sequence[LayerCache] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Hidden states [B, T, D] and auxiliary losses. Padding may stand before or after a row's tokens; `within` is what
        else this batch may not see: documents in one row are as if alone; `states` is what the layers carry from the segment
        before, and carry on afterwards."""
        x = self.tokens(tokens, padding_mask=padding_mask, **_restarted(documents))
        start = 0
        if states is not None and remembers(states):
            padding_mask = told(
                states,
                torch.ones_like(tokens, dtype=torch.bool) if padding_mask is None else padding_mask,
            )
            start = padding_mask.shape[1] - tokens.shape[1]
        attention_mask = self.stack.attention_mask(
            start, tokens.shape[1], tokens.shape[0], _padding(padding_mask, documents), padding_mask
        )
        attention_mask = _told(attention_mask, documents, self.stack)
        look, losses = probe.scope("decoder") if probe else None, dict[str, Tensor]()
        if not isinstance(self.stack, Stack):
            return self.stack(x, attention_mask, states=states, probe=look), losses
        return self.stack(x, attention_mask, states=states, probe=look, losses=losses), losses

    def encode(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Prompt:
        """A prompt is read when decoding starts; there is nothing to prepare."""
        return Prompt(tokens, padding_mask)

    def start(
        self, prompt: Prompt, *, width: int = 1, capacity: int, probe: Probe | None = None
    ) -> DecoderState:
        """The state after all of the prompt but its last token, which is the first to `step` with; `capacity` counts what
        follows the prompt."""
        rows, length = prompt.tokens.shape
        if isinstance(self.stack, Stack) and self.stack.regrouped:
            state = DecoderState(
                [LayerCache(TokenHistory(prompt.tokens[:, :-1]))],
                1,
                prompt.padding_mask,
                length - 1,
            )
        else:
            state = DecoderState(self.stack.start(rows, length + capacity), 1, prompt.padding_mask)
            if length > 1:
                self._go_on(prompt.tokens[:, :-1], state, probe)
        state.widen(width, prompt.tokens.device)
        return state

    def step(self, tokens: Tensor, state: DecoderState, probe: Probe | None = None) -> Tensor:
        """tokens [rows, T], the next of each row → logits [rows, T, V]; advances the state."""
        return self.head(self._go_on(tokens, state, probe))

    def _go_on(self, tokens: Tensor, state: DecoderState, probe: Probe | None) -> Tensor:
        """As `step`, without the head: of a long prompt, nobody asks for the scores of all words at every place."""
        (batch, new), end = tokens.shape, state.end(tokens.shape[1])
        each = (
            None
            if state.padding_mask is None
            else state.padding_mask.repeat_interleave(state.width, dim=0)
        )
        if isinstance(written := state.layers[0].past, TokenHistory):
            state.advance(new)
            return self._anew(written.add(tokens), each, probe)[:, -new:]
        if remembers(state.layers):
            now = _grown(each, end)
            hidden: Tensor = self(
                tokens, None if now is None else now[:, -new:], probe, states=state.layers
            )[0]
            state.advance(new)
            return hidden
        x = self.tokens(tokens, state.next, end=end, padding_mask=each)
        padding_mask, shared = (
            (each, {})
            if state.line is None
            else (state.padding_mask, {"descent": state.descent(end)})
        )
        documents = _padding(_grown(padding_mask, end))
        attention_mask = self.stack.attention_mask(
            state.next, new, batch // state.beams, documents, padding_mask, end=end, **shared
        )
        hidden = self.stack(
            x, attention_mask, states=state.layers, probe=probe.scope("decoder") if probe else None
        )
        state.advance(new)
        return hidden

    def _anew(self, tokens: Tensor, padding_mask: Tensor | None, probe: Probe | None) -> Tensor:
        """Hidden states of whole texts, where padding would change what is in a chunk: rows that begin at the same place are
        read together, from there on."""
        if padding_mask is None:
            return self(tokens, probe=probe)[0]  # type: ignore[no-any-return]
        begins, out = padding_mask.long().argmax(dim=1), None
        for begin in begins.unique().tolist():
            rows = begins == begin
            found = self(tokens[rows, begin:], probe=probe)[0]
            out = found.new_zeros(*tokens.shape, found.shape[-1]) if out is None else out
            out[rows, begin:] = found
        assert out is not None
        return out


class DualEncoder(nn.Module):
    """Two towers over one space: which text belongs to which image (Radford et al. 2021)."""

    def __init__(self, text: Encoder, image: Encoder, scale: float) -> None:
        super().__init__()
        self.text = text
        self.image = image
        self.scale = nn.Parameter(torch.tensor(scale))  # of the cosines, as a logarithm

    def texts(
        self, tokens: Tensor, padding_mask: Tensor | None = None, probe: Probe | None = None
    ) -> Tensor:
        """tokens [B, T] → vectors of length 1: [B, width]"""
        return functional.normalize(
            self.text.vector(tokens, padding_mask, probe=probe.scope("text") if probe else None),
            dim=-1,
        )

    def images(self, pixels: Tensor, probe: Probe | None = None) -> Tensor:
        """pixels [B, channels, size, size] → vectors of length 1: [B, width]"""
        return functional.normalize(
            self.image.vector(pixels, probe=probe.scope("image") if probe else None), dim=-1
        )

    def forward(
        self,
        tokens: Tensor,
        pixels: Tensor,
        padding_mask: Tensor | None = None,
        probe: Probe | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Scores of each text with each image [texts, images], and auxiliary losses (none here)."""
        cosines = self.texts(tokens, padding_mask, probe) @ self.images(pixels, probe).mT
        return cosines * self.scale.exp(), {}


class MemoryNetwork(nn.Module):
    """Sentences and a question in, scores of the word that answers out (Sukhbaatar et al. 2015)."""

    def __init__(self, hops: MemoryHops) -> None:
        super().__init__()
        self.hops = hops

    def forward(
        self,
        story: Tensor,
        question: Tensor,
        padding_mask: Tensor | None = None,
        asked: Tensor | None = None,
        probe: Probe | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """story [B, N, S], the oldest sentence first, and question [B, Q]; `real` [B, N, S] and `asked` [B, Q] are True at
        words, False at padding → what is known at the end [B, D], and auxiliary losses (none here)."""
        padding_mask = (
            torch.ones_like(story, dtype=torch.bool) if padding_mask is None else padding_mask
        )
        asked = torch.ones_like(question, dtype=torch.bool) if asked is None else asked
        return self.hops(
            story, padding_mask, question, asked, probe.scope("memory") if probe else None
        ), {}

    @staticmethod
    def apart(whole: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `forward` takes, from one tensor [B, N + 1, S] of sentences of which the last is the question, with −1 where
        no word is."""
        padding_mask, words = whole >= 0, whole.clamp_min(0)
        return words[:, :-1], words[:, -1], padding_mask[:, :-1], padding_mask[:, -1]

    def head(self, hidden: Tensor) -> Tensor:
        """Scores of all words, by the table from which the last hop took what it found."""
        return functional.linear(hidden, self.hops.tables[-1].weight)  # type: ignore[arg-type]


class Function(nn.Module):
    """A model seen as one function of tensors, for exporters, which take a module and nothing else."""

    def __init__(self, model: nn.Module, call: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        return self.call(self.model, *given)


def _padding(padding_mask: Tensor | None, documents: MaskPattern | None = None) -> MaskPattern:
    seen: MaskPattern = FullMask() if padding_mask is None else PaddingMask(padding_mask)
    return seen if documents is None else seen & documents


def _restarted(documents: MaskPattern | None) -> dict[str, Tensor]:
    """What an embedding is told of several texts in one row."""
    return {"places": documents.places} if isinstance(documents, DocumentMask) else {}


def _told(
    attention_mask: AttentionMask, documents: MaskPattern | None, part: nn.Module
) -> AttentionMask:
    """The same sight, with places that are counted in each text of a row."""
    if isinstance(documents, DocumentMask):
        if not isinstance(part, Stack) or attention_mask.pattern.anchored:
            raise ModelError(
                "cells, convolutions, and attention in blocks count from the beginning of a row, not of each text in it",
                "give each text a row of its own",
            )
        attention_mask.places = documents.places
    return attention_mask


def _over_memory(
    padding_mask: Tensor | None, like: Tensor, of: Tensor | None = None, by: Tensor | None = None
) -> AttentionMask:
    """All queries, wherever they are, see all real places of a memory, or those of their own text; `like` is [B, S]."""
    places = torch.arange(like.shape[1], device=like.device)
    if of is None or by is None:
        assert of is by, "sources and targets are packed alike"
        return AttentionMask(_padding(padding_mask), places[:1], places, batch=like.shape[0])
    return AttentionMask(
        _padding(padding_mask, DocumentMask(of, by)),
        torch.arange(by.shape[1], device=by.device),
        places,
        like.shape[0],
    )


def _grown(padding_mask: Tensor | None, length: int) -> Tensor | None:
    """What is real of the first `length` places, when all that followed the prompt is."""
    if padding_mask is None:
        return None
    if length <= padding_mask.shape[1]:
        return padding_mask[:, :length]
    return torch.cat(
        [
            padding_mask,
            padding_mask.new_ones(padding_mask.shape[0], length - padding_mask.shape[1]),
        ],
        dim=1,
    )
