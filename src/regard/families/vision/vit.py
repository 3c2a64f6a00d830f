"""ViT in transformers: image patches behind a class token, pre-norm.

DeiT is another `VitFamily`, with one token more. A classifier scores the class token as it is;
without labels, a pooler is part of the model if it is stored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from regard import spec
from regard.families.block_config import (
    BERT_KEYS,
    activation_name,
    block_from_config,
    parse_activation,
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
from regard.families.layer_names import LayerNames
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
from regard.families.tensor_table import Rename, Reshape, Rules, module_rules

MASKED_DEFAULTS: Config = {
    "encoder_stride": 16,  # side of what one position reconstructs, in pixels
    # transformers does not read these there: training alone knows the share that is hidden (the key
    # is ViT-MAE's), and the weights alone show a mask token (DINOv2's).
    "mask_ratio": spec.SIMMIM_MASK_RATIO,
    "use_mask_token": False,
}


def with_decoder(model: spec.Encoder, values: Config) -> spec.Encoder:
    """SimMIM's model of an encoder, in every family of transformers that has it."""
    share = float(values["mask_ratio"])
    return spec.masked_image_model(model, values["encoder_stride"], share)


def with_stored_mask_token(
    patches: spec.Patches, values: Config, stored: Collection[str]
) -> spec.Patches:
    """The encoder of masked image modelling without its decoder: only the weights show it."""
    has_token = values["use_mask_token"]
    if stored:
        has_token = any(name.endswith("embeddings.mask_token") for name in stored)
    return replace(patches, mask_token=has_token)


def masked_config(model: spec.Encoder) -> Config:
    """The keys of masked image modelling; what transformers does not read is left out if it can."""
    patches = model.patches
    if not isinstance(model.pixels, spec.PixelShuffleHead):
        return {"use_mask_token": True} if patches.mask_token else {}
    config: Config = {"encoder_stride": model.pixels.stride}
    if patches.masked_share != spec.SIMMIM_MASK_RATIO:
        config["mask_ratio"] = patches.masked_share
    return config


def masked_rules(model: spec.Encoder, mask_token: str) -> Rules:
    """The mask token, and the decoder: a 1 × 1 convolution there, a linear map here."""
    rules: Rules = []
    if model.patches.mask_token:
        rules.append(Reshape("input.mask_token", mask_token, (1, 1, model.d_model)))
    if not isinstance(model.pixels, spec.PixelShuffleHead):
        return rules
    width = model.stack.width(model.d_model)
    outputs = model.patches.channels * model.pixels.stride**2
    return [
        *rules,
        Reshape("pixels.output.weight", "decoder.0.weight", (outputs, width, 1, 1), (-1, width)),
        Rename("pixels.output.bias", "decoder.0.bias"),
    ]


# Of the stack and its patches, in every model of this layout.
CONFIG_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12,
    "image_size": 224,  # side, in pixels
    "patch_size": 16,  # side, in pixels
    "num_channels": 3,
    "qkv_bias": True,
}
# Of the stack, of its patches, and of their dropped paths.
KEYS = {**BERT_KEYS, "qkv_bias": "qkv_bias"}
PATCH_KEYS = {"image_size": "size", "patch_size": "patch", "num_channels": "channels"}
DROP_PATH_KEY = {"drop_path_rate": "drop_path"}
_SCHEMA = ConfigSchema(
    defaults={
        **CONFIG_DEFAULTS,
        "pooler_act": "tanh",
        **MASKED_DEFAULTS,
        # A key of ours: only the weights show whether a model without labels has a pooler.
        "regard_pooler": True,
        # Stochastic depth, of training alone: DINOv2's key, which transformers' ViT does not read.
        "drop_path_rate": 0.0,
    },
    fixed={**NOT_ENCODER_DECODER, "pruned_heads": {}, "chunk_size_feed_forward": 0},
    synonyms={"pooler_output_size": "hidden_size"},
    unsupported=frozenset({"head_dim"}),
)
LAYER = LayerNames(
    qkv=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    attention_norm="layernorm_before",
    feedforward_norm="layernorm_after",
    final="layernorm",
)


@dataclass(frozen=True)
class VitFamily:
    """ViT or DeiT: its name, and its tokens before the patches."""

    model_type: str
    class_prefix: str  # of its architectures: "ViT" in ViTForImageClassification
    extra_tokens: tuple[str, ...]  # before the patches
    SPEC_TYPES: ClassVar = (spec.Encoder, spec.Patches)

    @property
    def PREFIX(self) -> str:
        return f"{self.model_type}."

    @property
    def endings(self) -> list[str]:
        """Those of its architectures."""
        endings = ["Model", "ForImageClassification", "ForMaskedImageModeling"]
        if len(self.extra_tokens) == 2:
            endings.append("ForImageClassificationWithTeacher")
        return endings

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.Encoder, positions: int) -> Config:
        config = {
            "model_type": self.model_type,
            "architectures": [self.class_prefix + _suffix(model)],
            **stack_config(model.d_model, model.stack, KEYS),
            **part_config(model.patches, PATCH_KEYS),
        }
        if model.stack.block.drop_path:
            config["drop_path_rate"] = model.stack.block.drop_path
        if model.labels:
            return {**config, **label_names(model.labels.count)}
        config |= masked_config(model)
        if model.pixels:
            return config
        if model.pool is None:
            config["regard_pooler"] = False
        elif model.pool.activation:
            config["pooler_act"] = activation_name(model.pool.activation)
        return config

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.Encoder:
        values = _SCHEMA.parse(config)
        block = block_from_config(values, spec.PreNorm(), KEYS | DROP_PATH_KEY)
        patches = spec.Patches(
            **part_fields(values, PATCH_KEYS), extras=len(self.extra_tokens), dropout=block.dropout
        )
        stack = spec.Stack.of(values["num_hidden_layers"], block, final=block.norm)
        model = spec.Encoder(values["hidden_size"], patches, stack)
        return self._with_head(model, config, values, stored)

    def _with_head(
        self,
        model: spec.Encoder,
        config: Config,
        values: Config,
        stored: Collection[str],
    ) -> spec.Encoder:
        match architecture(config, self.class_prefix, self.endings):
            case "Model":
                patches = with_stored_mask_token(model.patches, values, stored)
                return replace(model, input=patches, heads=spec.heads(self._pooler(values, stored)))
            case "ForMaskedImageModeling":
                return with_decoder(model, values)
            case "ForImageClassification":
                labels = spec.ClassifierHead(label_count(config))
                return model.with_heads(spec.Pool("first", None), labels)
            case _:
                return model.with_heads(spec.DistilledHead(label_count(config), 2))

    def _pooler(self, values: Config, stored: Collection[str]) -> spec.Pool | None:
        has_pooler = values["regard_pooler"]
        if stored:
            has_pooler = any("pooler." in name for name in stored)
        if not has_pooler:
            return None
        return spec.Pool("first", parse_activation(values["pooler_act"]))

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.Encoder, positions: int) -> Rules:
        d_model = model.d_model
        prefix = self.PREFIX if model.labels or model.pixels else ""
        embeddings = f"{prefix}embeddings"
        rules: Rules = []
        for i, token in enumerate(self.extra_tokens):
            hf_shape: tuple[int, ...] = (1, 1, d_model)  # ready to broadcast
            rules.append(Reshape(f"input.extras.{i}", f"{embeddings}.{token}_token", hf_shape))
        position_table = f"{embeddings}.position_embeddings"
        hf_shape = (1, model.patches.positions, d_model)
        rules += [
            Reshape("input.position.table", position_table, hf_shape, (-1, d_model)),
            *patch_rules(model, f"{embeddings}.patch_embeddings.projection"),
            *LAYER.stack_rules(model.stack, hf=prefix),
        ]
        rules += masked_rules(model, f"{embeddings}.mask_token")
        if model.pool and model.pool.activation:
            rules += module_rules("pool.dense", "pooler.dense")
        if isinstance(model.labels, spec.ClassifierHead):
            rules += module_rules("labels.output", "classifier")
        if isinstance(model.labels, spec.DistilledHead):
            rules += module_rules("labels.outputs.0", "cls_classifier")
            rules += module_rules("labels.outputs.1", "distillation_classifier")
        return rules


def _suffix(model: spec.Encoder) -> str:
    match model.labels:
        case None if model.pixels:
            return "ForMaskedImageModeling"
        case None:
            return "Model"
        case spec.ClassifierHead():
            return "ForImageClassification"
        case spec.DistilledHead():
            return "ForImageClassificationWithTeacher"
        case _:
            return ""  # transformers has no such ViT: another format is tried


def patch_rules(model: spec.Encoder, hf: str, name: str = "input") -> Rules:
    """The patch embedding: a convolution there, a matrix over unfolded pixels here."""
    patches = model.patches
    d_model = model.d_model
    hf_shape = (d_model, patches.channels, patches.patch, patches.patch)
    rules: Rules = [Reshape(f"{name}.project.weight", f"{hf}.weight", hf_shape, (d_model, -1))]
    if patches.bias:
        rules.append(Rename(f"{name}.project.bias", f"{hf}.bias"))
    return rules


VIT = VitFamily("vit", "ViT", ("cls",))

# ------------------------------------------------------------------ presets

# Dosovitskiy et al. 2021, Table 1; the two smallest are those of Touvron et al. 2021 (DeiT).
SIZES = {
    "tiny": size(12, 192, 3, 5.7),
    "small/16": size(12, 384, 6, 22),
    "base/16": size(*BASE_LAYERS, 86, "with the head of 1,000 classes, of 0.8 M"),
    "base/32": size(*BASE_LAYERS, 88.2, patch=32),
    "large/16": size(*LARGE_LAYERS, 307, "the paper's one number for large, which large/32 has"),
    "large/32": size(*LARGE_LAYERS, 307, patch=32),
    "huge/14": size(32, 1280, 16, 632, patch=14),
}
PRESET_KEYS = {**BERT_KEYS, **IMAGE_KEYS}


def labels_of_preset(settings: Settings) -> Config:
    """Of presets the vocabulary are classes, the context is the image's side."""
    return label_names(settings["vocabulary"])


_make = FromConfig(
    VIT.to_spec, PRESET_KEYS, {"architectures": ["ViTForImageClassification"]}, labels_of_preset
)
preset = PresetFamily("image", _make, SIZES, IMAGE_DEFAULTS, 1000, 224, "base/16")
PRESETS = {"vit": preset}
