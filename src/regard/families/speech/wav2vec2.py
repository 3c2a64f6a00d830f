"""Wav2Vec2 in transformers: convolutions over sound, an encoder; bare, with CTC, as a classifier.

HuBERT is another `SpeechEncoderFamily`. The norms stand after the sublayers, or before them
(`do_stable_layer_norm`). What acts in training only is not taken over: LayerDrop and SpecAugment
(`layerdrop`, `mask_...`). The vector that stands in for a masked span is, if it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard import spec
from regard.families.block_config import (
    activation_name,
    block_from_config,
    keys_with,
    parse_activation,
    stack_config,
)
from regard.families.classifier_labels import classifier_head, label_count, label_names
from regard.families.config_schema import ConfigSchema
from regard.families.encoders.encoder_tensor_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    ENCODER_DEFAULTS,
    LARGE_LAYERS,
    TINY_LAYERS,
    FromConfig,
    PresetFamily,
    Size,
)
from regard.families.speech.waveform_config import (
    SCHEMA,
    convolution_rules,
    convolutions,
    has_mask_vector,
    position_rules,
)
from regard.families.tensor_table import Rename, Reshape, Rule, module_rules, per_layer
from regard.system.errors import ModelError

_KEYS = keys_with(
    dropout="hidden_dropout",
    attention_dropout="attention_dropout",
    feedforward_dropout="activation_dropout",
)
_LAYER = LayerNames(
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    attention_output="attention.out_proj",
    attention_norm="layer_norm",
    feedforward_inner="feed_forward.intermediate_dense",
    feedforward_outer="feed_forward.output_dense",
    feedforward_norm="final_layer_norm",
    layer="encoder.layers.{i}",
)


@dataclass(frozen=True)
class SpeechEncoderFamily:
    """Wav2Vec2 or HuBERT: its names, and the schema of its config."""

    model_type: str
    class_prefix: str  # of its architectures: "Wav2Vec2" in Wav2Vec2ForCTC
    schema: ConfigSchema
    SPEC_TYPES: ClassVar = (spec.Encoder, spec.Waveform)

    @property
    def PREFIX(self) -> str:
        return f"{self.model_type}."

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.Encoder, positions: int) -> dict[str, Any]:
        waves = model.waves
        first = waves.convolutions[0]
        normalizes_over_time = isinstance(first.norm, spec.TimeNorm)
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [self.class_prefix + _suffix(model)],
            **stack_config(model.d_model, model.stack, _KEYS),
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
            **_head_config(model),
            **_contrastive_config(model.contrastive),
        }
        if waves.features is None:
            config["feat_proj_layer_norm"] = False
        if not waves.masked:
            config["mask_time_prob"] = 0.0
        return config

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.Encoder:
        values = self.schema.parse(config)
        pre_norm = values["do_stable_layer_norm"]
        residual = spec.PreNorm() if pre_norm else spec.PostNorm()
        block = block_from_config(values, residual, _KEYS)
        pool, labels = self._heads(config, values)
        # Only HuBERT can do without.
        has_feature_norm = values.get("feat_proj_layer_norm", True)
        feature_norm = block.norm if has_feature_norm else None
        waves = spec.Waveform(
            convolutions(values),
            spec.ConvPosition(
                values["num_conv_pos_embeddings"], values["num_conv_pos_embedding_groups"]
            ),
            parse_activation(values["feat_extract_activation"]),
            features=feature_norm,
            project_dropout=values["feat_proj_dropout"],
            # One norm, `encoder.layer_norm` in the file, stands before the layers or after them.
            norm=None if pre_norm else block.norm,
            dropout=block.dropout,
            masked=has_mask_vector(values, stored),
        )
        final = block.norm if pre_norm else None
        stack = spec.Stack.of(values["num_hidden_layers"], block, final=final)
        contrastive = None
        if _architecture(config) == _PRETRAINING:
            contrastive = _contrastive_head(values)
        return spec.Encoder(
            values["hidden_size"], waves, stack, spec.heads(pool, labels, contrastive)
        )

    def _heads(
        self, config: Mapping[str, Any], values: Mapping[str, Any]
    ) -> tuple[spec.Pool | None, spec.ClassifierHead | None]:
        architecture = _architecture(config) or f"{self.class_prefix}Model"
        if architecture == _PRETRAINING and self.class_prefix == "Wav2Vec2":
            return None, None
        match architecture.removeprefix(self.class_prefix):
            case "Model":
                return None, None
            case "ForCTC":
                dropout = values["final_dropout"]
                return None, spec.ClassifierHead(
                    values["vocab_size"], "transcribe", dropout=dropout
                )
            case "ForSequenceClassification":
                if values["use_weighted_layer_sum"]:
                    raise ModelError(
                        "config.json: use_weighted_layer_sum=true is not supported",
                        "use a classifier of the last layer",
                    )
                # transformers maps the frames and takes their mean; a linear map can be last.
                pool = spec.Pool("mean", None, width=values["classifier_proj_size"], bias=True)
                return pool, spec.ClassifierHead(label_count(config))
        known = [self.class_prefix + suffix for suffix in _SUFFIXES]
        if self.class_prefix == "Wav2Vec2":
            known.append(_PRETRAINING)
        raise ModelError(
            f"the architecture {architecture!r} is not supported", f"known: {', '.join(known)}"
        )

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.Encoder, positions: int) -> list[Rule]:
        waves = model.waves
        prefix = self.PREFIX if model.labels or model.contrastive else ""
        rules: list[Rule] = []
        for i, convolution in enumerate(waves.convolutions):
            rules += convolution_rules(convolution, i, prefix)
        if waves.features:
            rules += module_rules("input.features", f"{prefix}feature_projection.layer_norm")
        rules += module_rules("input.project", f"{prefix}feature_projection.projection")
        if waves.masked:
            rules.append(Rename("input.mask", f"{prefix}masked_spec_embed"))
        rules += position_rules(f"{prefix}encoder.pos_conv_embed.conv")
        norm = "input.norm" if waves.norm else "stack.final_norm"
        rules += module_rules(norm, f"{prefix}encoder.layer_norm")
        rules += per_layer(model.stack.layers, _LAYER.layer_template(model, prefix))
        if model.contrastive:
            rules += _contrastive_rules(model.contrastive)
        if model.pool:
            rules += module_rules("pool.project", "projector")
            rules += module_rules("labels.output", "classifier")
        elif model.labels:
            rules += module_rules("labels.output", "lm_head")
        return rules


WAV2VEC2 = SpeechEncoderFamily("wav2vec2", "Wav2Vec2", SCHEMA)


# ------------------------------------------------------------------ heads

_SUFFIXES = ("Model", "ForCTC", "ForSequenceClassification")
_PRETRAINING = "Wav2Vec2ForPreTraining"  # of HuBERT, transformers has none


def _architecture(config: Mapping[str, Any]) -> str:
    return str((config.get("architectures") or [""])[0])


def _suffix(model: spec.Encoder) -> str:
    """What follows the family's name in the architecture of a model."""
    if model.contrastive is not None:
        return "ForPreTraining"
    if model.labels is None:
        return "Model"
    return "ForCTC" if model.task == "transcribe" else "ForSequenceClassification"


def _head_config(model: spec.Encoder) -> dict[str, Any]:
    labels = classifier_head(model)
    if labels is None:
        return {}
    if labels.task == "transcribe":
        return {"vocab_size": labels.count, "final_dropout": labels.dropout}
    width = model.pool.width if model.pool else None
    return {"classifier_proj_size": width, **label_names(labels.count)}


# ------------------------------------------------------------------ pre-training


def _contrastive_head(values: Mapping[str, Any]) -> spec.ContrastiveHead:
    return spec.ContrastiveHead(
        groups=values["num_codevector_groups"],
        entries=values["num_codevectors_per_group"],
        code_width=values["codevector_dim"],
        width=values["proj_codevector_dim"],
        temperature=values["contrastive_logits_temperature"],
        diversity=values["diversity_loss_weight"],
        dropout=values["feat_quantizer_dropout"],
    )


def _contrastive_config(head: spec.ContrastiveHead | None) -> dict[str, Any]:
    if head is None:
        return {}
    return {
        "num_codevector_groups": head.groups,
        "num_codevectors_per_group": head.entries,
        "codevector_dim": head.code_width,
        "proj_codevector_dim": head.width,
        "contrastive_logits_temperature": head.temperature,
        "diversity_loss_weight": head.diversity,
        "feat_quantizer_dropout": head.dropout,
    }


def _contrastive_rules(head: spec.ContrastiveHead) -> list[Rule]:
    shape = (head.groups * head.entries, head.code_width // head.groups)
    return [
        Reshape("contrastive.quantizer.codes", "quantizer.codevectors", (1, *shape), shape),
        *module_rules("contrastive.quantizer.choose", "quantizer.weight_proj"),
        *module_rules("contrastive.project_states", "project_hid"),
        *module_rules("contrastive.project_targets", "project_q"),
    ]


# ------------------------------------------------------------------ presets

# Section 4.2. `channels` are those of the seven convolutions.
SIZES = {
    "tiny": Size({**TINY_LAYERS, "channels": 64, "kernel": 16}),
    "base": Size(
        BASE_LAYERS,
        95,
        "the paper counts the quantizer of pretraining too",
    ),
    "large": Size(LARGE_LAYERS, 317),
}
PRESET_DEFAULTS: dict[str, Any] = {
    **ENCODER_DEFAULTS,
    "feedforward_dropout": 0.1,
    "channels": 512,
    "kernel": 128,  # of the convolution that tells positions
}


# Of an encoder that spells letters.
PRESET_KEYS = {
    **_KEYS,
    "final_dropout": "dropout",
    "vocab_size": "vocabulary",
    "num_conv_pos_embeddings": "kernel",
}


def conv_dim(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"conv_dim": [settings["channels"]] * 7}


_make = FromConfig(WAV2VEC2.to_spec, PRESET_KEYS, {"architectures": ["Wav2Vec2ForCTC"]}, conv_dim)
PRESETS = {"wav2vec2": PresetFamily("ctc", _make, SIZES, PRESET_DEFAULTS, 32, 480_000, "base")}
