"""A tower of CLIP, as transformers has it: pre-norm blocks with an input of its own kind, and one vector on top, projected or
not. The files of the two towers say what they read and how they end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.common import Drops, Layer, block, sizes
from regard.families.tensor_table import ConfigSchema, Constant, Rule, Same, each, module

_READ: dict[str, Any] = {
    "num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "attention_dropout": 0.0,
    "projection_dim": 512, "initializer_factor": 1.0,
}  # fmt: skip
_FIXED: dict[str, Any] = {
    "dropout": 0.0, "is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False, "pruned_heads": {},
    "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "tie_encoder_decoder": False,
    "tie_word_embeddings": True, "use_bfloat16": False, "tf_legacy_loss": False,
}  # fmt: skip
_DROPS = Drops(None, "attention_dropout")
_LAYER = Layer(
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.out_proj", "layer_norm1", "mlp.fc1",
    "mlp.fc2", "layer_norm2", "encoder.layers.{i}",
)  # fmt: skip


@dataclass(frozen=True)
class Tower:
    """One side of the pair: its names, what its config assumes, and what its two ends are, where the sides differ."""

    name: str
    classes: str
    projection: str
    PREFIX: str
    read: dict[str, Any]
    input: type
    assemble: Callable[[Mapping[str, Any], kinds.Block, int | None], kinds.Encoder]
    sizes: Callable[[kinds.Encoder], dict[str, Any]]
    length: Callable[[kinds.Encoder], int]
    ends: Callable[[kinds.Encoder, str, str], list[Rule]]

    @property
    def FORM(self) -> tuple[type, type]:
        return kinds.Encoder, self.input

    def config(self, model: kinds.Encoder, positions: int) -> dict[str, Any]:
        return {
            "architectures": [self.classes + ("WithProjection" if width(model) else "")],
            **self.said(model),
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
        match (config.get("architectures") or [self.classes])[0].removeprefix(self.classes):
            case "":
                return self.tower(config, None)
            case "WithProjection":
                return self.tower(config, config.get("projection_dim") or 512)
        raise ModelError(
            f"a {self.name} of the kind {config['architectures'][0]} is not understood",
            f"known: {self.classes}, {self.classes}WithProjection",
        )

    def table(self, model: kinds.Encoder, positions: int) -> list[Rule]:
        return self.rules(model, "", self.PREFIX if width(model) else "")

    def tower(self, config: Mapping[str, Any], projected: int | None) -> kinds.Encoder:
        values = ConfigSchema({**_READ, **self.read}, _FIXED, {})(config)
        return self.assemble(values, block(values, kinds.PreNorm(), _DROPS), projected)

    def said(self, model: kinds.Encoder) -> dict[str, Any]:
        return {
            "model_type": self.name,
            **sizes(model.d_model, model.stack, _DROPS),
            **({"projection_dim": width(model)} if width(model) else {}),
            **self.sizes(model),
        }

    def rules(self, model: kinds.Encoder, ours: str, theirs: str) -> list[Rule]:
        return [
            *self.ends(model, ours, theirs),
            Same(f"{ours}input.position.table", f"{theirs}embeddings.position_embedding.weight"),
            Constant(
                f"{theirs}embeddings.position_ids",
                lambda: torch.arange(self.length(model))[None],
                written=False,
            ),
            *each(model.stack.layers, _LAYER.rules(model, theirs, ours)),
            *(module(f"{ours}pool.project", self.projection, bias=False) if width(model) else []),
        ]


def width(model: kinds.Encoder) -> int | None:
    """That of the projected vector, if it is."""
    return model.pool.width if model.pool else None
