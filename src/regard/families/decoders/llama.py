"""LLaMA in transformers: pre-norm with RMS norms, RoPE, grouped-query attention, SwiGLU.

Mistral, Mixtral, Qwen2, Gemma and gpt-oss are the same model with other constants: each is a
`LlamaFamily`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from regard import spec
from regard.families.block_config import (
    ACTIVATIONS,
    activation_name,
    parse_activation,
    stack_config,
)
from regard.families.config_schema import (
    IGNORED_KEYS,
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.decoders.rope_config import inv_freq_rule, parse_rope, rope_config
from regard.families.heads import DECODER_HEADS, HeadLayout, HeadTable, spans
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    ROUNDED,
    TEXT_KEYS,
    FromConfig,
    PresetFamily,
    Settings,
    Size,
    size,
)
from regard.families.tensor_table import Rules, embedding_rules, module_rules
from regard.system.errors import ModelError

_DEFAULTS: Config = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,  # of the gate and of the value
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # as many as query heads
    "head_dim": None,  # hidden_size / num_attention_heads
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,  # transformers 4
    "rope_scaling": {},  # transformers 4
    "rope_parameters": {},  # transformers 5
    "layer_types": [],
}
_KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "d_ff",
    "rms_norm_eps": "eps",
    "attention_dropout": "attention_dropout",
}
EXPERT_KEYS = {
    "num_local_experts": "count",
    "num_experts_per_tok": "top",
    "router_aux_loss_coef": "balance",
}
# Those that presets have besides, of one relative or another.
_PRESET_KEYS = {
    **TEXT_KEYS,
    "num_key_value_heads": "groups",
    "head_dim": "d_k",
    "tie_word_embeddings": "tied",
    "rope_theta": "base",
    "sliding_window": "window",
    "query_pre_attn_scalar": "query_width",
    "num_local_experts": "experts",
    "num_experts_per_tok": "top",
}
LAYER = LayerNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.o_proj",
    attention_norm="input_layernorm",
    feedforward_inner=("mlp.gate_proj", "mlp.up_proj"),
    feedforward_outer="mlp.down_proj",
    feedforward_norm="post_attention_layernorm",
    qk_norms=("self_attn.q_norm", "self_attn.k_norm"),
    layer="layers.{i}",
    final="norm",
)
_SANDWICH = replace(
    LAYER,
    feedforward_norm="pre_feedforward_layernorm",
    after=("post_attention_layernorm", "post_feedforward_layernorm"),
)
_EXPERT = LayerNames(feedforward_inner=("w1", "w3"), feedforward_outer="w2")
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class LlamaFamily:
    """A relative of LLaMA: what its config assumes, and where it departs from LLaMA."""

    model_type: str
    HEAD_TABLE: HeadTable
    defaults: Config
    fixed: Config = field(default_factory=dict)  # keys with one value only
    synonyms: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    activations: Mapping[str, spec.Activation] = field(default_factory=lambda: ACTIVATIONS)
    attention_bias: str = ""  # the projections that have one, unless config.json says all
    norm_offset: float = 0.0  # added to the weights of the norms
    scale_embedding: bool = False  # by √d_model
    activation_key: str = "hidden_act"
    residual: spec.Residual = field(default_factory=spec.PreNorm)
    qk_norm: bool = False
    # One layer in so many attends to everything, the others to a window; 0: all layers are alike.
    full_every: int = 0
    PREFIX: str = "model."
    SPEC_TYPES: ClassVar = (spec.Decoder, spec.Tokens)

    @property
    def schema(self) -> ConfigSchema:
        # `pretraining_tp` splits a matrix product into parts, which changes its rounding only.
        ignored = IGNORED_KEYS | self.ignored | {"pretraining_tp"}
        defaults = {self.activation_key: "silu", **_DEFAULTS, **self.defaults}
        return ConfigSchema(defaults, {**NOT_ENCODER_DECODER, **self.fixed}, ignored, self.synonyms)

    @property
    def keys(self) -> dict[str, str]:
        return {**_KEYS, self.activation_key: "activation"}

    def presets(
        self,
        sizes: Mapping[str, Size],
        defaults: Config,
        vocabulary: int,
        context: int,
        default: str,
        constants: Mapping[str, Any] = MappingProxyType({}),
        computed: Callable[[Any], Config] = lambda settings: {},
    ) -> PresetFamily:
        """The presets of these sizes."""
        names = {"gelu_tanh": activation_name("gelu_tanh", self.activations)}
        keys = {**self.keys, **_PRESET_KEYS}
        make = FromConfig(self.to_spec, keys, constants, computed, names)
        return PresetFamily("decoder", make, sizes, defaults, vocabulary, context, default)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.Decoder, positions: int) -> Config:
        block = model.stack.block
        attention = block.attention
        windows = [getattr(block.pattern, "window", None) for block in model.stack.blocks]
        config = {
            "model_type": self.model_type,
            "architectures": [f"{self.HEAD_TABLE.class_prefix}ForCausalLM"],
            "vocab_size": model.tokens.vocabulary,
            **stack_config(model.d_model, model.stack, self.keys, self.activations),
            "num_key_value_heads": attention.key_heads,
            "head_dim": attention.d_k,
            "tie_word_embeddings": model.tied,
            "max_position_embeddings": positions,
            **self._rope_config(model),
        }
        if self.full_every:
            config["layer_types"] = [_LAYER_TYPES[window is not None] for window in windows]
        # Not all of the families have these keys.
        optional = {
            "sliding_window": next((window for window in windows if window), None),
            "query_pre_attn_scalar": round((attention.scale or attention.d_k**-0.5) ** -2),
            "attn_logit_softcapping": getattr(attention.mixer, "cap", None),
            "final_logit_softcapping": model.head.cap if model.head else None,
            "attention_bias": attention.bias == "qkvo",
            "mlp_bias": block.feedforward.bias,
            **self._experts_config(block.feedforward),
        }
        for key, value in optional.items():
            if key in self.defaults:
                config[key] = value
        return config

    def _experts_config(self, part: spec.PositionWise) -> Config:
        if not isinstance(part, spec.MixtureOfExperts):
            return {"num_local_experts": 0}
        return {
            **part_config(part, EXPERT_KEYS),
            "swiglu_limit": getattr(part.inner, "limit", None),
        }

    def _rope_config(self, model: spec.Decoder) -> Config:
        config = rope_config(model)
        return {"rope_theta": config["rope_parameters"]["rope_theta"], **config}

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.Decoder:
        values = self.schema.parse(config)
        # Gemma's norms multiply by 1 + weight.
        norm = spec.RMSNorm(values["rms_norm_eps"], self.norm_offset)
        block = spec.Block(
            self._attention(values, norm),
            self._feedforward(values),
            residual=self.residual,
            norm=norm,
            dropout=0.0,
        )
        blocks = [
            replace(
                block,
                pattern=spec.CausalMask(self._window(values, layer_type)),
                position=self._rope(values, layer_type),
            )
            for layer_type in self._layer_types(values)
        ]
        return spec.Decoder(
            values["hidden_size"],
            spec.Tokens(values["vocab_size"], None, scale=self.scale_embedding, dropout=0.0),
            spec.Stack(tuple(blocks), norm),
            (spec.LMHead(cap=values.get("final_logit_softcapping")),),
            tied=values["tie_word_embeddings"],
        )

    def _layer_types(self, values: Config) -> list[str]:
        layers = range(values["num_hidden_layers"])
        supported = _LAYER_TYPES if self.full_every else _LAYER_TYPES[:1]
        for layer_type in values["layer_types"]:
            if layer_type not in supported:
                raise ModelError(
                    f"config.json: layer_types has {layer_type!r}, which is not supported",
                    f"known: {', '.join(supported)}",
                )
        every = values.get("sliding_window_pattern") or self.full_every or 1
        usual = [_LAYER_TYPES[(layer + 1) % every > 0] for layer in layers]
        return values["layer_types"] or usual

    def _window(self, values: Config, layer_type: str) -> int | None:
        """Where all layers are alike, they have a window if there is one."""
        sliding = layer_type == "sliding_attention" or not self.full_every
        return values.get("sliding_window") if sliding else None

    def _rope(self, values: Config, layer_type: str) -> spec.Rope:
        return parse_rope(values)

    def _attention(self, values: Config, norm: spec.Norm) -> spec.Attention:
        heads = values["num_attention_heads"]
        key_heads = values["num_key_value_heads"]
        d_head = values["head_dim"] or values["hidden_size"] // heads
        width = values.get("query_pre_attn_scalar")
        return spec.Attention(
            heads,
            d_head,
            d_head,
            groups=key_heads if key_heads != heads else None,
            bias="qkvo" if values.get("attention_bias") else self.attention_bias,
            scale=width**-0.5 if width else None,
            mixer=spec.SoftmaxAttention(
                values["attention_dropout"], cap=values.get("attn_logit_softcapping")
            ),
            qk_norm=norm if self.qk_norm else None,
        )

    def _feedforward(self, values: Config) -> spec.PositionWise:
        feedforward = spec.GatedFeedForward(
            values["intermediate_size"],
            parse_activation(values[self.activation_key], self.activations),
            bias=values.get("mlp_bias", False),
        )
        if "num_local_experts" not in values:
            return feedforward
        return spec.MixtureOfExperts(inner=feedforward, **part_fields(values, EXPERT_KEYS))

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.Decoder, positions: int) -> Rules:
        block = model.stack.block
        names = _SANDWICH if isinstance(block.residual, spec.SandwichNorm) else LAYER
        more = self._more_rules(model, "stack.blocks.{i}", f"model.{LAYER.layer}")
        return [
            *embedding_rules(model, "model.embed_tokens.weight", "lm_head.weight"),
            *names.stack_rules(model.stack, hf="model.", more=more),
        ]

    def _more_rules(self, model: spec.Decoder, name: str, hf: str) -> Rules:
        """The rules of each layer besides those that all families have: of experts, and others."""
        return [
            inv_freq_rule(model, f"{hf}.self_attn.rotary_emb.inv_freq"),
            *self._expert_rules(model.stack.block.feedforward, f"{name}.feedforward", hf),
        ]

    def _expert_rules(self, part: spec.PositionWise, name: str, hf: str) -> Rules:
        if not isinstance(part, spec.MixtureOfExperts):
            return []
        hf = f"{hf}.block_sparse_moe"
        rules: Rules = [*module_rules(f"{name}.router", f"{hf}.gate", bias=False)]
        for i in range(part.count):
            rules += _EXPERT.feedforward_rules(
                part.inner, f"{name}.experts.{i}", f"{hf}.experts.{i}"
            )
        return rules


# Spans were learnt with another prefix, which the class has kept.
OLD_SPANS = HeadLayout(spans, {"labels.output": "qa_outputs"}, prefix="transformer.")
LLAMA = LlamaFamily(
    "llama",
    HeadTable("Llama", {**DECODER_HEADS, "ForQuestionAnswering": OLD_SPANS}),
    {"attention_bias": False, "mlp_bias": False},
)

# ------------------------------------------------------------------ presets

# LLaMA (Touvron et al. 2023a, Table 2), LLaMA 2 (2023b), and LLaMA 3 (Dubey et al. 2024).
SIZES = {
    "tiny": size(2, 128, 4, d_ff=352),
    "7b": size(32, 4096, 32, 6700, ROUNDED, d_ff=11008),
    "13b": size(40, 5120, 40, 13_000, d_ff=13824),
    "33b": size(60, 6656, 52, 32_500, d_ff=17920),
    "65b": size(80, 8192, 64, 65_200, d_ff=22016),
}
SIZES_2 = {
    "tiny": SIZES["tiny"],
    "7b": size(32, 4096, 32, 6738, d_ff=11008),
    "13b": size(40, 5120, 40, 13_016, d_ff=13824),
    "70b": size(80, 8192, 64, 68_977, groups=8, d_ff=28672),
}
SIZES_3 = {
    "tiny": size(2, 128, 4, groups=2, d_ff=352),
    "8b": size(32, 4096, 32, 8030, groups=8, d_ff=14336),
    "70b": size(80, 8192, 64, 70_554, groups=8, d_ff=28672),
    "405b": size(126, 16384, 128, 405_853, groups=8, d_ff=53248),
}
PRESET_DEFAULTS: Settings = {
    "d_ff": None,  # 4 d_model
    "d_k": None,  # d_model / heads
    "groups": None,  # key heads; as many as query heads
    "attention_dropout": 0.0,
    "activation": "silu",
    "base": 1e4,  # of the rotations
    "eps": 1e-6,
    "tied": False,
}
_DEFAULTS_2: Settings = {**PRESET_DEFAULTS, "eps": 1e-5}


PRESETS = {
    "llama": LLAMA.presets(SIZES, PRESET_DEFAULTS, 32_000, 2048, "7b"),
    "llama2": LLAMA.presets(SIZES_2, _DEFAULTS_2, 32_000, 4096, "7b"),
    "llama3": LLAMA.presets(SIZES_3, {**_DEFAULTS_2, "base": 5e5}, 128_256, 8192, "8b"),
}
