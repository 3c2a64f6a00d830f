"""Whole models, and what their parts must agree on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from regard.errors import ModelError
from regard.spec.attention import ChunkedAttention, LshAttention
from regard.spec.baselines import Convolutional, Recurrent
from regard.spec.frontend import FrontEnd, Patches, Spectrogram, Tokens, Waveform
from regard.spec.head import ClassifierHead, DistilledHead, LMHead, Pool
from regard.spec.mask import counts_from_the_end, is_causal
from regard.spec.stack import Stack
from regard.spec.validation import sizes


@dataclass(frozen=True)
class EncoderDecoder:
    """`share`: one matrix for both embeddings and the output (`all`), for target and output
    (`target`), for both embeddings (`inputs`), or none. `looks`: a decoder layer looks at the
    `last` layer of the encoder, or at the `matching` one, finished as the last is."""

    d_model: int
    source: Tokens | Spectrogram
    target: Tokens
    encoder: Stack
    decoder: Stack
    head: LMHead = field(default_factory=LMHead)
    share: Literal["all", "target", "inputs", "none"] = "all"
    looks: Literal["last", "matching"] = "last"

    def __post_init__(self) -> None:
        if self.looks == "matching" and self.encoder.layers != self.decoder.layers:
            raise ModelError(
                f"{self.encoder.layers} and {self.decoder.layers} layers do not match",
                "give both sides as many layers",
            )
        _one_vocabulary(
            self.share,
            self.source.vocabulary if isinstance(self.source, Tokens) else 0,
            self.target.vocabulary,
        )
        if self.decoder.compressed is not None:
            raise ModelError(
                "only language models read one segment after the other", "leave `compressed` out"
            )
        if self.decoder.block.cross is None:
            raise ModelError(
                "the decoder of an encoder–decoder has no cross-attention",
                "give decoder.block a `cross`",
            )
        if any(stack.width(self.d_model) != self.d_model for stack in (self.encoder, self.decoder)):
            raise ModelError(
                "what one side gives must be as wide as what the other takes",
                "let Reversible give 'mean'",
            )
        if any(
            isinstance(block.attention.mixer, ChunkedAttention | LshAttention)
            for block in self.decoder.blocks
        ):
            raise _grows()
        _decodes(self.decoder)


@dataclass(frozen=True)
class SequenceToSequence:
    """An encoder–decoder of recurrent or convolved parts. `share` is that of `EncoderDecoder`."""

    d_model: int
    source: Tokens
    target: Tokens
    encoder: Recurrent | Convolutional
    decoder: Recurrent | Convolutional
    head: LMHead = field(default_factory=LMHead)
    share: Literal["all", "target", "inputs", "none"] = "all"

    def __post_init__(self) -> None:
        _one_vocabulary(self.share, self.source.vocabulary, self.target.vocabulary)
        encoder, decoder = self.encoder, self.decoder
        if isinstance(encoder, Recurrent) and encoder.looks is not None:
            raise ModelError("an encoder has no memory to look at", "leave `looks` out of it")
        if isinstance(encoder, Recurrent) and encoder.bidirectional and self.d_model % 2:
            raise ModelError(
                f"half of d_model {self.d_model} cannot go backwards", "give an even d_model"
            )
        if isinstance(decoder, Recurrent) and decoder.bidirectional:
            raise ModelError(
                "a decoder cannot read backwards what it has not written", "say bidirectional=False"
            )
        if isinstance(encoder, Convolutional) and encoder.sees is not None:
            raise ModelError("an encoder has no memory to see", "leave `sees` out of it")
        if isinstance(encoder, Convolutional) and encoder.unit.kernel % 2 == 0:
            raise ModelError(
                f"a convolution of width {encoder.unit.kernel} has no middle", "give an odd kernel"
            )
        if isinstance(decoder, Convolutional) and decoder.sees is None:
            raise ModelError(
                "a decoder of convolutions must see the memory", "say sees='attention' or 'aligned'"
            )
        if isinstance(encoder, Convolutional) != isinstance(decoder, Convolutional):
            raise ModelError(
                "recurrent and convolved parts hand on different memories",
                "use one kind on both sides",
            )


def _one_vocabulary(share: str, source: int, target: int) -> None:
    if share in ("all", "inputs") and source != target:
        raise ModelError(
            f"share={share!r} needs one vocabulary, not {source} and {target} tokens",
            "learn a joint tokenizer, or share='target'",
        )


@dataclass(frozen=True)
class Encoder:
    """Embedding, stack, and on top what the task needs: a pooled vector, scores over the
    vocabulary, scores of labels.

    `tied`: the head's vocabulary matrix is the embedding's.
    """

    d_model: int
    input: FrontEnd
    stack: Stack
    pool: Pool | None = None
    head: LMHead | None = None
    labels: ClassifierHead | DistilledHead | None = None
    tied: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.labels, ClassifierHead) and not self.labels.each and self.pool is None:
            raise ModelError(
                "labels for a whole input need one vector of it",
                "give a `pool`, or a task such as 'tag'",
            )
        if not isinstance(self.input, Tokens) and self.head is not None:
            raise ModelError(
                "a head over the vocabulary needs tokens as input",
                "give `labels` instead of a `head`",
            )
        if isinstance(self.input, Waveform) and self.d_model % self.input.position.groups:
            problem = (
                f"d_model {self.d_model} does not divide by {self.input.position.groups} groups "
                "of channels"
            )
            raise ModelError(problem, "correct one of them")
        if self.head is not None and self.head.transform is None:
            _tied(self)

    @property
    def scored(self) -> int:
        """The width of what its labels score."""
        wide, pooled = (
            self.stack.width(self.d_model),
            isinstance(self.labels, ClassifierHead) and not self.labels.each,
        )
        return self.d_model if pooled and self.pool is not None and self.pool.activation else wide

    @property
    def tokens(self) -> Tokens:
        """The input of an encoder of text."""
        assert isinstance(self.input, Tokens)
        return self.input

    @property
    def patches(self) -> Patches:
        """The input of an encoder of images."""
        assert isinstance(self.input, Patches)
        return self.input

    @property
    def waves(self) -> Waveform:
        """The input of an encoder of sound."""
        assert isinstance(self.input, Waveform)
        return self.input


@dataclass(frozen=True)
class Decoder:
    """A language model: embedding, causal stack, vocabulary."""

    d_model: int
    tokens: Tokens
    stack: Stack
    head: LMHead = field(default_factory=LMHead)
    tied: bool = True

    def __post_init__(self) -> None:
        _decodes(self.stack)
        _tied(self)
        if any(
            isinstance(b.attention.mixer, LshAttention) and b.attention.mixer.ring is None
            for b in self.stack.blocks
        ):
            raise _grows()
        if self.stack.memory is not None and self.tokens.position is not None:
            raise ModelError(
                "positions that are counted at the input begin anew in each segment",
                "tell them inside the stack",
            )


@dataclass(frozen=True)
class RecurrentDecoder:
    """A language model of recurrent layers, whose state may be carried on from text to text."""

    d_model: int
    tokens: Tokens
    stack: Recurrent
    head: LMHead = field(default_factory=LMHead)
    tied: bool = True

    def __post_init__(self) -> None:
        if self.stack.bidirectional:
            raise ModelError(
                "a language model cannot read backwards what follows", "say bidirectional=False"
            )
        if self.stack.looks is not None:
            raise ModelError("a language model has no memory to look at", "leave `looks` out")


def _decodes(stack: Stack) -> None:
    """A stack that writes one token after the other sees only what was written, and always sees it
    the same way."""
    if not is_causal(stack.pattern):
        raise ModelError(
            "a decoder must not see what follows",
            "combine its pattern with Causal: Both(Causal(), …)",
        )
    if counts_from_the_end(stack.pattern):
        raise ModelError(
            "what a decoder sees must not change when the text grows",
            "use Global(last=0) and RandomBlocks(of='before')",
        )


def _grows() -> ModelError:
    return ModelError(
        "hashed chunks change when the text grows, so a decoder's past could not be kept",
        "use Lsh in an Encoder (whose pattern may be Causal), and another mixer in decoders",
    )


def _tied(model: Encoder | Decoder) -> None:
    if model.tied and model.stack.width(model.d_model) != model.d_model:
        raise ModelError("an embedding is narrower than both streams of a stack", "say tied=False")


@dataclass(frozen=True)
class DualEncoder:
    """Two towers that map texts and images to vectors of one space, compared by their cosine times
    e^scale, where the learnt scale starts at `scale` (Radford et al. 2021)."""

    text: Encoder
    image: Encoder
    scale: float = 2.6592

    def __post_init__(self) -> None:
        if not isinstance(self.text.input, Tokens) or not isinstance(self.image.input, Patches):
            raise ModelError(
                "a pair is one tower of texts and one of images", "give it Tokens and Patches"
            )
        widths = [
            tower.pool and (tower.pool.width or tower.d_model) for tower in (self.text, self.image)
        ]
        if widths[0] is None or widths[0] != widths[1]:
            raise ModelError(
                "a pair needs vectors of one width from both towers",
                "give both a Pool with that `width`",
            )


@dataclass(frozen=True)
class MemoryNetwork:
    """Sentences are remembered, a question asks them in so many `hops`, and a word answers
    (Sukhbaatar et al. 2015). Ages of up to `sentences` are told apart."""

    d_model: int
    vocabulary: int
    hops: int = 3
    sentences: int = 50

    def __post_init__(self) -> None:
        sizes(self, "d_model", "vocabulary", "hops", "sentences")


Model = (
    EncoderDecoder
    | SequenceToSequence
    | Encoder
    | Decoder
    | RecurrentDecoder
    | DualEncoder
    | MemoryNetwork
)
