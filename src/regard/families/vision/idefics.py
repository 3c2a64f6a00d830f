"""Idefics in transformers: Flamingo's way (Alayrac et al. 2022) on a LLaMA.

Every few layers of the language model have gated cross-attention before them, to the outputs of
CLIP's image tower, or to what a perceiver resampler makes of these.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.block_config import block_from_config, stack_config
from regard.families.config_schema import (
    IGNORED_KEYS,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.decoders import llama
from regard.families.heads import architecture
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import PresetFamily, Settings, size
from regard.families.registry import FAMILIES
from regard.families.tensor_table import (
    Rename,
    Reshape,
    Rules,
    Unused,
    fused_module_rules,
    module_rules,
    per_layer,
)
from regard.families.vision import clip
from regard.families.vision.vit import PATCH_KEYS, patch_rules

PREFIX = ""
SPEC_TYPES = (spec.EncoderDecoder, spec.Patches)
_ENDING = "ForVisionText2Text"
# Of the language model, as LLaMA's config has them.
_LLAMA_KEYS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "hidden_act", "rms_norm_eps", "max_position_embeddings", "rope_parameters",
)  # fmt: skip
_SCHEMA = ConfigSchema(
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "rope_parameters": {},
        "dropout": 0.0,
        "alpha_type": "float",
        "cross_layer_interval": 1,
        "qk_layer_norms": False,
        "use_resampler": False,
        "vision_config": {},
        "perceiver_config": {},
    },
    fixed={
        "tie_word_embeddings": False,
        "is_encoder_decoder": False,
        "additional_vocab_size": 0,  # of a second table
    },
    # What was frozen in training, and how fresh gates begin.
    ignored=IGNORED_KEYS
    | {"alpha_initializer", "alphas_initializer_range"}
    | {"freeze_text_layers", "freeze_text_module_exceptions", "freeze_lm_head"}
    | {"freeze_vision_layers", "freeze_vision_module_exceptions"},
)
_VISION_KEYS = {
    "embed_dim" if key == "hidden_size" else key: name for key, name in clip.KEYS.items()
}
_VISION = ConfigSchema(
    defaults={
        "embed_dim": 768,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "intermediate_size": 5120,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "attention_dropout": 0.0,
        "image_size": 224,
        "patch_size": 14,
        "num_channels": 3,
    },
    ignored=IGNORED_KEYS | {"initializer_factor"},
    synonyms={"hidden_size": "embed_dim"},
)
_PERCEIVER = ConfigSchema(
    defaults={
        "resampler_n_latents": 64,
        "resampler_depth": 6,
        "resampler_n_heads": 16,
        "resampler_head_dim": 96,
        "qk_layer_norms_perceiver": False,
    },
    ignored=IGNORED_KEYS | {"use_resampler"},
)
_GATES: dict[str, Any] = {"float": "scalar", "vector": "vector"}
_NORM = spec.LayerNorm(1e-5)  # of the resampler: PyTorch's own ε
_CROSS = LayerNames(cross=tuple(f"cross_attn.{letter}_proj" for letter in "qkvo"))

# ------------------------------------------------------------------ config.json


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.EncoderDecoder:
    architecture(config, "Idefics", [_ENDING], _ENDING)
    values = _SCHEMA.parse(config)
    vision = _VISION.parse(values["vision_config"])
    width = vision["embed_dim"]
    image = block_from_config(vision, spec.PreNorm(), _VISION_KEYS)
    patches = spec.Patches(**part_fields(vision, PATCH_KEYS), bias=False, norm=image.norm)
    dropout = values["dropout"]
    # Without its cross-attention, the language model is LLaMA.
    text = {key: values[key] for key in _LLAMA_KEYS}
    text |= {"attention_dropout": dropout, "architectures": ["LlamaForCausalLM"]}
    language: Any = FAMILIES["llama"].to_spec(text)
    block = language.stack.block
    cross = replace(
        block.attention,
        memory=None if width == language.d_model else width,
        qk_norm=block.norm if values["qk_layer_norms"] else None,
    )
    gate: Any = _GATES.get(values["alpha_type"], values["alpha_type"])
    gated = spec.GatedCross(cross, block.feedforward, gate)
    every = values["cross_layer_interval"]
    blocks = tuple(
        replace(one, dropout=dropout, gated=None if layer % every else gated)
        for layer, one in enumerate(language.stack.blocks)
    )
    part = _resampler(values["perceiver_config"], width) if values["use_resampler"] else None
    return spec.EncoderDecoder(
        language.d_model,
        patches,
        language.tokens,
        spec.Stack.of(vision["num_hidden_layers"], image),
        replace(language.stack, blocks=blocks),
        language.heads,
        share="none",
        encoder_width=cross.memory,
        resampler=part,
    )


def _resampler(config: Config, width: int) -> spec.Resampler:
    values = _PERCEIVER.parse(config)
    heads = values["resampler_n_heads"]
    d_head = values["resampler_head_dim"]
    qk_norm = _NORM if values["qk_layer_norms_perceiver"] else None
    attention = spec.Attention(heads, d_head, d_head, bias="", qk_norm=qk_norm)
    feedforward = spec.FeedForward(4 * width, "relu", bias=False)
    count = values["resampler_n_latents"]
    return spec.Resampler(count, values["resampler_depth"], attention, feedforward, _NORM)


def _language_model(model: spec.EncoderDecoder) -> spec.Decoder:
    stack = model.decoder.with_blocks(gated=None, dropout=0.0)
    return spec.Decoder(model.d_model, model.target_tokens, stack, model.heads, tied=False)


def _gated(model: spec.EncoderDecoder) -> tuple[spec.GatedCross, list[int]]:
    """What the gated layers are, and before which layers they stand."""
    blocks = model.decoder.blocks
    layers = [layer for layer, block in enumerate(blocks) if block.gated is not None]
    part = model.decoder.block.gated
    assert part is not None, "the first layer has it"
    return part, layers


def to_config(model: spec.EncoderDecoder, positions: int) -> Config:
    gated, layers = _gated(model)
    text = FAMILIES["llama"].to_config(_language_model(model), positions)
    names = {gate: name for name, gate in _GATES.items()}
    config: Config = {
        "model_type": "idefics",
        "architectures": [f"Idefics{_ENDING}"],
        **{key: text[key] for key in _LLAMA_KEYS},
        "dropout": model.decoder.block.dropout,
        "alpha_type": names[gated.gate],
        "cross_layer_interval": layers[1] if len(layers) > 1 else model.decoder.layers,
        "qk_layer_norms": gated.attention.qk_norm is not None,
        "tie_word_embeddings": False,
        "use_resampler": model.resampler is not None,
        "vision_config": {
            "model_type": "idefics_vision",
            **stack_config(model.memory_width, model.encoder, _VISION_KEYS),
            **part_config(model.patches, PATCH_KEYS),
        },
    }
    part = model.resampler
    if part is not None:
        config["perceiver_config"] = {
            "model_type": "idefics_perciever",  # the misspelling is transformers'
            "resampler_n_latents": part.latents,
            "resampler_depth": part.layers,
            "resampler_n_heads": part.attention.heads,
            "resampler_head_dim": part.attention.d_k,
            "qk_layer_norms_perceiver": part.attention.qk_norm is not None,
        }
    return config


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.EncoderDecoder, positions: int) -> Rules:
    width = model.memory_width
    tower = "model.vision_model"
    embeddings = f"{tower}.embeddings"
    encoder = spec.Encoder(width, model.source, model.encoder)
    return [
        Rename("target.table.weight", "model.embed_tokens.weight"),
        Rename("head.table.weight", "lm_head.weight"),
        Rename("source.extras.0", f"{embeddings}.class_embedding"),
        Rename("source.position.table", f"{embeddings}.position_embedding.weight"),
        *patch_rules(encoder, f"{embeddings}.patch_embedding", "source"),
        *module_rules("source.norm", f"{tower}.pre_layrnorm"),
        *clip.LAYER.stack_rules(model.encoder, "encoder", f"{tower}."),
        # Of the pooled vector, which nothing reads.
        Unused(f"{tower}.post_layernorm.weight", (width,)),
        Unused(f"{tower}.post_layernorm.bias", (width,)),
        *llama.LAYER.stack_rules(_language_model(model).stack, "decoder", "model."),
        *_gated_rules(model),
        *_resampler_rules(model),
    ]


def _gated_rules(model: spec.EncoderDecoder) -> Rules:
    part, layers = _gated(model)
    shape = (1,) if part.gate == "scalar" else (1, 1, model.d_model)
    rules: Rules = []
    # Numbered by themselves there; here each stands in the block that it comes before.
    for number, layer in enumerate(layers):
        hf = f"model.gated_cross_attn_layers.{number}"
        ours = f"decoder.blocks.{layer}"
        rules += _CROSS.cross_rules(part.attention, f"{ours}.cross", hf)
        for letter in "qk" if part.attention.qk_norm is not None else "":
            norm = f"{hf}.cross_attn.{letter}_layer_norm"
            rules += module_rules(f"{ours}.cross.project.{letter}_norm", norm, bias=False)
        rules += llama.LAYER.feedforward_rules(part.feedforward, f"{ours}.gates.feedforward", hf)
        for i, norm in enumerate(("input_layernorm", "post_attention_layernorm")):
            rules += module_rules(f"{ours}.gates.norms.{i}", f"{hf}.{norm}", bias=False)
        for i, alpha in enumerate(("alpha_cross_attn", "alpha_dense")):
            rules.append(Reshape(f"{ours}.gates.alphas.{i}", f"{hf}.{alpha}", shape))
    return rules


def _resampler_rules(model: spec.EncoderDecoder) -> Rules:
    part = model.resampler
    if part is None:
        return []
    hf = "model.perceiver_resampler"
    attend = f"{hf}.blocks.{{i}}.0"
    feed = f"{hf}.blocks.{{i}}.1"
    ours = "resampler.layers.{i}"
    rows = [part.attention.heads * part.attention.d_k] * 2
    keys_values = [f"{attend}.k_proj", f"{attend}.v_proj"]
    # Keys and values are of the image and of the latents behind it.
    layer: Rules = [
        *module_rules(f"{ours}.attention.project.q", f"{attend}.q_proj", bias=False),
        *fused_module_rules(f"{ours}.attention.project.kv", keys_values, rows, False),
        *module_rules(f"{ours}.attention.output", f"{attend}.output_proj", bias=False),
        *module_rules(f"{ours}.norms.0", f"{attend}.context_layer_norm"),
        *module_rules(f"{ours}.norms.1", f"{attend}.latents_layer_norm"),
        *module_rules(f"{ours}.norms.2", f"{feed}.ln"),
        *module_rules(f"{ours}.feedforward.inner", f"{feed}.fc", bias=False),
        *module_rules(f"{ours}.feedforward.outer", f"{feed}.c_proj", bias=False),
    ]
    for letter in "qk" if part.attention.qk_norm is not None else "":
        norm = f"{attend}.{letter}_layer_norm"
        layer += module_rules(f"{ours}.attention.project.{letter}_norm", norm)
    return [
        Rename("resampler.latents", f"{hf}.latents"),
        *per_layer(part.layers, layer),
        *module_rules("resampler.norm", f"{hf}.layer_norm"),
    ]


# ------------------------------------------------------------------ presets

# Of our own, for images of 64 pixels; then as the published ones are, with fewer layers of latents.
SIZES = {
    "tiny": size(2, 128, 4, d_ff=352, image_layers=2, image_width=128, image_heads=4, every=1,
                 image_size=64, patch=8, latents=16),
    "9b": size(32, 4096, 32, d_ff=11008, image_layers=32, image_width=1280, image_heads=16),
    "80b": size(80, 8192, 64, d_ff=22016, image_layers=32, image_width=1280, image_heads=16),
}  # fmt: skip
_DEFAULTS: Settings = {
    "d_ff": None,  # 4 d_model
    "dropout": 0.0,
    "every": 4,  # layers with gated cross-attention: one in so many
    "latents": 64,  # of the resampler
    "patch": 14,  # side, in pixels
    "image_size": 224,  # side, in pixels
}


def _make(settings: Any) -> spec.EncoderDecoder:
    # The image tower is as CLIP's are: its feed-forward networks are four times as wide.
    width = settings["image_width"]
    heads = settings["image_heads"]
    config = {
        "vocab_size": settings["vocabulary"],
        "max_position_embeddings": settings["context"],
        "hidden_size": settings["d_model"],
        "intermediate_size": settings["d_ff"],
        "num_hidden_layers": settings["layers"],
        "num_attention_heads": settings["heads"],
        "dropout": settings["dropout"],
        "cross_layer_interval": settings["every"],
        "use_resampler": True,
    }
    vision = {
        "embed_dim": width,
        "num_hidden_layers": settings["image_layers"],
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "image_size": settings["image_size"],
        "patch_size": settings["patch"],
    }
    perceiver = {
        "resampler_n_latents": settings["latents"],
        "resampler_depth": 2,
        "resampler_n_heads": heads,
        "resampler_head_dim": width // heads,
    }
    return to_spec({**config, "vision_config": vision, "perceiver_config": perceiver})


PRESETS = {"idefics": PresetFamily("captioner", _make, SIZES, _DEFAULTS, 32_000, 2048, "9b")}
