"""gpt-oss in transformers: experts with clamped gates, attention sinks, and a sliding window in
every other layer."""

from __future__ import annotations

from dataclasses import replace

from regard import spec
from regard.families.config_schema import Config, SizeOrNull, part_fields
from regard.families.decoders import llama
from regard.families.decoders.llama import LlamaFamily
from regard.families.heads import DECODER_HEADS, HeadTable
from regard.families.preset_settings import size
from regard.families.tensor_table import (
    InterleavedGates,
    Rename,
    Rules,
    Transpose,
    module_rules,
)

ACTIVATION: spec.Activation = "quick_gelu"  # x · sigmoid(1.702 x)
YARN: Config = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class GptOssFamily(LlamaFamily):
    """Attention has sinks; the tensors of all experts of a layer are one."""

    def _attention(self, values: Config, norm: spec.Norm) -> spec.Attention:
        mixer = spec.SoftmaxAttention(values["attention_dropout"], sinks=True)
        return replace(super()._attention(values, norm), mixer=mixer)

    def _feedforward(self, values: Config) -> spec.PositionWise:
        expert = spec.GatedFeedForward(
            values["intermediate_size"], ACTIVATION, bias=True, limit=values["swiglu_limit"]
        )
        sizes = part_fields(values, llama.EXPERT_KEYS)
        return spec.MixtureOfExperts(inner=expert, router_bias=True, **sizes)

    def _more_rules(self, model: spec.Decoder, name: str, hf: str) -> Rules:
        sinks = Rename(f"{name}.attention.mixer.sinks", f"{hf}.self_attn.sinks")
        return [*super()._more_rules(model, name, hf), sinks]

    def _expert_rules(self, part: spec.PositionWise, name: str, hf: str) -> Rules:
        experts = f"{hf}.mlp.experts"
        ours = f"{name}.experts.*"
        return [
            *module_rules(f"{name}.router", f"{hf}.mlp.router"),
            InterleavedGates(f"{ours}.inner.weight", f"{experts}.gate_up_proj"),
            InterleavedGates(f"{ours}.inner.bias", f"{experts}.gate_up_proj_bias"),
            Transpose(f"{ours}.outer.weight", f"{experts}.down_proj"),
            Rename(f"{ours}.outer.bias", f"{experts}.down_proj_bias"),
        ]


GPT_OSS = GptOssFamily(
    model_type="gpt_oss",
    HEAD_TABLE=HeadTable("GptOss", DECODER_HEADS),
    defaults={
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": SizeOrNull(8),
        "head_dim": SizeOrNull(64),
        "attention_bias": True,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_scaling": YARN,
        "sliding_window": SizeOrNull(128),
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "router_aux_loss_coef": 0.001,
        "swiglu_limit": 7.0,
    },
    fixed={"swiglu_alpha": 1.702},
    synonyms={"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
    ignored=frozenset({"output_router_logits", "initial_context_length"}),
    activations={"silu": ACTIVATION},  # the name is written, and read by no version
    full_every=2,
)

# ------------------------------------------------------------------ presets

# OpenAI 2025, Table 1.
SIZES = {
    "tiny": size(2, 128, 4, groups=2, d_ff=128, experts=4, top=2, window=32),
    "20b": size(24, 2880, 64, 20_910, groups=8, d_ff=2880, d_k=64, experts=32),
    "120b": size(36, 2880, 64, 116_830, groups=8, d_ff=2880, d_k=64, experts=128),
}
DEFAULTS = {**llama.PRESET_DEFAULTS, "eps": 1e-5, "base": 150_000.0}
DEFAULTS |= {"experts": 32, "top": 4, "window": 128}


PRESETS = {"gpt-oss": GPT_OSS.presets(SIZES, DEFAULTS, 201_088, 131_072, "20b")}
