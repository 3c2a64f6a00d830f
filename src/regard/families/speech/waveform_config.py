"""Encoders over waveforms in transformers: their config keys, and the convolutions of the input."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec
from regard.families.config_schema import IGNORED_KEYS, NOT_ENCODER_DECODER, ConfigSchema
from regard.families.tensor_table import ParameterRule, Rename, Rule, module_rules
from regard.system.errors import ModelError

SCHEMA = ConfigSchema(
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
        "classifier_proj_size": 256,  # width of the vector that is classified
        "use_weighted_layer_sum": False,  # a classifier reads all layers
        # Pre-training: codebooks, their entries and widths, and the contrastive loss.
        "num_codevector_groups": 2,
        "num_codevectors_per_group": 320,
        "codevector_dim": 256,
        "proj_codevector_dim": 256,
        "contrastive_logits_temperature": 0.1,
        "diversity_loss_weight": 0.1,
        "feat_quantizer_dropout": 0.0,
    },
    fixed={
        **NOT_ENCODER_DECODER,
        "add_adapter": False,  # convolutions after the encoder
        "adapter_attn_dim": None,
        "feat_extract_dropout": 0.0,
    },
    synonyms={"hidden_dropout_prob": "hidden_dropout"},
    # What acts in training only, and parts of other models than these.
    ignored=IGNORED_KEYS | {
        "adapter_kernel_size", "adapter_stride", "apply_spec_augment",
        "ctc_loss_reduction",
        "ctc_zero_infinity",
        "freeze_feat_extract_train", "layerdrop", "mask_channel_length", "mask_channel_min_space",
        "mask_channel_other", "mask_channel_prob", "mask_channel_selection", "mask_feature_length",
        "mask_feature_min_masks", "mask_time_length", "mask_time_min_masks", "mask_time_min_space",
        "mask_time_other", "mask_time_selection", "no_mask_channel_overlap", "no_mask_time_overlap",
        "num_adapter_layers",
        "num_negatives", "output_hidden_size", "tdnn_dilation", "tdnn_dim",
        "tdnn_kernel", "xvector_output_dim",
    },
)  # fmt: skip


# ------------------------------------------------------------------ config.json → spec


def has_mask_vector(values: Mapping[str, Any], stored: Collection[str]) -> bool:
    if stored:
        return any(name.endswith("masked_spec_embed") for name in stored)
    return bool(values["mask_time_prob"] > 0 or values["mask_feature_prob"] > 0)


def convolutions(values: Mapping[str, Any]) -> tuple[spec.Convolution, ...]:
    columns = [values[key] for key in ("conv_dim", "conv_kernel", "conv_stride")]
    count = values["num_feat_extract_layers"] or len(columns[0])
    for sizes in columns:
        if len(sizes) != count or not all(isinstance(size, int) for size in sizes):
            raise ModelError(
                f"config.json: conv_dim, conv_kernel and conv_stride need {count} sizes each, "
                f"not {columns}",
                "correct them, or num_feat_extract_layers",
            )
    # "group": only the first convolution has a norm, over time.
    norms: dict[str, list[Any]] = {
        "group": [spec.TimeNorm(), *[None] * (count - 1)],
        "layer": [spec.LayerNorm()] * count,
    }
    norm_name = values["feat_extract_norm"]
    if norm_name not in norms:
        raise ModelError(
            f"config.json: feat_extract_norm {norm_name!r} is not supported",
            "known: group, layer",
        )
    bias = values["conv_bias"]
    return tuple(
        spec.Convolution(channels, kernel, stride, bias, norm)
        for channels, kernel, stride, norm in zip(*columns, norms[norm_name], strict=True)
    )


# ------------------------------------------------------------------ tensors


def convolution_rules(convolution: spec.Convolution, i: int, prefix: str) -> list[ParameterRule]:
    name = f"input.convolutions.{i}"
    hf = f"{prefix}feature_extractor.conv_layers.{i}"
    rules = module_rules(name, f"{hf}.conv", convolution.bias)
    if convolution.norm:
        rules += module_rules(f"{name}.norm", f"{hf}.layer_norm")
    return rules


def position_rules(hf: str) -> list[Rule]:
    """The weight-normalized convolution that adds positions: a length and a direction."""
    # Before transformers 4.32, the two had the names of torch's older weight_norm.
    weight = f"{hf}.parametrizations.weight"
    return [
        Rename("input.position.length", f"{weight}.original0", aliases=(f"{hf}.weight_g",)),
        Rename("input.position.direction", f"{weight}.original1", aliases=(f"{hf}.weight_v",)),
        Rename("input.position.bias", f"{hf}.bias"),
    ]
