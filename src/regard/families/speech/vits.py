"""VITS in transformers (Kim et al. 2021): VitsModel, of which MMS has one for each language.

What only training reads (the posterior encoder, half of the duration predictor) is kept as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.block_config import block_from_config, keys_with, stack_config
from regard.families.config_schema import (
    IGNORED_KEYS,
    Config,
    ConfigSchema,
    NonNegative,
    part_config,
    part_fields,
)
from regard.families.layer_names import LayerNames, norm_rules
from regard.families.preset_settings import PresetFamily
from regard.families.speech.fastspeech2 import (
    VOCODER_DEFAULTS,
    vocoder,
    vocoder_config,
    vocoder_rules,
)
from regard.families.tensor_table import (
    Flipped,
    Rename,
    Reshape,
    Rules,
    UnusedPart,
    module_rules,
    per_layer,
    with_prefix,
)

PREFIX = "vits."
SPEC_TYPES = (spec.VariationalTextToSpeech, spec.Tokens)
_KEYS = keys_with(
    d_ff="ffn_dim",
    dropout="hidden_dropout",
    attention_dropout="attention_dropout",
    feedforward_dropout="activation_dropout",
    attention_bias="use_bias",
)
_STOCHASTIC_KEYS = {
    "duration_predictor_num_flows": "flows",
    "depth_separable_num_layers": "layers",
    "duration_predictor_kernel_size": "kernel",
    "duration_predictor_flow_bins": "bins",
    "duration_predictor_tail_bound": "bound",
    "duration_predictor_dropout": "dropout",
}
_PREDICTOR_KEYS = {
    "duration_predictor_filter_channels": "channels",
    "duration_predictor_kernel_size": "kernel",
    "duration_predictor_dropout": "dropout",
}
_FLOW_KEYS = {
    "flow_size": "channels",
    "prior_encoder_num_flows": "flows",
    "prior_encoder_num_wavenet_layers": "layers",
    "wavenet_kernel_size": "kernel",
    "wavenet_dilation_rate": "growth",
    "wavenet_dropout": "dropout",
}
_MODEL_KEYS = {
    "speaking_rate": "rate",
    "noise_scale": "noise",
    "noise_scale_duration": "duration_noise",
}
_SCHEMA = ConfigSchema(
    defaults={
        "vocab_size": 38,
        "hidden_size": 192,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "window_size": 4,  # of relative positions
        "use_bias": True,
        "ffn_dim": 768,
        "layerdrop": 0.1,
        "ffn_kernel_size": 3,
        "flow_size": 192,
        "hidden_act": "relu",
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,
        "layer_norm_eps": 1e-5,
        "use_stochastic_duration_prediction": True,
        "num_speakers": 1,
        "speaker_embedding_size": NonNegative(0),
        **VOCODER_DEFAULTS,
        "depth_separable_num_layers": 3,
        "duration_predictor_flow_bins": 10,
        "duration_predictor_tail_bound": 5.0,
        "duration_predictor_kernel_size": 3,
        "duration_predictor_dropout": 0.5,
        "duration_predictor_num_flows": 4,
        "duration_predictor_filter_channels": 256,
        "prior_encoder_num_flows": 4,
        "prior_encoder_num_wavenet_layers": 4,
        "wavenet_kernel_size": 5,
        "wavenet_dilation_rate": 1,
        "wavenet_dropout": 0.0,
        "speaking_rate": 1.0,
        "noise_scale": 0.667,
        "noise_scale_duration": 0.8,
    },
    # Noise and durations are two channels.
    fixed={"depth_separable_channels": 2, "is_encoder_decoder": False},
    ignored=IGNORED_KEYS
    | {"posterior_encoder_num_wavenet_layers", "sampling_rate", "spectrogram_bins"},
)
_LAYER = LayerNames(
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    attention_output="attention.out_proj",
    feedforward_inner=("feed_forward.conv_1",),
    feedforward_outer="feed_forward.conv_2",
    attention_norm="layer_norm",
    feedforward_norm="final_layer_norm",
    layer="encoder.layers.{i}",
)

# ------------------------------------------------------------------ config.json


def to_config(model: spec.VariationalTextToSpeech, positions: int) -> Config:
    block = model.encoder.block
    position: Any = block.position
    feedforward: Any = block.feedforward
    scheme: Any = model.encoder.scheme
    stochastic = isinstance(model.durations, spec.StochasticDurations)
    return {
        "model_type": "vits",
        "architectures": ["VitsModel"],
        "vocab_size": model.source.vocabulary,
        **stack_config(model.d_model, model.encoder, _KEYS),
        "layerdrop": scheme.layer_drop,
        "window_size": position.distance,
        "ffn_kernel_size": feedforward.kernels[0],
        "use_stochastic_duration_prediction": stochastic,
        **part_config(model.durations, _STOCHASTIC_KEYS if stochastic else _PREDICTOR_KEYS),
        **part_config(model.flow, _FLOW_KEYS),
        **vocoder_config(model.part(spec.HifiGan)),
        "num_speakers": model.speakers or 1,
        "speaker_embedding_size": model.voice or 0,
        **part_config(model, _MODEL_KEYS),
    }


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.VariationalTextToSpeech:
    values = _SCHEMA.parse(config)
    block = block_from_config(values, spec.PostNorm(), _KEYS)
    kernel = values["ffn_kernel_size"]
    block = replace(
        block,
        feedforward=spec.ConvFeedForward(
            block.feedforward.d_ff,
            (kernel, kernel),
            block.feedforward.activation,
            block.feedforward.dropout,
        ),
        position=spec.RelativeKeys(values["window_size"], windowed=True, values=True),
    )
    durations: spec.StochasticDurations | spec.VariancePredictor
    if values["use_stochastic_duration_prediction"]:
        durations = spec.StochasticDurations(**part_fields(values, _STOCHASTIC_KEYS))
    else:
        fields = part_fields(values, _PREDICTOR_KEYS)
        durations = spec.VariancePredictor(
            2, detached=True, norm=spec.LayerNorm(values["layer_norm_eps"]), **fields
        )
    voice = values["speaker_embedding_size"] or None
    flow = spec.CouplingFlow(**part_fields(values, _FLOW_KEYS))
    return spec.VariationalTextToSpeech(
        d_model=values["hidden_size"],
        source=spec.Tokens(values["vocab_size"], None, dropout=0.0),
        encoder=spec.Stack.of(
            values["num_hidden_layers"], block, scheme=spec.Plain(values["layerdrop"])
        ),
        durations=durations,
        flow=flow,
        heads=(vocoder(values, flow.channels, normalized=False, of_latents=True, voice=voice),),
        speakers=values["num_speakers"] if values["num_speakers"] > 1 else None,
        voice=voice,
        **part_fields(values, _MODEL_KEYS),
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.VariationalTextToSpeech, positions: int) -> Rules:
    width = model.d_model
    prior = "text_encoder.project"
    rules: Rules = [
        Rename("source.table.weight", "text_encoder.embed_tokens.weight"),
        *_LAYER.stack_rules(model.encoder, "encoder", "text_encoder.", _distances()),
        Reshape(
            "prior.weight", f"{prior}.weight", (2 * model.flow.channels, width, 1), (-1, width)
        ),
        Rename("prior.bias", f"{prior}.bias"),
        *with_prefix(vocoder_rules(model.part(spec.HifiGan)), "", "decoder."),
        UnusedPart("posterior_encoder."),
    ]
    if model.speakers:
        rules.append(Rename("voices", "embed_speaker.weight"))
    if isinstance(model.durations, spec.StochasticDurations):
        rules += _stochastic_rules(model.durations)
    else:
        rules += _predictor_rules(model.durations)
    if model.voice:
        rules += module_rules("durations.voice", "duration_predictor.cond")
    return rules + _flow_rules(model.flow, model.voice is not None)


def _distances() -> Rules:
    position = "encoder.blocks.{i}.attention.position"
    theirs = "text_encoder.encoder.layers.{i}.attention"
    return [
        Flipped(f"{position}.table", f"{theirs}.emb_rel_k"),
        Flipped(f"{position}.values", f"{theirs}.emb_rel_v"),
    ]


def _stochastic_rules(part: spec.StochasticDurations) -> Rules:
    theirs = "duration_predictor"
    rules: Rules = [
        *module_rules("durations.first", f"{theirs}.conv_pre"),
        *module_rules("durations.last", f"{theirs}.conv_proj"),
        *_separable_rules("durations.convolutions", f"{theirs}.conv_dds", part.layers),
        Rename("durations.shift", f"{theirs}.flows.0.translate"),
        Rename("durations.log_scale", f"{theirs}.flows.0.log_scale"),
        # The flows of training, and the one that speaking leaves out.
        UnusedPart(f"{theirs}.post_"),
        UnusedPart(f"{theirs}.flows.1."),
    ]
    for i in range(part.flows - 1):
        ours = f"durations.flows.{i}"
        flow = f"{theirs}.flows.{i + 2}"
        rules += module_rules(f"{ours}.first", f"{flow}.conv_pre")
        rules += module_rules(f"{ours}.last", f"{flow}.conv_proj")
        rules += _separable_rules(f"{ours}.convolutions", f"{flow}.conv_dds", part.layers)
    return rules


def _separable_rules(ours: str, theirs: str, layers: int) -> Rules:
    return per_layer(
        layers,
        [
            *module_rules(f"{ours}.dilated.{{i}}", f"{theirs}.convs_dilated.{{i}}"),
            *module_rules(f"{ours}.pointwise.{{i}}", f"{theirs}.convs_pointwise.{{i}}"),
            *norm_rules(f"{ours}.dilated_norms.{{i}}", f"{theirs}.norms_1.{{i}}"),
            *norm_rules(f"{ours}.pointwise_norms.{{i}}", f"{theirs}.norms_2.{{i}}"),
        ],
    )


def _predictor_rules(part: spec.VariancePredictor) -> Rules:
    theirs = "duration_predictor"
    output = "durations.predictor.output"
    rules: Rules = [
        Reshape(f"{output}.weight", f"{theirs}.proj.weight", (1, part.channels, 1), (1, -1)),
        Rename(f"{output}.bias", f"{theirs}.proj.bias"),
    ]
    for i in range(part.layers):
        rules += module_rules(f"durations.predictor.convolutions.{i}", f"{theirs}.conv_{i + 1}")
        rules += norm_rules(f"durations.predictor.norms.{i}", f"{theirs}.norm_{i + 1}")
    return rules


def _flow_rules(part: spec.CouplingFlow, voiced: bool) -> Rules:
    ours = "flow.layers.{i}"
    theirs = "flow.flows.{i}"
    rules: Rules = [
        *module_rules(f"{ours}.first", f"{theirs}.conv_pre"),
        *module_rules(f"{ours}.last", f"{theirs}.conv_post"),
    ]
    if voiced:
        rules += _normalized_rules(f"{ours}.network.voice", f"{theirs}.wavenet.cond_layer")
    for layer in range(part.layers):
        for name, module in (("gated", "in_layers"), ("outer", "res_skip_layers")):
            rules += _normalized_rules(
                f"{ours}.network.{name}.{layer}", f"{theirs}.wavenet.{module}.{layer}"
            )
    return per_layer(part.flows, rules)


def _normalized_rules(ours: str, theirs: str) -> Rules:
    """A convolution with weight normalization, in today's names and in those of older files."""
    weight = f"{theirs}.parametrizations.weight"
    return [
        Rename(f"{ours}.length", f"{weight}.original0", (f"{theirs}.weight_g",)),
        Rename(f"{ours}.direction", f"{weight}.original1", (f"{theirs}.weight_v",)),
        Rename(f"{ours}.bias", f"{theirs}.bias"),
    ]


# None: such a model is opened, and not trained here.
PRESETS: dict[str, PresetFamily] = {}
