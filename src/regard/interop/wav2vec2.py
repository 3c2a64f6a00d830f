"""Wav2Vec2, as transformers has it (Wav2Vec2Model, Wav2Vec2ForCTC): sound through convolutions, then an encoder whose norms
stand after the sublayers, or before them (`do_stable_layer_norm`).

What acts in training only is not taken over: layers left out by chance (`layerdrop`) and stretches masked by chance
(`mask_…`). The vector that stands in for a masked stretch is, if it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.interop.table import HARMLESS, Keys, Moved, Rule, Same, each, module, modules, reads_back
from regard.interop.vit import activation, attention, theirs

PREFIX = "wav2vec2."
_TRAINING = frozenset(
    {
        "apply_spec_augment", "codevector_dim", "contrastive_logits_temperature", "ctc_loss_reduction", "ctc_zero_infinity",
        "diversity_loss_weight", "feat_quantizer_dropout", "freeze_feat_extract_train", "layerdrop", "mask_channel_length",
        "mask_channel_min_space", "mask_channel_other", "mask_channel_prob", "mask_channel_selection",
        "mask_feature_length", "mask_feature_min_masks", "mask_time_length", "mask_time_min_masks", "mask_time_min_space",
        "mask_time_other", "mask_time_selection", "no_mask_channel_overlap", "no_mask_time_overlap", "num_codevector_groups",
        "num_codevectors_per_group", "num_negatives", "proj_codevector_dim",
    }
)  # fmt: skip
_OTHER_HEADS = frozenset(
    {
        "adapter_kernel_size", "adapter_stride", "classifier_proj_size", "num_adapter_layers", "output_hidden_size",
        "tdnn_dilation", "tdnn_dim", "tdnn_kernel", "use_weighted_layer_sum", "xvector_output_dim",
    }
)  # fmt: skip
_KEYS = Keys(
    read={
        "vocab_size": 32, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "hidden_dropout": 0.1, "activation_dropout": 0.1, "attention_dropout": 0.1,
        "feat_proj_dropout": 0.0, "final_dropout": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-5,
        "feat_extract_norm": "group", "feat_extract_activation": "gelu", "conv_dim": [512] * 7,
        "conv_stride": [5, 2, 2, 2, 2, 2, 2], "conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_bias": False,
        "num_conv_pos_embeddings": 128, "num_conv_pos_embedding_groups": 16, "do_stable_layer_norm": False,
        "mask_time_prob": 0.05, "mask_feature_prob": 0.0, "num_feat_extract_layers": None,
    },
    fixed={
        "add_adapter": False, "adapter_attn_dim": None, "feat_extract_dropout": 0.0, "is_encoder_decoder": False,
        "is_decoder": False, "add_cross_attention": False,
    },
    equal={"hidden_dropout_prob": "hidden_dropout"},
    ignored=HARMLESS | _TRAINING | _OTHER_HEADS,
)  # fmt: skip


def matches(model: kinds.Model) -> bool:
    if not (isinstance(model, kinds.Encoder) and isinstance(model.input, kinds.Waves)):
        return False
    return reads_back(model, config(model, positions=1), spec)


def config(model: kinds.Encoder, positions: int) -> dict[str, Any]:
    block, waves, labels = model.stack.block, _waves(model), model.labels
    return {
        "model_type": "wav2vec2",
        "architectures": ["Wav2Vec2ForCTC" if labels else "Wav2Vec2Model"],
        **({"vocab_size": labels.count, "final_dropout": labels.dropout} if isinstance(labels, kinds.Labels) else {}),
        "hidden_size": model.d_model,
        "num_hidden_layers": model.stack.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.feedforward.d_ff,
        "hidden_act": theirs(block.feedforward.activation),
        "hidden_dropout": block.dropout,
        "activation_dropout": block.feedforward.dropout,
        "attention_dropout": block.attention.mixer.dropout,
        "feat_proj_dropout": waves.project_dropout,
        "layer_norm_eps": block.norm.eps,
        "feat_extract_norm": "group" if isinstance(waves.convolutions[0].norm, kinds.TimeNorm) else "layer",
        "feat_extract_activation": theirs(waves.activation),
        "conv_dim": [convolution.channels for convolution in waves.convolutions],
        "conv_stride": [convolution.stride for convolution in waves.convolutions],
        "conv_kernel": [convolution.kernel for convolution in waves.convolutions],
        "conv_bias": waves.convolutions[0].bias,
        "num_conv_pos_embeddings": waves.position.kernel,
        "num_conv_pos_embedding_groups": waves.position.groups,
        "do_stable_layer_norm": isinstance(block.residual, kinds.PreNorm),
        **({} if waves.masked else {"mask_time_prob": 0.0}),
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
    values = _KEYS(config)
    kind = (config.get("architectures") or ["Wav2Vec2Model"])[0]
    if kind not in ("Wav2Vec2Model", "Wav2Vec2ForCTC"):
        raise ModelError(f"a {kind} is not understood", "known: Wav2Vec2Model, Wav2Vec2ForCTC")
    d_model, stable = values["hidden_size"], values["do_stable_layer_norm"]
    norm, named = kinds.LayerNorm(values["layer_norm_eps"]), "masked_spec_embed"
    block = kinds.Block(
        attention=attention(d_model, values["num_attention_heads"], values["attention_dropout"]),
        feedforward=kinds.Plain(
            values["intermediate_size"], activation(values["hidden_act"]), values["activation_dropout"]
        ),
        residual=kinds.PreNorm() if stable else kinds.PostNorm(),
        norm=norm,
        dropout=values["hidden_dropout"],
    )
    masks = values["mask_time_prob"] > 0 or values["mask_feature_prob"] > 0
    waves = kinds.Waves(
        _convolutions(values),
        _nearby(values),
        activation(values["feat_extract_activation"]),
        features=norm,
        project_dropout=values["feat_proj_dropout"],
        norm=None if stable else norm,
        dropout=values["hidden_dropout"],
        masked=any(name.endswith(named) for name in stored) if stored else masks,
    )
    scores = kinds.Labels(values["vocab_size"], "transcribe", dropout=values["final_dropout"])
    return kinds.Encoder(
        d_model,
        waves,
        kinds.Stack(values["num_hidden_layers"], block, final=norm if stable else None),
        labels=scores if kind == "Wav2Vec2ForCTC" else None,
    )


def _convolutions(values: Mapping[str, Any]) -> tuple[kinds.Convolution, ...]:
    sizes = [values[key] for key in ("conv_dim", "conv_kernel", "conv_stride")]
    count = values["num_feat_extract_layers"] or len(sizes[0])
    whole = all(isinstance(size, int) and size >= 1 for row in sizes for size in row)
    if not whole or not count or any(len(row) != count for row in sizes):
        raise ModelError(
            f"config.json: conv_dim, conv_kernel and conv_stride are {sizes}", f"give each {count} sizes from 1 on"
        )
    norms: list[kinds.LayerNorm | kinds.TimeNorm | None]
    match values["feat_extract_norm"]:
        case "group":
            norms = [kinds.TimeNorm(), *[None] * (count - 1)]
        case "layer":
            norms = [kinds.LayerNorm()] * count
        case other:
            raise ModelError(f"config.json: feat_extract_norm {other!r} is not understood", "known: group, layer")
    bias, rows = values["conv_bias"], zip(*sizes, norms, strict=True)
    return tuple(kinds.Convolution(channels, kernel, stride, bias, norm) for channels, kernel, stride, norm in rows)


def _nearby(values: Mapping[str, Any]) -> kinds.Nearby:
    groups = values["num_conv_pos_embedding_groups"]
    if values["hidden_size"] % groups:
        raise ModelError(
            f"config.json: hidden_size {values['hidden_size']} does not divide by {groups} groups",
            "correct one of them",
        )
    return kinds.Nearby(values["num_conv_pos_embeddings"], groups)


def table(model: kinds.Encoder, positions: int) -> list[Rule]:
    top = PREFIX if model.labels else ""
    d, waves = model.d_model, _waves(model)
    ours, layer, near = "stack.blocks.{i}", f"{top}encoder.layers.{{i}}", f"{top}encoder.pos_conv_embed.conv"
    names = [f"{layer}.attention.{letter}_proj" for letter in "qkv"]
    made = f"{near}.parametrizations.weight.original"
    return [
        *(rule for i, part in enumerate(waves.convolutions) for rule in _convolution(part, i, top)),
        *module("input.features", f"{top}feature_projection.layer_norm"),
        *module("input.project", f"{top}feature_projection.projection"),
        *([Same("input.mask", f"{top}masked_spec_embed")] if waves.masked else []),
        # Before transformers 4.32, the two halves of the kernel had other names.
        Same("input.position.length", f"{made}0", aliases=(f"{near}.weight_g",)),
        Same("input.position.direction", f"{made}1", aliases=(f"{near}.weight_v",)),
        Same("input.position.bias", f"{near}.bias"),
        *module("input.norm" if waves.norm else "stack.final_norm", f"{top}encoder.layer_norm"),
        *each(
            model.stack.layers,
            [
                *modules(f"{ours}.attention.project.qkv", names, (d, d, d)),
                *module(f"{ours}.attention.output", f"{layer}.attention.out_proj"),
                *module(f"{ours}.residual.each.0.norm", f"{layer}.layer_norm"),
                *module(f"{ours}.feedforward.inner", f"{layer}.feed_forward.intermediate_dense"),
                *module(f"{ours}.feedforward.outer", f"{layer}.feed_forward.output_dense"),
                *module(f"{ours}.residual.each.1.norm", f"{layer}.final_layer_norm"),
            ],
        ),
        *(module("labels.output", "lm_head") if model.labels else []),
    ]


def _convolution(part: kinds.Convolution, i: int, top: str) -> list[Moved]:
    ours, theirs = f"input.convolutions.{i}", f"{top}feature_extractor.conv_layers.{i}"
    norm = module(f"{ours}.norm", f"{theirs}.layer_norm") if part.norm else []
    return [*module(ours, f"{theirs}.conv", part.bias), *norm]


def _waves(model: kinds.Encoder) -> kinds.Waves:
    assert isinstance(model.input, kinds.Waves)
    return model.input
