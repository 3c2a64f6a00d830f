"""The head step: a model to fine-tune with the head that an objective needs, and its classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from regard import spec
from regard.builder import build
from regard.models import Model
from regard.system.errors import ModelError

Adapted = TypeVar("Adapted", bound=Model)
Wrap = Callable[[Any, Any, dict[str, Any]], Adapted]  # core model, spec, config.json

_HEADS = ("labels.", "pool.")
_POOLED_WIDTH = 256  # transformers' classifier_proj_size, unless the model is narrower
# What an encoder–decoder calls the parts of an encoder.
_PARTS = {"source": "input", "encoder": "stack"}


def rebuilt(
    base: Model, description: spec.Model, config: dict[str, Any], seed: int, wrap: Wrap[Adapted]
) -> Adapted:
    """The base model by another spec: its weights where they fit, new heads from the seed."""
    torch.manual_seed(seed)
    model = build(description)
    copy_weights(base, model)
    adapted = wrap(model, description, config)
    adapted.folder = base.folder
    adapted.say = base.say
    return adapted


@torch.no_grad()
def copy_weights(base: Model, model: nn.Module) -> None:
    """Copies the weights of the base model; new labels and pools are normal of deviation 0.02.

    A pool stays where it fits, and a series head; labels are always new.
    """
    old = dict(base.model.named_parameters())
    for name, parameter in list(old.items()):
        part, dot, rest = name.partition(".")
        old.setdefault(_PARTS.get(part, part) + dot + rest, parameter)
    for name, parameter in model.named_parameters():
        fits = name in old and old[name].shape == parameter.shape
        if fits and not name.startswith("labels."):
            parameter.copy_(old[name])
        elif name.startswith(_HEADS):
            if parameter.ndim == 1:  # a bias
                parameter.zero_()
            else:
                parameter.normal_(std=0.02)  # BERT's initializer_range
        # Sinusoids are computed, for as many steps as there are now.
        elif parameter.requires_grad and not name.startswith("series."):
            raise ModelError(f"{base.folder} has no weights for {name}", "give a whole model")
    buffers = dict(base.model.named_buffers())
    for name, buffer in model.named_buffers():
        if name in buffers and buffers[name].shape == buffer.shape:
            buffer.copy_(buffers[name])


# --- classifiers ----------------------------------------------------------------------------------


def image_classifier(description: spec.Encoder, count: int) -> spec.Encoder:
    """An encoder of images with so many classes, by a head as it has one, or by a new one."""
    if description.pixels is not None or description.patches.mask_token:
        description = _without_masks(description)
    if description.labels is not None:
        return description.with_head(replace(description.labels, count=count))
    if description.pool is not None and description.pool.which == "mean":  # Swin
        return description.with_head(spec.ClassifierHead(count))
    if not description.patches.extras:  # SigLIP has no class token
        return description.with_heads(description.pool, spec.ClassifierHead(count, pool="mean"))
    # The class token as ViT's classifier reads it; CLIP's has a norm before it.
    norm = None if description.pool is None else description.pool.norm
    pool = spec.Pool("first", None, norm=norm)
    return description.with_heads(pool, spec.ClassifierHead(count))


def _without_masks(description: spec.Encoder) -> spec.Encoder:
    """The encoder of masked image modelling, which sees all patches from now on.

    That of a masked autoencoder becomes a plain ViT, whose positions are trained with the rest (He
    et al. 2022, Appendix A.1).
    """
    patches = replace(description.patches, masked_share=0.0, mask_token=False, mask_unit=1)
    if isinstance(description.pixels, spec.PixelDecoder):
        dropout = description.stack.block.dropout
        patches = replace(patches, position="learned", dropout=dropout)
    pooled = spec.heads(description.pool, description.labels)
    return replace(description, input=patches, heads=pooled)


def sound_classifier(description: Any, count: int) -> spec.Encoder:
    """The encoder of a model of sound, with a head over the mean of its positions."""
    encoder: spec.Encoder = description
    if description.is_encoder_decoder:
        encoder = spec.Encoder(description.d_model, description.source, description.encoder)
    if encoder.main_input_name == "input_values" and encoder.contrastive is None:
        # Nothing is masked in training: a new mask vector would keep its initial value.
        masked = encoder.waves.masked and encoder.labels is None
        encoder = replace(encoder, input=replace(encoder.waves, masked=masked))
    pool = spec.Pool("mean", None, width=min(_POOLED_WIDTH, encoder.d_model), bias=True)
    return encoder.with_heads(pool, spec.ClassifierHead(count))


def has_classes(model: Any, names: Sequence[str]) -> bool:
    """Whether a model has a head for these classes already."""
    return model.spec.labels is not None and set(model.labels) == set(names)
