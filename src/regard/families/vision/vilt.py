"""ViLT in transformers (Kim et al. 2021): one pre-norm encoder over a text and an image.

The text is embedded as BERT's, the image as ViT's; positions of images of other sizes are
interpolated bilinearly. The order of patches, which transformers shuffles, is that of the image.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from regard import spec
from regard.families.block_config import (
    BERT_KEYS,
    block_from_config,
    stack_config,
)
from regard.families.config_schema import (
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture, label_count, label_names
from regard.families.layer_names import norm_rules
from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_DEFAULTS,
    IMAGE_KEYS,
    TEXT_KEYS,
    FromConfig,
    PresetFamily,
    size,
)
from regard.families.tensor_table import Rename, Reshape, Rules, module_rules, position_ids
from regard.families.vision.vit import CONFIG_DEFAULTS, KEYS, LAYER, PATCH_KEYS, patch_rules

PREFIX = "vilt."
SPEC_TYPES = (spec.Encoder, spec.TextAndImage)
_SCHEMA = ConfigSchema(
    defaults={
        **CONFIG_DEFAULTS,
        "image_size": 384,
        "patch_size": 32,
        "vocab_size": 30522,
        "type_vocab_size": 2,
        "modality_type_vocab_size": 2,
        "max_position_embeddings": 40,
    },
    fixed={
        **NOT_ENCODER_DECODER,
        "pruned_heads": {},
        "chunk_size_feed_forward": 0,
        "tie_word_embeddings": True,
        "max_image_length": -1,  # all patches are read; a limit would draw some at random
        "num_images": -1,  # of the classifier of several images
    },
)
_ENDINGS = ("Model", "ForQuestionAnswering")
_TEXT = "embeddings.text_embeddings"


def head(count: int, width: int) -> spec.ClassifierHead:
    """The head of answers: a hidden layer of twice the width with a norm, whatever the layers'."""
    return spec.ClassifierHead(count, hidden="gelu", width=2 * width, norm=spec.LayerNorm(1e-5))


# ------------------------------------------------------------------ config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    part: Any = model.input
    tokens = part.text
    config = {
        "model_type": "vilt",
        "architectures": ["ViltForQuestionAnswering" if model.labels else "ViltModel"],
        **stack_config(model.d_model, model.stack, KEYS),
        **part_config(part.image, PATCH_KEYS),
        "vocab_size": tokens.vocabulary,
        "type_vocab_size": tokens.segments,
        "modality_type_vocab_size": part.modalities,
        "max_position_embeddings": tokens.max_length,
    }
    return config | label_names(model.labels.count) if model.labels else config


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    block = block_from_config(values, spec.PreNorm(), KEYS)
    tokens = spec.Tokens(
        values["vocab_size"],
        spec.LearnedPosition(values["max_position_embeddings"]),
        scale=False,
        dropout=block.dropout,
        segments=values["type_vocab_size"],
        norm=block.norm,
    )
    patches = spec.Patches(**part_fields(values, PATCH_KEYS), extras=1, dropout=block.dropout)
    stack = spec.Stack.of(values["num_hidden_layers"], block, final=block.norm)
    both = spec.TextAndImage(tokens, patches, values["modality_type_vocab_size"])
    model = spec.Encoder(values["hidden_size"], both, stack, (spec.Pool(),))
    if architecture(config, "Vilt", _ENDINGS) == "Model":
        return model
    return model.with_head(head(label_count(config), model.d_model))


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    prefix = PREFIX if model.labels else ""
    embeddings = f"{prefix}embeddings"
    text = f"{prefix}{_TEXT}"
    width = model.d_model
    shape = (1, model.patches.positions, width)
    rules: Rules = [
        Rename("input.text.table.weight", f"{text}.word_embeddings.weight"),
        Rename("input.text.position.table", f"{text}.position_embeddings.weight"),
        *module_rules("input.text.segments", f"{text}.token_type_embeddings", bias=False),
        *norm_rules("input.text.norm", f"{text}.LayerNorm"),
        position_ids(f"{text}.position_ids", 1, model.max_length or 1),
        Reshape("input.image.extras.0", f"{embeddings}.cls_token", (1, 1, width)),
        Reshape(
            "input.image.position.table", f"{embeddings}.position_embeddings", shape, (-1, width)
        ),
        *patch_rules(model, f"{embeddings}.patch_embeddings.projection", "input.image"),
        *module_rules("input.modalities", f"{embeddings}.token_type_embeddings", bias=False),
        *LAYER.stack_rules(model.stack, hf=prefix),
        *module_rules("pool.dense", f"{prefix}pooler.dense"),
    ]
    if model.labels:
        rules += module_rules("labels.dense", "classifier.0")
        rules += norm_rules("labels.norm", "classifier.1")
        rules += module_rules("labels.output", "classifier.3")
    return rules


# ------------------------------------------------------------------ presets

# Kim et al. 2021, Section 4.2; the small ones are for images of 32 to 128 pixels.
SIZES = {
    "tiny": size(4, 128, 4, patch=8, image_size=64),
    "small": size(6, 256, 8, patch=8, image_size=64),
    "b/32": size(*BASE_LAYERS, 87.4, "with the heads of pre-training"),
}
_DEFAULTS = {**IMAGE_DEFAULTS, "patch": 32, "image_size": 384, "labels": 2}
_make = FromConfig(
    to_spec,
    {**BERT_KEYS, **IMAGE_KEYS, **TEXT_KEYS, "num_labels": "labels"},
    {"architectures": ["ViltForQuestionAnswering"]},
)
PRESETS = {"vilt": PresetFamily("image and text", _make, SIZES, _DEFAULTS, 30_522, 40, "b/32")}
