"""ViT and DeiT, as transformers has them: patches behind a class token, pre-norm; DeiT has a distillation token besides.

With labels, ViT scores the class token as it is; without, its pooler is a part of the model, if it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError, did_you_mean
from regard.interop.table import Keys, Reshaped, Rule, each, module, modules, reads_back

ACTIVATIONS: dict[str, kinds.Activation] = {
    "gelu": "gelu", "quick_gelu": "quick_gelu", "relu": "relu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "swish": "silu", "tanh": "tanh",
}  # fmt: skip
# `regard_pooler` is ours: whether a model without labels has one is seen in the weights only.
_KEYS = Keys(
    read={
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12,
        "image_size": 224, "patch_size": 16, "num_channels": 3, "qkv_bias": True, "pooler_act": "tanh",
        "initializer_range": 0.02, "encoder_stride": 16, "regard_pooler": True,
    },
    fixed={
        "is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False, "pruned_heads": {},
        "chunk_size_feed_forward": 0,
    },
    equal={"pooler_output_size": "hidden_size"},
)  # fmt: skip


@dataclass(frozen=True)
class Kin:
    """One of the two: its model_type, the name of its classes, and its tokens before the patches."""

    name: str
    classes: str
    tokens: tuple[str, ...]

    @property
    def PREFIX(self) -> str:
        return f"{self.name}."

    def matches(self, model: kinds.Model) -> bool:
        if not (isinstance(model, kinds.Encoder) and isinstance(model.input, kinds.Patches)):
            return False
        return reads_back(model, self.config(model, positions=1), self.spec)

    def config(self, model: kinds.Encoder, positions: int) -> dict[str, Any]:
        block, patches = model.stack.block, _patches(model)
        heads = {kinds.Labels: "ForImageClassification", kinds.Votes: "ForImageClassificationWithTeacher"}
        pooled = model.pool.activation if model.pool and not model.labels else None
        return {
            "model_type": self.name,
            "architectures": [self.classes + (heads[type(model.labels)] if model.labels else "Model")],
            "hidden_size": model.d_model,
            "num_hidden_layers": model.stack.layers,
            "num_attention_heads": block.attention.heads,
            "intermediate_size": block.feedforward.d_ff,
            "hidden_act": theirs(block.feedforward.activation),
            "hidden_dropout_prob": block.dropout,
            "attention_probs_dropout_prob": block.attention.mixer.dropout,
            "layer_norm_eps": block.norm.eps,
            "image_size": patches.size,
            "patch_size": patches.patch,
            "num_channels": patches.channels,
            "qkv_bias": "q" in block.attention.bias,
            **({"pooler_act": theirs(pooled)} if pooled else {}),
            **({} if model.labels or model.pool else {"regard_pooler": False}),
            **(named_labels(model.labels.count) if model.labels else {}),
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
        values = _KEYS(config)
        d_model, norm = values["hidden_size"], kinds.LayerNorm(values["layer_norm_eps"])
        pooler = any("pooler." in name for name in stored) if stored else values["regard_pooler"]
        pool: kinds.Pool | None
        labels: kinds.Labels | kinds.Votes | None
        match (config.get("architectures") or [f"{self.classes}Model"])[0].removeprefix(self.classes):
            case "Model":
                pool, labels = kinds.Pool("first", activation(values["pooler_act"])) if pooler else None, None
            case "ForImageClassification":
                pool, labels = kinds.Pool("first", None), kinds.Labels(label_count(config))
            case "ForImageClassificationWithTeacher" if len(self.tokens) == 2:
                pool, labels = None, kinds.Votes(label_count(config), 2)
            case other:
                raise ModelError(
                    f"a {self.name} model of the kind {other!r} is not understood",
                    "known: Model, ForImageClassification",
                )
        block = kinds.Block(
            attention=attention(d_model, values["num_attention_heads"], values["attention_probs_dropout_prob"],
                                "qkvo" if values["qkv_bias"] else "o"),
            feedforward=kinds.Plain(values["intermediate_size"], activation(values["hidden_act"])),
            residual=kinds.PreNorm(),
            norm=norm,
            dropout=values["hidden_dropout_prob"],
        )  # fmt: skip
        patches = kinds.Patches(
            values["image_size"], values["patch_size"], values["num_channels"], len(self.tokens),
            dropout=values["hidden_dropout_prob"],
        )  # fmt: skip
        stack = kinds.Stack(values["num_hidden_layers"], block, final=norm)
        return kinds.Encoder(d_model, patches, stack, pool, labels=labels)

    def table(self, model: kinds.Encoder, positions: int) -> list[Rule]:
        top = self.PREFIX if model.labels else ""
        d, attention, pooled = model.d_model, model.stack.block.attention, model.pool and model.pool.activation
        ours, theirs = "stack.blocks.{i}", f"{top}encoder.layer.{{i}}"
        names = [f"{theirs}.attention.attention.{name}" for name in ("query", "key", "value")]
        outputs = ("cls_classifier", "distillation_classifier")
        tokens = [f"{top}embeddings.{token}_token" for token in self.tokens]
        whole = (1, _patches(model).positions, d)
        rules: list[Rule] = [
            *(Reshaped(f"input.extras.{i}", token, (1, 1, d)) for i, token in enumerate(tokens)),
            Reshaped("input.position.table", f"{top}embeddings.position_embeddings", whole, (-1, d)),
            *convolution(model, f"{top}embeddings.patch_embeddings.projection"),
            *each(
                model.stack.layers,
                [
                    *module(f"{ours}.residual.each.0.norm", f"{theirs}.layernorm_before"),
                    *modules(f"{ours}.attention.project.qkv", names, (d, d, d), "q" in attention.bias),
                    *module(f"{ours}.attention.output", f"{theirs}.attention.output.dense"),
                    *module(f"{ours}.residual.each.1.norm", f"{theirs}.layernorm_after"),
                    *module(f"{ours}.feedforward.inner", f"{theirs}.intermediate.dense"),
                    *module(f"{ours}.feedforward.outer", f"{theirs}.output.dense"),
                ],
            ),
            *module("stack.final_norm", f"{top}layernorm"),
            *(module("pool.dense", "pooler.dense") if pooled else []),
        ]
        if isinstance(model.labels, kinds.Labels):
            rules += module("labels.output", "classifier")
        elif isinstance(model.labels, kinds.Votes):
            rules += [rule for i, name in enumerate(outputs) for rule in module(f"labels.outputs.{i}", name)]
        return rules


def _patches(model: kinds.Encoder) -> kinds.Patches:
    assert isinstance(model.input, kinds.Patches)
    return model.input


def convolution(model: kinds.Encoder, theirs: str, ours: str = "input") -> list[Rule]:
    """Their convolution over patches, whose kernel is our matrix of unfolded pixels."""
    patches, d = _patches(model), model.d_model
    shape = (d, patches.channels, patches.patch, patches.patch)
    bias = module(f"{ours}.project", theirs)[1:] if patches.bias else []
    return [Reshaped(f"{ours}.project.weight", f"{theirs}.weight", shape, (d, -1)), *bias]


def attention(d_model: int, heads: int, dropout: float, bias: str = "qkvo") -> kinds.Attention:
    """Heads that share out d_model."""
    if d_model % heads:
        raise ModelError(f"config.json: hidden_size {d_model} does not divide by {heads} heads", "correct one of them")
    return kinds.Attention(heads, d_model // heads, d_model // heads, bias=bias, mixer=kinds.Softmax(dropout))


def activation(name: str) -> kinds.Activation:
    if name not in ACTIVATIONS:
        raise ModelError(f"the activation {name!r} is not supported", did_you_mean(name, ACTIVATIONS))
    return ACTIVATIONS[name]


def theirs(activation: kinds.Activation) -> str:
    return next((theirs for theirs, ours in ACTIVATIONS.items() if ours == activation), "")


def label_count(config: Mapping[str, Any]) -> int:
    """transformers writes the labels' names, or nothing when there are two."""
    names, count = config.get("id2label"), config.get("num_labels")
    count = len(names) if isinstance(names, Mapping) else 2 if count is None else count
    if not isinstance(count, int) or count < 1:
        raise ModelError(f"config.json speaks of {count!r} labels", "give id2label a name for each label")
    return count


def named_labels(count: int) -> dict[str, Any]:
    names = [f"LABEL_{i}" for i in range(count)]
    return {"id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)}}  # fmt: skip


VIT = Kin("vit", "ViT", ("cls",))
DEIT = Kin("deit", "DeiT", ("cls", "distillation"))
