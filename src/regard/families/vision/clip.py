"""CLIP in transformers (CLIPModel): a causal text tower and an image tower of pre-norm blocks.

Each tower is a family of its own as well, with its projection or without.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from regard import spec
from regard.families.block_config import block_from_config, keys_with, stack_config
from regard.families.config_schema import (
    IGNORED_KEYS,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_KEYS,
    LARGE_LAYERS,
    TEXT_KEYS,
    TINY_LAYERS,
    FromConfig,
    Kind,
    PresetFamily,
    Settings,
    Size,
    size,
)
from regard.families.tensor_table import Rename, Rules, module_rules, position_ids
from regard.families.vision.vit import PATCH_KEYS, patch_rules

_TOWER_DEFAULTS: Config = {
    "num_hidden_layers": 12,
    "hidden_act": "quick_gelu",  # x · sigmoid(1.702 x)
    "layer_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "projection_dim": 512,  # of the space that both towers share
    "initializer_factor": 1.0,  # of fresh weights only
}
_FIXED: Config = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "tie_encoder_decoder": False,
    "tie_word_embeddings": True,
    "use_bfloat16": False,
    "tf_legacy_loss": False,
}
_BERT_NAMES = keys_with(attention_dropout="attention_dropout")
# transformers has no dropout of hidden states, whatever the config says.
KEYS = {key: name for key, name in _BERT_NAMES.items() if name != "dropout"}
LAYER = LayerNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.out_proj",
    attention_norm="layer_norm1",
    feedforward_inner=("mlp.fc1",),
    feedforward_outer="mlp.fc2",
    feedforward_norm="layer_norm2",
    layer="encoder.layers.{i}",
)


@dataclass(frozen=True)
class ClipTower:
    """One tower: its names, its config's defaults, and functions for what the towers differ in."""

    model_type: str
    architecture: str
    projection: str | None  # the name of its projection
    PREFIX: str
    defaults: Config
    front_end: type  # the class of its input in the spec
    # The encoder of a config's values, with a projection to that width or none.
    encoder: Callable[[Config, spec.Block, int | None], spec.Encoder]
    input_config: Callable[[spec.Encoder], Config]
    # The rules of its input and of its pooling, by our prefix and theirs.
    input_rules: Callable[[spec.Encoder, str, str], Rules]
    final_norm: str = "final_layer_norm"  # if there is one

    @property
    def _schema(self) -> ConfigSchema:
        return ConfigSchema(
            {**_TOWER_DEFAULTS, **self.defaults}, _FIXED, IGNORED_KEYS | {"dropout"}
        )

    @property
    def SPEC_TYPES(self) -> tuple[type, type]:
        return spec.Encoder, self.front_end

    def projected(self, model: spec.Encoder) -> int | None:
        """The width of the projection, if any; in the files it stands outside the tower."""
        return projection_dim(model) if self.projection else None

    def to_config(self, model: spec.Encoder, positions: int) -> Config:
        suffix = "WithProjection" if self.projected(model) else ""
        return {"architectures": [self.architecture + suffix], **self.tower_config(model)}

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.Encoder:
        endings = ("", "WithProjection") if self.projection else ("",)
        projects = architecture(config, self.architecture, endings, "")
        return self.tower_spec(config, config.get("projection_dim") or 512 if projects else None)

    def tensor_table(self, model: spec.Encoder, positions: int) -> Rules:
        return self.tower_rules(model, "", self.PREFIX if self.projected(model) else "")

    # -------------------------------------------------------------- as a part of CLIPModel

    def tower_config(self, model: spec.Encoder) -> Config:
        """The config of the tower alone, which is also a part of that of the pair."""
        config = {
            "model_type": self.model_type,
            **stack_config(model.d_model, model.stack, KEYS),
            **self.input_config(model),
        }
        if self.projected(model):
            config["projection_dim"] = self.projected(model)
        return config

    def tower_spec(self, config: Config, projected: int | None) -> spec.Encoder:
        """The tower of a config, with a projection to that width or none."""
        values = self._schema.parse(config)
        block = block_from_config(values, spec.PreNorm(), KEYS)
        return self.encoder(values, block, projected)

    def tower_rules(self, model: spec.Encoder, prefix: str, hf_prefix: str) -> Rules:
        """The rules of the tower, whose names begin with these prefixes."""
        embeddings = f"{hf_prefix}embeddings"
        names = replace(LAYER, final=self.final_norm)
        rules: Rules = [
            *self.input_rules(model, prefix, hf_prefix),
            Rename(f"{prefix}input.position.table", f"{embeddings}.position_embedding.weight"),
            position_ids(f"{embeddings}.position_ids", 1, position_count(model)),
            *names.stack_rules(model.stack, f"{prefix}stack", hf_prefix),
        ]
        if self.projection and self.projected(model):
            rules += module_rules(f"{prefix}pool.project", self.projection, bias=False)
        return rules


def projection_dim(model: spec.Encoder) -> int | None:
    """The width of the projected vector, if it is projected."""
    return model.pool.width if model.pool else None


def tower_config(settings: Settings, inputs: Mapping[str, str]) -> Config:
    """The config of a preset's tower."""
    keys = {**KEYS, **inputs}
    return {key: settings[name] for key, name in keys.items() if name in settings}


# An end-of-text id that was never right; files that have it mean the highest id of each row.
_LEGACY_END = 2


def _text_encoder(values: Config, block: spec.Block, projection_dim: int | None) -> spec.Encoder:
    end = values["eos_token_id"]
    end_token = spec.EndToken(None if end == _LEGACY_END else end)
    position = spec.LearnedPosition(values["max_position_embeddings"])
    return spec.Encoder(
        values["hidden_size"],
        spec.Tokens(values["vocab_size"], position, scale=False, dropout=0.0),
        # Causal: the end-of-text token, which is pooled, sees the whole text all the same.
        spec.Stack.of(values["num_hidden_layers"], block, spec.CausalMask(), final=block.norm),
        (spec.Pool(end_token, None, width=projection_dim),),
    )


def position_count(model: spec.Encoder) -> int:
    if isinstance(model.input, spec.Patches):
        return model.input.positions
    return model.tokens.max_length or 1


def _text_config(model: spec.Encoder) -> Config:
    pooled = model.pool.which if model.pool else None
    return {
        "vocab_size": model.tokens.vocabulary,
        "max_position_embeddings": position_count(model),
        "eos_token_id": (pooled.token or _LEGACY_END)
        if isinstance(pooled, spec.EndToken)
        else None,
    }


def _text_rules(model: spec.Encoder, prefix: str, hf_prefix: str) -> Rules:
    return [
        Rename(f"{prefix}input.table.weight", f"{hf_prefix}embeddings.token_embedding.weight"),
    ]


TEXT = ClipTower(
    model_type="clip_text_model",
    architecture="CLIPTextModel",
    projection="text_projection",
    PREFIX="text_model.",
    defaults={
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
        "eos_token_id": 49407,
    },
    front_end=spec.Tokens,
    encoder=_text_encoder,
    input_config=_text_config,
    input_rules=_text_rules,
)


def _image_encoder(values: Config, block: spec.Block, projection_dim: int | None) -> spec.Encoder:
    patches = spec.Patches(**part_fields(values, PATCH_KEYS), bias=False, norm=block.norm)
    return spec.Encoder(
        values["hidden_size"],
        patches,
        spec.Stack.of(values["num_hidden_layers"], block),
        (spec.Pool("first", None, norm=block.norm, width=projection_dim),),
    )


def image_config(model: spec.Encoder) -> Config:
    return part_config(model.patches, PATCH_KEYS)


def _image_rules(model: spec.Encoder, prefix: str, hf_prefix: str) -> Rules:
    embeddings = f"{hf_prefix}embeddings"
    return [
        Rename(f"{prefix}input.extras.0", f"{embeddings}.class_embedding"),
        *patch_rules(model, f"{embeddings}.patch_embedding", f"{prefix}input"),
        # The misspelling is transformers'.
        *module_rules(f"{prefix}input.norm", f"{hf_prefix}pre_layrnorm"),
        *module_rules(f"{prefix}pool.norm", f"{hf_prefix}post_layernorm"),
    ]


VISION = ClipTower(
    model_type="clip_vision_model",
    architecture="CLIPVisionModel",
    projection="visual_projection",
    PREFIX="vision_model.",
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
    },
    front_end=spec.Patches,
    encoder=_image_encoder,
    input_config=image_config,
    input_rules=_image_rules,
)


PREFIX = ""
SPEC_TYPES = (spec.DualEncoder, spec.Tokens)
_SCHEMA = ConfigSchema(
    defaults={
        "text_config": {},
        "vision_config": {},
        "text_config_dict": {},
        "vision_config_dict": {},
        "projection_dim": 512,
        "logit_scale_init_value": 2.6592,  # the logarithm of 1 / 0.07
        "initializer_factor": 1.0,
    },
    unsupported=frozenset({"is_encoder_decoder"}),
)


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.DualEncoder, positions: int) -> Config:
    return {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": projection_dim(model.text),
        "logit_scale_init_value": model.scale,
        "text_config": TEXT.tower_config(model.text),
        "vision_config": VISION.tower_config(model.image),
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.DualEncoder:
    values = _SCHEMA.parse(config)
    architecture(config, "CLIP", ["Model"])
    # Where old files configure a tower twice, transformers takes `..._config_dict`.
    text_config = values["text_config_dict"] or values["text_config"]
    vision_config = values["vision_config_dict"] or values["vision_config"]
    width = values["projection_dim"]
    return spec.DualEncoder(
        TEXT.tower_spec(text_config, width),
        VISION.tower_spec(vision_config, width),
        values["logit_scale_init_value"],
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.DualEncoder, positions: int) -> Rules:
    return [
        *TEXT.tower_rules(model.text, "text.", TEXT.PREFIX),
        *VISION.tower_rules(model.image, "image.", VISION.PREFIX),
        Rename("scale", "logit_scale"),
    ]


# ------------------------------------------------------------------ presets

# Radford et al. 2021, Table 20, by the names of the image towers. `d_model`, `layers` and `heads`
# are the image tower's, `text` the text tower's width, whose heads are 64 wide. Then the millions
# of parameters of the model, of its text tower, and of its image tower.
_SIZES: dict[str, tuple[Size, tuple[float | None, ...]]] = {
    "tiny": (size(*TINY_LAYERS, text=128, text_layers=2, width=64), (None,) * 3),
    "vit-b/32": (size(*BASE_LAYERS, text=512, width=512), (151.3, 63.4, 87.8)),
    "vit-b/16": (size(*BASE_LAYERS, text=512, width=512, patch=16), (149.6, 63.4, 86.2)),
    "vit-l/14": (size(*LARGE_LAYERS, text=768, width=768, patch=14), (427.6, 123.7, 304)),
}
_PRESET_DEFAULTS: Settings = {
    "d_ff": None,  # of the image tower: 4 d_model
    "activation": "quick_gelu",
    "attention_dropout": 0.0,
    "patch": 32,  # side, in pixels
    "image_size": 224,  # side, in pixels
    "text_layers": 12,
}


def _preset_config(settings: Settings) -> Config:
    width = settings["text"]
    text = {
        **settings,
        "d_model": width,
        "d_ff": 4 * width,
        "layers": settings["text_layers"],
        "heads": width // 64,
    }
    # The tokenizer's last token ends a text.
    end = {"eos_token_id": settings["vocabulary"] - 1}
    return {
        "projection_dim": settings["width"],
        "text_config": tower_config(text, TEXT_KEYS) | end,
        "vision_config": tower_config(settings, IMAGE_KEYS),
    }


def _family(kind: Kind, part: int, to_spec: Callable[[Settings], spec.Model]) -> PresetFamily:
    sizes = {name: replace(row, published=counts[part]) for name, (row, counts) in _SIZES.items()}
    make = FromConfig(to_spec, {}, computed=_preset_config)
    return PresetFamily(kind, make, sizes, _PRESET_DEFAULTS, 49_408, 77, "vit-b/32")


PRESETS = {
    "clip": _family("dual encoder", 0, to_spec),
    "clip-text": _family("encoder", 1, lambda config: to_spec(config).text),
    "clip-image": _family("image", 2, lambda config: to_spec(config).image),
}
