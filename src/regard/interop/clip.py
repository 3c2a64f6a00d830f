"""CLIP, as transformers has it (CLIPModel): a causal text tower and an image tower of the same pre-norm blocks.

Each tower is a family of its own as well (CLIPTextModel, CLIPVisionModel), with its projection or without.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from regard import spec as kinds
from regard.errors import ModelError
from regard.interop.table import Constant, Keys, Rule, Same, each, module, modules, reads_back
from regard.interop.vit import activation, attention, convolution, theirs

PREFIX = ""
_LEGACY = 2  # an end id that was never right; files that have it mean the highest id of the row
_KEYS = Keys(
    read={
        "text_config": {}, "vision_config": {}, "text_config_dict": {}, "vision_config_dict": {}, "projection_dim": 512,
        "logit_scale_init_value": 2.6592, "initializer_factor": 1.0,
    },
    fixed={},
    equal={},
)  # fmt: skip
_TOWER: dict[str, Any] = {
    "num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "attention_dropout": 0.0,
    "projection_dim": 512, "initializer_range": 0.02, "initializer_factor": 1.0,
}  # fmt: skip
_FIXED: dict[str, Any] = {
    "dropout": 0.0, "is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False, "pruned_heads": {},
    "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "tie_encoder_decoder": False,
    "tie_word_embeddings": True, "use_bfloat16": False, "tf_legacy_loss": False,
}  # fmt: skip


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
    ends: Callable[[kinds.Encoder, str, str], list[Rule]]

    def matches(self, model: kinds.Model) -> bool:
        if not (isinstance(model, kinds.Encoder) and isinstance(model.input, self.input)):
            return False
        return reads_back(model, self.config(model, positions=1), self.spec)

    def config(self, model: kinds.Encoder, positions: int) -> dict[str, Any]:
        return {"architectures": [self.classes + ("WithProjection" if _width(model) else "")], **self.said(model)}

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
        return self.rules(model, "", self.PREFIX if _width(model) else "")

    def tower(self, config: Mapping[str, Any], width: int | None) -> kinds.Encoder:
        values = Keys({**_TOWER, **self.read}, _FIXED, {})(config)
        block = kinds.Block(
            attention=attention(values["hidden_size"], values["num_attention_heads"], values["attention_dropout"]),
            feedforward=kinds.Plain(values["intermediate_size"], activation(values["hidden_act"])),
            residual=kinds.PreNorm(),
            norm=kinds.LayerNorm(values["layer_norm_eps"]),
            dropout=0.0,
        )
        return self.assemble(values, block, width)

    def said(self, model: kinds.Encoder) -> dict[str, Any]:
        block, width = model.stack.block, _width(model)
        return {
            "model_type": self.name,
            "hidden_size": model.d_model,
            "intermediate_size": block.feedforward.d_ff,
            "num_hidden_layers": model.stack.layers,
            "num_attention_heads": block.attention.heads,
            "hidden_act": theirs(block.feedforward.activation),
            "layer_norm_eps": block.norm.eps,
            "attention_dropout": block.attention.mixer.dropout,
            **({"projection_dim": width} if width else {}),
            **self.sizes(model),
        }

    def rules(self, model: kinds.Encoder, ours: str, theirs: str) -> list[Rule]:
        d, block, layer = model.d_model, f"{ours}stack.blocks.{{i}}", f"{theirs}encoder.layers.{{i}}"
        names = [f"{layer}.self_attn.{letter}_proj" for letter in "qkv"]
        return [
            *self.ends(model, ours, theirs),
            Same(f"{ours}input.position.table", f"{theirs}embeddings.position_embedding.weight"),
            Constant(f"{theirs}embeddings.position_ids", lambda: torch.arange(_length(model))[None], written=False),
            *each(
                model.stack.layers,
                [
                    *module(f"{block}.residual.each.0.norm", f"{layer}.layer_norm1"),
                    *modules(f"{block}.attention.project.qkv", names, (d, d, d)),
                    *module(f"{block}.attention.output", f"{layer}.self_attn.out_proj"),
                    *module(f"{block}.residual.each.1.norm", f"{layer}.layer_norm2"),
                    *module(f"{block}.feedforward.inner", f"{layer}.mlp.fc1"),
                    *module(f"{block}.feedforward.outer", f"{layer}.mlp.fc2"),
                ],
            ),
            *(module(f"{ours}pool.project", self.projection, bias=False) if _width(model) else []),
        ]


def _width(model: kinds.Encoder) -> int | None:
    return model.pool.width if model.pool else None


def _length(model: kinds.Encoder) -> int:
    if isinstance(model.input, kinds.Patches):
        return model.input.positions
    return model.input.position.length if isinstance(model.input.position, kinds.Learned) else 1


# ------------------------------------------------------------------ texts


def _text(values: Mapping[str, Any], block: kinds.Block, width: int | None) -> kinds.Encoder:
    position, end = kinds.Learned(values["max_position_embeddings"]), values["eos_token_id"]
    return kinds.Encoder(
        values["hidden_size"],
        kinds.Tokens(values["vocab_size"], position, scale=False, dropout=0.0),
        kinds.Stack(values["num_hidden_layers"], block, kinds.Causal(), final=block.norm),
        kinds.Pool(kinds.End(None if end == _LEGACY else end), None, width=width),
    )


def _text_sizes(model: kinds.Encoder) -> dict[str, Any]:
    assert isinstance(model.input, kinds.Tokens)
    end = model.pool.which if model.pool else None
    return {
        "vocab_size": model.input.vocabulary,
        "max_position_embeddings": _length(model),
        "eos_token_id": (end.token or _LEGACY) if isinstance(end, kinds.End) else None,
    }


def _text_ends(model: kinds.Encoder, ours: str, theirs: str) -> list[Rule]:
    return [
        Same(f"{ours}input.table.weight", f"{theirs}embeddings.token_embedding.weight"),
        *module(f"{ours}stack.final_norm", f"{theirs}final_layer_norm"),
    ]


# ------------------------------------------------------------------ images


def _image(values: Mapping[str, Any], block: kinds.Block, width: int | None) -> kinds.Encoder:
    sizes = (values["image_size"], values["patch_size"], values["num_channels"])
    return kinds.Encoder(
        values["hidden_size"],
        kinds.Patches(*sizes, bias=False, norm=block.norm),
        kinds.Stack(values["num_hidden_layers"], block),
        kinds.Pool("first", None, norm=block.norm, width=width),
    )


def _image_sizes(model: kinds.Encoder) -> dict[str, Any]:
    assert isinstance(model.input, kinds.Patches)
    patches = model.input
    return {"image_size": patches.size, "patch_size": patches.patch, "num_channels": patches.channels}


def _image_ends(model: kinds.Encoder, ours: str, theirs: str) -> list[Rule]:
    return [
        Same(f"{ours}input.extras.0", f"{theirs}embeddings.class_embedding"),
        *convolution(model, f"{theirs}embeddings.patch_embedding", f"{ours}input"),
        *module(f"{ours}input.norm", f"{theirs}pre_layrnorm"),
        *module(f"{ours}pool.norm", f"{theirs}post_layernorm"),
    ]


TEXT = Tower(
    "clip_text_model", "CLIPTextModel", "text_projection", "text_model.",
    {
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
        "max_position_embeddings": 77, "eos_token_id": 49407,
    },
    kinds.Tokens, _text, _text_sizes, _text_ends,
)  # fmt: skip
VISION = Tower(
    "clip_vision_model", "CLIPVisionModel", "visual_projection", "vision_model.",
    {
        "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_channels": 3, "image_size": 224,
        "patch_size": 32,
    },
    kinds.Patches, _image, _image_sizes, _image_ends,
)  # fmt: skip

# ------------------------------------------------------------------ both


def matches(model: kinds.Model) -> bool:
    if not (isinstance(model, kinds.Pair) and isinstance(model.text.input, kinds.Tokens)):
        return False
    return isinstance(model.image.input, kinds.Patches) and reads_back(model, config(model, positions=1), spec)


def config(model: kinds.Pair, positions: int) -> dict[str, Any]:
    return {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": _width(model.text),
        "logit_scale_init_value": model.scale,
        "text_config": TEXT.said(model.text),
        "vision_config": VISION.said(model.image),
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Pair:
    values = _KEYS(config)
    if (config.get("architectures") or ["CLIPModel"])[0] != "CLIPModel":
        raise ModelError(f"a {config['architectures'][0]} is not understood", "known: CLIPModel")
    # Where old files say a tower twice, transformers takes the second.
    text, image = (values[f"{side}_config_dict"] or values[f"{side}_config"] for side in ("text", "vision"))
    width = values["projection_dim"]
    return kinds.Pair(TEXT.tower(text, width), VISION.tower(image, width), values["logit_scale_init_value"])


def table(model: kinds.Pair, positions: int) -> list[Rule]:
    return [
        *TEXT.rules(model.text, "text.", TEXT.PREFIX),
        *VISION.rules(model.image, "image.", VISION.PREFIX),
        Same("scale", "logit_scale"),
    ]
