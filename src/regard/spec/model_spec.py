"""The base class of model specs, and checks of their stacks."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, Self, TypeVar

from regard.spec.attention import ChunkedAttention, LshAttention
from regard.spec.baselines import Recurrent
from regard.spec.frontend import ConvStem, FrontEnd, LaggedValues, Tokens
from regard.spec.head import (
    ClassifierHead,
    ContactHead,
    ContrastiveHead,
    DetectionHead,
    DistilledHead,
    HeadTask,
    HifiGan,
    LMHead,
    MaskDecoder,
    MaskedImageDecoder,
    Pool,
    SeriesHead,
    SpectrogramHead,
    TrajectoryHead,
)
from regard.spec.mask import counts_from_the_end, is_causal
from regard.spec.stack import Stack
from regard.spec.validation import Part
from regard.system.errors import ModelError

# ------------------------------------------------------------------ inputs
# The arguments of a model's call, under the names that transformers has. Where a model has several
# of a kind, a word stands before the name: decoder_input_ids, and their decoder_attention_mask.

InputKind = Literal[
    "tokens", "pixels", "samples", "frames", "values", "nodes", "steps", "mask", "segments",
    "times", "more",
]  # fmt: skip


class _Argument(NamedTuple):
    kind: InputKind
    dimensions: str = ""  # of what stands by itself
    shaped_as: tuple[str, ...] = ()  # the arguments, of which a model has one, of the same shape


_SEQUENCES = ("input_ids", "input_values", "node_features", "states")
_ARGUMENTS = {
    "input_ids": _Argument("tokens", "[texts, tokens]"),
    "story": _Argument("tokens", "[stories, sentences, tokens]"),
    "question": _Argument("tokens", "[stories, tokens]"),
    "pixel_values": _Argument("pixels", "[images, channels, height, width]"),
    "text_images": _Argument("pixels"),  # one of each text, or several in a further dimension
    "clips": _Argument("pixels", "[clips, frames, channels, height, width]"),
    "input_values": _Argument("samples", "[recordings, samples]"),
    "input_features": _Argument("frames", "[recordings, mels, frames]"),
    "spectrogram": _Argument("frames", "[recordings, frames, mels]"),
    "past_values": _Argument("values", "[series, steps, channels]"),
    "node_features": _Argument("nodes", "[graphs, nodes, features]"),
    "states": _Argument("steps", "[trajectories, steps, numbers]"),
    "actions": _Argument("more", "[trajectories, steps, numbers]", ("states",)),
    "rewards": _Argument("more"),  # taken, as in transformers, and not read
    "returns_to_go": _Argument("more", "[trajectories, steps, 1]", ("states",)),
    "timesteps": _Argument("times", "[trajectories, steps]", ("states",)),
    # Whisper hears its whole window: the mask is taken, as in transformers, and not read.
    "pixel_mask": _Argument("mask"),
    "attention_mask": _Argument("mask", shaped_as=_SEQUENCES),
    "image_attention_mask": _Argument("more"),
    "global_attention_mask": _Argument("more", shaped_as=("input_ids",)),
    "story_mask": _Argument("mask", shaped_as=("story",)),
    "question_mask": _Argument("mask", shaped_as=("question",)),
    "past_observed_mask": _Argument("mask", shaped_as=("past_values",)),
    "token_type_ids": _Argument("segments", "[texts, tokens]", ("input_ids",)),
}


class Input(NamedTuple):
    """An argument of a model's call."""

    name: str
    required: bool = True
    content: str = ""  # what it is where the name does not say it: clips are pixel_values too

    @property
    def kind(self) -> InputKind:
        """What its numbers are."""
        return self._argument.kind

    @property
    def dimensions(self) -> str:
        """The dimensions of ids and of features, in words; "" of others."""
        return self._argument.dimensions

    @property
    def shaped_as(self) -> tuple[str, ...]:
        """The arguments, of which a model has one, that its shape follows."""
        word = self.name.removesuffix(self._known)
        return tuple(word + owner for owner in self._argument.shaped_as)

    @property
    def _argument(self) -> _Argument:
        return _ARGUMENTS.get(self._known, _Argument("more"))

    @property
    def _known(self) -> str:
        """The name without the word before it."""
        if self.content:
            return self.content
        names = (name for name in _ARGUMENTS if self.name.endswith(f"_{name}"))
        return self.name if self.name in _ARGUMENTS else next(names, self.name)


Inputs = tuple[Input, ...]


def arguments(required: str, optional: str = "") -> Inputs:
    """Inputs by their names."""
    return (
        *(Input(name) for name in required.split()),
        *(Input(name, required=False) for name in optional.split()),
    )


# ------------------------------------------------------------------ models

# What may stand on hidden states; a model may have one of each.
Head = (
    Pool
    | LMHead
    | ClassifierHead
    | DistilledHead
    | DetectionHead
    | MaskDecoder
    | SeriesHead
    | ContrastiveHead
    | ContactHead
    | SpectrogramHead
    | TrajectoryHead
    | HifiGan
    | MaskedImageDecoder
)
Heads = tuple[Head, ...]
AnyFrontEnd = FrontEnd | ConvStem | LaggedValues
FrontEnds = dict[str, AnyFrontEnd]  # of stacks, by the names that probes have
Stacks = dict[str, Stack]  # by these names
M = TypeVar("M", bound="ModelSpec")


def heads(*parts: Head | None) -> Heads:
    """A tuple of heads; None stands for no head."""
    return tuple(part for part in parts if part is not None)


class ModelSpec(Part, ABC):
    """Base class of model specs: the properties that all architectures have."""

    d_model: int  # of all but a dual encoder, whose towers have one each
    heads: Heads = ()  # none: the hidden states themselves

    @property
    @abstractmethod
    def inputs(self) -> Inputs:
        """The arguments of the model's call, as transformers names and orders them."""

    @property
    def main_input_name(self) -> str:
        """The first argument: token ids, images, samples or frames."""
        return self.inputs[0].name

    @property
    def reads(self) -> str:
        """The same, or what it holds where the name does not say it: clips are pixel_values."""
        return self.inputs[0].content or self.main_input_name

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads a source and writes a target."""
        return False

    @property
    def vocab_size(self) -> int | None:
        """The number of token ids that the model writes, or reads if it writes none."""
        sizes = [tokens.vocabulary for tokens in self.embeddings.values()]
        return next(reversed(sizes), None)

    @property
    def vocabularies(self) -> dict[str, int]:
        """The number of ids of each argument of tokens; one embedding may read several of them."""
        names = [one.name for one in self.inputs if one.kind == "tokens"]
        parts = self.front_ends.values()
        sizes = [part.vocabulary for part in parts if isinstance(part, Tokens)]
        sizes = sizes or [self.vocab_size or 0]
        sizes += sizes[-1:] * (len(names) - len(sizes))
        return dict(zip(names, sizes, strict=False))

    def part(self, *kinds: type[Head]) -> Any:
        """The head of one of these kinds, if there is one."""
        return next((head for head in self.heads if isinstance(head, kinds)), None)

    def with_heads(self, *parts: Head | None) -> Self:
        """The same model with these heads instead of its own; None stands for no head."""
        return dataclasses.replace(self, heads=heads(*parts))  # type: ignore[call-arg, type-var]

    def with_head(self, new: Head) -> Self:
        """The same model with this head instead of that of its kind, or besides its own."""
        kinds = {type(head) for head in self.heads}
        if type(new) not in kinds:
            return self.with_heads(*self.heads, new)
        return self.with_heads(*(new if type(old) is type(new) else old for old in self.heads))

    @property
    def head(self) -> LMHead | None:
        """The language-model head."""
        return self.part(LMHead)

    @property
    def pool(self) -> Pool | None:
        """How hidden states are pooled; of two towers, those of texts."""
        return self.part(Pool)

    @property
    def labels(self) -> ClassifierHead | DistilledHead | DetectionHead | MaskDecoder | None:
        """The head of labels."""
        return self.part(ClassifierHead, DistilledHead, DetectionHead, MaskDecoder)

    @property
    def task(self) -> HeadTask | None:
        """The task of the classification head; None without one."""
        return None if self.labels is None else self.labels.task

    @property
    def embeddings(self) -> dict[str, Tokens]:
        """The token embeddings, under the names of their fields."""
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        parts = {name: getattr(self, name) for name in names}
        return {name: part for name, part in parts.items() if isinstance(part, Tokens)}

    @property
    def front_ends(self) -> FrontEnds:
        """What makes vectors of the input of a stack, by the name that its probes have."""
        return {}

    @property
    def image_positions(self) -> int:
        """The positions of an image, of a model that reads images."""
        parts: list[Any] = [*self.front_ends.values()]
        positions = [part.positions for part in parts if part.main_input_name == "pixel_values"]
        return int(positions[0])

    @property
    def max_length(self) -> int | None:
        """The longest text that there are positions for; None where any length has them."""
        limits = [tokens.max_length for tokens in self.embeddings.values()]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def widths(self) -> dict[str, int]:
        """d_model, under the name of its tower where there are two."""
        return {"": self.d_model}

    @property
    def stacks(self) -> Stacks:
        """The Transformer stacks, under the names that probes have; baselines have none."""
        return {}

    def with_stacks(self, stacks: Stacks) -> Self:
        """The same model with other stacks, named as in `stacks`."""
        return self

    @property
    def kv_cache_size(self) -> int | None:
        """How many numbers the KV cache holds for each token of the decoder's text.

        None for a model that does not decode; 0 where what decoding remembers does not grow with
        the text, as in recurrent models and compressive memories.
        """
        return None


def with_label_head(model: M, task: HeadTask, count: int) -> M:
    """A model with a new head of labels in place of its own heads."""
    parts = [*model.stacks.values()]
    dropout = parts[-1].block.dropout if parts else 0.0
    head = ClassifierHead(count, task, dropout=dropout)
    if head.each:
        return model.with_heads(head)
    return model.with_heads(Pool("last", None) if knows_at_the_end(model) else Pool(), head)


def knows_at_the_end(model: ModelSpec) -> bool:
    """Whether its last position is that which knows the text: a causal one's only, a recurrent
    one's best."""
    stacks = list(model.stacks.values())
    return not stacks or is_causal(stacks[-1].block.pattern)


def check_recurrent_encoder(encoder: Recurrent, d_model: int) -> None:
    """A recurrent encoder reads one sequence, in both directions with a half of the width each."""
    if encoder.looks is not None:
        raise ModelError(
            "a recurrent encoder has no other sequence to attend to",
            "remove `looks` from the encoder",
        )
    if encoder.bidirectional and d_model % 2:
        raise ModelError(
            f"a bidirectional encoder needs an even d_model, not {d_model}", "set an even d_model"
        )


def check_no_cross(stack: Stack) -> None:
    """A stack that reads one sequence has no memory to attend to."""
    if any(block.cross is not None or block.gated is not None for block in stack.blocks):
        raise ModelError(
            "a stack that reads a single sequence cannot have cross-attention",
            "remove `cross`, or describe an EncoderDecoder",
        )


def check_decoder(stack: Stack, *, chunks: bool = True) -> None:
    """Autoregressive decoding: the mask is causal, and the same for every length of the text.
    Chunks on a ring, which shift as it grows, are possible where all of it is computed anew."""
    patterns = {block.pattern for block in stack.blocks}
    if not all(map(is_causal, patterns)):
        raise ModelError(
            "the mask of a decoder must be causal",
            "combine its pattern with a causal mask: And(CausalMask(), …)",
        )
    if any(map(counts_from_the_end, patterns)):
        raise ModelError(
            "the mask of a decoder must not depend on the length of the text",
            "use GlobalMask(last=0) and RandomBlockMask(of='before')",
        )
    mixers = [block.attention.mixer for block in stack.blocks]
    chunked = [mixer for mixer in mixers if isinstance(mixer, ChunkedAttention | LshAttention)]
    if any(mixer.ring is None or not chunks for mixer in chunked):
        raise ModelError(
            "LSH attention cannot be cached in a decoder: the chunks change as the text grows",
            "use LshAttention in an Encoder (whose pattern may be causal), "
            "and another mixer in decoders",
        )


def check_tied(tied: bool, stack: Stack, d_model: int, head: LMHead | None) -> None:
    """An output matrix that is the embedding's has the width of what the stack puts out."""
    if tied and head and not head.transform and stack.width(d_model) != d_model:
        raise ModelError(
            "weight tying needs hidden states of width d_model, but the stack returns both streams",
            "set tied=False",
        )
