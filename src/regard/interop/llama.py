"""LLaMA and its kin, as transformers has them: Mistral, Qwen2 and Gemma are the same machine with other constants.

Pre-norm with RMS norms, rotary positions in halves, grouped keys, a gated feed-forward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, ClassVar

from regard import spec as kinds
from regard.errors import ModelError
from regard.interop.table import Keys, Rule, Same, each, module, modules

_ACTIVATIONS: dict[str, kinds.Activation] = {
    "silu": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu",
}  # fmt: skip
_NAMES = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
# Rotary scalings by their names, with the keys of their options in our order.
_SCALINGS: dict[str, tuple[type[kinds.Stretched] | type[kinds.Banded], tuple[str, ...]]] = {
    "linear": (kinds.Stretched, ("factor",)),
    "llama3": (kinds.Banded, ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")),
}
_READ: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0, "tie_word_embeddings": False, "max_position_embeddings": 2048, "rope_theta": 10_000.0,
    "rope_scaling": {}, "rope_parameters": {}, "layer_types": [], "initializer_range": 0.02,
}  # fmt: skip
_FIXED = {"is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False, "pretraining_tp": 1}


@dataclass(frozen=True)
class Kin:
    """One of these families: what its config assumes, and where it departs from LLaMA."""

    name: str
    architecture: str
    read: dict[str, Any]
    fixed: dict[str, Any] = field(default_factory=dict)
    bias: str = ""  # of the attention, unless config.json says more
    offset: float = 0.0  # of the norms' weights
    scale: bool = False  # embeddings times √d_model
    PREFIX: str = "model."
    FORM: ClassVar = (kinds.Decoder, kinds.Tokens)

    def config(self, model: kinds.Decoder, positions: int) -> dict[str, Any]:
        block, rope, pattern = model.stack.block, model.stack.position, model.stack.pattern
        attention, feedforward = block.attention, block.feedforward
        theta, scaling = (rope.base, scaling_of(rope.scaling)) if isinstance(rope, kinds.Rope) else (0.0, {})
        some = {  # not all of the families have these words
            "sliding_window": pattern.window if isinstance(pattern, kinds.Causal) else None,
            "attention_bias": attention.bias == "qkvo",
            "mlp_bias": feedforward.bias,
        }
        return {
            "model_type": self.name,
            "architectures": [self.architecture],
            "vocab_size": model.tokens.vocabulary,
            "hidden_size": model.d_model,
            "intermediate_size": feedforward.d_ff,
            "num_hidden_layers": model.stack.layers,
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.key_heads,
            "head_dim": attention.d_k,
            "hidden_act": _NAMES.get(feedforward.activation, ""),
            "rms_norm_eps": block.norm.eps,
            "attention_dropout": attention.mixer.dropout,
            "tie_word_embeddings": model.tied,
            "max_position_embeddings": positions,
            "rope_theta": theta,
            "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": theta},
            **({"rope_scaling": scaling} if scaling else {}),
            **{key: value for key, value in some.items() if key in self.read},
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder:
        # max_window_layers says which layers would have a window, and none has.
        said = {key: value for key, value in config.items() if key != "max_window_layers"}
        values = Keys({**_READ, **self.read}, {**_FIXED, **self.fixed}, {})(said)
        if other := [kind for kind in values["layer_types"] if kind != "full_attention"]:
            raise ModelError(f"layers of the kind {other[0]!r} are not understood", "known: full_attention")
        if values["hidden_act"] not in _ACTIVATIONS:
            raise ModelError(f"hidden_act {values['hidden_act']!r} is not understood", f"known: {[*_ACTIVATIONS]}")
        heads, d_model, groups = values["num_attention_heads"], values["hidden_size"], values["num_key_value_heads"]
        d_k = values["head_dim"] or d_model // heads
        norm = kinds.RmsNorm(values["rms_norm_eps"], self.offset)
        attention = kinds.Attention(
            heads, d_k, d_k,
            groups=None if groups == heads else groups,
            bias="qkvo" if values.get("attention_bias") else self.bias,
            mixer=kinds.Softmax(values["attention_dropout"]),
        )  # fmt: skip
        activation, bias = _ACTIVATIONS[values["hidden_act"]], values.get("mlp_bias", False)
        feedforward = kinds.Gated(values["intermediate_size"], activation, bias=bias)
        block = kinds.Block(attention, feedforward, residual=kinds.PreNorm(), norm=norm, dropout=0.0)
        pattern = kinds.Causal(values.get("sliding_window"))
        return kinds.Decoder(
            d_model,
            tokens=kinds.Tokens(values["vocab_size"], None, scale=self.scale, dropout=0.0),
            stack=kinds.Stack(values["num_hidden_layers"], block, pattern, rope(values), final=norm),
            tied=values["tie_word_embeddings"],
        )

    def table(self, model: kinds.Decoder, positions: int) -> list[Rule]:
        attention, feedforward = model.stack.block.attention, model.stack.block.feedforward
        head, bias, keys = "lm_head.weight", feedforward.bias, attention.key_heads
        qkv = (attention.heads * attention.d_k, keys * attention.d_k, keys * attention.d_v)
        ours, theirs = "stack.blocks.{i}", "model.layers.{i}"
        names = [f"{theirs}.self_attn.{letter}_proj" for letter in "qkv"]
        pair = [f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"]
        layer = [
            *modules(f"{ours}.attention.project.qkv", names, qkv, "q" in attention.bias),
            *module(f"{ours}.attention.output", f"{theirs}.self_attn.o_proj", "o" in attention.bias),
            *module(f"{ours}.residual.each.0.norm", f"{theirs}.input_layernorm", bias=False),
            *modules(f"{ours}.feedforward.inner", pair, (feedforward.d_ff, feedforward.d_ff), bias),
            *module(f"{ours}.feedforward.outer", f"{theirs}.mlp.down_proj", bias),
            *module(f"{ours}.residual.each.1.norm", f"{theirs}.post_attention_layernorm", bias=False),
        ]
        return [
            Same("tokens.table.weight", "model.embed_tokens.weight", aliases=(head,) if model.tied else ()),
            *([] if model.tied else [Same("head.table.weight", head)]),
            *each(model.stack.layers, layer),
            *module("stack.final_norm", "model.norm", bias=False),
        ]


def rope(values: Mapping[str, Any]) -> kinds.Rope:
    """transformers 5 says `rope_parameters`; 4 said `rope_theta` and `rope_scaling`, with `type` for `rope_type`."""
    said = {"rope_theta": values["rope_theta"], **values["rope_scaling"], **values["rope_parameters"]}
    base, old = said.pop("rope_theta"), said.pop("type", "default")
    kind = said.pop("rope_type", old)
    made, names = _SCALINGS.get(kind, (None, ()))
    numbers = [said.pop(name, None) for name in names]
    if said or kind not in ("default", *_SCALINGS) or not all(type(n) in (int, float) for n in (base, *numbers)):
        options = f" with {', '.join(said)}" if said else ""
        raise ModelError(
            f"rotary positions of the kind {kind!r}{options} are not understood",
            "known: default; linear and llama3 with their options",
        )
    return kinds.Rope(base, scaling=made(*numbers) if made else None)


def scaling_of(scaling: kinds.RopeScaling | None) -> dict[str, Any]:
    for kind, (made, names) in _SCALINGS.items():
        if isinstance(scaling, made):
            return {"rope_type": kind, **dict(zip(names, astuple(scaling), strict=True))}
    return {}


LLAMA = Kin("llama", "LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False})
MISTRAL = Kin(
    "mistral", "MistralForCausalLM", {"intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": None}
)
QWEN2 = Kin(
    "qwen2", "Qwen2ForCausalLM", {"vocab_size": 151936, "intermediate_size": 22016},
    {"use_sliding_window": False, "sliding_window": None}, bias="qkv",
)  # fmt: skip
GEMMA = Kin(
    "gemma", "GemmaForCausalLM",
    {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    },
    {"attention_bias": False, "use_bidirectional_attention": False}, offset=1.0, scale=True,
)  # fmt: skip
