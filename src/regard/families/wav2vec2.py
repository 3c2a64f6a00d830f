"""Wav2Vec2 in transformers (Wav2Vec2Model, Wav2Vec2ForCTC): convolutions over sound, an encoder.

Its norms stand after the sublayers, or before them (`do_stable_layer_norm`). What acts in training
only is not taken over: LayerDrop and SpecAugment (`layerdrop`, `mask_...`). The vector that stands
in for a masked span is, if it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec
from regard.errors import ModelError
from regard.families.block_config import (
    DropoutKeys,
    activation_name,
    block_from_config,
    parse_activation,
    stack_config,
)
from regard.families.classifier_labels import classifier_head
from regard.families.config_schema import IGNORED_KEYS, NOT_ENCODER_DECODER, ConfigSchema
from regard.families.encoder_layer import LayerNames
from regard.families.tensor_table import ParameterRule, Rename, Rule, module_rules, per_layer

SPEC_TYPES = (spec.Encoder, spec.Waveform)
PREFIX = "wav2vec2."
_SCHEMA = ConfigSchema(
    defaults={
        "vocab_size": 32,  # letters that CTC tells apart
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout": 0.1,  # on a sublayer's output
        "activation_dropout": 0.1,  # inside the feed-forward
        "attention_dropout": 0.1,  # on attention weights
        "feat_proj_dropout": 0.0,  # on the projected features
        "final_dropout": 0.1,  # before the CTC head
        "layer_norm_eps": 1e-5,
        "feat_extract_norm": "group",  # or layer
        "feat_extract_activation": "gelu",
        "conv_dim": [512] * 7,  # channels of each convolution
        "conv_stride": [5, 2, 2, 2, 2, 2, 2],
        "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
        "conv_bias": False,
        "num_conv_pos_embeddings": 128,  # width of the position convolution
        "num_conv_pos_embedding_groups": 16,
        "do_stable_layer_norm": False,  # pre-norm
        "mask_time_prob": 0.05,  # SpecAugment
        "mask_feature_prob": 0.0,
        "num_feat_extract_layers": None,  # as many as conv_dim has
    },
    fixed={
        **NOT_ENCODER_DECODER,
        "add_adapter": False,  # convolutions after the encoder
        "adapter_attn_dim": None,
        "feat_extract_dropout": 0.0,
    },
    synonyms={"hidden_dropout_prob": "hidden_dropout"},
    # What acts in training only, and parts of other models than these two.
    ignored=IGNORED_KEYS | {
        "adapter_kernel_size", "adapter_stride", "apply_spec_augment", "classifier_proj_size",
        "codevector_dim", "contrastive_logits_temperature", "ctc_loss_reduction",
        "ctc_zero_infinity", "diversity_loss_weight", "feat_quantizer_dropout",
        "freeze_feat_extract_train", "layerdrop", "mask_channel_length", "mask_channel_min_space",
        "mask_channel_other", "mask_channel_prob", "mask_channel_selection", "mask_feature_length",
        "mask_feature_min_masks", "mask_time_length", "mask_time_min_masks", "mask_time_min_space",
        "mask_time_other", "mask_time_selection", "no_mask_channel_overlap", "no_mask_time_overlap",
        "num_adapter_layers", "num_codevector_groups", "num_codevectors_per_group",
        "num_negatives", "output_hidden_size", "proj_codevector_dim", "tdnn_dilation", "tdnn_dim",
        "tdnn_kernel", "use_weighted_layer_sum", "xvector_output_dim",
    },
)  # fmt: skip
_DROPOUT = DropoutKeys("hidden_dropout", "attention_dropout", "activation_dropout")
_LAYER = LayerNames(
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    attention_output="attention.out_proj",
    attention_norm="layer_norm",
    feedforward_inner="feed_forward.intermediate_dense",
    feedforward_outer="feed_forward.output_dense",
    feedforward_norm="final_layer_norm",
    layer="encoder.layers.{i}",
)


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> dict[str, Any]:
    waves = model.waves
    labels = classifier_head(model)
    first = waves.convolutions[0]
    architecture = "Wav2Vec2ForCTC" if labels else "Wav2Vec2Model"
    normalizes_over_time = isinstance(first.norm, spec.TimeNorm)
    config: dict[str, Any] = {
        "model_type": "wav2vec2",
        "architectures": [architecture],
        **stack_config(model.d_model, model.stack, _DROPOUT),
        "feat_proj_dropout": waves.project_dropout,
        "feat_extract_norm": "group" if normalizes_over_time else "layer",
        "feat_extract_activation": activation_name(waves.activation),
        "conv_dim": [convolution.channels for convolution in waves.convolutions],
        "conv_stride": [convolution.stride for convolution in waves.convolutions],
        "conv_kernel": [convolution.kernel for convolution in waves.convolutions],
        "conv_bias": first.bias,
        "num_conv_pos_embeddings": waves.position.kernel,
        "num_conv_pos_embedding_groups": waves.position.groups,
        "do_stable_layer_norm": isinstance(model.stack.block.residual, spec.PreNorm),
    }
    if labels:
        config["vocab_size"] = labels.count
        config["final_dropout"] = labels.dropout
    if not waves.masked:
        config["mask_time_prob"] = 0.0
    return config


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    architecture = (config.get("architectures") or ["Wav2Vec2Model"])[0]
    if architecture not in ("Wav2Vec2Model", "Wav2Vec2ForCTC"):
        raise ModelError(
            f"a {architecture} is not understood", "known: Wav2Vec2Model, Wav2Vec2ForCTC"
        )
    pre_norm = values["do_stable_layer_norm"]
    residual = spec.PreNorm() if pre_norm else spec.PostNorm()
    block = block_from_config(values, residual, _DROPOUT)
    labels = None
    if architecture == "Wav2Vec2ForCTC":
        labels = spec.ClassifierHead(
            values["vocab_size"], "transcribe", dropout=values["final_dropout"]
        )
    waves = spec.Waveform(
        _convolutions(values),
        spec.ConvPosition(
            values["num_conv_pos_embeddings"], values["num_conv_pos_embedding_groups"]
        ),
        parse_activation(values["feat_extract_activation"]),
        features=block.norm,
        project_dropout=values["feat_proj_dropout"],
        # One norm, `encoder.layer_norm` in the file, stands before the layers or after them.
        norm=None if pre_norm else block.norm,
        dropout=block.dropout,
        masked=_has_mask_vector(values, stored),
    )
    stack = spec.Stack(values["num_hidden_layers"], block, final=block.norm if pre_norm else None)
    return spec.Encoder(values["hidden_size"], waves, stack, labels=labels)


def _has_mask_vector(values: Mapping[str, Any], stored: Collection[str]) -> bool:
    if stored:
        return any(name.endswith("masked_spec_embed") for name in stored)
    return bool(values["mask_time_prob"] > 0 or values["mask_feature_prob"] > 0)


def _convolutions(values: Mapping[str, Any]) -> tuple[spec.Convolution, ...]:
    columns = [values[key] for key in ("conv_dim", "conv_kernel", "conv_stride")]
    count = values["num_feat_extract_layers"] or len(columns[0])
    # "group": only the first convolution has a norm, over time.
    norms: dict[str, list[Any]] = {
        "group": [spec.TimeNorm(), *[None] * (count - 1)],
        "layer": [spec.LayerNorm()] * count,
    }
    norm_name = values["feat_extract_norm"]
    if norm_name not in norms:
        raise ModelError(
            f"config.json: feat_extract_norm {norm_name!r} is not understood",
            "known: group, layer",
        )
    for sizes in columns:
        if len(sizes) != count or not all(isinstance(size, int) for size in sizes):
            raise ModelError(
                f"config.json: conv_dim, conv_kernel and conv_stride are {columns}",
                f"give each {count} sizes",
            )
    bias = values["conv_bias"]
    return tuple(
        spec.Convolution(channels, kernel, stride, bias, norm)
        for channels, kernel, stride, norm in zip(*columns, norms[norm_name], strict=True)
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> list[Rule]:
    waves = model.waves
    prefix = PREFIX if model.labels else ""
    rules: list[Rule] = []
    for i, convolution in enumerate(waves.convolutions):
        rules += _convolution_rules(convolution, i, prefix)
    rules += module_rules("input.features", f"{prefix}feature_projection.layer_norm")
    rules += module_rules("input.project", f"{prefix}feature_projection.projection")
    if waves.masked:
        rules.append(Rename("input.mask", f"{prefix}masked_spec_embed"))
    rules += _position_rules(f"{prefix}encoder.pos_conv_embed.conv")
    norm = "input.norm" if waves.norm else "stack.final_norm"
    rules += module_rules(norm, f"{prefix}encoder.layer_norm")
    rules += per_layer(model.stack.layers, _LAYER.layer_template(model, prefix))
    if model.labels:
        rules += module_rules("labels.output", "lm_head")
    return rules


def _convolution_rules(convolution: spec.Convolution, i: int, prefix: str) -> list[ParameterRule]:
    name = f"input.convolutions.{i}"
    hf = f"{prefix}feature_extractor.conv_layers.{i}"
    rules = module_rules(name, f"{hf}.conv", convolution.bias)
    if convolution.norm:
        rules += module_rules(f"{name}.norm", f"{hf}.layer_norm")
    return rules


def _position_rules(hf: str) -> list[Rule]:
    """The weight-normalized convolution that adds positions: a length and a direction."""
    # Before transformers 4.32, the two had the names of torch's older weight_norm.
    weight = f"{hf}.parametrizations.weight"
    return [
        Rename("input.position.length", f"{weight}.original0", aliases=(f"{hf}.weight_g",)),
        Rename("input.position.direction", f"{weight}.original1", aliases=(f"{hf}.weight_v",)),
        Rename("input.position.bias", f"{hf}.bias"),
    ]
