"""Random inputs for any architecture under Hugging Face's names; no tokenizer is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard import spec as specs
from regard.system import memory
from regard.system.errors import ModelError
from regard.wirings.core_model import CoreModel

ROWS = 3  # of every batch
_FIXED_LENGTH = (
    specs.Patches
    | specs.Spectrogram
    | specs.SeriesPatches
    | specs.LaggedValues
    | specs.NodeFeatures
)
LENGTHS = (14, 9, 5)  # of its rows, unless the model has fewer positions


@dataclass(frozen=True)
class RandomBatch:
    """The tensors of one call, by the names of Hugging Face's arguments.

    `main` names the one whose rows may be padded, and `lengths` how long its rows are then.
    """

    inputs: dict[str, Tensor]
    main: str
    lengths: tuple[int, ...]
    # What has one entry for each position of the main input.
    aligned: tuple[str, ...] = ("token_type_ids",)
    left_padding: bool = False  # as a language model needs it, to go on from the last position

    @property
    def padding_mask(self) -> Tensor | None:
        """[B, T], nonzero where there is a token; None in a batch without padding."""
        mask = self.inputs.get(self._mask_name)
        if mask is not None and self.main == "story":
            return mask[..., 0]  # a sentence without words is padding
        return mask

    @property
    def _mask_name(self) -> str:
        return "story_mask" if self.main == "story" else "attention_mask"

    def like(self, model: CoreModel) -> RandomBatch:
        """The batch on the model's device; features, unlike token ids, in its precision."""
        weight = next(model.parameters())
        inputs = {}
        for name, tensor in self.inputs.items():
            if tensor.is_floating_point():
                inputs[name] = tensor.to(weight)
            else:
                inputs[name] = tensor.to(weight.device)
        return replace(self, inputs=inputs)

    def padded(self, pad: int) -> RandomBatch:
        """The same batch with padding: rows end early, or begin late, by their `lengths`."""
        main = self.inputs[self.main]  # [B, T] or [B, T, words]
        length = main.shape[1]
        positions = torch.arange(length, device=main.device)
        lengths = torch.tensor(self.lengths, device=main.device)[:, None]  # [B, 1]
        if self.left_padding:
            padding_mask = positions >= length - lengths  # [B, T]
        else:
            padding_mask = positions < lengths
        # Dimensions behind the positions are padded with them.
        padding_mask = padding_mask.view(*padding_mask.shape, *[1] * (main.ndim - 2))
        inputs = {
            **self.inputs,
            self.main: main.masked_fill(~padding_mask, pad),
            self._mask_name: padding_mask.expand_as(main).long(),
        }
        if "decoder_input_ids" in self.aligned:
            inputs["decoder_attention_mask"] = inputs[self._mask_name]
        return replace(self, inputs=inputs)

    def alone(self, row: int) -> RandomBatch:
        """A batch of one row, without its padding."""
        inputs = {
            name: tensor[row : row + 1]
            for name, tensor in self.inputs.items()
            if name not in (self._mask_name, "decoder_attention_mask")
        }
        if "edges" in inputs:
            # Listed one after the other, each behind the row of its graph: [E, 3].
            edges = self.inputs["edges"]
            inputs["edges"] = edges[edges[:, 0] == row] * edges.new_tensor([0, 1, 1])
        if self.padding_mask is not None:
            is_token = self.padding_mask[row].bool()  # [T]
            for name in (self.main, *self.aligned):
                if name in inputs:
                    inputs[name] = inputs[name][:, is_token]
        return replace(self, inputs=inputs, lengths=self.lengths[row : row + 1])


def pad_token_id(config: Mapping[str, Any]) -> int:
    """The padding id of a config.json, 0 where it has none.

    Random tokens avoid it, because RoBERTa and others derive positions from it.
    """
    text_config = config.get("text_config")  # where CLIP has it
    nested = text_config.get("pad_token_id") if isinstance(text_config, dict) else None
    pad = config.get("pad_token_id", nested)
    if isinstance(pad, int) and pad >= 0:  # LLaMA's files may say -1
        return pad
    return 0


def fixed_length(model: specs.Model) -> bool:
    """Whether the main input has one length only: images, windows of time series, sound filled up
    with silence; the nodes of graphs belong to their edges."""
    return isinstance(next(iter(model.front_ends.values()), None), _FIXED_LENGTH)


# ------------------------------------------------------------------ random batches


def random_batch(model: specs.Model, pad: int = 0, seed: int = 0) -> RandomBatch:
    """A random batch of rows of full length, without padding; `Batch.padded` adds it."""
    generator = torch.Generator().manual_seed(seed)
    match model:
        case specs.EncoderDecoder() | specs.SequenceToSequence():
            batch = _main_inputs(model.source, pad, generator, _window(model.encoder))
            if isinstance(model, specs.EncoderDecoder) and model.pool is not None:
                # The decoder of a classifier reads as many tokens as the encoder.
                targets = _random_tokens(model.target.vocabulary, batch.lengths[0], pad, generator)
                batch = replace(batch, inputs={**batch.inputs, "decoder_input_ids": targets})
                batch = replace(batch, aligned=("decoder_input_ids",))
                return _with_pooled_ends(batch, model.pool, model.target.vocabulary)
            # Targets have another length than sources, so that mixing them up raises an error.
            length = max(1, _lengths(model.target.max_length)[0] - 3)
            targets = _random_tokens(model.target.vocabulary, length, pad, generator)
            return replace(batch, inputs={**batch.inputs, "decoder_input_ids": targets})
        case specs.Decoder() | specs.RecurrentDecoder():
            batch = _main_inputs(model.tokens, pad, generator, _window(model.stack))
            # Chunks on a ring (Reformer) may as well be padded on the right, and only then does
            # Hugging Face number the positions as we do.
            chunked = isinstance(model.stack, specs.Stack) and model.stack.rings
            return replace(batch, left_padding=not chunked)
        case specs.DualEncoder(text, image):
            batch = random_batch(text, pad, seed)
            pixels = random_batch(image, pad, seed).inputs
            return replace(batch, inputs={**batch.inputs, **pixels})
        case specs.MemoryNetwork():
            return _story(model, generator)
        case specs.SeriesEncoderDecoder():
            return _lagged_windows(model, generator)
        case specs.LinearForecaster(length, channels):
            return _windows(length, channels, generator)
        case specs.Encoder() | specs.RecurrentEncoder():
            batch = _main_inputs(model.input, pad, generator, _window(model.stack))
            if model.pool is not None and isinstance(model.input, specs.Tokens):
                return _with_pooled_ends(batch, model.pool, model.input.vocabulary)
            if isinstance(model, specs.Encoder) and model.pixels is not None:
                return _with_mask_tokens(batch, model, generator)
            return batch


def _with_mask_tokens(
    batch: RandomBatch, model: specs.Encoder, generator: torch.Generator
) -> RandomBatch:
    """Random masks where the reconstruction is an image of the same size (SimMIM)."""
    head = model.pixels
    if not isinstance(head, specs.PixelShuffleHead) or head.stride != specs.image_stride(model):
        return batch
    patches = model.patches
    noise = torch.rand(ROWS, patches.positions - patches.extras, generator=generator)
    masked = noise < patches.masked_share
    return replace(batch, inputs={**batch.inputs, "bool_masked_pos": masked})


def _main_inputs(
    part: specs.FrontEnd, pad: int, generator: torch.Generator, window: int | None
) -> RandomBatch:
    match part:
        case specs.Tokens():
            lengths = _lengths(part.max_length, window)
            tokens = _random_tokens(part.vocabulary, lengths[0], pad, generator)
            inputs = {"input_ids": tokens}  # [B, T]
            if part.segments > 1:
                segments = torch.randint(0, part.segments, tokens.shape, generator=generator)
                inputs["token_type_ids"] = segments
            return RandomBatch(inputs, "input_ids", lengths)
        case specs.Spectrogram():
            # The second convolution has stride 2: two frames a position.
            length = 2 * (part.max_length or 20)
            features = _normal((ROWS, part.mels, length), generator)  # [B, mels, N]
            return RandomBatch({"input_features": features}, "input_features", (length,) * ROWS)
        case specs.Patches():
            shape = (ROWS, part.channels, part.size, part.size)
            pixels = _normal(shape, generator)  # [B, channels, height, width]
            inputs = {"pixel_values": pixels}
            # Which patches are hidden is drawn for both libraries alike.
            if part.masked_share and not part.mask_token:
                patches = part.positions - part.extras
                inputs["noise"] = torch.rand(ROWS, patches, generator=generator)
            return RandomBatch(inputs, "pixel_values", (part.size,) * ROWS)
        case specs.Waveform():
            lengths = _waveform_lengths(part)
            samples = _normal((ROWS, lengths[0]), generator)  # [B, N]
            return RandomBatch({"input_values": samples}, "input_values", lengths)
        case specs.NodeFeatures():
            return _random_graph(part, generator)
        case specs.SeriesPatches(length, channels):
            return _windows(length, channels, generator)


def _random_graph(part: specs.NodeFeatures, generator: torch.Generator) -> RandomBatch:
    """Graphs of random edges, each with both directions, and a loop at each node."""
    nodes = LENGTHS[0]
    features = torch.rand(ROWS, nodes, part.features, generator=generator)  # [B, N, F]
    joined = torch.rand(ROWS, nodes, nodes, generator=generator) < 0.2
    joined = joined | joined.mT | torch.eye(nodes, dtype=torch.bool)
    inputs = {
        "node_features": features,
        "edges": joined.nonzero(),
        "distances": _path_lengths(joined),
    }
    if part.laplacian:
        inputs["eigenvectors"] = torch.randn(ROWS, nodes, part.laplacian, generator=generator)
    return RandomBatch(inputs, "node_features", (nodes,) * ROWS)


def _path_lengths(joined: Tensor) -> Tensor:
    """The edges on the shortest path between each two nodes [B, N, N]; -1 where there is none."""
    nodes = joined.shape[-1]
    lengths = torch.full(joined.shape, -1, dtype=torch.int16)
    reached = torch.eye(nodes, dtype=torch.bool).expand_as(joined)
    for length in range(nodes):
        lengths[reached & (lengths < 0)] = length
        reached = reached.float() @ joined.float() > 0
    return lengths


def _windows(length: int, channels: int, generator: torch.Generator) -> RandomBatch:
    values = _normal((ROWS, length, channels), generator)  # [B, L, C]
    return RandomBatch({"past_values": values}, "past_values", (length,) * ROWS)


def _lagged_windows(model: specs.SeriesEncoderDecoder, generator: torch.Generator) -> RandomBatch:
    """Windows, what follows them, and the features that the model reads."""
    part = model.input
    batch = _windows(part.past + model.horizon, part.channels, generator)
    values = batch.inputs["past_values"]
    if model.output == specs.Distribution("negative_binomial"):
        values = values.abs().mul(3).round()  # counts
    inputs = {"past_values": values[:, : part.past], "future_values": values[:, part.past :]}
    if part.covariates:
        steps = part.past + model.horizon
        features = torch.randn(ROWS, steps, part.covariates, generator=generator)
        inputs["past_time_features"] = features[:, : part.past]
        inputs["future_time_features"] = features[:, part.past :]
    if part.static_features:
        static = torch.randn(ROWS, part.static_features, generator=generator)
        inputs["static_real_features"] = static
    if part.categories:
        columns = [
            torch.randint(0, one.count, (ROWS,), generator=generator) for one in part.categories
        ]
        inputs["static_categorical_features"] = torch.stack(columns, dim=1)
    return RandomBatch(inputs, "past_values", (part.past,) * ROWS)


def _window(part: specs.Stack | specs.Recurrent | specs.Convolutional) -> int | None:
    """The size of a stack's sliding window, if it has one."""
    if not isinstance(part, specs.Stack):
        return None
    windows = [b.pattern.window for b in part.blocks if isinstance(b.pattern, specs.CausalMask)]
    return min(filter(None, windows), default=None)


def _lengths(max_positions: int | None, window: int | None = None) -> tuple[int, ...]:
    """Full, two thirds and one third of the length of a batch."""
    length = LENGTHS[0]
    if window is not None and window <= 64:
        length += window  # beyond a short window, so that it makes a difference
    if max_positions is not None:
        length = min(length, max_positions)
    return length, max(1, length * 2 // 3), max(1, length // 3)


def _waveform_lengths(part: specs.Waveform) -> tuple[int, ...]:
    """Samples for as many positions as texts have, and some that no position hears."""
    receptive_field = 1
    stride = 1
    for convolution in part.convolutions:
        receptive_field += (convolution.kernel - 1) * stride
        stride *= convolution.stride
    return tuple(receptive_field + stride * (n - 1) + stride // 2 for n in LENGTHS)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Normal random numbers; `ModelError` where the inputs of a model do not fit into memory."""
    count = math.prod(shape)
    memory.require_bytes(4 * count, f"inputs of shape {shape}", "correct the sizes in its spec")
    return torch.randn(shape, generator=generator)


def _random_tokens(vocabulary: int, length: int, pad: int, generator: torch.Generator) -> Tensor:
    """[B, T] of any ids but the padding's."""
    if pad >= vocabulary or vocabulary <= 1:
        return torch.randint(0, max(1, vocabulary - 1), (ROWS, length), generator=generator)
    tokens = torch.randint(0, vocabulary - 1, (ROWS, length), generator=generator)
    return tokens + (tokens >= pad)


def _story(model: specs.MemoryNetwork, generator: torch.Generator) -> RandomBatch:
    sentences = min(LENGTHS[0], model.sentences)
    shape = (ROWS, sentences, 6)  # [B, sentences, words]
    story = torch.randint(0, model.vocabulary, shape, generator=generator)
    question = torch.randint(0, model.vocabulary, (ROWS, 4), generator=generator)  # [B, words]
    return RandomBatch({"story": story, "question": question}, "story", _lengths(sentences))


def _with_pooled_ends(batch: RandomBatch, pool: specs.Pool, vocabulary: int) -> RandomBatch:
    """The batch with end tokens, if it is at these that the pool looks."""
    if not isinstance(pool.which, specs.EndToken):
        return batch
    return _with_end_tokens(batch, pool.which, vocabulary)


def _with_end_tokens(batch: RandomBatch, end: specs.EndToken, vocabulary: int) -> RandomBatch:
    """Each row with its end token at the last position before padding.

    CLIP pools at the first end token, and has one at the very last position as well; BART at the
    last, and transformers wants as many of them in each row. All others are replaced.
    """
    # Without an id CLIP takes the highest one, which its end token has.
    token = vocabulary - 1 if end.token is None else end.token
    if token >= vocabulary:
        raise ModelError(
            f"the pooling token {token} is outside the vocabulary of {vocabulary:,} tokens",
            "correct eos_token_id in config.json",
        )
    tokens = batch.inputs["input_ids"].clone()
    tokens[tokens == token] = 1 if token == 0 else 0
    last = torch.tensor(batch.lengths) - 1
    tokens[torch.arange(ROWS), last] = token
    if end.which == "first":
        tokens[:, -1] = token
    return replace(batch, inputs={**batch.inputs, "input_ids": tokens})
