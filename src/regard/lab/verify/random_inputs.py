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
LENGTHS = (14, 9, 5)  # of its rows, unless the model has fewer positions
STORY_WORDS = 6  # of each sentence


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
        of_all = padding_mask.view(*padding_mask.shape, *[1] * (main.ndim - 2)).expand_as(main)
        inputs = {
            **self.inputs,
            self.main: main.masked_fill(~of_all, pad),
            # A story has a mask of its words.
            self._mask_name: (of_all if self.main == "story" else padding_mask).long(),
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
    return model.inputs[0].kind in ("pixels", "frames", "values", "nodes")


# ------------------------------------------------------------------ random batches


def random_batch(model: Any, pad: int = 0, seed: int = 0) -> RandomBatch:
    """A random batch of rows of full length, without padding; `Batch.padded` adds it."""
    lengths = _row_lengths(model)
    # A decoder whose hidden states are pooled reads the same tokens as the encoder.
    pooled = model.is_encoder_decoder and model.pool is not None
    steps = ("actions", "returns_to_go", "timesteps")  # of trajectories
    aligned = ("decoder_input_ids",) if pooled else ("token_type_ids", *steps)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        drawn = _tokens(model, lengths[0], pad, aligned)
        for part in reversed(model.front_ends.values()):
            drawn |= _features(model, part, lengths[0])
        if model.inputs[0].kind == "values":
            drawn |= _windows(model.series_window)
        if model.main_input_name == "spectrogram":
            drawn["spectrogram"] = torch.randn(ROWS, lengths[0], model.widths[""])
    if model.pool is not None and isinstance(model.pool.which, specs.EndToken):
        vocabulary = model.vocabularies["input_ids"]
        _set_end_tokens(drawn["input_ids"], model.pool.which, vocabulary, lengths)
    # Chunks on a ring (Reformer) may as well be padded on the right, and only then does Hugging
    # Face number the positions as we do.
    rings = any(stack.rings for stack in model.stacks.values())
    return RandomBatch(
        {one.name: drawn[one.name] for one in model.inputs if one.name in drawn},
        model.main_input_name,
        lengths,
        aligned,
        left_padding="decoder" in [*model.front_ends][:1] and not rings,
    )


def _row_lengths(model: Any) -> tuple[int, ...]:
    """Full, two thirds and one third of the length of a batch."""
    parts = [*model.front_ends.values()]
    if parts and isinstance(parts[0], specs.Waveform):
        return _waveform_lengths(parts[0])
    patterns = [block.pattern for stack in model.stacks.values() for block in stack.blocks]
    windows = [one.window or 0 for one in patterns if isinstance(one, specs.CausalMask)]
    # Beyond a short sliding window, so that it makes a difference.
    length = LENGTHS[0] + min((window for window in windows if 0 < window <= 64), default=0)
    sentences = getattr(model, "sentences", length)  # of a memory network
    length = min(length, sentences, model.max_length or length)
    return length, max(1, length * 2 // 3), max(1, length // 3)


def _tokens(
    model: specs.Model, length: int, pad: int, aligned: tuple[str, ...]
) -> dict[str, Tensor]:
    """[B, T] of any ids but the padding's, and stories [B, T, words]."""
    drawn = {}
    for name, vocabulary in model.vocabularies.items():
        # Other texts have another length, so that mixing them up raises an error.
        is_as_long = name == model.main_input_name or name in aligned
        words = (STORY_WORDS,) if name == "story" else ()
        shape = (ROWS, length if is_as_long else max(1, length - 3), *words)
        ids = torch.randint(0, max(1, vocabulary - 1), shape)
        drawn[name] = ids + ((ids >= pad) & (vocabulary > 1))
    return drawn


def _features(
    model: Any, part: specs.FrontEnd | specs.LaggedValues, length: int
) -> dict[str, Tensor]:
    """What a front end reads besides tokens and time series."""
    match part:
        case specs.Tokens(segments=segments):
            shape = part.shape(ROWS, length)
            return {"token_type_ids": torch.randint(0, segments, shape)} if segments > 1 else {}
        case specs.TextAndImage():
            image = {part.image.main_input_name: _normal(part.image.shape(ROWS, length))}
            return _features(model, part.text, length) | image
        case specs.LaggedValues():
            return _covariates(part, model.series_window.horizon)
        case specs.SeriesPatches():
            return {}
        case specs.Spectrogram():
            length = part.max_length or 20
    features = {part.main_input_name: _normal(part.shape(ROWS, length))}
    match part:
        case specs.NodeFeatures():
            return features | _random_graph(part, length)
        case specs.Trajectories():
            return features | {
                "actions": _normal((ROWS, length, part.actions)),
                "returns_to_go": _normal((ROWS, length, 1)),
                "timesteps": torch.randint(0, part.steps, (ROWS, length)),
            }
        case specs.Patches(masked_share=share, mask_token=False) if share:
            # Which patches are hidden is drawn for both libraries alike.
            features["noise"] = torch.rand(ROWS, part.side**2)
        case specs.Patches():
            # Random masks where the reconstruction is an image of the same size (SimMIM).
            head = model.part(specs.PixelShuffleHead)
            if head is not None and head.stride == specs.image_stride(model):
                features["bool_masked_pos"] = torch.rand(ROWS, part.side**2) < part.masked_share
    return features


def _random_graph(part: specs.NodeFeatures, nodes: int) -> dict[str, Tensor]:
    """Graphs of random edges, each with both directions, and a loop at each node."""
    joined = torch.rand(ROWS, nodes, nodes) < 0.2
    joined = joined | joined.mT | torch.eye(nodes, dtype=torch.bool)
    inputs = {"edges": joined.nonzero(), "distances": _path_lengths(joined)}
    if part.laplacian:
        inputs["eigenvectors"] = torch.randn(ROWS, nodes, part.laplacian)
    return inputs


def _path_lengths(joined: Tensor) -> Tensor:
    """The edges on the shortest path between each two nodes [B, N, N]; -1 where there is none."""
    nodes = joined.shape[-1]
    lengths = torch.full(joined.shape, -1, dtype=torch.int16)
    reached = torch.eye(nodes, dtype=torch.bool).expand_as(joined)
    for length in range(nodes):
        lengths[reached & (lengths < 0)] = length
        reached = reached.float() @ joined.float() > 0
    return lengths


def _windows(window: specs.SeriesWindow) -> dict[str, Tensor]:
    """Windows [B, L, C], and what follows them."""
    values = _normal((ROWS, window.length + window.horizon, window.channels))
    if window.output == specs.Distribution("negative_binomial"):
        values = values.abs().mul(3).round()  # counts
    past, future = values.split((window.length, window.horizon), dim=1)
    return {"past_values": past, "future_values": future}


def _covariates(part: specs.LaggedValues, horizon: int) -> dict[str, Tensor]:
    """The features of a series, and of its time steps, that a model reads."""
    inputs = {}
    if part.covariates:
        inputs["past_time_features"] = torch.randn(ROWS, part.past, part.covariates)
        inputs["future_time_features"] = torch.randn(ROWS, horizon, part.covariates)
    if part.static_features:
        inputs["static_real_features"] = torch.randn(ROWS, part.static_features)
    if part.categories:
        columns = [torch.randint(0, one.count, (ROWS,)) for one in part.categories]
        inputs["static_categorical_features"] = torch.stack(columns, dim=1)
    return inputs


def _waveform_lengths(part: specs.Waveform) -> tuple[int, ...]:
    """Samples for as many positions as texts have, and some that no position hears."""
    receptive_field = 1
    stride = 1
    for convolution in part.convolutions:
        receptive_field += (convolution.kernel - 1) * stride
        stride *= convolution.stride
    return tuple(receptive_field + stride * (n - 1) + stride // 2 for n in LENGTHS)


def _normal(shape: tuple[int, ...]) -> Tensor:
    """Normal random numbers; `ModelError` where the inputs of a model do not fit into memory."""
    count = math.prod(shape)
    memory.require_bytes(4 * count, f"inputs of shape {shape}", "correct the sizes in its spec")
    return torch.randn(shape)


def _set_end_tokens(
    tokens: Tensor, end: specs.EndToken, vocabulary: int, lengths: tuple[int, ...]
) -> None:
    """Puts an end token at the last position before the padding of each row.

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
    tokens[tokens == token] = 1 if token == 0 else 0
    tokens[torch.arange(ROWS), torch.tensor(lengths) - 1] = token
    if end.which == "first":
        tokens[:, -1] = token
