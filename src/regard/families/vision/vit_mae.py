"""ViT-MAE in transformers: a masked autoencoder, whose encoder is ViT on visible patches.

Without its decoder (`ViTMAEModel`) it hides patches all the same. A classifier that is fine-tuned
from it is a ViT (He et al. 2022).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from regard import spec
from regard.families.block_config import block_from_config, stack_config
from regard.families.config_schema import (
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture
from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_DEFAULTS,
    LARGE_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import FormerPrefix, Reshape, Rules, module_rules
from regard.families.vision.vit import (
    CONFIG_DEFAULTS,
    KEYS,
    LAYER,
    PATCH_KEYS,
    PRESET_KEYS,
    patch_rules,
)

PREFIX = "vit."
SPEC_TYPES = (spec.Encoder, spec.Patches)
_SCHEMA = ConfigSchema(
    defaults={
        **CONFIG_DEFAULTS,
        "decoder_hidden_size": 512,
        "decoder_num_hidden_layers": 8,
        "decoder_num_attention_heads": 16,
        "decoder_intermediate_size": 2048,
        "mask_ratio": 0.75,
        "norm_pix_loss": False,
    },
    fixed={**NOT_ENCODER_DECODER, "pruned_heads": {}, "chunk_size_feed_forward": 0},
    unsupported=frozenset({"head_dim"}),
)
_PATCH_KEYS = {**PATCH_KEYS, "mask_ratio": "masked_share"}
DECODER_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
# Where version 5 of transformers writes the decoder's layers, and where earlier ones did.
_DECODER_LAYER = "decoder.decoder_encoder.layer."
_FORMER_DECODER_LAYER = "decoder.decoder_layers."

# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    config = {
        "model_type": "vit_mae",
        "architectures": ["ViTMAEModel"],
        **stack_config(model.d_model, model.stack, KEYS),
        **part_config(model.patches, _PATCH_KEYS),
    }
    # Another pixel decoder is not supported: what is read back differs.
    if not isinstance(model.pixels, spec.PixelDecoder):
        return config
    decoder = stack_config(model.pixels.d_model, model.pixels.stack)
    return {
        **config,
        "architectures": ["ViTMAEForPreTraining"],
        **{f"decoder_{key}": decoder[key] for key in DECODER_SIZES},
        "norm_pix_loss": model.pixels.normalized,
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    patches = spec.Patches(**part_fields(values, _PATCH_KEYS), position="fixed")
    pixels = None
    if architecture(config, "ViTMAE", ("Model", "ForPreTraining")) == "ForPreTraining":
        # All else of a decoder's layers is as in the encoder's.
        sizes = {key: values[f"decoder_{key}"] for key in DECODER_SIZES}
        pixels = spec.PixelDecoder(
            sizes["hidden_size"], _stack(values | sizes), values["norm_pix_loss"]
        )
    return spec.Encoder(values["hidden_size"], patches, _stack(values), spec.heads(pixels))


def _stack(values: Config) -> spec.Stack:
    block = block_from_config(values, spec.PreNorm(), KEYS)
    return spec.Stack.of(values["num_hidden_layers"], block, final=block.norm)


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    prefix = PREFIX if model.pixels else ""
    embeddings = f"{prefix}embeddings"
    rules: Rules = [
        Reshape("input.extras.0", f"{embeddings}.cls_token", (1, 1, model.d_model)),
        _position_rule("input", f"{embeddings}.position_embeddings", model, model.d_model),
        *patch_rules(model, f"{embeddings}.patch_embeddings.projection"),
        *LAYER.stack_rules(model.stack, hf=prefix),
    ]
    if isinstance(model.pixels, spec.PixelDecoder):
        rules += _decoder_rules(model, model.pixels)
    return rules


def _decoder_rules(model: spec.Encoder, decoder: spec.PixelDecoder) -> Rules:
    names = replace(LAYER, layer=f"{_DECODER_LAYER}{{i}}", final="decoder.decoder_norm")
    token_shape = (1, 1, decoder.d_model)
    return [
        *module_rules("pixels.project", "decoder.decoder_embed"),
        Reshape("pixels.mask_token", "decoder.mask_token", token_shape),
        _position_rule("pixels", "decoder.decoder_pos_embed", model, decoder.d_model),
        *names.stack_rules(decoder.stack, "pixels.stack"),
        FormerPrefix(_DECODER_LAYER, _FORMER_DECODER_LAYER),
        *module_rules("pixels.output", "decoder.decoder_pred"),
    ]


def _position_rule(name: str, hf: str, model: spec.Encoder, width: int) -> Reshape:
    """A table of fixed positions, whose first dimension is that of the batch there."""
    hf_shape = (1, model.patches.positions, width)
    return Reshape(f"{name}.position.table", hf, hf_shape, (-1, width))


# ------------------------------------------------------------------ presets

# He et al. 2022: the encoders of ViT, and one decoder for all (Section 4.1).
SIZES = {
    "tiny": size(4, 128, 4, decoder_layers=2, decoder_d_model=None, decoder_heads=None),
    "base/16": size(*BASE_LAYERS),
    "large/16": size(*LARGE_LAYERS),
    "huge/14": size(32, 1280, 16, patch=14),
}
_DEFAULTS = {
    **IMAGE_DEFAULTS,
    "decoder_layers": 8,
    "decoder_d_model": 512,  # None: half of the encoder's
    "decoder_heads": 16,  # None: as many as in the encoder
    "masked_share": 0.75,
}


def _computed(settings: Settings) -> Config:
    heads = settings["decoder_heads"] or settings["heads"]
    width = settings["decoder_d_model"] or max(1, settings["d_k"] // 2) * heads
    return {
        "decoder_hidden_size": width,
        "decoder_num_attention_heads": heads,
        "decoder_intermediate_size": 4 * width,
    }


_make = FromConfig(
    to_spec,
    {
        **PRESET_KEYS,
        "decoder_num_hidden_layers": "decoder_layers",
        "mask_ratio": "masked_share",
    },
    # With the better representations of normalized pixels (Table 1d).
    {"architectures": ["ViTMAEForPreTraining"], "norm_pix_loss": True},
    _computed,
)
PRESETS = {"vit-mae": PresetFamily("image", _make, SIZES, _DEFAULTS, 1000, 224, "base/16")}
