"""Wav2Vec2, as transformers has it (Wav2Vec2Model, Wav2Vec2ForCTC): sound through convolutions, then an encoder whose norms
stand after the sublayers, or before them (`do_stable_layer_norm`). What acts in training only is not taken over: layers left
out and stretches masked by chance (`layerdrop`, `mask_…`). The vector that stands in for a masked stretch is, if stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.common import Drops, Layer, activation, block, sizes, word
from regard.families.tensor_table import (
    ALONE,
    HARMLESS,
    ConfigSchema,
    Moved,
    Rule,
    Same,
    each,
    labels_of,
    module,
)

FORM = (kinds.Encoder, kinds.Waveform)
PREFIX = "wav2vec2."
_KEYS = ConfigSchema(
    read={
        "vocab_size": 32, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "hidden_dropout": 0.1, "activation_dropout": 0.1, "attention_dropout": 0.1,
        "feat_proj_dropout": 0.0, "final_dropout": 0.1, "layer_norm_eps": 1e-5,
        "feat_extract_norm": "group", "feat_extract_activation": "gelu", "conv_dim": [512] * 7,
        "conv_stride": [5, 2, 2, 2, 2, 2, 2], "conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_bias": False,
        "num_conv_pos_embeddings": 128, "num_conv_pos_embedding_groups": 16, "do_stable_layer_norm": False,
        "mask_time_prob": 0.05, "mask_feature_prob": 0.0, "num_feat_extract_layers": None,
    },
    fixed={**ALONE, "add_adapter": False, "adapter_attn_dim": None, "feat_extract_dropout": 0.0},
    equal={"hidden_dropout_prob": "hidden_dropout"},
    ignored=HARMLESS | {  # what acts in training only, and parts of other models than these two
        "adapter_kernel_size", "adapter_stride", "apply_spec_augment", "classifier_proj_size", "codevector_dim",
        "contrastive_logits_temperature", "ctc_loss_reduction", "ctc_zero_infinity", "diversity_loss_weight",
        "feat_quantizer_dropout", "freeze_feat_extract_train", "layerdrop", "mask_channel_length", "mask_channel_min_space",
        "mask_channel_other", "mask_channel_prob", "mask_channel_selection", "mask_feature_length",
        "mask_feature_min_masks", "mask_time_length", "mask_time_min_masks", "mask_time_min_space", "mask_time_other",
        "mask_time_selection", "no_mask_channel_overlap", "no_mask_time_overlap", "num_adapter_layers",
        "num_codevector_groups", "num_codevectors_per_group", "num_negatives", "output_hidden_size", "proj_codevector_dim",
        "tdnn_dilation", "tdnn_dim", "tdnn_kernel", "use_weighted_layer_sum", "xvector_output_dim",
    },
)  # fmt: skip
_DROPS = Drops("hidden_dropout", "attention_dropout", "activation_dropout")
_LAYER = Layer(
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"), "attention.out_proj", "layer_norm",
    "feed_forward.intermediate_dense", "feed_forward.output_dense", "final_layer_norm", "encoder.layers.{i}",
)  # fmt: skip


def config(model: kinds.Encoder, positions: int) -> dict[str, Any]:
    waves, labels, first = model.waves, labels_of(model), model.waves.convolutions[0]
    return {
        "model_type": "wav2vec2",
        "architectures": ["Wav2Vec2ForCTC" if labels else "Wav2Vec2Model"],
        **({"vocab_size": labels.count, "final_dropout": labels.dropout} if labels else {}),
        **sizes(model.d_model, model.stack, _DROPS),
        "feat_proj_dropout": waves.project_dropout,
        "feat_extract_norm": "group" if isinstance(first.norm, kinds.TimeNorm) else "layer",
        "feat_extract_activation": word(waves.activation),
        "conv_dim": [convolution.channels for convolution in waves.convolutions],
        "conv_stride": [convolution.stride for convolution in waves.convolutions],
        "conv_kernel": [convolution.kernel for convolution in waves.convolutions],
        "conv_bias": first.bias,
        "num_conv_pos_embeddings": waves.position.kernel,
        "num_conv_pos_embedding_groups": waves.position.groups,
        "do_stable_layer_norm": isinstance(model.stack.block.residual, kinds.PreNorm),
        **({} if waves.masked else {"mask_time_prob": 0.0}),
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
    values, kind = _KEYS(config), (config.get("architectures") or ["Wav2Vec2Model"])[0]
    if kind not in ("Wav2Vec2Model", "Wav2Vec2ForCTC"):
        raise ModelError(f"a {kind} is not understood", "known: Wav2Vec2Model, Wav2Vec2ForCTC")
    stable, masks = (
        values["do_stable_layer_norm"],
        values["mask_time_prob"] > 0 or values["mask_feature_prob"] > 0,
    )
    layer = block(values, kinds.PreNorm() if stable else kinds.PostNorm(), _DROPS)
    waves = kinds.Waveform(
        _convolutions(values),
        kinds.ConvPosition(
            values["num_conv_pos_embeddings"], values["num_conv_pos_embedding_groups"]
        ),
        activation(values["feat_extract_activation"]),
        features=layer.norm,
        project_dropout=values["feat_proj_dropout"],
        norm=None if stable else layer.norm,
        dropout=layer.dropout,
        masked=any(name.endswith("masked_spec_embed") for name in stored) if stored else masks,
    )
    scores = kinds.ClassifierHead(
        values["vocab_size"], "transcribe", dropout=values["final_dropout"]
    )
    stack = kinds.Stack(values["num_hidden_layers"], layer, final=layer.norm if stable else None)
    return kinds.Encoder(
        values["hidden_size"], waves, stack, labels=scores if kind == "Wav2Vec2ForCTC" else None
    )


def _convolutions(values: Mapping[str, Any]) -> tuple[kinds.Convolution, ...]:
    rows = [values[key] for key in ("conv_dim", "conv_kernel", "conv_stride")]
    count, kind = values["num_feat_extract_layers"] or len(rows[0]), values["feat_extract_norm"]
    norms: dict[str, list[Any]] = {
        "group": [kinds.TimeNorm(), *[None] * (count - 1)],
        "layer": [kinds.LayerNorm()] * count,
    }
    if kind not in norms:
        raise ModelError(
            f"config.json: feat_extract_norm {kind!r} is not understood", "known: group, layer"
        )
    if any(len(row) != count or not all(isinstance(size, int) for size in row) for row in rows):
        raise ModelError(
            f"config.json: conv_dim, conv_kernel and conv_stride are {rows}",
            f"give each {count} sizes",
        )
    bias, parts = values["conv_bias"], zip(*rows, norms[kind], strict=True)
    return tuple(
        kinds.Convolution(width, kernel, stride, bias, norm)
        for width, kernel, stride, norm in parts
    )


def table(model: kinds.Encoder, positions: int) -> list[Rule]:
    waves, top = model.waves, PREFIX if model.labels else ""
    near = f"{top}encoder.pos_conv_embed.conv"
    return [
        *(rule for i, part in enumerate(waves.convolutions) for rule in _convolution(part, i, top)),
        *module("input.features", f"{top}feature_projection.layer_norm"),
        *module("input.project", f"{top}feature_projection.projection"),
        *([Same("input.mask", f"{top}masked_spec_embed")] if waves.masked else []),
        # Before transformers 4.32, the two halves of the kernel had other names.
        Same(
            "input.position.length",
            f"{near}.parametrizations.weight.original0",
            aliases=(f"{near}.weight_g",),
        ),
        Same(
            "input.position.direction",
            f"{near}.parametrizations.weight.original1",
            aliases=(f"{near}.weight_v",),
        ),
        Same("input.position.bias", f"{near}.bias"),
        *module("input.norm" if waves.norm else "stack.final_norm", f"{top}encoder.layer_norm"),
        *each(model.stack.layers, _LAYER.rules(model, top)),
        *(module("labels.output", "lm_head") if model.labels else []),
    ]


def _convolution(part: kinds.Convolution, i: int, top: str) -> list[Moved]:
    ours, theirs = f"input.convolutions.{i}", f"{top}feature_extractor.conv_layers.{i}"
    norm = module(f"{ours}.norm", f"{theirs}.layer_norm") if part.norm else []
    return [*module(ours, f"{theirs}.conv", part.bias), *norm]
