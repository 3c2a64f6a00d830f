"""VideoMAE in transformers (Tong et al. 2022): a masked autoencoder of tubelets.

Unlike ViT-MAE's, its encoder hides what it is told to. A classifier reads the mean of all tubelets
or, without mean pooling, the first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.block_config import BERT_KEYS, block_from_config, stack_config
from regard.families.config_schema import (
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture, label_count, label_names
from regard.families.layer_names import LayerNames, norm_rules
from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_DEFAULTS,
    IMAGE_KEYS,
    LARGE_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import FormerPrefix, Rename, Reshape, Rules, module_rules, renamed
from regard.families.vision.vit import CONFIG_DEFAULTS, LAYER, PATCH_KEYS
from regard.families.vision.vit_mae import DECODER_SIZES
from regard.system.errors import ModelError

PREFIX = "videomae."
SPEC_TYPES = (spec.Encoder, spec.Tubelets)
_MASKED = 0.9  # of the patches (Section 4.1), hidden at all times
_SCHEMA = ConfigSchema(
    defaults={
        **{key: value for key, value in CONFIG_DEFAULTS.items() if key != "qkv_bias"},
        "num_frames": 16,
        "tubelet_size": 2,  # frames
        "qv_bias": True,
        "use_mean_pooling": True,
        "decoder_hidden_size": 384,
        "decoder_num_hidden_layers": 4,
        "decoder_num_attention_heads": 6,
        "decoder_intermediate_size": 1536,
        "norm_pix_loss": True,
        # transformers does not read it: training alone knows the share that is hidden.
        "mask_ratio": _MASKED,
    },
    fixed={**NOT_ENCODER_DECODER, "pruned_heads": {}, "chunk_size_feed_forward": 0},
    synonyms={"qkv_bias": "qv_bias"},
)
_KEYS = {**BERT_KEYS, "qv_bias": "qkv_bias"}
_PATCH_KEYS = {**PATCH_KEYS, "num_frames": "frames", "tubelet_size": "tubelet"}
_BIASES = {
    ".attention.attention.query.bias": ".attention.attention.q_bias",
    ".attention.attention.value.bias": ".attention.attention.v_bias",
}
_ENDINGS = ("Model", "ForVideoClassification", "ForPreTraining")

# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    config = {
        "model_type": "videomae",
        "architectures": ["VideoMAEModel"],
        **stack_config(model.d_model, model.stack, _KEYS),
        **part_config(model.patches, _PATCH_KEYS),
        "use_mean_pooling": model.stack.final is None,
    }
    if model.labels:
        config["architectures"] = ["VideoMAEForVideoClassification"]
        config |= label_names(model.labels.count)
    if not isinstance(model.pixels, spec.TubeletDecoder):
        return config
    decoder = stack_config(model.pixels.d_model, model.pixels.stack)
    if model.patches.masked_share != _MASKED:
        config["mask_ratio"] = model.patches.masked_share
    return {
        **config,
        "architectures": ["VideoMAEForPreTraining"],
        **{f"decoder_{key}": decoder[key] for key in DECODER_SIZES},
        "norm_pix_loss": model.pixels.normalized,
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    if "qkv_bias" in config:  # the former name, which transformers prefers
        config = {**config, "qv_bias": config["qkv_bias"]}
    values = _SCHEMA.parse(config)
    clip = spec.Tubelets(**part_fields(values, _PATCH_KEYS), extras=0, position="sinusoidal")
    final = None if values["use_mean_pooling"] else spec.LayerNorm(values["layer_norm_eps"])
    stack = spec.Stack.of(values["num_hidden_layers"], _block(values), final=final)
    model = spec.Encoder(values["hidden_size"], clip, stack)
    match architecture(config, "VideoMAE", _ENDINGS):
        case "Model":
            return model
        case "ForVideoClassification":
            # The norm's ε is PyTorch's own.
            pool = spec.Pool("first", None)
            if values["use_mean_pooling"]:
                pool = spec.Pool("mean", None, norm=spec.LayerNorm(1e-5))
            return model.with_heads(pool, spec.ClassifierHead(label_count(config)))
    if not values["norm_pix_loss"] and clip.channels != 3:
        raise ModelError(
            f"config.json: pixels of {clip.channels} channels are not reconstructed as they are",
            "set norm_pix_loss to true",
        )
    # All else of a decoder's layers is as in the encoder's; its last norm has PyTorch's ε.
    sizes = {key: values[f"decoder_{key}"] for key in DECODER_SIZES}
    layers = sizes["num_hidden_layers"]
    decoder = spec.Stack.of(layers, _block(values | sizes), final=spec.LayerNorm(1e-5))
    pixels = spec.TubeletDecoder(sizes["hidden_size"], decoder, values["norm_pix_loss"])
    masked = replace(clip, masked_share=float(values["mask_ratio"]))
    return replace(model, input=masked, heads=(pixels,))


def _block(values: Config) -> spec.Block:
    """A layer, whose keys have no bias."""
    block = block_from_config(values, spec.PreNorm(), _KEYS)
    bias = block.attention.bias.replace("k", "")
    return replace(block, attention=replace(block.attention, bias=bias))


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    clip: Any = model.patches
    prefix = PREFIX if model.heads else ""
    projection = f"{prefix}embeddings.patch_embeddings.projection"
    kernel = (model.d_model, clip.channels, clip.tubelet, clip.patch, clip.patch)
    rules: Rules = [
        Reshape("input.project.weight", f"{projection}.weight", kernel, (model.d_model, -1)),
        Rename("input.project.bias", f"{projection}.bias"),
        *_stack_rules(LAYER, model.stack, "stack", prefix),
    ]
    if model.labels:
        rules += module_rules("labels.output", "classifier")
    if model.pool is not None and model.pool.norm is not None:
        rules += norm_rules("pool.norm", "fc_norm", model.pool.norm)
    if isinstance(model.pixels, spec.TubeletDecoder):
        rules += _decoder_rules(model.pixels)
    return rules


def _decoder_rules(decoder: spec.PixelDecoder) -> Rules:
    names = replace(LAYER, layer="decoder.decoder_layers.{i}", final="decoder.norm")
    return [
        *module_rules("pixels.project", "encoder_to_decoder", bias=False),
        Reshape("pixels.mask_token", "mask_token", (1, 1, decoder.d_model)),
        *_stack_rules(names, decoder.stack, "pixels.stack", ""),
        *module_rules("pixels.output", "decoder.head"),
    ]


def _stack_rules(names: LayerNames, stack: spec.Stack, name: str, hf: str) -> Rules:
    """ViT's rules, but for the biases of queries and values, which are stored beside the maps."""
    rules = renamed(names.stack_rules(stack, name, hf), _BIASES)
    attentions = [f"{hf}{names.layer}".format(i=i) for i in range(stack.layers)]
    return [
        *rules,
        *(
            FormerPrefix(f"{layer}{theirs}", f"{layer}{former}")
            for layer in attentions
            for former, theirs in _BIASES.items()
        ),
    ]


# ------------------------------------------------------------------ presets

# Tong et al. 2022, Section 4: ViT's encoders; decoders have half their width, and 4 layers.
SIZES = {
    "tiny": size(4, 64, 4, patch=4, frames=6, decoder_layers=1, context=24),
    "small": size(12, 384, 6),
    "base": size(*BASE_LAYERS),
    "large": size(*LARGE_LAYERS),
    "huge": size(32, 1280, 16),
}
_DEFAULTS: Settings = {
    **IMAGE_DEFAULTS,
    "frames": 16,
    "tubelet": 2,
    "decoder_layers": 4,
    "masked_share": _MASKED,
}


def _computed(settings: Settings) -> Config:
    width = max(1, settings["d_k"] // 2) * settings["heads"]
    return {
        "decoder_hidden_size": width,
        "decoder_num_attention_heads": settings["heads"],
        "decoder_intermediate_size": 4 * width,
    }


_make = FromConfig(
    to_spec,
    {
        **BERT_KEYS,
        **IMAGE_KEYS,
        "num_frames": "frames",
        "tubelet_size": "tubelet",
        "decoder_num_hidden_layers": "decoder_layers",
        "mask_ratio": "masked_share",
    },
    {"architectures": ["VideoMAEForPreTraining"], "norm_pix_loss": True},
    _computed,
)
PRESETS = {"videomae": PresetFamily("video", _make, SIZES, _DEFAULTS, 400, 224, "base")}
