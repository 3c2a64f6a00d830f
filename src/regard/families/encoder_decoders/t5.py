"""T5 (Raffel et al. 2020): presets, and the layout of its files in transformers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from regard import spec
from regard.families.block_config import stack_config
from regard.families.config_schema import (
    IGNORED_KEYS,
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import (
    BASE_MODEL,
    END_TOKEN_MODULES,
    SPANS,
    HeadLayout,
    HeadTable,
    end_token_labels,
    label_count,
)
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    ROUNDED,
    FromConfig,
    PresetFamily,
    Size,
    size,
)
from regard.families.tensor_table import Rename, Rules, Unused
from regard.system.errors import ModelError

# ------------------------------------------------------------------ config keys

_LM_HEAD = "lm_head.weight"
# feed_forward_proj → (gated, their name of the activation, ours); "gated-gelu" means the
# approximation by tanh, "gelu" does not.
_FEEDFORWARDS: dict[str, tuple[bool, str, spec.Activation]] = {
    "relu": (False, "relu", "relu"),
    "gelu": (False, "gelu", "gelu"),
    "gated-gelu": (True, "gelu_new", "gelu_tanh"),
    "gated-silu": (True, "silu", "silu"),
}
SCHEMA = ConfigSchema(
    defaults={
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,  # of a head; heads × d_kv need not be d_model
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": None,  # as many as the encoder has
        "num_heads": 8,
        "relative_attention_num_buckets": 32,  # of distances
        "relative_attention_max_distance": 128,  # larger ones share a bucket
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",  # see _FEEDFORWARDS
        "tie_word_embeddings": True,
    },
    fixed={**NOT_ENCODER_DECODER, "is_encoder_decoder": True},
    synonyms={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    ignored=IGNORED_KEYS | {"n_positions", "initializer_factor"},
)
KEYS = {
    "d_model": "d_model",
    "num_layers": "layers",
    "num_heads": "heads",
    "d_ff": "d_ff",
    "dropout_rate": "dropout",
    "layer_norm_epsilon": "eps",
}
_BIAS_KEYS = {
    "relative_attention_num_buckets": "count",
    "relative_attention_max_distance": "distance",
}
_END = 1  # eos_token_id where config.json does not say it


def _token_labels(config: Config) -> tuple[spec.Head, ...]:
    dropout = config.get("classifier_dropout") or 0.0
    return (spec.ClassifierHead(label_count(config), "tag", dropout=dropout),)


_WITHIN = "transformer."  # before the tensors of the base model in most classes of labels
_HEADS: dict[str, HeadLayout] = {
    "Model": BASE_MODEL,
    "EncoderModel": HeadLayout(lambda config: (), side="encoder"),
    "ForSequenceClassification": HeadLayout(end_token_labels(_END), END_TOKEN_MODULES, _WITHIN),
    "ForTokenClassification": HeadLayout(
        _token_labels, {"labels.output": "classifier"}, _WITHIN, side="encoder"
    ),
    "ForQuestionAnswering": SPANS,
}


@dataclass(frozen=True)
class T5Family:
    """T5 or mT5; only T5 has a version that scales the input of the output matrix."""

    model_type: str
    class_prefix: str  # of its architectures: "T5" in T5ForConditionalGeneration
    schema: ConfigSchema
    can_scale: bool
    PREFIX: str = ""
    SPEC_TYPES: ClassVar = (spec.EncoderDecoder, spec.Tokens)

    @property
    def HEAD_TABLE(self) -> HeadTable:
        return HeadTable(self.class_prefix, _HEADS)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.EncoderDecoder, positions: int) -> Config:
        block = model.encoder.block
        position = model.encoder.block.position
        bias = position if isinstance(position, spec.T5Bias) else spec.T5Bias()
        config = {
            "model_type": self.model_type,
            "architectures": [self.class_prefix + "ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "vocab_size": model.target_tokens.vocabulary,
            **stack_config(model.d_model, model.encoder, KEYS),
            "d_kv": block.attention.d_k,
            "num_decoder_layers": model.decoder.layers,
            **part_config(bias, _BIAS_KEYS),
            "feed_forward_proj": _feedforward_name(block.feedforward),
            "tie_word_embeddings": model.share == "all",
        }
        if self.can_scale:
            config["scale_decoder_outputs"] = bool(model.head and model.head.scale != 1.0)
        return config

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.EncoderDecoder:
        name = config.get("feed_forward_proj") or self.schema.defaults["feed_forward_proj"]
        if not isinstance(name, str) or name not in _FEEDFORWARDS:
            names = ", ".join(_FEEDFORWARDS)
            raise ModelError(
                f"config.json: feed_forward_proj {name!r} is not supported", f"known: {names}"
            )
        gated, hf_activation, activation = _FEEDFORWARDS[name]
        fixed = {**self.schema.fixed, "dense_act_fn": hf_activation, "is_gated_act": gated}
        keys = dict(config)
        if self.can_scale:
            keys.pop("scale_decoder_outputs", None)
        values = replace(self.schema, fixed=fixed).parse(keys)
        d_model = values["d_model"]
        d_kv = values["d_kv"]
        dropout = values["dropout_rate"]
        norm = spec.RMSNorm(values["layer_norm_epsilon"])
        mixer = spec.SoftmaxAttention(dropout)
        attention = spec.Attention(values["num_heads"], d_kv, d_kv, bias="", scale=1.0, mixer=mixer)
        feedforward_type = spec.GatedFeedForward if gated else spec.FeedForward
        feedforward = feedforward_type(values["d_ff"], activation, dropout, bias=False)
        block = spec.Block(attention, feedforward, None, spec.PreNorm(), norm, dropout)
        bias = spec.T5Bias(**part_fields(values, _BIAS_KEYS))
        layers = values["num_layers"]
        encoder = spec.Stack.of(layers, block, None, bias, norm, dropout=dropout)
        decoder = spec.Stack.of(
            values["num_decoder_layers"] or layers,
            replace(block, cross=attention, pattern=spec.CausalMask()),
            None,
            bias,
            norm,
            dropout=dropout,
        )
        tokens = spec.Tokens(values["vocab_size"], None, scale=False, dropout=dropout)
        scaled = self._scales(config)
        has_own_matrix = _LM_HEAD in stored if stored else not values["tie_word_embeddings"]
        untied = has_own_matrix and not scaled
        lm_head = spec.LMHead(scale=d_model**-0.5 if scaled else 1.0)
        share: Any = "inputs" if untied else "all"
        return spec.EncoderDecoder(d_model, tokens, tokens, encoder, decoder, (lm_head,), share)

    def _scales(self, config: Config) -> bool:
        """Whether it is version 1.0, which scales and ties; 1.1 does neither."""
        if not self.can_scale:
            return False
        tied = config.get("tie_word_embeddings") is not False
        return bool(config.get("scale_decoder_outputs", tied))

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.EncoderDecoder, positions: int) -> Rules:
        copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        rules: Rules = []
        if model.share == "all":
            aliases = (*copies, _LM_HEAD)
            rules.append(Rename("source.table.weight", "shared.weight", aliases))
        else:
            rules.append(Rename("source.table.weight", "shared.weight", copies))
            rules.append(Rename("head.table.weight", _LM_HEAD))
        rules += _stack_rules("encoder", model.encoder)
        rules += _stack_rules("decoder", model.decoder)
        # The first files have a relative bias of cross-attention too, which T5's own code never
        # used.
        cross = "decoder.block.0.layer.1.EncDecAttention"
        rules.append(Unused(f"{cross}.relative_attention_bias.weight"))
        return rules


def _feedforward_name(feedforward: spec.PositionWise) -> str:
    is_gated = isinstance(feedforward, spec.GatedFeedForward)
    for name, (gated, _, activation) in _FEEDFORWARDS.items():
        if gated == is_gated and activation == feedforward.activation:
            return name
    return ""  # cannot be read back, so that the spec does not match


def _stack_rules(side: str, stack: spec.Stack) -> Rules:
    # The relative bias of all layers is stored with the first.
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    names = _layer_names(stack.block)
    return [
        Rename(f"{side}.positions.0.table", bias),
        *names.stack_rules(stack, side, f"{side}."),
    ]


def _layer_names(block: spec.Block) -> LayerNames:
    # Sublayers are numbered: self-attention, cross-attention in the decoder, feed-forward.
    last = 1 if block.cross is None else 2
    dense = f"layer.{last}.DenseReluDense"
    inner = ("wi_0", "wi_1") if isinstance(block.feedforward, spec.GatedFeedForward) else ("wi",)
    *qkv, output = (f"layer.0.SelfAttention.{letter}" for letter in "qkvo")
    return LayerNames(
        qkv=tuple(qkv),
        attention_output=output,
        attention_norm="layer.0.layer_norm",
        cross=tuple(f"layer.1.EncDecAttention.{letter}" for letter in "qkvo"),
        cross_norm="layer.1.layer_norm",
        feedforward_inner=tuple(f"{dense}.{module}" for module in inner),
        feedforward_outer=f"{dense}.wo",
        feedforward_norm=f"layer.{last}.layer_norm",
        layer="block.{i}",
        final="final_layer_norm",
    )


# ------------------------------------------------------------------ presets

SIZES = {
    "tiny": size(2, 128, 4, d_k=32),
    "small": size(6, 512, 8, 60, ROUNDED, d_ff=2048),
    "base": size(*BASE_LAYERS, 220, ROUNDED, d_ff=3072),
    "large": size(
        *LARGE_LAYERS, 770, "the paper's number; its released model has 737.7 M", d_ff=4096
    ),
    "3b": size(24, 1024, 32, 2800, ROUNDED, d_k=128, d_ff=16384),
    "11b": size(24, 1024, 128, 11_000, ROUNDED, d_k=128, d_ff=65536),
}
# Of version 1.1: gated, and with an output matrix of its own. The counts are those of Chung et al.
# 2022 (Flan-T5), who trained it further.
SIZES_1_1 = {
    "tiny": size(2, 128, 4, d_k=32, d_ff=256),
    "small": size(8, 512, 6, 80, ROUNDED, d_ff=1024),
    "base": size(*BASE_LAYERS, 250, ROUNDED, d_ff=2048),
    "large": size(*LARGE_LAYERS, 780, d_ff=2816),
    "xl": size(24, 2048, 32, 3000, ROUNDED, d_ff=5120),
    "xxl": size(24, 4096, 64, 11_000, ROUNDED, d_ff=10240),
}
PRESET_DEFAULTS = {
    "d_ff": None,  # 4 d_model
    "d_k": 64,
    "decoder_layers": None,  # as many as the encoder has
    "dropout": 0.1,
}


def presets(
    family: T5Family, sizes: Mapping[str, Size], vocabulary: int, **constants: Any
) -> PresetFamily:
    """The presets of these sizes, whose configs have these constants."""
    keys = {
        **KEYS,
        "vocab_size": "vocabulary",
        "d_kv": "d_k",
        "num_decoder_layers": "decoder_layers",
    }
    make = FromConfig(family.to_spec, keys, constants)
    return PresetFamily("encoder-decoder", make, sizes, PRESET_DEFAULTS, vocabulary, 512, "base")


T5 = T5Family("t5", "T5", SCHEMA, can_scale=True)
UNTIED = {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}
PRESETS = {
    "t5": presets(T5, SIZES, 32_128),
    "t5-v1.1": presets(T5, SIZES_1_1, 32_128, **UNTIED),
}
