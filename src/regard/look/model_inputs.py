"""The inputs of a forward pass: of one text with names for its positions, or of a padded batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.probe import Probe
from regard.core.side import FrontEnd, ImageFrontEnd
from regard.data.padding import pad_rows
from regard.look.backdrop import Backdrop
from regard.look.drawing import shown
from regard.look.forward import named_inputs
from regard.look.generation import translate
from regard.look.inspectable import Input, Inspectable, decoder_start, read_input, token_ids
from regard.look.probe_names import Head, require_texts, switched_off
from regard.system.errors import DataError, SettingError
from regard.wirings.core_model import CoreModel

IGNORED = -1  # the label of a position at which nothing is to be predicted

# ------------------------------------------------------------------ one input


@dataclass(frozen=True)
class PassInputs:
    """The inputs of a forward pass by the names of the model's arguments, one row an input."""

    named: dict[str, Tensor]

    @property
    def inputs(self) -> Tensor:
        """[B, S] token ids, or what another front end takes."""
        return next(iter(self.named.values()))

    @property
    def decoder_inputs(self) -> Tensor | None:
        """[B, T], what a decoder behind an encoder reads."""
        return self.named.get("decoder_input_ids", self.named.get("future_values"))


@dataclass(frozen=True)
class ModelInputs(PassInputs):
    """What one forward pass reads, for the encoder (or only stack) and for a decoder behind it.

    Decoders read their target by teacher forcing: `decoder_inputs` are the start tokens and the
    target without its last token.
    """

    input_tokens: tuple[str, ...]  # a name for each position of the inputs
    decoder_tokens: tuple[str, ...] = ()  # T + 1 names: the start tokens and the whole target
    next_ids: tuple[int, ...] = ()  # the token id to predict at each position of the last stack
    # What is read next to the inputs, by argument: the edges of a graph.
    side_inputs: Mapping[str, Tensor] = field(default_factory=dict)
    backdrop: Backdrop | None = None  # what the positions of the inputs stand on
    query_names: tuple[str, ...] = ()  # of a decoder's positions, where it reads nothing

    @property
    def arguments(self) -> dict[str, Tensor]:
        """All of them."""
        return {**self.named, **self.side_inputs}

    def tokens_of(self, stack: str) -> tuple[str, ...]:
        """The tokens that a stack reads; a decoder behind an encoder reads the target."""
        if stack == "decoder" and (self.decoder_tokens or self.query_names):
            return self.decoder_tokens[:-1] or self.query_names
        return self.input_tokens

    def queries_of(self, stack: str) -> tuple[str, ...]:
        """The names of a stack's positions; those of a decoder behind an encoder say what each
        reads and what it predicts: “Die → Katze”."""
        if stack != "decoder" or not self.decoder_tokens:
            return self.tokens_of(stack)
        names = [shown(token) for token in self.decoder_tokens]
        return tuple(f"{read} → {predicted}" for read, predicted in pairwise(names))

    @property
    def target_tokens(self) -> tuple[str, ...]:
        """The tokens that a decoder predicts: those it reads, one position later; or queries."""
        return self.decoder_tokens[1:] or self.query_names


def prepare_inputs(
    model: Inspectable,
    text: Input,
    target: str | Sequence[int] | None = None,
    off: Sequence[Head] = (),
) -> ModelInputs:
    """The inputs of a forward pass over one text.

    An encoder–decoder reads the `target`, or else its own translation, made with the heads `off`
    ablated.
    """
    core = model.model
    reading = read_input(model, text)
    inputs = reading.inputs
    tokens = reading.tokens
    if tokens is None:
        tokens = tuple(_position_names(core, inputs))
    if core.reads_target:
        if isinstance(target, str):
            target_ids = model.output_tokenizer.input_ids(target)
        elif target is not None:
            target_ids = [*target]
        else:
            best = translate(model, text, off=off)[0]
            assert reading.special_tokens is not None  # or `translate` would have refused
            target_ids = [*best.tokens, reading.special_tokens.end]
        decoder_ids = [*decoder_start(reading.special_tokens), *target_ids]
        decoder_inputs = torch.tensor([decoder_ids[:-1]], device=model.device)
        return ModelInputs(
            named_inputs(core, inputs, decoder_inputs),
            tokens,
            tuple(model.output_tokenizer.tokens(decoder_ids)),
            tuple(decoder_ids[1:]),
            backdrop=reading.backdrop,
        )
    if target is not None:
        raise no_target()
    # Made with the same heads off; None of models without a decoder behind an encoder.
    context = Context(Probe(edits=switched_off(core, off)))
    forecast = core.own_forecast(inputs, reading.side_inputs, context)
    names = () if forecast is None else (f"+{step}" for step in range(forecast.shape[1] + 1))
    decoder: Any = core.front_ends().get("decoder", FrontEnd())
    next_ids = inputs[0].tolist()[1:] if core.writes else []  # encoders predict no next token
    return ModelInputs(
        named_inputs(core, inputs, forecast),
        tokens,
        tuple(names),
        tuple(next_ids),
        reading.side_inputs,
        reading.backdrop,
        tuple(f"query {i}" for i in range(decoder.queries)),
    )


def no_target() -> SettingError:
    """The error of a target that is given to a model which reads one sequence."""
    return SettingError(
        "this model is not an encoder–decoder, so it has no target",
        "remove the target, or use an encoder–decoder",
    )


def _position_names(model: CoreModel, inputs: Tensor) -> Iterator[str]:
    """Names for the positions of inputs that are no text: `row,column` of patches, or numbers."""
    # Of two towers, one reads texts and the other images.
    tower = "image.encoder" if inputs.is_floating_point() else "text.encoder"
    front_ends = model.front_ends()
    front_end = front_ends.get(tower, front_ends.get("encoder"))
    if isinstance(front_end, ImageFrontEnd):
        yield from front_end.place_names(inputs)
        return
    length = inputs.shape[1]
    if front_end is not None:
        # Convolutions shorten sound: only running them tells how many positions are left.
        with torch.no_grad():
            length = front_end(inputs).shape[1]
    yield from (str(i) for i in range(length))


# ------------------------------------------------------------------ many texts


@dataclass(frozen=True)
class LabelledBatch(PassInputs):
    """Texts padded at the end; `labels` are the token ids to predict, −1 where there are none."""

    padding_mask: Tensor  # [B, S] bool
    labels: Tensor  # [B, T]

    def first(self, count: int) -> LabelledBatch:
        """Its first few texts."""
        named = {name: tensor[:count] for name, tensor in self.named.items()}
        return LabelledBatch(named, self.padding_mask[:count], self.labels[:count])


def batch(
    model: Inspectable, texts: Sequence[str], targets: Sequence[str] | None = None
) -> LabelledBatch:
    """A padded batch of texts, with the targets of an encoder–decoder as labels.

    A language model's labels are the texts themselves, shifted by one.
    """
    core = model.model
    require_texts(texts, targets)
    if targets is not None and not core.reads_target:
        raise no_target()
    inputs, padding_mask = pad_rows([token_ids(model, text) for text in texts], 0)
    inputs = inputs.to(model.device)
    padding_mask = padding_mask.to(model.device)  # True at tokens
    if not core.reads_target:
        labels = torch.full_like(inputs, IGNORED)
        labels[:, :-1] = inputs[:, 1:].masked_fill(~padding_mask[:, 1:], IGNORED)
        named = named_inputs(core, inputs, None, padding_mask)
        return LabelledBatch(named, padding_mask, labels)
    if targets is None:
        raise DataError("an encoder–decoder needs targets", "pass one target per text")
    target_rows = [model.output_tokenizer.input_ids(text) for text in targets]
    start_ids = decoder_start(model.special_tokens)
    # A prompt of several start tokens is given, not predicted: it has no labels but the last.
    prompt_labels = [IGNORED] * (len(start_ids) - 1)
    labels, _ = pad_rows([[*prompt_labels, *ids] for ids in target_rows], IGNORED)
    # Teacher forcing: the decoder reads what it should have predicted one position before.
    decoder_inputs, _ = pad_rows([[*start_ids, *ids[:-1]] for ids in target_rows], 0)
    named = named_inputs(core, inputs, decoder_inputs.to(model.device), padding_mask)
    return LabelledBatch(named, padding_mask, labels.to(model.device))
