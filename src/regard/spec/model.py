"""Models: encoder–decoders, encoders, decoders, and what their parts must agree on."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from regard.errors import ModelError
from regard.spec.attention import ChunkedAttention, LshAttention
from regard.spec.baselines import Convolutional, Recurrent
from regard.spec.frontend import (
    FrontEnd,
    LaggedValues,
    NodeFeatures,
    Patches,
    SeriesPatches,
    Spectrogram,
    Tokens,
    Waveform,
)
from regard.spec.head import (
    ClassifierHead,
    ContrastiveHead,
    DistilledHead,
    Distribution,
    HeadTask,
    LMHead,
    PatchHead,
    Points,
    Pool,
    Quantiles,
    SeriesHead,
)
from regard.spec.mask import NeighbourMask, counts_from_the_end, is_causal
from regard.spec.pixel_decoder import MaskedImageDecoder, PixelShuffleHead
from regard.spec.position import ShortestPathBias
from regard.spec.stack import Stack
from regard.spec.validation import Depth, Part, Size


class ModelSpec(Part, ABC):
    """What every architecture answers, so that nobody has to ask which one it is."""

    d_model: int  # of all but a dual encoder, whose towers have one each

    @property
    @abstractmethod
    def inputs(self) -> dict[str, bool]:
        """The arguments of the model's call, as transformers names and orders them.

        With each name, whether the argument is required.
        """

    @property
    def main_input_name(self) -> str:
        """The first argument: token ids, images, samples or frames."""
        return next(iter(self.inputs))

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads a source and writes a target."""
        return False

    @property
    def vocab_size(self) -> int | None:
        """The number of token ids that the model writes, or reads if it writes none."""
        return None

    @property
    def task(self) -> HeadTask | None:
        """The task of the classification head; None without one."""
        return None

    @property
    def embeddings(self) -> dict[str, Tokens]:
        """The token embeddings, under the names of their fields."""
        return {}

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
    def stacks(self) -> dict[str, Stack]:
        """The Transformer stacks, under the names that probes have; baselines have none."""
        return {}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        """The same model with other stacks, named as in `stacks`."""
        return self

    @property
    def kv_cache_size(self) -> int | None:
        """How many numbers the KV cache holds for each token of the decoder's text.

        None for a model that does not decode; 0 where what decoding remembers does not grow with
        the text, as in recurrent models and compressive memories.
        """
        return None


# ------------------------------------------------------------------ encoder–decoders


def _encoder_decoder_inputs(source: Tokens | Spectrogram) -> dict[str, bool]:
    return {
        source.main_input_name: True,
        "attention_mask": False,
        "decoder_input_ids": True,
        "decoder_attention_mask": False,
        "labels": False,
    }


@dataclass(frozen=True)
class EncoderDecoder(ModelSpec):
    """Encoder–decoder Transformer (Figure 1)."""

    d_model: Size  # width of the residual stream
    source: Tokens | Spectrogram
    target: Tokens
    encoder: Stack
    decoder: Stack
    head: LMHead = field(default_factory=LMHead)
    # Weight tying (Section 3.4): one matrix for both embeddings and the output, for the target
    # embedding and the output, for both embeddings, or for none of them.
    share: Literal["all", "target", "inputs", "none"] = "all"
    # Cross-attention to the encoder's last layer, or to the layer of the same number, to which the
    # final norm is applied as to the last.
    looks: Literal["last", "matching"] = "last"
    # Sequence classification (BART): the decoder reads the source once more, and the labels are
    # scored from its pooled hidden states.
    pool: Pool | None = None
    labels: ClassifierHead | None = None

    def validate(self) -> None:
        if self.looks == "matching" and self.encoder.layers != self.decoder.layers:
            raise ModelError(
                f"{self.encoder.layers} and {self.decoder.layers} layers do not match",
                "give both sides as many layers",
            )
        _check_no_cross(self.encoder)
        # Speech has no vocabulary, and no embedding to share.
        source_vocabulary = self.source.vocabulary if isinstance(self.source, Tokens) else 0
        _check_vocabulary(self.share, source_vocabulary, self.target.vocabulary)
        if (self.pool is None) != (self.labels is None):
            raise ModelError(
                "the labels of an encoder–decoder are scored from a pooled vector",
                "give both `pool` and `labels`, or neither",
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
            raise _chunks_shift()
        _check_decoder(self.decoder)

    @property
    def embeddings(self) -> dict[str, Tokens]:
        if isinstance(self.source, Tokens):
            return {"source": self.source, "target": self.target}
        return {"target": self.target}

    @property
    def inputs(self) -> dict[str, bool]:
        inputs = _encoder_decoder_inputs(self.source)
        if self.labels is None:
            return inputs
        # The decoder of a classifier reads the source, and there are no target tokens to score.
        del inputs["labels"]
        return {**inputs, "decoder_input_ids": False}

    @property
    def is_encoder_decoder(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        return self.target.vocabulary

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        return dataclasses.replace(self, encoder=stacks["encoder"], decoder=stacks["decoder"])

    @property
    def kv_cache_size(self) -> int:
        return self.decoder.kv_cache_size

    @property
    def task(self) -> HeadTask | None:
        if self.labels is None:
            return None
        return self.labels.task

    @property
    def spectrogram(self) -> Spectrogram:
        """The front end of a speech model."""
        assert isinstance(self.source, Spectrogram)
        return self.source


@dataclass(frozen=True)
class SequenceToSequence(ModelSpec):
    """Sequence-to-sequence model with a recurrent or convolutional encoder and decoder."""

    d_model: Size
    source: Tokens
    target: Tokens
    encoder: Recurrent | Convolutional
    decoder: Recurrent | Convolutional
    head: LMHead = field(default_factory=LMHead)
    share: Literal["all", "target", "inputs", "none"] = "all"  # as in EncoderDecoder

    def validate(self) -> None:
        _check_vocabulary(self.share, self.source.vocabulary, self.target.vocabulary)
        encoder = self.encoder
        decoder = self.decoder
        if isinstance(encoder, Recurrent):
            _check_recurrent_encoder(encoder, self.d_model)
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

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"source": self.source, "target": self.target}

    @property
    def inputs(self) -> dict[str, bool]:
        return _encoder_decoder_inputs(self.source)

    @property
    def is_encoder_decoder(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        return self.target.vocabulary

    @property
    def kv_cache_size(self) -> int:
        return 0  # states of a fixed size


@dataclass(frozen=True)
class SeriesEncoderDecoder(ModelSpec):
    """Encoder–decoder of time series: each step is forecast from those before it.

    The decoder reads the lagged values of the steps to come, in training those of the data, in
    forecasting its own. Its hidden states become a distribution for each step.
    """

    d_model: Size
    input: LaggedValues
    encoder: Stack
    decoder: Stack
    horizon: Size  # steps that are forecast
    output: Distribution | None = field(default_factory=Distribution)  # None: without a head

    def validate(self) -> None:
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
        _check_decoder(self.decoder)

    @property
    def inputs(self) -> dict[str, bool]:
        part = self.input
        return {
            part.main_input_name: True,
            "past_time_features": part.covariates > 0,
            "past_observed_mask": False,
            "static_categorical_features": bool(part.categories),
            "static_real_features": part.static_features > 0,
            "future_values": False,
            "future_time_features": False,
            "future_observed_mask": False,
            "decoder_attention_mask": False,
        }

    @property
    def is_encoder_decoder(self) -> bool:
        return True

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        return dataclasses.replace(self, encoder=stacks["encoder"], decoder=stacks["decoder"])

    @property
    def kv_cache_size(self) -> int:
        return self.decoder.kv_cache_size


def _check_recurrent_encoder(encoder: Recurrent, d_model: int) -> None:
    if encoder.looks is not None:
        raise ModelError("an encoder has no memory to look at", "leave `looks` out of it")
    if encoder.bidirectional and d_model % 2:
        raise ModelError(f"half of d_model {d_model} cannot go backwards", "give an even d_model")


def _check_no_cross(stack: Stack) -> None:
    if any(block.cross is not None for block in stack.blocks):
        raise ModelError(
            "cross-attention has nothing to attend to in a stack that reads one sequence",
            "leave `cross` out, or describe an EncoderDecoder",
        )


def _check_vocabulary(share: str, source: int, target: int) -> None:
    if share in ("all", "inputs") and source != target:
        raise ModelError(
            f"share={share!r} needs one vocabulary, not {source} and {target} tokens",
            "learn a joint tokenizer, or share='target'",
        )


# ------------------------------------------------------------------ encoders


@dataclass(frozen=True)
class Encoder(ModelSpec):
    """Encoder-only Transformer (BERT, ViT, wav2vec 2.0), with the heads that its task needs."""

    d_model: Size
    input: FrontEnd
    stack: Stack
    pool: Pool | None = None
    head: LMHead | None = None  # masked language modelling
    labels: ClassifierHead | DistilledHead | None = None
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's
    series: SeriesHead | None = None  # of time series
    contrastive: ContrastiveHead | None = None  # of pre-training on sound
    pixels: MaskedImageDecoder | None = None  # of masked pre-training on images

    def validate(self) -> None:
        _check_no_cross(self.stack)
        _check_series(self)
        _check_graph(self)
        needs_pool = isinstance(self.labels, ClassifierHead) and not (
            self.labels.each or self.labels.pool
        )
        if needs_pool and self.pool is None:
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
            groups = self.input.position.groups
            problem = f"d_model {self.d_model} does not divide by {groups} groups of channels"
            raise ModelError(problem, "correct one of them")
        if self.contrastive is not None and not isinstance(self.input, Waveform):
            raise ModelError("only sound is pre-trained by contrasts", "give it a Waveform")
        _check_pixels(self)
        if self.head is not None and self.head.transform is None:
            _check_tied(self)

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"input": self.input} if isinstance(self.input, Tokens) else {}

    @property
    def inputs(self) -> dict[str, bool]:
        name = self.input.main_input_name
        if isinstance(self.input, Patches):
            # Images of a batch have one size: nothing is padded.
            inputs = {name: True}
            if self.input.mask_token:
                inputs["bool_masked_pos"] = False
            elif self.input.masked_share or self.pixels is not None:
                inputs["noise"] = False
            return inputs
        if isinstance(self.input, Tokens):
            inputs = {name: True, "attention_mask": False}
            if self.stack.block.attention.projection == "global":
                inputs["global_attention_mask"] = False
            return {**inputs, "token_type_ids": False}
        if isinstance(self.input, SeriesPatches):
            return {name: True, "past_observed_mask": False}
        if isinstance(self.input, Spectrogram):
            # Silence up to the end of the window is heard like all else (Whisper).
            return {name: True}
        if isinstance(self.input, NodeFeatures):
            return {
                name: True,
                "attention_mask": False,
                "edges": True,
                "eigenvectors": self.input.laplacian > 0,
                "distances": isinstance(self.stack.position, ShortestPathBias),
            }
        inputs = {name: True, "attention_mask": False}
        if self.contrastive is not None:
            inputs |= {"mask_time_indices": False, "sampled_negative_indices": False}
        return inputs

    @property
    def vocab_size(self) -> int | None:
        if isinstance(self.input, Tokens):
            return self.input.vocabulary
        return None

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"encoder": self.stack}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        return dataclasses.replace(self, stack=stacks["encoder"])

    @property
    def task(self) -> HeadTask | None:
        if self.labels is None:
            return None
        return self.labels.task

    @property
    def scored(self) -> int:
        """The input width of the classification head."""
        pooled = isinstance(self.labels, ClassifierHead) and not (
            self.labels.each or self.labels.pool
        )
        if pooled and self.pool is not None and self.pool.width:
            return self.pool.width
        if pooled and self.pool is not None and self.pool.activation:
            return self.d_model  # the pooler's dense layer ends at d_model
        width = self.stack.width(self.d_model)
        if pooled and self.pool is not None and self.pool.which == "first_and_mean":
            return 2 * width
        return width

    @property
    def tokens(self) -> Tokens:
        """The token embedding of a text encoder."""
        assert isinstance(self.input, Tokens)
        return self.input

    @property
    def patches(self) -> Patches:
        """The patch embedding of an image encoder."""
        assert isinstance(self.input, Patches)
        return self.input

    @property
    def nodes(self) -> NodeFeatures:
        """The front end of an encoder of graphs."""
        assert isinstance(self.input, NodeFeatures)
        return self.input

    @property
    def windows(self) -> SeriesPatches:
        """The front end of an encoder of time series."""
        assert isinstance(self.input, SeriesPatches)
        return self.input

    @property
    def spectrogram(self) -> Spectrogram:
        """The front end of an encoder of spectrograms."""
        assert isinstance(self.input, Spectrogram)
        return self.input

    @property
    def waves(self) -> Waveform:
        """The waveform front end of a speech encoder."""
        assert isinstance(self.input, Waveform)
        return self.input


def _check_series(model: Encoder) -> None:
    """Heads of time series and their front end belong together."""
    if not isinstance(model.input, SeriesPatches):
        if model.series is not None:
            raise ModelError("only time series have a head `series`", "give `labels` instead")
        return
    if model.labels is not None or model.pool is not None:
        raise ModelError("time series have no `labels` and no `pool`", "give `series` instead")
    if isinstance(model.series, PatchHead):
        if len(model.input.scales) > 1:
            raise ModelError("patches of several lengths have no one head", "give one scale")
    elif model.series is not None:
        first = model.series.pool == "first"
        if first != model.input.class_token:
            raise ModelError(
                "a head pools at the class token if there is one, and only then",
                "give both, or neither: class_token=True, pool='first'",
            )


def _check_pixels(model: Encoder) -> None:
    """A decoder of pixels reads images whose patches are hidden in its own way."""
    if model.pixels is None:
        return
    if not isinstance(model.input, Patches):
        raise ModelError("only images have pixels to reconstruct", "give it Patches")
    if isinstance(model.pixels, PixelShuffleHead) != model.input.mask_token:
        raise ModelError(
            "mask tokens stand for the hidden patches of a PixelShuffleHead, and only of that",
            "say mask_token=True for it, and mask_token=False for a PixelDecoder",
        )


def _check_graph(model: Encoder) -> None:
    """What attends along edges reads graphs."""
    stack = model.stack
    along_edges = stack.pattern == NeighbourMask() or isinstance(stack.position, ShortestPathBias)
    if along_edges and not isinstance(model.input, NodeFeatures):
        raise ModelError("only graphs have neighbours and paths", "give it NodeFeatures")


@dataclass(frozen=True)
class RecurrentEncoder(ModelSpec):
    """Recurrent encoder of text, with a classification head: an LSTM or a BiLSTM classifier."""

    d_model: Size
    input: Tokens
    stack: Recurrent
    pool: Pool | None = None
    labels: ClassifierHead | None = None

    def validate(self) -> None:
        _check_recurrent_encoder(self.stack, self.d_model)
        if self.labels is not None and not self.labels.each and self.pool is None:
            raise ModelError(
                "labels for a whole input need one vector of it",
                "give a `pool`, or a task such as 'tag'",
            )

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"input": self.input}

    @property
    def inputs(self) -> dict[str, bool]:
        return {self.input.main_input_name: True, "attention_mask": False, "token_type_ids": False}

    @property
    def vocab_size(self) -> int:
        return self.input.vocabulary

    @property
    def task(self) -> HeadTask | None:
        """The task of the classification head; None without one."""
        return None if self.labels is None else self.labels.task

    @property
    def head(self) -> None:
        """There is no masked language modelling with cells."""

    @property
    def tokens(self) -> Tokens:
        """The token embedding."""
        return self.input


# ------------------------------------------------------------------ language models


@dataclass(frozen=True)
class Decoder(ModelSpec):
    """Decoder-only Transformer (GPT): a causal language model."""

    d_model: Size
    tokens: Tokens
    stack: Stack
    head: LMHead = field(default_factory=LMHead)
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's

    def validate(self) -> None:
        _check_no_cross(self.stack)
        _check_decoder(self.stack)
        _check_tied(self)
        if any(
            isinstance(b.attention.mixer, LshAttention) and b.attention.mixer.ring is None
            for b in self.stack.blocks
        ):
            raise _chunks_shift()
        if self.stack.memory is not None and self.tokens.position is not None:
            raise ModelError(
                "positions that are counted at the input begin anew in each segment",
                "tell them inside the stack",
            )

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"tokens": self.tokens}

    @property
    def inputs(self) -> dict[str, bool]:
        return {self.tokens.main_input_name: True, "attention_mask": False}

    @property
    def vocab_size(self) -> int:
        return self.tokens.vocabulary

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"decoder": self.stack}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        return dataclasses.replace(self, stack=stacks["decoder"])

    @property
    def kv_cache_size(self) -> int:
        return self.stack.kv_cache_size


@dataclass(frozen=True)
class RecurrentDecoder(ModelSpec):
    """Recurrent language model, whose state may be carried over from segment to segment."""

    d_model: Size
    tokens: Tokens
    stack: Recurrent
    head: LMHead = field(default_factory=LMHead)
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's

    def validate(self) -> None:
        if self.stack.bidirectional:
            raise ModelError(
                "a language model cannot read backwards what follows", "say bidirectional=False"
            )
        if self.stack.looks is not None:
            raise ModelError("a language model has no memory to look at", "leave `looks` out")

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"tokens": self.tokens}

    @property
    def inputs(self) -> dict[str, bool]:
        return {self.tokens.main_input_name: True, "attention_mask": False}

    @property
    def vocab_size(self) -> int:
        return self.tokens.vocabulary

    @property
    def kv_cache_size(self) -> int:
        return 0  # a state of a fixed size


# ------------------------------------------------------------------ validation of stacks


def _check_decoder(stack: Stack) -> None:
    """Autoregressive decoding: the mask is causal, and the same for every length of the text."""
    if not is_causal(stack.pattern):
        raise ModelError(
            "a decoder must not see what follows",
            "combine its pattern with a causal mask: And(CausalMask(), …)",
        )
    if counts_from_the_end(stack.pattern):
        raise ModelError(
            "what a decoder sees must not change when the text grows",
            "use GlobalMask(last=0) and RandomBlockMask(of='before')",
        )


def _chunks_shift() -> ModelError:
    return ModelError(
        "hashed chunks change when the text grows, so a decoder's past could not be kept",
        "use LshAttention in an Encoder (whose pattern may be causal), "
        "and another mixer in decoders",
    )


def _check_tied(model: Encoder | Decoder) -> None:
    if model.tied and model.stack.width(model.d_model) != model.d_model:
        raise ModelError("an embedding is narrower than both streams of a stack", "say tied=False")


# ------------------------------------------------------------------ other models


@dataclass(frozen=True)
class DualEncoder(ModelSpec):
    """Dual encoder of texts and images (Radford et al. 2021, CLIP), compared by their cosine."""

    text: Encoder
    image: Encoder
    scale: float = 2.6592  # initial logit scale, ln(1 / 0.07): cosines are multiplied by e^scale
    # Initial logit bias of pairs that are judged one by one, by a sigmoid (SigLIP); None: a softmax
    # over the batch (CLIP).
    bias: float | None = None

    def validate(self) -> None:
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

    @property
    def inputs(self) -> dict[str, bool]:
        return {"input_ids": True, "pixel_values": True, "attention_mask": False}

    @property
    def widths(self) -> dict[str, int]:
        return {"text": self.text.d_model, "image": self.image.d_model}

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"text.encoder": self.text.stack, "image.encoder": self.image.stack}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        text = dataclasses.replace(self.text, stack=stacks["text.encoder"])
        image = dataclasses.replace(self.image, stack=stacks["image.encoder"])
        return dataclasses.replace(self, text=text, image=image)


@dataclass(frozen=True)
class MemoryNetwork(ModelSpec):
    """End-to-end memory network (Sukhbaatar et al. 2015): a question attends to sentences in hops.

    The answer is one word.
    """

    d_model: Size  # d: width of the sentence vectors
    vocabulary: Size  # V
    hops: Depth = 3  # K: rounds of attention
    sentences: Size = 50  # rows of the temporal encoding T_A (Section 4.1): the longest memory

    @property
    def inputs(self) -> dict[str, bool]:
        return {"story": True, "question": True, "story_mask": False, "question_mask": False}

    @property
    def vocab_size(self) -> int:
        return self.vocabulary


@dataclass(frozen=True)
class LinearForecaster(ModelSpec):
    """Linear forecaster of time series (Zeng et al. 2023): each channel by itself, one map for all.

    DLinear maps a moving average, the trend, and the rest of a window; NLinear maps the window
    less its last value.
    """

    length: Size  # of the window, in time steps: the look-back
    channels: Size
    horizon: Size  # steps that are forecast
    output: Points | Quantiles = field(default_factory=Points)
    moving_average: Size | None = 25  # steps of DLinear's trend; None: NLinear

    @property
    def inputs(self) -> dict[str, bool]:
        return {"past_values": True, "past_observed_mask": False}

    @property
    def widths(self) -> dict[str, int]:
        return {"": self.length}


Model = (
    EncoderDecoder
    | SequenceToSequence
    | SeriesEncoderDecoder
    | Encoder
    | RecurrentEncoder
    | Decoder
    | RecurrentDecoder
    | DualEncoder
    | MemoryNetwork
    | LinearForecaster
)
