"""Wav2Vec2 in transformers: convolutions over sound, an encoder; bare, with CTC, as a classifier.

HuBERT is another `SpeechEncoderFamily`. The norms stand after the sublayers, or before them
(`do_stable_layer_norm`). What acts in training only is not taken over: LayerDrop and SpecAugment
(`layerdrop`, `mask_...`). The vector that stands in for a masked span is, if it is stored.
"""

from __future__ import annotations

from collections.abc import Collection
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
from regard.families.config_schema import (
    IGNORED_KEYS,
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture, classifier_head, label_config, label_count
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    ENCODER_DEFAULTS,
    LARGE_LAYERS,
    TINY_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import Rename, Reshape, Rules, module_rules
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


def has_mask_vector(values: Config, stored: Collection[str]) -> bool:
    if stored:
        return any(name.endswith("masked_spec_embed") for name in stored)
    return bool(values["mask_time_prob"] > 0 or values["mask_feature_prob"] > 0)


def convolutions(values: Config) -> tuple[spec.Convolution, ...]:
    columns = [values[key] for key in _CONVOLUTION_KEYS]
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
        "group": [spec.InstanceNorm(), *[None] * (count - 1)],
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


def convolution_rules(convolution: spec.Convolution, i: int, prefix: str) -> Rules:
    name = f"input.convolutions.{i}"
    hf = f"{prefix}feature_extractor.conv_layers.{i}"
    rules = module_rules(name, f"{hf}.conv", convolution.bias)
    if convolution.norm:
        rules += module_rules(f"{name}.norm", f"{hf}.layer_norm")
    return rules


def position_rules(hf: str) -> Rules:
    """The weight-normalized convolution that adds positions: a length and a direction."""
    # Before transformers 4.32, the two had the names of torch's older weight_norm.
    weight = f"{hf}.parametrizations.weight"
    return [
        Rename("input.position.length", f"{weight}.original0", aliases=(f"{hf}.weight_g",)),
        Rename("input.position.direction", f"{weight}.original1", aliases=(f"{hf}.weight_v",)),
        Rename("input.position.bias", f"{hf}.bias"),
    ]


_KEYS = keys_with(
    dropout="hidden_dropout",
    attention_dropout="attention_dropout",
    feedforward_dropout="activation_dropout",
)
_CONVOLUTION_KEYS = {"conv_dim": "channels", "conv_kernel": "kernel", "conv_stride": "stride"}
_POSITION_KEYS = {"num_conv_pos_embeddings": "kernel", "num_conv_pos_embedding_groups": "groups"}
_LAYER = LayerNames(
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    attention_output="attention.out_proj",
    attention_norm="layer_norm",
    feedforward_inner=("feed_forward.intermediate_dense",),
    feedforward_outer="feed_forward.output_dense",
    feedforward_norm="final_layer_norm",
    layer="encoder.layers.{i}",
    final="encoder.layer_norm",
)


@dataclass(frozen=True)
class SpeechEncoderFamily:
    """Wav2Vec2 or HuBERT: its names, and the schema of its config."""

    model_type: str
    class_prefix: str  # of its architectures: "Wav2Vec2" in Wav2Vec2ForCTC
    schema: ConfigSchema
    endings: tuple[str, ...] = ("Model", "ForCTC", "ForSequenceClassification")
    SPEC_TYPES: ClassVar = (spec.Encoder, spec.Waveform)

    @property
    def PREFIX(self) -> str:
        return f"{self.model_type}."

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.Encoder, positions: int) -> Config:
        waves = model.waves
        first = waves.convolutions[0]
        normalizes_over_time = isinstance(first.norm, spec.InstanceNorm)
        config: Config = {
            "model_type": self.model_type,
            "architectures": [self.class_prefix + _suffix(model)],
            **stack_config(model.d_model, model.stack, _KEYS),
            "feat_proj_dropout": waves.project_dropout,
            "feat_extract_norm": "group" if normalizes_over_time else "layer",
            "feat_extract_activation": activation_name(waves.activation),
            "conv_bias": first.bias,
            **part_config(waves.position, _POSITION_KEYS),
            "do_stable_layer_norm": isinstance(model.stack.block.residual, spec.PreNorm),
        }
        labels = classifier_head(model)
        if labels and labels.task == "transcribe":
            config |= {"vocab_size": labels.count, "final_dropout": labels.dropout}
        elif labels:
            config |= label_config(model)
        for key, name in _CONVOLUTION_KEYS.items():
            config[key] = [getattr(convolution, name) for convolution in waves.convolutions]
        if model.contrastive:
            config |= part_config(model.contrastive, _CONTRASTIVE_KEYS)
        if waves.features is None:
            config["feat_proj_layer_norm"] = False
        if not waves.masked:
            config["mask_time_prob"] = 0.0
        return config

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.Encoder:
        values = self.schema.parse(config)
        pre_norm = values["do_stable_layer_norm"]
        residual = spec.PreNorm() if pre_norm else spec.PostNorm()
        block = block_from_config(values, residual, _KEYS)
        # Only HuBERT can do without.
        has_feature_norm = values.get("feat_proj_layer_norm", True)
        feature_norm = block.norm if has_feature_norm else None
        waves = spec.Waveform(
            convolutions(values),
            spec.ConvPosition(**part_fields(values, _POSITION_KEYS)),
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
        return spec.Encoder(values["hidden_size"], waves, stack, self._heads(config, values))

    def _heads(self, config: Config, values: Config) -> tuple[spec.Head, ...]:
        match architecture(config, self.class_prefix, self.endings):
            case "Model":
                return ()
            case "ForPreTraining":
                return (spec.ContrastiveHead(**part_fields(values, _CONTRASTIVE_KEYS)),)
            case "ForCTC":
                dropout = values["final_dropout"]
                return (spec.ClassifierHead(values["vocab_size"], "transcribe", dropout=dropout),)
            case _:
                if values["use_weighted_layer_sum"]:
                    raise ModelError(
                        "config.json: use_weighted_layer_sum=true is not supported",
                        "use a classifier of the last layer",
                    )
                # transformers maps the frames and takes their mean; a linear map can be last.
                pool = spec.Pool("mean", None, width=values["classifier_proj_size"], bias=True)
                return pool, spec.ClassifierHead(label_count(config))

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.Encoder, positions: int) -> Rules:
        waves = model.waves
        prefix = self.PREFIX if model.labels or model.contrastive else ""
        rules: Rules = []
        for i, convolution in enumerate(waves.convolutions):
            rules += convolution_rules(convolution, i, prefix)
        if waves.features:
            rules += module_rules("input.features", f"{prefix}feature_projection.layer_norm")
        rules += module_rules("input.project", f"{prefix}feature_projection.projection")
        if waves.masked:
            rules.append(Rename("input.mask", f"{prefix}masked_spec_embed"))
        rules += position_rules(f"{prefix}encoder.pos_conv_embed.conv")
        if waves.norm:
            rules += module_rules("input.norm", f"{prefix}encoder.layer_norm")
        rules += _LAYER.stack_rules(model.stack, hf=prefix)
        if model.contrastive:
            rules += _contrastive_rules(model.contrastive)
        if model.pool:
            rules += module_rules("pool.project", "projector")
            rules += module_rules("labels.output", "classifier")
        elif model.labels:
            rules += module_rules("labels.output", "lm_head")
        return rules


# Of HuBERT, transformers has no class for pre-training.
_ENDINGS = (*SpeechEncoderFamily.endings, "ForPreTraining")
WAV2VEC2 = SpeechEncoderFamily("wav2vec2", "Wav2Vec2", SCHEMA, _ENDINGS)


# ------------------------------------------------------------------ heads


def _suffix(model: spec.Encoder) -> str:
    """What follows the family's name in the architecture of a model."""
    if model.contrastive is not None:
        return "ForPreTraining"
    if model.labels is None:
        return "Model"
    return "ForCTC" if model.task == "transcribe" else "ForSequenceClassification"


# ------------------------------------------------------------------ pre-training


_CONTRASTIVE_KEYS = {
    "num_codevector_groups": "groups",
    "num_codevectors_per_group": "entries",
    "codevector_dim": "code_width",
    "proj_codevector_dim": "width",
    "contrastive_logits_temperature": "temperature",
    "diversity_loss_weight": "diversity",
    "feat_quantizer_dropout": "dropout",
}


def _contrastive_rules(head: spec.ContrastiveHead) -> Rules:
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
    "tiny": size(*TINY_LAYERS, channels=64, kernel=16),
    "base": size(*BASE_LAYERS, 95, "the paper counts the quantizer of pretraining too"),
    "large": size(*LARGE_LAYERS, 317),
}
PRESET_DEFAULTS: Settings = {
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


def conv_dim(settings: Settings) -> Config:
    return {"conv_dim": [settings["channels"]] * 7}


_make = FromConfig(WAV2VEC2.to_spec, PRESET_KEYS, {"architectures": ["Wav2Vec2ForCTC"]}, conv_dim)
PRESETS = {"wav2vec2": PresetFamily("ctc", _make, SIZES, PRESET_DEFAULTS, 32, 480_000, "base")}
