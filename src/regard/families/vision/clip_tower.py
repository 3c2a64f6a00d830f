"""A tower of CLIP in transformers: pre-norm blocks and one vector on top, projected or not.

The files of the two towers, text and vision, say what each reads and how it pools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regard import spec
from regard.families.block_config import block_from_config, keys_with, stack_config
from regard.families.config_schema import IGNORED_KEYS, ConfigSchema
from regard.families.encoders.encoder_tensor_names import LayerNames
from regard.families.tensor_table import Constant, Rename, Rule, module_rules, per_layer
from regard.system.errors import ModelError

_DEFAULTS: dict[str, Any] = {
    "num_hidden_layers": 12,
    "hidden_act": "quick_gelu",  # x · sigmoid(1.702 x)
    "layer_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "projection_dim": 512,  # of the space that both towers share
    "initializer_factor": 1.0,  # of fresh weights only
}
_FIXED: dict[str, Any] = {
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
_LAYER = LayerNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.out_proj",
    attention_norm="layer_norm1",
    feedforward_inner="mlp.fc1",
    feedforward_outer="mlp.fc2",
    feedforward_norm="layer_norm2",
    layer="encoder.layers.{i}",
)


@dataclass(frozen=True)
class ClipTower:
    """One tower: its names, its config's defaults, and functions for what the towers differ in."""

    model_type: str
    architecture: str
    projection: str  # the name of its projection
    PREFIX: str
    defaults: dict[str, Any]
    front_end: type  # the class of its input in the spec
    # The encoder of a config's values, with a projection to that width or none.
    encoder: Callable[[Mapping[str, Any], spec.Block, int | None], spec.Encoder]
    input_config: Callable[[spec.Encoder], dict[str, Any]]
    position_count: Callable[[spec.Encoder], int]
    # The rules of its input and of its pooling, by our prefix and theirs.
    input_rules: Callable[[spec.Encoder, str, str], list[Rule]]

    @property
    def _schema(self) -> ConfigSchema:
        return ConfigSchema({**_DEFAULTS, **self.defaults}, _FIXED, {}, IGNORED_KEYS | {"dropout"})

    @property
    def SPEC_TYPES(self) -> tuple[type, type]:
        return spec.Encoder, self.front_end

    def to_config(self, model: spec.Encoder, positions: int) -> dict[str, Any]:
        suffix = "WithProjection" if projection_dim(model) else ""
        return {"architectures": [self.architecture + suffix], **self.tower_config(model)}

    def to_spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.Encoder:
        architecture = (config.get("architectures") or [self.architecture])[0]
        match architecture.removeprefix(self.architecture):
            case "":
                return self.tower_spec(config, None)
            case "WithProjection":
                return self.tower_spec(config, config.get("projection_dim") or 512)
        raise ModelError(
            f"the architecture {architecture!r} of {self.model_type} is not supported",
            f"known: {self.architecture}, {self.architecture}WithProjection",
        )

    def tensor_table(self, model: spec.Encoder, positions: int) -> list[Rule]:
        hf_prefix = self.PREFIX if projection_dim(model) else ""
        return self.tower_rules(model, "", hf_prefix)

    # -------------------------------------------------------------- as a part of CLIPModel

    def tower_config(self, model: spec.Encoder) -> dict[str, Any]:
        """The config of the tower alone, which is also a part of that of the pair."""
        return {
            "model_type": self.model_type,
            **stack_config(model.d_model, model.stack, KEYS),
            **self.input_config(model),
            **self.projection_config(model),
        }

    def projection_config(self, model: spec.Encoder) -> dict[str, Any]:
        """The width of the projection, if there is one."""
        width = projection_dim(model)
        return {"projection_dim": width} if width else {}

    def tower_spec(self, config: Mapping[str, Any], projected: int | None) -> spec.Encoder:
        """The tower of a config, with a projection to that width or none."""
        values = self._schema.parse(config)
        block = block_from_config(values, spec.PreNorm(), KEYS)
        return self.encoder(values, block, projected)

    def tower_rules(self, model: spec.Encoder, prefix: str, hf_prefix: str) -> list[Rule]:
        """The rules of the tower, whose names begin with these prefixes."""
        embeddings = f"{hf_prefix}embeddings"
        rules: list[Rule] = [
            *self.input_rules(model, prefix, hf_prefix),
            Rename(f"{prefix}input.position.table", f"{embeddings}.position_embedding.weight"),
            Constant(
                f"{embeddings}.position_ids",
                lambda: torch.arange(self.position_count(model))[None],
                written=False,
            ),
            *per_layer(model.stack.layers, _LAYER.layer_template(model, hf_prefix, prefix)),
        ]
        return rules + self.projection_rules(model, prefix)

    def projection_rules(self, model: spec.Encoder, prefix: str) -> list[Rule]:
        """The rules of the projection, which stands outside the tower in the files."""
        if projection_dim(model) is None:
            return []
        return [*module_rules(f"{prefix}pool.project", self.projection, bias=False)]


def projection_dim(model: spec.Encoder) -> int | None:
    """The width of the projected vector, if it is projected."""
    return model.pool.width if model.pool else None


def tower_config(settings: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """The config of a preset's tower."""
    keys = {**KEYS, **inputs}
    return {key: settings[name] for key, name in keys.items() if name in settings}
