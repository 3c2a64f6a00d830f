"""Config keys that transformers reads and that no schema here supports.

A schema lists the supported keys of a config.json; these keys are refused besides. Any other key is
one that transformers does not know either, so that it cannot change what the model computes. A test
compares the lists with the installed transformers.
"""

from __future__ import annotations

# Of every model: code and weights of other kinds, masks and rotary positions that a stack may be
# told to use, and attributes of the configuration class itself.
COMMON = frozenset(
    {
        "_auto_class", "attention_chunk_size", "attribute_map", "auto_map", "base_config_key",
        "base_model_ep_plan", "base_model_fsdp_plan", "base_model_pp_plan", "base_model_tp_plan",
        "compression_config", "fusion_config", "is_causal", "kernel_config", "layer_types",
        "partial_rotary_factor", "per_layer_config", "quantization_config", "rope_parameters",
        "rope_scaling", "rope_theta", "sliding_window", "sub_configs_defaults",
        "transformers_weights",
    }
)  # fmt: skip
# By model_type.
UNSUPPORTED_KEYS: dict[str, frozenset[str]] = {
    "clip": frozenset({"is_encoder_decoder"}),
    "electra": frozenset({"summary_first_dropout", "summary_proj_to_labels"}),
    "gpt2": frozenset({"hidden_dropout", "summary_last_dropout"}),
    "gpt_neox": frozenset({"head_dim"}),
    "openai-gpt": frozenset({"summary_last_dropout"}),
    "patchtst": frozenset({"default_scale", "keepdim", "minimum_scale", "scaling_dim"}),
    "reformer": frozenset({"chunk_length", "n_layers"}),
    "time_series_transformer": frozenset(
        {"default_scale", "keepdim", "minimum_scale", "scaling_dim"}
    ),
    "vit": frozenset({"head_dim"}),
    "deit": frozenset({"head_dim"}),
    "dinov2": frozenset({"head_dim"}),
    "vit_mae": frozenset({"head_dim"}),
    "swin": frozenset({"num_attention_heads"}),
    "whisper": frozenset({"n_positions"}),
}


def is_unsupported(model_type: str, key: str) -> bool:
    """Whether transformers reads this key, so that a model without it would be another one."""
    return key in COMMON or key in UNSUPPORTED_KEYS.get(model_type, frozenset())
