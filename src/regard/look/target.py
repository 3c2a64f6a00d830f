"""What is looked at: a core model and its words. The same few functions for every wiring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.baselines.memory_network import MemoryHops, MemoryNetwork
from regard.core.cache import DecoderState
from regard.core.context import Context
from regard.core.frontend import Patches
from regard.core.positional_encoding import AxialPosition, LearnedPosition
from regard.core.probe import PARTS, Edit, HasHeads, Probe
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.events import StepCallback
from regard.decode.strategy import BeamSearch, Hypothesis
from regard.errors import DataError, SettingError, did_you_mean
from regard.model import (
    Decoder,
    DecoderSide,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    EncoderSide,
)
from regard.text.tokenizer import Tokenizer

Model = EncoderDecoder | Encoder | Decoder | DualEncoder | MemoryNetwork
Head = tuple[str, int]  # ("decoder.2.cross", 3)


@dataclass(frozen=True)
class Words:
    """Text as a model reads or writes it: `ids` of a text with the special tokens around it, the `spans` of characters that
    each of these stands for (empty for special ones), the `tokens` of ids, and the `text` that ids spell."""

    ids: Callable[[str], list[int]]
    spans: Callable[[str], Sequence[tuple[int, int]]]
    tokens: Callable[[Sequence[int]], list[str]]
    text: Callable[[Sequence[int]], str]

    @staticmethod
    def of(tokenizer: Tokenizer) -> Words:
        """Of a tokenizer, with the special tokens of its framing."""
        return Words(
            tokenizer.input_ids, tokenizer.input_offsets, tokenizer.tokens, tokenizer.decode
        )

    def inner(self, text: str) -> list[int]:
        """The ids of a text without those around it."""
        return [
            i
            for i, (start, end) in zip(self.ids(text), self.spans(text), strict=True)
            if end > start
        ]


@dataclass(frozen=True)
class Given:
    """An input that is no text: what the model reads of it, a picture of that for people (bytes [height, width] or
    [height, width, 3], sound from low to high), and how decoding begins where that hangs on it."""

    inputs: Tensor  # [1, …]
    picture: NDArray[np.uint8]
    ends: SpecialTokens | None = None


@dataclass(frozen=True)
class Medium:
    """What a model takes beside text or instead of it; `read` makes an input of a file's contents."""

    kind: Literal["image", "sound"]
    read: Callable[[bytes], Given]


@dataclass(frozen=True)
class Subject:
    """What is looked at: `source` is the text that goes in, `target` what comes out of an encoder–decoder; `ends` frames what
    is decoded; `medium` says which files it can be shown; `told` makes sentences of a story, and
    names them. Any model can be looked at while it reads tensors."""

    model: Model
    source: Words | None = None
    target: Words | None = None
    ends: SpecialTokens | None = None
    medium: Medium | None = None
    told: Callable[[str], tuple[Tensor, tuple[str, ...]]] | None = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def reads(self) -> Words:
        if self.told is not None:
            raise SettingError(
                "this view goes token by token, and the model reads sentences",
                "look at its attention",
            )
        if self.source is None:
            raise SettingError(
                "this model has no tokenizer to read text with", "give a tensor of its inputs"
            )
        return self.source

    @property
    def writes(self) -> Words:
        """Of an encoder–decoder the target's, otherwise its own."""
        return self.target or self.reads

    def ids(self, text: str) -> list[int]:
        """The tokens that the model reads of a text."""
        ids = self.reads.ids(text)
        if not ids:
            raise DataError("there is nothing to read in this text", "give at least one word")
        return ids

    @property
    def start(self) -> list[int]:
        """What the decoder begins with."""
        start = self.ends.start if self.ends is not None else None
        return [start] if isinstance(start, int) else list(start or ())


class Holds(Protocol):
    """A model that a user holds."""

    def subject(self) -> Subject: ...


def subject_of(held: Subject | Holds) -> Subject:
    return held if isinstance(held, Subject) else held.subject()


# ------------------------------------------------------------------ one text


@dataclass(frozen=True)
class Reading:
    """What one run of a model is over: `inputs` for its encoder (or its only stack), `outputs` for a decoder behind it.

    `labels` name the places of the inputs, `written` those of the outputs as they are read, `next` what the model is to say
    at each place of its last stack.
    """

    inputs: Tensor  # [1, S] tokens, or what another front end takes
    labels: tuple[str, ...]
    outputs: Tensor | None = None  # [1, T]
    written: tuple[str, ...] = ()
    next: tuple[int, ...] = ()

    @property
    def said(self) -> tuple[str, ...]:
        """The tokens a decoder writes: those it reads, one place later."""
        return self.written[1:]


def read(
    subject: Subject, text: str | Tensor, target: str | None = None, off: Sequence[Head] = ()
) -> Reading:
    """The tokens of a text. An encoder–decoder's target is what it translates the text to, unless one is given."""
    if isinstance(text, Tensor):
        inputs = text.to(subject.device)
        labels = tuple(_places(subject.model, inputs))
    elif subject.told is not None:
        inputs, labels = subject.told(text)
        inputs = inputs.to(subject.device)
    else:
        ids = subject.ids(text)
        inputs = torch.tensor([ids], device=subject.device)
        labels = tuple(subject.reads.tokens(ids))
    if not isinstance(subject.model, EncoderDecoder):
        if target is not None:
            raise SettingError(
                "this model writes no target", "leave the target out, or give an encoder–decoder"
            )
        following = inputs[0].tolist()[1:] if isinstance(subject.model, Decoder) else ()
        return Reading(inputs, labels, next=tuple(following))
    if target is None:
        ids = [
            *translate(subject, inputs[0], off=off)[0].tokens,
            cast(SpecialTokens, subject.ends).end,
        ]
    else:
        ids = subject.writes.ids(target)
    whole = [*subject.start, *ids]
    written = tuple(subject.writes.tokens(whole))
    return Reading(
        inputs, labels, torch.tensor([whole[:-1]], device=subject.device), written, tuple(whole[1:])
    )


def _places(model: Model, inputs: Tensor) -> Iterator[str]:
    """Names for the places of inputs that are no text."""
    front = {
        Encoder: lambda m: m.input,
        EncoderDecoder: lambda m: m.source,
        DualEncoder: lambda m: m.image.input,
    }
    part = front[type(model)](model) if type(model) in front else None
    if isinstance(part, Patches):
        yield from (f"extra {i}" for i in range(len(part.extras)))
        yield from (f"{i // part.side},{i % part.side}" for i in range(part.side**2))
        return
    with torch.no_grad():
        length = part(inputs).shape[1] if isinstance(part, nn.Module) else inputs.shape[1]
    yield from (str(i) for i in range(length))


# ------------------------------------------------------------------ running


@contextmanager
def at_rest(model: Model, gradients: bool = False) -> Iterator[None]:
    """Without dropout, and without gradients unless they are asked for; afterwards the model is as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.set_grad_enabled(gradients):
            yield
    finally:
        model.train(was_training)


def run(
    model: Model,
    inputs: Tensor,
    outputs: Tensor | None = None,
    padding_mask: Tensor | None = None,
    probe: Probe | None = None,
) -> Tensor:
    """What the model says at last: scores of tokens [B, T, V] or of labels, or where it has none of these, its vectors."""
    result = top(model, hidden(model, inputs, outputs, padding_mask, probe), padding_mask, inputs)
    return probe.through("logits", result) if probe else result


def hidden(
    model: Model,
    inputs: Tensor,
    outputs: Tensor | None = None,
    padding_mask: Tensor | None = None,
    probe: Probe | None = None,
) -> Tensor:
    """What the last stack gives, before a vocabulary or labels are looked up; of two towers, the vector of the input."""
    context = Context() if probe is None else Context(probe=probe)
    match model:
        case EncoderDecoder():
            assert outputs is not None
            return model(inputs, outputs, padding_mask, context)[0]
        case Decoder():
            return model(inputs, padding_mask, context)[0]
        case Encoder():
            return model(inputs, padding_mask, context)[0]
        case MemoryNetwork():
            return model(*MemoryNetwork.split_inputs(inputs), context)[0]
        case DualEncoder():
            return (
                model.images(inputs, context)
                if inputs.is_floating_point()
                else model.texts(inputs, padding_mask, context)
            )


def top(model: Model, hidden: Tensor, padding_mask: Tensor | None, inputs: Tensor) -> Tensor:
    """What stands on top of the last stack."""
    if isinstance(model, DualEncoder):
        return hidden
    if model.head is not None:
        return model.head(hidden)
    assert isinstance(model, Encoder)
    if model.labels is not None:
        return model.classes(hidden, padding_mask, inputs)
    return (
        hidden
        if model.pool is None
        else model.pool(hidden, model.input.output_padding_mask(padding_mask), inputs)
    )


class Steered:
    """A model as decoding sees it, whose every call goes through one trace."""

    def __init__(self, model: EncoderDecoder | Decoder, probe: Probe) -> None:
        self.model, self.probe = model, probe
        self.padding_side, self.training = model.padding_side, model.training

    def encode(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Any:
        if isinstance(self.model, Decoder):
            return self.model.encode(tokens, padding_mask)
        return self.model.encode(tokens, padding_mask, Context(probe=self.probe))

    def start(self, encoded: Any, *, width: int = 1, capacity: int) -> DecoderState:
        if isinstance(self.model, Decoder):
            return self.model.start(encoded, width=width, capacity=capacity, probe=self.probe)
        return self.model.start(encoded, width=width, capacity=capacity)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        return self.model.step(tokens, state, self.probe)

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def eval(self) -> None:
        self.model.eval()

    def train(self, mode: bool) -> None:
        self.model.train(mode)


def translate(
    subject: Subject,
    text: str | Tensor,
    settings: DecodingSettings | None = None,
    *,
    off: Sequence[Head] = (),
    watch: StepCallback | None = None,
) -> list[Hypothesis]:
    """What the model writes after one text, best first: with some heads switched off, with someone watching."""
    model = subject.model
    if not isinstance(model, EncoderDecoder | Decoder) or subject.ends is None:
        raise SettingError(
            "this model writes nothing", "give an encoder–decoder or a language model"
        )
    source: Any = (
        subject.ids(text)
        if isinstance(text, str)
        else text
        if text.is_floating_point()
        else text.tolist()
    )
    settings = settings or DecodingSettings(BeamSearch())
    known = room(subject, len(source))
    if known is not None:
        settings = replace(settings, limit=replace(settings.limit, maximum=max(1, known)))
    steered = cast(Any, Steered(model, Probe(edits=switched_off(model, off)))) if off else model
    return decode(steered, [source], subject.ends, settings, on_step=watch)[0]


def room(subject: Subject, length: int) -> int | None:
    """How many tokens can be written after an input of this length, where positions are learnt one by one."""
    model = subject.model
    assert isinstance(model, EncoderDecoder | Decoder)
    position = (model.target if isinstance(model, EncoderDecoder) else model.tokens).position
    if not isinstance(position, LearnedPosition | AxialPosition):
        return None
    known = (
        position.length
        if isinstance(position, AxialPosition)
        else len(position.table) - position.offset
    )
    return known - (length if isinstance(model, Decoder) else len(subject.start))


def written(subject: Subject, found: Hypothesis) -> str:
    """The text of what was decoded."""
    return subject.writes.text(found.tokens)


# ------------------------------------------------------------------ many texts


@dataclass(frozen=True)
class Batch:
    """Texts of a batch, padded behind: `asked` holds what the model is to say at each place, −1 where nothing is asked."""

    inputs: Tensor  # [B, S]
    padding_mask: Tensor  # [B, S] bool
    outputs: Tensor | None  # [B, T]
    asked: Tensor  # [B, T]

    def first(self, count: int) -> Batch:
        """Its first few texts."""
        outputs = None if self.outputs is None else self.outputs[:count]
        return Batch(self.inputs[:count], self.padding_mask[:count], outputs, self.asked[:count])


def batch(subject: Subject, texts: Sequence[str], targets: Sequence[str] | None = None) -> Batch:
    """Texts, with the targets that an encoder–decoder is to write; a language model is to write the texts themselves."""
    rows = [subject.ids(text) for text in texts]
    if not rows:
        raise DataError("there are no texts to run the model on", "give at least one")
    inputs = _padded(rows, subject.device)
    padding_mask = inputs >= 0
    if not isinstance(subject.model, EncoderDecoder):
        asked = torch.cat([inputs[:, 1:], torch.full_like(inputs[:, :1], -1)], dim=1)
        return Batch(inputs.clamp_min(0), padding_mask, None, asked)
    if targets is None:
        raise DataError("an encoder–decoder needs the targets of its texts", "give pairs of texts")
    answers = [subject.writes.ids(text) for text in targets]
    start = subject.start
    asked = _padded([[-1] * (len(start) - 1) + ids for ids in answers], subject.device)
    outputs = _padded([[*start, *ids[:-1]] for ids in answers], subject.device).clamp_min(0)
    return Batch(inputs.clamp_min(0), padding_mask, outputs, asked)


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=-1).to(
        device
    )


# ------------------------------------------------------------------ names


def stacks(model: Model) -> dict[str, EncoderSide | DecoderSide | MemoryHops]:
    """The stacks of a model, or what stands in their place, under the names that probes have for them, in the order of the
    computation."""
    match model:
        case EncoderDecoder():
            return {"encoder": model.encoder, "decoder": model.decoder}
        case Encoder():
            return {"encoder": model.stack}
        case Decoder():
            return {"decoder": model.stack}
        case MemoryNetwork():
            return {"memory": model.hops}
        case DualEncoder():
            return {"text.encoder": model.text.stack, "image.encoder": model.image.stack}


def attentions(model: Model) -> dict[str, HasHeads]:
    """Every application of an attention, by name: `encoder.0.self`, `decoder.0.cross`."""
    return {
        f"{prefix}.{name}": part
        for prefix, stack in stacks(model).items()
        for name, part in stack.attentions().items()
    }


def heads(model: Model, names: Callable[[str], bool] = lambda name: True) -> list[Head]:
    """Every head of the attentions whose name fits."""
    return [
        (name, head)
        for name, part in attentions(model).items()
        if names(name)
        for head in range(part.heads)
    ]


def probes(model: Model) -> list[str]:
    """Everything that can be asked for."""
    found = []
    inside = attentions(model)
    for prefix, stack in stacks(model).items():
        found.append(f"{prefix}.embedded")
        for i in range(stack.layers):
            for kind in ("self", "cross"):
                if f"{prefix}.{i}.{kind}" in inside:
                    found += [f"{prefix}.{i}.{kind}.{part}" for part in (*PARTS, "mixed")]
            found.append(f"{prefix}.{i}.residual")
        found.append(f"{prefix}.output")
    return [*found, "logits"]


def switched_off(model: Model, off: Sequence[Head]) -> dict[str, Edit]:
    """Edits that zero what some heads hand on: as if their slice of the output projection were zero."""
    known = attentions(model)
    chosen: dict[str, list[int]] = {}
    for name, head in off:
        if name not in known:
            raise SettingError(
                f"there is no attention {name!r} in this model", did_you_mean(name, known)
            )
        if not 0 <= head < known[name].heads:
            raise SettingError(
                f"{name} has no head {head}", f"its heads are 0 to {known[name].heads - 1}"
            )
        chosen.setdefault(name, []).append(head)
    return {f"{name}.mixed": _without(numbers) for name, numbers in chosen.items()}


def _without(numbers: list[int]) -> Edit:
    def edit(mixed: Tensor) -> Tensor:
        return mixed.index_fill(1, torch.tensor(numbers, device=mixed.device), 0.0)  # [B, H, T, E]

    return edit
