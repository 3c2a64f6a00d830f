"""ViT, as transformers has it: patches behind a class token, pre-norm. DeiT is another `Kin`, with one token more.

With labels, the class token is scored as it is; without, the pooler is a part of the model, if it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.common import Layer, activation, block, label_count, named_labels, sizes, word
from regard.families.tensor_table import ALONE, ConfigSchema, Reshaped, Rule, each, module

# `regard_pooler` is ours: whether a model without labels has one is seen in the weights only.
_KEYS = ConfigSchema(
    read={
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12,
        "image_size": 224, "patch_size": 16, "num_channels": 3, "qkv_bias": True, "pooler_act": "tanh",
        "encoder_stride": 16, "regard_pooler": True,
    },
    fixed={**ALONE, "pruned_heads": {}, "chunk_size_feed_forward": 0},
    equal={"pooler_output_size": "hidden_size"},
)  # fmt: skip
_LAYER = Layer(
    ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    first_norm="layernorm_before",
    last_norm="layernorm_after",
)


@dataclass(frozen=True)
class Kin:
    """One of these families: its model_type, the name of its classes, and its tokens before the patches."""

    name: str
    classes: str
    tokens: tuple[str, ...]
    FORM: ClassVar = (kinds.Encoder, kinds.Patches)

    @property
    def PREFIX(self) -> str:
        return f"{self.name}."

    def config(self, model: kinds.Encoder, positions: int) -> dict[str, Any]:
        patches = model.patches
        heads = {
            kinds.ClassifierHead: "ForImageClassification",
            kinds.DistilledHead: "ForImageClassificationWithTeacher",
        }
        pooled = model.pool.activation if model.pool and not model.labels else None
        return {
            "model_type": self.name,
            "architectures": [
                self.classes + (heads[type(model.labels)] if model.labels else "Model")
            ],
            **sizes(model.d_model, model.stack),
            "image_size": patches.size,
            "patch_size": patches.patch,
            "num_channels": patches.channels,
            "qkv_bias": "q" in model.stack.block.attention.bias,
            **({"pooler_act": word(pooled)} if pooled else {}),
            **({} if model.labels or model.pool else {"regard_pooler": False}),
            **(named_labels(model.labels.count) if model.labels else {}),
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
        values = _KEYS(config)
        pooler = any("pooler." in name for name in stored) if stored else values["regard_pooler"]
        pool: kinds.Pool | None
        labels: kinds.ClassifierHead | kinds.DistilledHead | None
        match (config.get("architectures") or [f"{self.classes}Model"])[0].removeprefix(
            self.classes
        ):
            case "Model":
                pool, labels = (
                    kinds.Pool("first", activation(values["pooler_act"])) if pooler else None,
                    None,
                )
            case "ForImageClassification":
                pool, labels = kinds.Pool("first", None), kinds.ClassifierHead(label_count(config))
            case "ForImageClassificationWithTeacher" if len(self.tokens) == 2:
                pool, labels = None, kinds.DistilledHead(label_count(config), 2)
            case other:
                known = "known: Model, ForImageClassification"
                raise ModelError(
                    f"a {self.name} model of the kind {other!r} is not understood", known
                )
        layer = block(values, kinds.PreNorm(), bias="qkvo" if values["qkv_bias"] else "o")
        shape = (
            values["image_size"],
            values["patch_size"],
            values["num_channels"],
            len(self.tokens),
        )
        patches = kinds.Patches(*shape, dropout=layer.dropout)
        stack = kinds.Stack(values["num_hidden_layers"], layer, final=layer.norm)
        return kinds.Encoder(values["hidden_size"], patches, stack, pool, labels=labels)

    def table(self, model: kinds.Encoder, positions: int) -> list[Rule]:
        top, d = self.PREFIX if model.labels else "", model.d_model
        tokens = [f"{top}embeddings.{token}_token" for token in self.tokens]
        outputs = ("classifier",) if isinstance(model.labels, kinds.ClassifierHead) else ()
        voices = (
            ("cls_classifier", "distillation_classifier")
            if isinstance(model.labels, kinds.DistilledHead)
            else ()
        )
        whole = (1, model.patches.positions, d)
        return [
            *(Reshaped(f"input.extras.{i}", token, (1, 1, d)) for i, token in enumerate(tokens)),
            Reshaped(
                "input.position.table", f"{top}embeddings.position_embeddings", whole, (-1, d)
            ),
            *convolution(model, f"{top}embeddings.patch_embeddings.projection"),
            *each(model.stack.layers, _LAYER.rules(model, top)),
            *module("stack.final_norm", f"{top}layernorm"),
            *(module("pool.dense", "pooler.dense") if model.pool and model.pool.activation else []),
            *(rule for name in outputs for rule in module("labels.output", name)),
            *(
                rule
                for i, name in enumerate(voices)
                for rule in module(f"labels.outputs.{i}", name)
            ),
        ]


def convolution(model: kinds.Encoder, theirs: str, ours: str = "input") -> list[Rule]:
    """Their convolution over patches, whose kernel is our matrix of unfolded pixels."""
    patches, d = model.patches, model.d_model
    shape = (d, patches.channels, patches.patch, patches.patch)
    bias = module(f"{ours}.project", theirs)[1:] if patches.bias else []
    return [Reshaped(f"{ours}.project.weight", f"{theirs}.weight", shape, (d, -1)), *bias]


VIT = Kin("vit", "ViT", ("cls",))
