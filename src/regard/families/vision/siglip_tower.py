"""The towers of SigLIP in transformers (SiglipTextModel, SiglipVisionModel): CLIP's blocks.

Texts are read in both directions and padded to one length; their vector is that of the last
position, padding or not. The vector of an image is pooled by attention.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec
from regard.families.block_config import parse_activation
from regard.families.tensor_table import Rename, Reshape, Rule, module_rules
from regard.families.vision.clip_text import position_count as text_position_count
from regard.families.vision.clip_tower import ClipTower, projection_dim
from regard.families.vision.clip_vision import image_config
from regard.families.vision.clip_vision import position_count as patch_count
from regard.families.vision.vit import patch_rules
from regard.system.errors import ModelError

_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


class SiglipTower(ClipTower):
    """One tower, always with its pooling head, if it has one."""

    def to_config(self, model: spec.Encoder, positions: int) -> dict[str, Any]:
        return {"architectures": [self.architecture], **self.tower_config(model)}

    def to_spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.Encoder:
        architecture = (config.get("architectures") or [self.architecture])[0]
        if architecture != self.architecture:
            raise ModelError(
                f"the architecture {architecture!r} of {self.model_type} is not supported",
                f"known: {self.architecture}",
            )
        return self.tower_spec(config, None)

    def tensor_table(self, model: spec.Encoder, positions: int) -> list[Rule]:
        return self.tower_rules(model, "", "")

    def projection_config(self, model: spec.Encoder) -> dict[str, Any]:
        return {}

    def projection_rules(self, model: spec.Encoder, prefix: str) -> list[Rule]:
        return []


# ------------------------------------------------------------------ text


def _text_encoder(
    values: Mapping[str, Any], block: spec.Block, projection_dim: int | None
) -> spec.Encoder:
    width = values["hidden_size"]
    position = spec.LearnedPosition(values["max_position_embeddings"])
    return spec.Encoder(
        width,
        spec.Tokens(values["vocab_size"], position, scale=False, dropout=0.0),
        spec.Stack.of(values["num_hidden_layers"], block, final=block.norm),
        (spec.Pool("final", None, width=values["projection_size"] or width, bias=True),),
    )


def _text_config(model: spec.Encoder) -> dict[str, Any]:
    return {
        "vocab_size": model.tokens.vocabulary,
        "max_position_embeddings": text_position_count(model),
        "projection_size": projection_dim(model),
    }


def _text_rules(model: spec.Encoder, prefix: str, hf_prefix: str) -> list[Rule]:
    return [
        Rename(f"{prefix}input.table.weight", f"{hf_prefix}embeddings.token_embedding.weight"),
        *module_rules(f"{prefix}stack.final_norm", f"{hf_prefix}final_layer_norm"),
        *module_rules(f"{prefix}pool.project", f"{hf_prefix}head"),
    ]


TEXT = SiglipTower(
    model_type="siglip_text_model",
    architecture="SiglipTextModel",
    projection="head",
    PREFIX="text_model.",
    defaults={
        **_DEFAULTS,
        "vocab_size": 32000,
        "max_position_embeddings": 64,
        "projection_size": None,  # of the vector; as wide as the hidden states
    },
    front_end=spec.Tokens,
    encoder=_text_encoder,
    input_config=_text_config,
    position_count=text_position_count,
    input_rules=_text_rules,
)


# ------------------------------------------------------------------ images


def _image_encoder(
    values: Mapping[str, Any], block: spec.Block, projection_dim: int | None
) -> spec.Encoder:
    patches = spec.Patches(
        values["image_size"], values["patch_size"], values["num_channels"], extras=0
    )
    pool = None
    if values["vision_use_head"]:
        pooling = spec.AttentionPool(
            values["num_attention_heads"],
            values["intermediate_size"],
            parse_activation(values["hidden_act"]),
            block.norm,
        )
        pool = spec.Pool(pooling, None)
    stack = spec.Stack.of(values["num_hidden_layers"], block, final=block.norm)
    return spec.Encoder(values["hidden_size"], patches, stack, spec.heads(pool))


def _image_config(model: spec.Encoder) -> dict[str, Any]:
    config = image_config(model)
    if model.pool is None:
        config["vision_use_head"] = False
    return config


def _image_rules(model: spec.Encoder, prefix: str, hf_prefix: str) -> list[Rule]:
    rules: list[Rule] = [
        *patch_rules(model, f"{hf_prefix}embeddings.patch_embedding", f"{prefix}input"),
        *module_rules(f"{prefix}stack.final_norm", f"{hf_prefix}post_layernorm"),
    ]
    if model.pool is not None:
        rules += _attention_pool_rules(model.d_model, f"{prefix}pool.attention", f"{hf_prefix}head")
    return rules


def _attention_pool_rules(d_model: int, name: str, hf: str) -> list[Rule]:
    """The parts of the head; torch's MultiheadAttention calls its fused projection `in_proj`."""
    return [
        Reshape(f"{name}.query", f"{hf}.probe", (1, 1, d_model)),
        Rename(f"{name}.attention.project.qkv.weight", f"{hf}.attention.in_proj_weight"),
        Rename(f"{name}.attention.project.qkv.bias", f"{hf}.attention.in_proj_bias"),
        *module_rules(f"{name}.attention.output", f"{hf}.attention.out_proj"),
        *module_rules(f"{name}.norm", f"{hf}.layernorm"),
        *module_rules(f"{name}.feedforward.inner", f"{hf}.mlp.fc1"),
        *module_rules(f"{name}.feedforward.outer", f"{hf}.mlp.fc2"),
    ]


VISION = SiglipTower(
    model_type="siglip_vision_model",
    architecture="SiglipVisionModel",
    projection="head",
    PREFIX="vision_model.",
    defaults={
        **_DEFAULTS,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 16,
        "vision_use_head": True,
    },
    front_end=spec.Patches,
    encoder=_image_encoder,
    input_config=_image_config,
    position_count=patch_count,
    input_rules=_image_rules,
)
