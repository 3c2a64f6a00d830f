"""DETR in transformers (Carion et al. 2020): object queries behind a ResNet and an encoder.

The stacks are fairseq's, whose attention adds positions to its queries and keys. The backbone's
norms are frozen. What only the loss reads stays in config.json, and is the paper's here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.config_schema import IGNORED_KEYS, Config, ConfigSchema
from regard.families.encoder_decoders.fairseq_layout import (
    LAYER,
    both_sides,
    both_sides_config,
)
from regard.families.heads import architecture, label_count, label_names
from regard.families.preset_settings import ROUNDED, PresetFamily, Settings, Size
from regard.families.tensor_table import Rename, Reshape, Rules, module_rules
from regard.families.vision import resnet
from regard.system.errors import ModelError

PREFIX = "model."
SPEC_TYPES = (spec.EncoderDecoder, spec.FeatureMap)
_BACKBONE = {"model_type": "resnet", "out_features": ["stage4"]}
_SCHEMA = ConfigSchema(
    defaults={
        "backbone_config": _BACKBONE,
        "num_channels": 3,
        "num_queries": 100,
        "d_model": 256,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048,
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
        "activation_function": "relu",
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "position_embedding_type": "sine",
    },
    fixed={
        # LayerDrop acts in training only, but fine-tuning here would silently lack it.
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "is_encoder_decoder": True,
        "dilation": False,
        # transformers then norms the states between the layers of the decoder, too. Training here
        # has these losses whatever this key says, and the states as the paper has them.
        "auxiliary_loss": False,
        # timm's networks have other names for the same tensors.
        "use_timm_backbone": False,
        "backbone": None,
        "scale_embedding": False,
    },
    synonyms={
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    },
    # Of the loss and of the matching: regard trains with the paper's.
    ignored=IGNORED_KEYS
    | {
        "backbone_kwargs", "bbox_cost", "bbox_loss_coefficient", "class_cost",
        "dice_loss_coefficient", "eos_coefficient", "giou_cost", "giou_loss_coefficient",
        "init_xavier_std", "mask_loss_coefficient", "max_position_embeddings",
        "use_pretrained_backbone",
    },
)  # fmt: skip
_POSITIONS: dict[str, Any] = {"sine": "sinusoidal", "learned": "learned"}
_LAYER = replace(LAYER, final="layernorm")
_ENDINGS = ("Model", "ForObjectDetection")

# ------------------------------------------------------------------ config.json


def to_config(model: spec.EncoderDecoder, positions: int) -> Config:
    source = model.feature_map
    assert isinstance(source.backbone, spec.ConvStem)
    assert source.stages is not None
    encoder = spec.ConvolutionalEncoder(source.width, source.backbone, source.stages)
    backbone = resnet.to_config(encoder, positions)
    last = len(source.stages.depths)
    config = {
        "model_type": "detr",
        "architectures": ["DetrModel"],
        **both_sides_config(model.d_model, model.encoder, model.decoder),
        "use_timm_backbone": False,
        "backbone_config": {**backbone, "out_features": [f"stage{last}"], "out_indices": [last]},
        "num_channels": source.channels,
        "num_queries": model.queries.count,
        "position_embedding_type": next(
            name for name, kind in _POSITIONS.items() if kind == source.position
        ),
    }
    if model.labels:
        config["architectures"] = ["DetrForObjectDetection"]
        config |= label_names(model.labels.count)
    return config


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.EncoderDecoder:
    backbone = config.get("backbone_config")
    if config.get("use_timm_backbone", backbone is None) or _is_timm(backbone):
        raise ModelError(
            "the backbone of this model is timm's, whose layout is not supported",
            "open the revision no_timm, or convert it with use_timm_backbone=False",
        )
    values = _SCHEMA.parse(config)
    encoder, decoder = (
        stack.with_blocks(position=spec.AddedPosition(), pattern=spec.FullMask())
        for stack in both_sides(values, spec.PostNorm())
    )
    if values["position_embedding_type"] not in _POSITIONS:
        raise ModelError(
            f"config.json: position_embedding_type is {values['position_embedding_type']!r}",
            f"set it to one of {', '.join(_POSITIONS)}",
        )
    model = spec.EncoderDecoder(
        d_model=values["d_model"],
        source=_feature_map(values),
        target=spec.ObjectQueries(values["num_queries"]),
        encoder=encoder,
        decoder=replace(decoder, final=spec.LayerNorm(1e-5)),
        heads=(),
        share="none",
    )
    if architecture(config, "Detr", _ENDINGS) == "Model":
        return model
    return model.with_head(spec.DetectionHead(label_count(config)))


def _is_timm(backbone: Any) -> bool:
    return isinstance(backbone, dict) and backbone.get("model_type") == "timm_backbone"


def _feature_map(values: Config) -> spec.FeatureMap:
    """The backbone of a config, which ends with its last stage."""
    config = {**_BACKBONE, **values["backbone_config"], "architectures": ["ResNetModel"]}
    if config.pop("model_type") != "resnet":
        raise ModelError(
            f"the backbone is a {values['backbone_config']['model_type']}, not a ResNet",
            "use a model with a ResNet backbone",
        )
    backbone = resnet.to_spec(config)
    depths = backbone.stack.depths
    out = (config.get("out_features") or config.get("_out_features") or [f"stage{len(depths)}"])[-1]
    if out != f"stage{len(depths)}":
        raise ModelError(
            f"the backbone gives the features of {out}, not of its last stage",
            f"leave the stages behind {out} out of the config and of the weights",
        )
    norm = spec.BatchNorm(frozen=True)
    return spec.FeatureMap(
        replace(backbone.input, norm=norm),
        width=backbone.d_model,
        stages=replace(backbone.stack, norm=norm),
        position=_POSITIONS[values["position_embedding_type"]],
        dropout=values["dropout"],
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.EncoderDecoder, positions: int) -> Rules:
    source = model.feature_map
    assert isinstance(source.backbone, spec.ConvStem)
    assert source.stages is not None
    prefix = PREFIX if model.labels else ""
    d_model = model.d_model
    projection = (d_model, source.stages.widths[-1], 1, 1)
    rules: Rules = [
        *resnet.backbone_rules(
            source.backbone,
            source.stages,
            source.width,
            ours=("source.backbone", "source.stages"),
            hf=f"{prefix}backbone.conv_encoder.model.",
        ),
        Reshape(
            "source.project.weight",
            f"{prefix}input_projection.weight",
            projection,
            (d_model, -1),
        ),
        Rename("source.project.bias", f"{prefix}input_projection.bias"),
        Rename("target.table", f"{prefix}query_position_embeddings.weight"),
        *_LAYER.stack_rules(model.encoder, "encoder", f"{prefix}encoder."),
        *_LAYER.stack_rules(model.decoder, "decoder", f"{prefix}decoder."),
    ]
    if source.position == "learned":
        table = f"{prefix}position_embedding"
        rules += [
            Rename("source.position.rows", f"{table}.row_embeddings.weight"),
            Rename("source.position.columns", f"{table}.column_embeddings.weight"),
        ]
    if model.labels:
        rules += module_rules("labels.classes", "class_labels_classifier")
        for i in range(3):
            rules += module_rules(f"labels.box.{i}", f"bbox_predictor.layers.{i}")
    return rules


# ------------------------------------------------------------------ presets


_RESNETS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3)}
# Carion et al. 2020, Table 1. The small ones are for images of 32 to 128 pixels, and have anchors:
# without them, 100,000 images of simple shapes are too few.
SIZES = {
    "tiny": Size({"backbone": "tiny", "layers": 2, "d_model": 64, "heads": 4, "d_ff": 128,
                  "queries": 16, "anchors": True}, context=32),
    "small": Size({"backbone": "small", "layers": 2, "d_model": 64, "heads": 4, "d_ff": 256,
                   "queries": 64, "anchors": True}, context=128),
    "r50": Size({"backbone": "50"}, 41, ROUNDED),
    "r101": Size({"backbone": "101"}, 60, ROUNDED),
}  # fmt: skip
_DEFAULTS: Settings = {
    "d_model": 256,
    "heads": 8,
    "layers": 6,
    "decoder_layers": None,
    "d_ff": 2048,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation": "relu",
    "queries": 100,
    "anchors": False,
    "backbone": "50",
    "image_size": None,  # side, in pixels; None: the context
    "channels": 3,
}
_TEMPERATURE, _ANCHORS_TEMPERATURE = 10_000, 20  # Liu et al. 2022
# Of the small backbones: the widths of the stem and of the stages, whose norms are trained.
_SMALL = {"tiny": (32, (32, 64)), "small": (16, (32, 64, 64))}


def _make(settings: Settings) -> spec.EncoderDecoder:
    s: Any = settings
    attention = spec.Attention(
        s["heads"], s["d_k"], s["d_k"], mixer=spec.SoftmaxAttention(s["attention_dropout"])
    )
    block = spec.Block(
        attention,
        spec.FeedForward(s["d_ff"], s["activation"]),
        dropout=s["dropout"],
        position=spec.AddedPosition(),
    )
    if s["backbone"] in _SMALL:
        stem_width, widths = _SMALL[s["backbone"]]
        stem = spec.ConvStem(s["image_size"], s["channels"], 3, 2, False, "relu")
        stages = spec.ResidualStages(widths, (1,) * len(widths), "basic")
    else:
        stem_width = 64
        norm = spec.BatchNorm(frozen=True)
        stem = spec.ConvStem(s["image_size"], s["channels"], norm=norm)
        stages = spec.ResidualStages(depths=_RESNETS[s["backbone"]], norm=norm)
    return spec.EncoderDecoder(
        d_model=s["d_model"],
        source=spec.FeatureMap(
            stem,
            width=stem_width,
            stages=stages,
            dropout=s["dropout"],
            temperature=_ANCHORS_TEMPERATURE if s["anchors"] else _TEMPERATURE,
            placed=s["anchors"],
        ),
        target=spec.ObjectQueries(s["queries"], s["anchors"]),
        encoder=spec.Stack.of(s["layers"], block),
        decoder=spec.Stack.of(
            s["decoder_layers"], replace(block, cross=attention), final=spec.LayerNorm()
        ),
        heads=(spec.DetectionHead(s["vocabulary"]),),
        share="none",
    )


PRESETS = {"detr": PresetFamily("detector", _make, SIZES, _DEFAULTS, 91, 800, "r50")}
