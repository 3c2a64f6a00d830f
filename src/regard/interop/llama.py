"""LLaMA and its kin, as transformers has them: Mistral, Qwen2 and Gemma are the same machine with other constants.

Pre-norm with RMS norms, rotary positions in halves, grouped keys, a gated feed-forward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.interop.table import Keys, Rule, Same, each, module, modules, reads_back

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu"}


@dataclass(frozen=True)
class Kin:
    """One of these families: what its config assumes, and where it departs from LLaMA."""

    name: str
    architecture: str
    read: dict[str, Any]
    fixed: dict[str, Any] = field(default_factory=dict)
    bias: str | None = None  # of the attention; None when config.json says
    offset: float = 0.0  # of the norms' weights
    scale: bool = False  # embeddings times √d_model
    PREFIX: str = "model."

    @property
    def keys(self) -> Keys:
        common: dict[str, Any] = {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "attention_dropout": 0.0, "tie_word_embeddings": False, "max_position_embeddings": 2048,
            "rope_theta": 10_000.0, "rope_scaling": {}, "rope_parameters": {}, "initializer_range": 0.02,
        }  # fmt: skip
        fixed = {"is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False, "pretraining_tp": 1}
        return Keys({**common, **self.read}, {**fixed, **self.fixed}, {})

    def matches(self, model: kinds.Model) -> bool:
        return isinstance(model, kinds.Decoder) and reads_back(model, self.config(model, positions=1), self.spec)

    def config(self, model: kinds.Decoder, positions: int) -> dict[str, Any]:
        block, rope = model.stack.block, model.stack.position
        attention = block.attention
        theta = rope.base if isinstance(rope, kinds.Rope) else 0.0
        scaling = scaling_of(rope.scaling) if isinstance(rope, kinds.Rope) else {}
        window = model.stack.pattern.window if isinstance(model.stack.pattern, kinds.Causal) else None
        said = {
            "model_type": self.name,
            "architectures": [self.architecture],
            "vocab_size": model.tokens.vocabulary,
            "hidden_size": model.d_model,
            "intermediate_size": block.feedforward.d_ff,
            "num_hidden_layers": model.stack.layers,
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.key_heads,
            "head_dim": attention.d_k,
            "hidden_act": {ours: theirs for theirs, ours in _ACTIVATIONS.items() if theirs != "gelu_new"}.get(
                block.feedforward.activation, ""
            ),
            "rms_norm_eps": block.norm.eps,
            "attention_dropout": attention.mixer.dropout,
            "tie_word_embeddings": model.tied,
            "max_position_embeddings": positions,
            "rope_theta": theta,
            "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": theta},
        }
        optional = {
            "sliding_window": window,
            "attention_bias": attention.bias == "qkvo",
            "mlp_bias": block.feedforward.bias,
        }
        return {
            **said,
            **({"rope_scaling": scaling} if scaling else {}),
            **{k: v for k, v in optional.items() if k in self.read},
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder:
        kinds_of_layers = set(config.get("layer_types") or []) - {"full_attention"}
        if kinds_of_layers:
            raise ModelError(
                f"layers of the kind {kinds_of_layers.pop()!r} are not understood", "known: full_attention"
            )
        # max_window_layers says which layers would have a window, and none has.
        values = self.keys({k: v for k, v in config.items() if k not in ("layer_types", "max_window_layers")})
        heads, d_model = values["num_attention_heads"], values["hidden_size"]
        d_k = values["head_dim"] or d_model // heads
        if values["hidden_act"] not in _ACTIVATIONS:
            raise ModelError(
                f"config.json: hidden_act {values['hidden_act']!r} is not understood", f"known: {[*_ACTIVATIONS]}"
            )
        said = "qkvo" if values.get("attention_bias") else ""
        norm = kinds.RmsNorm(values["rms_norm_eps"], self.offset)
        block = kinds.Block(
            attention=kinds.Attention(
                heads, d_k, d_k,
                groups=_groups(values["num_key_value_heads"], heads),
                bias=said if self.bias is None else self.bias,
                mixer=kinds.Softmax(values["attention_dropout"]),
            ),
            feedforward=kinds.Gated(
                values["intermediate_size"], _ACTIVATIONS[values["hidden_act"]], bias=bool(values.get("mlp_bias"))  # type: ignore[arg-type]
            ),
            residual=kinds.PreNorm(),
            norm=norm,
            dropout=0.0,
        )  # fmt: skip
        return kinds.Decoder(
            d_model=d_model,
            tokens=kinds.Tokens(values["vocab_size"], None, scale=self.scale, dropout=0.0),
            stack=kinds.Stack(
                values["num_hidden_layers"],
                block,
                kinds.Causal(values.get("sliding_window")),
                rope(values),
                final=norm,
            ),
            tied=values["tie_word_embeddings"],
        )

    def table(self, model: kinds.Decoder, positions: int) -> list[Rule]:
        attention, bias = model.stack.block.attention, model.stack.block.feedforward.bias
        parts = (
            attention.heads * attention.d_k,
            attention.key_heads * attention.d_k,
            attention.key_heads * attention.d_v,
        )
        ours, theirs, d_ff = "stack.blocks.{i}", "model.layers.{i}", model.stack.block.feedforward.d_ff
        names = [f"{theirs}.self_attn.{letter}_proj" for letter in "qkv"]
        head = "lm_head.weight"
        return [
            Same("tokens.table.weight", "model.embed_tokens.weight", aliases=(head,) if model.tied else ()),
            *([] if model.tied else [Same("head.table.weight", head)]),
            *each(
                model.stack.layers,
                [
                    *modules(f"{ours}.attention.project.qkv", names, parts, "q" in attention.bias),
                    *module(f"{ours}.attention.output", f"{theirs}.self_attn.o_proj", "o" in attention.bias),
                    *module(f"{ours}.residual.each.0.norm", f"{theirs}.input_layernorm", bias=False),
                    *modules(f"{ours}.feedforward.inner", _pair(theirs), (d_ff, d_ff), bias),
                    *module(f"{ours}.feedforward.outer", f"{theirs}.mlp.down_proj", bias),
                    *module(f"{ours}.residual.each.1.norm", f"{theirs}.post_attention_layernorm", bias=False),
                ],
            ),
            *module("stack.final_norm", "model.norm", bias=False),
        ]


def _pair(theirs: str) -> list[str]:
    return [f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"]


def _groups(groups: int | None, heads: int) -> int | None:
    return None if groups in (None, heads) else groups


def rope(values: Mapping[str, Any]) -> kinds.Rope:
    """What configs say of rotary positions: transformers 5 says `rope_parameters`; 4 said `rope_theta` and `rope_scaling`."""
    said = {**values["rope_scaling"], **values["rope_parameters"]}
    kind = said.get("rope_type") or said.get("type") or "default"
    base = float(said.get("rope_theta", values["rope_theta"]))
    match kind:
        case "default":
            return kinds.Rope(base)
        case "linear":
            return kinds.Rope(base, scaling=kinds.Stretched(float(said["factor"])))
        case "llama3":
            low, high = float(said["low_freq_factor"]), float(said["high_freq_factor"])
            length = int(said["original_max_position_embeddings"])
            return kinds.Rope(base, scaling=kinds.Banded(float(said["factor"]), low, high, length))
    raise ModelError(f"rotary positions of the kind {kind!r} are not understood", "known: default, linear, llama3")


def scaling_of(scaling: kinds.RopeScaling | None) -> dict[str, Any]:
    match scaling:
        case kinds.Stretched(factor):
            return {"rope_type": "linear", "factor": factor}
        case kinds.Banded(factor, low, high, length):
            return {
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": length,
            }  # fmt: skip
    return {}


LLAMA = Kin("llama", "LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False})
MISTRAL = Kin(
    "mistral",
    "MistralForCausalLM",
    {"intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": None},
    bias="",
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
    {"attention_bias": False, "use_bidirectional_attention": False}, bias="", offset=1.0, scale=True,
)  # fmt: skip
