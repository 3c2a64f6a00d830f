"""Gemma 3 (its text model) in transformers: Gemma 2 with norms of queries and keys instead of
soft-capping, five layers with a window to each without, and slower rotations in the latter."""

from __future__ import annotations

from regard import spec
from regard.families.config_schema import Config, NumberOrNull
from regard.families.decoders import gemma2
from regard.families.decoders.llama import LlamaFamily
from regard.families.decoders.rope_config import parse_rope, rope_of, rope_parameters
from regard.families.heads import DECODER_HEADS, HeadTable
from regard.families.preset_settings import Settings, size


class Gemma3Family(LlamaFamily):
    """Rotary positions have parameters for each type of layer."""

    def _rope(self, values: Config, layer_type: str) -> spec.Rope:
        parameters = values["rope_parameters"].get(layer_type) or {}
        if layer_type == "full_attention":
            return parse_rope({**values, "rope_parameters": parameters})
        base = values["rope_local_base_freq"]
        return parse_rope({"rope_theta": base, "rope_parameters": parameters, "rope_scaling": {}})

    def _rope_config(self, model: spec.Decoder) -> Config:
        parameters = {
            layer_type: rope_parameters(self._rope(self.schema.defaults, layer_type))
            for layer_type in ("full_attention", "sliding_attention")
        }
        for block in model.stack.blocks:
            windowed = getattr(block.pattern, "window", None) is not None
            layer_type = "sliding_attention" if windowed else "full_attention"
            parameters[layer_type] = rope_parameters(rope_of(block))
        # The second and the third key are those of transformers 4.
        return {
            "rope_parameters": parameters,
            "rope_theta": parameters["full_attention"]["rope_theta"],
            "rope_local_base_freq": parameters["sliding_attention"]["rope_theta"],
        }


GEMMA3 = Gemma3Family(
    model_type="gemma3_text",
    HEAD_TABLE=HeadTable(
        "Gemma3",
        {
            "TextModel": DECODER_HEADS["Model"],
            "TextForSequenceClassification": DECODER_HEADS["ForSequenceClassification"],
            **DECODER_HEADS,
        },
    ),
    defaults={
        **gemma2.DEFAULTS,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "final_logit_softcapping": NumberOrNull(),
        "sliding_window_pattern": 6,  # where no layer types are given
    },
    fixed={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
    ignored=gemma2.IGNORED | {"_sliding_window_pattern"},
    activations=gemma2.GEMMA2.activations,
    norm_offset=1.0,
    scale_embedding=True,
    activation_key="hidden_activation",
    residual=spec.SandwichNorm(),
    qk_norm=True,
    full_every=6,
)

# ------------------------------------------------------------------ presets

_LONG: Settings = {
    "vocabulary": 262_208,
    "context": 131_072,
    "window": 1024,
    "stretch": 8.0,
}
# Gemma Team 2025, Table 1, without the vision encoder.
SIZES = {
    "tiny": gemma2.SIZES["tiny"],
    "270m": size(18, 640, 4, 268.1, groups=1, d_ff=2048, d_k=256),
    "1b": size(26, 1152, 4, 999.9, groups=1, d_ff=6912, d_k=256),
    "4b": size(34, 2560, 8, 3884, groups=4, d_ff=10240, d_k=256, **_LONG),
    "12b": size(48, 3840, 16, 11_771, groups=8, d_ff=15360, d_k=256, **_LONG),
    "27b": size(62, 5376, 32, 27_016, groups=16, d_ff=21504, d_k=128, query_width=168, **_LONG),
}
DEFAULTS = {**gemma2.PRESET_DEFAULTS, "base": 1e6, "window": 512, "stretch": None}


def _rope_scaling(settings: Settings) -> Config:
    if not settings["stretch"]:  # of the rotations in layers without a window
        return {}
    return {"rope_scaling": {"rope_type": "linear", "factor": settings["stretch"]}}


PRESETS = {"gemma3": GEMMA3.presets(SIZES, DEFAULTS, 262_144, 32_768, "1b", computed=_rope_scaling)}
