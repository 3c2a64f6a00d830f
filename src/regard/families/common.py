"""What the files of several families have in common: words for activations, labels and sizes, the block these describe, and
the rules of a layer. A family's file says where it departs from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError, did_you_mean
from regard.families.tensor_table import Moved, Same, module, modules

# As transformers calls them; where several words mean one, the first is written.
ACTIVATIONS: dict[str, kinds.Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu", "swish": "silu", "tanh": "tanh",
}  # fmt: skip


def activation(name: str, known: Mapping[str, kinds.Activation] = ACTIVATIONS) -> kinds.Activation:
    if name not in known:
        raise ModelError(
            f"the activation {name!r} is not understood", did_you_mean(str(name), known)
        )
    return known[name]


def word(
    activation: kinds.Activation | None, known: Mapping[str, kinds.Activation] = ACTIVATIONS
) -> str:
    """Its name in a config; none that could be read back where there is none."""
    return next((name for name, ours in known.items() if ours == activation), "")


# ------------------------------------------------------------------ labels


def label_count(config: Mapping[str, Any]) -> int:
    """transformers writes the labels' names, or nothing when there are two."""
    names, count = config.get("id2label"), config.get("num_labels") or 2
    count = len(names) if isinstance(names, dict) and names else count
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ModelError(
            f"config.json: num_labels cannot be {count!r}", "say how many labels there are"
        )
    return count


def named_labels(count: int) -> dict[str, Any]:
    """What a config says of labels without names."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


# ------------------------------------------------------------------ sizes


def attention(d_model: int, heads: int, dropout: float, bias: str = "qkvo") -> kinds.Attention:
    """Heads that share out d_model."""
    if d_model % heads:
        raise ModelError(
            f"config.json: the width {d_model} does not divide by {heads} heads", "correct one of them"
        )  # fmt: skip
    return kinds.Attention(
        heads, d_model // heads, d_model // heads, bias=bias, mixer=kinds.SoftmaxAttention(dropout)
    )


@dataclass(frozen=True)
class Drops:
    """Their words for the dropouts: of what a sublayer adds, of attention's weights, inside the feed-forward. None: there is
    no such dropout."""

    added: str | None = "hidden_dropout_prob"
    weights: str = "attention_probs_dropout_prob"
    inner: str | None = None


def block(
    values: Mapping[str, Any],
    residual: kinds.Residual,
    drops: Drops | None = None,
    bias: str = "qkvo",
) -> kinds.Block:
    """The block that the words of `sizes` describe."""
    drops = drops or Drops()
    inner = values[drops.inner] if drops.inner else 0.0
    return kinds.Block(
        attention(
            values["hidden_size"], values["num_attention_heads"], values[drops.weights], bias
        ),
        kinds.FeedForward(values["intermediate_size"], activation(values["hidden_act"]), inner),
        residual=residual,
        norm=kinds.LayerNorm(values["layer_norm_eps"]),
        dropout=values[drops.added] if drops.added else 0.0,
    )


def sizes(d_model: int, stack: kinds.Stack, drops: Drops | None = None) -> dict[str, Any]:
    """What most configs say of a stack, in the same words."""
    drops = drops or Drops()
    return {
        **({drops.added: stack.block.dropout} if drops.added else {}),
        **({drops.inner: stack.block.feedforward.dropout} if drops.inner else {}),
        drops.weights: stack.block.attention.mixer.dropout,
        "hidden_size": d_model,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.block.attention.heads,
        "intermediate_size": stack.block.feedforward.d_ff,
        "hidden_act": word(stack.block.feedforward.activation),
        "layer_norm_eps": stack.block.norm.eps,
    }


# ------------------------------------------------------------------ tensors


@dataclass(frozen=True)
class Layer:
    """Their names for the parts of a layer of an encoder: BERT's, unless said. Where queries are keys, they have one name."""

    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    first_norm: str = "attention.output.LayerNorm"
    inner: str = "intermediate.dense"
    outer: str = "output.dense"
    last_norm: str = "output.LayerNorm"
    path: str = "encoder.layer.{i}"

    def rules(self, model: kinds.Encoder, inside: str, ours: str = "") -> list[Moved]:
        """Of all layers; `inside` stands before their names, `ours` before ours."""
        return self.of(model.stack.block, f"{ours}stack.blocks.{{i}}", inside + self.path)

    def of(self, block: kinds.Block, here: str, theirs: str) -> list[Moved]:
        """Of one layer, which is called `here` with us."""
        looks, reversible = block.attention, isinstance(block.residual, kinds.Reversible)
        norms = [
            f"{here}.residual." + (f"norms.{i}" if reversible else f"each.{i}.norm") for i in (0, 1)
        ]
        project = f"{here}.attention.project.{'qkv' if len(self.qkv) == 3 else 'qv'}"
        widths = (looks.heads * looks.d_k,) * len(self.qkv)
        return [
            *modules(project, _under(theirs, self.qkv), widths, "q" in looks.bias),
            *module(f"{here}.attention.output", f"{theirs}.{self.output}", "o" in looks.bias),
            *norm(norms[0], f"{theirs}.{self.first_norm}"),
            *module(f"{here}.feedforward.inner", f"{theirs}.{self.inner}"),
            *module(f"{here}.feedforward.outer", f"{theirs}.{self.outer}"),
            *norm(norms[1], f"{theirs}.{self.last_norm}"),
        ]


def norm(ours: str, theirs: str) -> list[Moved]:
    """The first files say gamma and beta."""
    return [
        Same(f"{ours}.weight", f"{theirs}.weight", (f"{theirs}.gamma",)),
        Same(f"{ours}.bias", f"{theirs}.bias", (f"{theirs}.beta",)),
    ]


def _under(path: str, names: Sequence[str]) -> list[str]:
    return [f"{path}.{name}" for name in names]
