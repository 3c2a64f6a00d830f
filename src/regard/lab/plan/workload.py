"""The workload of a training step: a batch of given sizes, and the loss of an objective on it.

The losses are those of `training/objectives`, without data, tokenizers and teachers: a batch is a
table of shapes, filled with random numbers. Batches have no padding.
"""

# Letters of shapes: B rows, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec as specs
from regard.builder import build, outline
from regard.core.caches.kv_cache import DecoderState
from regard.core.context import Context
from regard.core.stack import Stack
from regard.data.padding import IGNORED
from regard.system.errors import ModelError, SettingError
from regard.training.objectives.corrupted_text import CorruptedText
from regard.training.objectives.label_smoothed_cross_entropy import (
    TokenLoss,
    add_auxiliary_losses,
    cross_entropy,
    linear_cross_entropy,
)
from regard.training.objectives.masked_lm import masked_loss
from regard.training.objectives.replaced_token_detection import replaced_loss, share_embeddings
from regard.wirings.baselines.memory_network import MemoryNetwork

Tensors = Mapping[str, Tensor]
# The modules that are trained and the tensors of a batch → the loss, summed over the labels.
Loss = Callable[[Any, Tensors, TokenLoss], Tensor]

STORY_SENTENCES = 20  # of a bAbI story, and the words of each
STORY_WORDS = 8
CTC_LABELS_PER_SECOND = 14  # characters of English speech
SAMPLES_PER_SECOND = 16_000
RETRIEVAL_TEMPERATURE = 0.05


@dataclass(frozen=True)
class Sizes:
    """The sizes of a batch: rows, and positions of each row; encoder–decoders have two lengths."""

    rows: int
    length: int
    source_length: int

    @property
    def positions(self) -> int:
        return self.rows * self.length


@dataclass(frozen=True)
class Input:
    """A tensor of a batch: floating-point numbers, or integers below `limit`."""

    shape: tuple[int, ...]
    limit: int | None = None  # None: floating-point numbers
    is_mask: bool = False
    share: float = 1.0  # of the positions, that have a label; the others are ignored

    @property
    def count(self) -> int:
        """How many labels it has."""
        return max(1, round(self.share * math.prod(self.shape)))

    def create(self, device: torch.device, generator: torch.Generator) -> Tensor:
        if self.is_mask:
            return torch.ones(self.shape, dtype=torch.bool, device=device)
        if self.limit is None:
            return torch.randn(self.shape, generator=generator).to(device)
        values = torch.randint(0, self.limit, self.shape, generator=generator)
        if self.share < 1:
            ignored = torch.randperm(values.numel(), generator=generator)[self.count :]
            values.view(-1)[ignored] = IGNORED
        return values.to(device)


@dataclass(frozen=True)
class Workload:
    """A micro-batch of an objective: its inputs, and how its loss is computed."""

    objective: str
    sizes: Sizes
    inputs: Mapping[str, Input]
    labels: int  # that the loss is a mean over
    _loss: Loss

    def loss(
        self, core: nn.Module, tensors: Tensors, token_loss: TokenLoss = linear_cross_entropy
    ) -> Tensor:
        """The loss of a batch, summed over its labels."""
        return self._loss(core, tensors, token_loss)

    def create(self, device: torch.device, seed: int = 0) -> dict[str, Tensor]:
        """Random tensors of these shapes."""
        generator = torch.Generator().manual_seed(seed)
        return {name: one.create(device, generator) for name, one in self.inputs.items()}


# --- the modules that are trained -----------------------------------------------------------------


def modules(description: specs.Model, generator: specs.Model | None, *, real: bool) -> nn.Module:
    """What an objective trains: the model, with its generator in ELECTRA's objective.

    Unless `real`, on the meta device: shapes without memory.
    """
    make = build if real else outline
    core: nn.Module = make(description)
    if generator is None:
        return core
    other = make(generator)
    share_embeddings(other, core)  # type: ignore[arg-type]
    return nn.ModuleDict({"generator": other, "discriminator": core})


def set_activation_checkpointing(model: nn.Module, value: bool) -> None:
    """Recomputes the activations of each block in backward (Chen et al. 2016)."""
    for module in model.modules():
        if isinstance(module, Stack):
            module.activation_checkpointing = value


# --- losses ---------------------------------------------------------------------------------------


def _sequence_to_sequence(core: Any, tensors: Tensors, token_loss: TokenLoss) -> Tensor:
    hidden, auxiliary = core(tensors["source"], tensors["target"], tensors.get("padding_mask"))
    labels = tensors["labels"]
    loss, _ = token_loss(core.head, hidden, labels)
    return add_auxiliary_losses(loss, auxiliary, labels.numel())


def _causal(core: Any, tensors: Tensors, token_loss: TokenLoss, d_model: int) -> Tensor:
    tokens = tensors["tokens"]
    context = None
    if core.stack.carries_state:  # Transformer-XL and recurrent models read segments
        states = core.stack.start_segments(len(tokens), d_model)
        context = Context(state=DecoderState(states))
    hidden, auxiliary = core(tokens, None, context)  # [B, T, D]
    labels = tensors["labels"]
    loss, _ = token_loss(core.head, hidden, labels)
    return add_auxiliary_losses(loss, auxiliary, labels.numel())


def _masked(core: Any, tensors: Tensors, token_loss: TokenLoss) -> Tensor:
    return masked_loss(core, tensors, token_loss).total()


def _replaced(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    return replaced_loss(core, tensors).total()


def _labelled(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    tokens = tensors["tokens"]
    padding_mask = tensors["padding_mask"]
    hidden, auxiliary = core(tokens, padding_mask)
    logits = core.classes(hidden, padding_mask, tokens)  # [B, count] or [B, T, count]
    labels = tensors["labels"]
    loss, _ = cross_entropy(logits, labels)
    return add_auxiliary_losses(loss, auxiliary, labels.numel())


def _vectors(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    hidden, _ = core(tensors["tokens"], tensors["padding_mask"])  # [2 B, T, D]
    pooled = functional.normalize(hidden.float().mean(dim=1), dim=-1)
    first, second = pooled.chunk(2)
    return _contrast(first @ second.T / RETRIEVAL_TEMPERATURE)


def _image_classes(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    hidden, auxiliary = core(tensors["pixels"])
    loss, _ = cross_entropy(core.classes(hidden), tensors["labels"])
    return add_auxiliary_losses(loss, auxiliary, len(tensors["labels"]))


def _masked_patches(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    pixels = tensors["pixels"]
    order = core.input.random_masking(tensors["noise"])
    predicted = core.reconstruct(pixels, order)
    loss: Tensor = core.pixels.error(predicted, core.input.unfold(pixels), order.masked).sum()
    return loss


def _image_vectors(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    """An image encoder without classes (CLIP's): the norm of its vectors stands for a loss."""
    vectors: Tensor = core.vector(tensors["pixels"])
    return vectors.float().square().sum()


def _image_text(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    texts = core.texts(tensors["tokens"], tensors["padding_mask"])  # [B, D]
    images = core.images(tensors["pixels"])
    return _contrast(core.logits(texts.float(), images.float()))


def _contrast(logits: Tensor) -> Tensor:
    """The mean of both directions: logits [B, B], whose diagonal are the pairs."""
    labels = torch.arange(len(logits), device=logits.device)
    there = functional.cross_entropy(logits, labels, reduction="sum")
    back = functional.cross_entropy(logits.T, labels, reduction="sum")
    return (there + back) / 2


def _ctc(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    waves = tensors["waves"]
    hidden, auxiliary = core(waves, tensors["padding_mask"])  # [B, T, D]
    log_probs = core.classes(hidden).float().log_softmax(dim=-1).transpose(0, 1)  # [T, B, V]
    labels = tensors["labels"] + 1  # 0 is the blank
    # As numbers, not as tensors: nothing is padded.
    frames = (log_probs.shape[0],) * len(waves)
    lengths = (labels.shape[1],) * len(waves)
    loss = functional.ctc_loss(  # PyTorch takes numbers here, but its annotations do not say so
        log_probs,
        labels,
        frames,  # type: ignore[arg-type]
        lengths,  # type: ignore[arg-type]
        reduction="sum",
    )
    return add_auxiliary_losses(loss, auxiliary, labels.numel())


def _stories(core: Any, tensors: Tensors, _unused: TokenLoss) -> Tensor:
    hidden, auxiliary = core(*MemoryNetwork.split_inputs(tensors["text"]))
    loss, _ = cross_entropy(core.head(hidden), tensors["labels"])
    return add_auxiliary_losses(loss, auxiliary, len(tensors["labels"]))


# --- batches --------------------------------------------------------------------------------------


def workload(objective: str, model: Any, sizes: Sizes) -> Workload:
    """A batch of these sizes for this model and objective."""
    make = _BATCHES.get(objective)
    if make is None:
        raise SettingError(
            f"the planner does not support the objective {objective!r}",
            f"choose another objective: {', '.join(_BATCHES)}",
        )
    inputs, labels, loss = make(model, sizes)
    return Workload(objective, sizes, inputs, labels, loss)


Made = tuple[dict[str, Input], int, Loss]


def _pairs(model: Any, sizes: Sizes) -> Made:
    target = (sizes.rows, sizes.length)
    inputs = {
        "source": _source(model, sizes),
        "target": Input(target, model.vocab_size),
        "labels": Input(target, model.vocab_size),
    }
    if model.main_input_name == "input_ids":
        inputs["padding_mask"] = Input((sizes.rows, sizes.source_length), is_mask=True)
    return inputs, sizes.positions, _sequence_to_sequence


def _source(model: Any, sizes: Sizes) -> Input:
    if model.main_input_name == "input_features":  # frames of sound; the convolutions halve them
        return Input((sizes.rows, model.spectrogram.mels, 2 * sizes.source_length))
    return Input((sizes.rows, sizes.source_length), model.embeddings["source"].vocabulary)


def _text(model: Any, sizes: Sizes) -> Made:
    shape = (sizes.rows, sizes.length)
    inputs = {"tokens": Input(shape, model.vocab_size), "labels": Input(shape, model.vocab_size)}
    return inputs, sizes.positions, partial(_causal, d_model=model.d_model)


def _masked_text(model: Any, sizes: Sizes) -> Made:
    inputs = _with_mask(model, sizes, CorruptedText.default_share)
    return inputs, inputs["labels"].count, _masked


def _replaced_text(model: Any, sizes: Sizes) -> Made:
    inputs = _with_mask(model, sizes, CorruptedText.default_share)
    return inputs, inputs["labels"].count, _replaced


def _with_mask(model: Any, sizes: Sizes, share: float = 1.0) -> dict[str, Input]:
    shape = (sizes.rows, sizes.length)
    return {
        "tokens": Input(shape, model.vocab_size),
        "labels": Input(shape, model.vocab_size, share=share),
        "padding_mask": Input(shape, is_mask=True),
    }


def _labelled_text(model: Any, sizes: Sizes) -> Made:
    count = model.labels.count
    each = model.labels.each
    shape = (sizes.rows, sizes.length) if each else (sizes.rows,)
    inputs = {**_with_mask(model, sizes), "labels": Input(shape, count)}
    return inputs, sizes.positions if each else sizes.rows, _labelled


def _text_pairs(model: Any, sizes: Sizes) -> Made:
    shape = (2 * sizes.rows, sizes.length)
    inputs = {"tokens": Input(shape, model.vocab_size), "padding_mask": Input(shape, is_mask=True)}
    return inputs, sizes.rows, _vectors


def _images(model: Any, sizes: Sizes) -> Made:
    inputs = {"pixels": _pixels(model.patches, sizes.rows)}
    if model.labels is None:
        return inputs, sizes.rows, _image_vectors
    return (
        {**inputs, "labels": Input((sizes.rows,), model.labels.count)},
        sizes.rows,
        (_image_classes),
    )


def _masked_images(model: Any, sizes: Sizes) -> Made:
    inputs = {
        "pixels": _pixels(model.patches, sizes.rows),
        "noise": Input((sizes.rows, model.patches.maskable)),
    }
    return inputs, sizes.rows, _masked_patches


def _captioned_images(model: Any, sizes: Sizes) -> Made:
    shape = (sizes.rows, sizes.length)
    inputs = {
        "pixels": _pixels(model.image.patches, sizes.rows),
        "tokens": Input(shape, model.text.vocab_size),
        "padding_mask": Input(shape, is_mask=True),
    }
    return inputs, sizes.rows, _image_text


def _pixels(patches: Any, rows: int) -> Input:
    return Input((rows, patches.channels, patches.size, patches.size))


def _recordings(model: Any, sizes: Sizes) -> Made:
    if model.labels.count < 2:
        raise ModelError(
            "a CTC head with one class has only the blank",
            "set a larger `count` in its ClassifierHead",
        )
    samples = (sizes.rows, sizes.length)
    characters = max(1, CTC_LABELS_PER_SECOND * sizes.length // SAMPLES_PER_SECOND)
    inputs = {
        "waves": Input(samples),
        "padding_mask": Input(samples, is_mask=True),
        "labels": Input((sizes.rows, characters), model.labels.count - 1),
    }
    return inputs, sizes.rows * characters, _ctc


def _story_rows(model: Any, sizes: Sizes) -> Made:
    sentences = min(STORY_SENTENCES, model.sentences)
    inputs = {
        "text": Input((sizes.rows, sentences + 1, STORY_WORDS), model.vocabulary),
        "labels": Input((sizes.rows,), model.vocabulary),
    }
    return inputs, sizes.rows, _stories


_BATCHES: dict[str, Callable[[Any, Sizes], Made]] = {
    "translate": _pairs,
    "span": _pairs,
    "denoise": _pairs,
    "transcribe": _pairs,
    "causal": _text,
    "masked": _masked_text,
    "replaced": _replaced_text,
    "classify": _labelled_text,
    "tag": _labelled_text,
    "answer": _labelled_text,
    "regress": _labelled_text,
    "contrastive": _text_pairs,
    "images": _images,
    "masked_images": _masked_images,
    "image_text": _captioned_images,
    "ctc": _recordings,
    "stories": _story_rows,
}
