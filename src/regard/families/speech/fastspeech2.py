"""FastSpeech 2 with Conformer blocks in transformers (ESPnet's), its HiFi-GAN, and both in one.

What only the loss reads stays in config.json. Two choices of ESPnet, which no model that is
published has made, are refused: attention that is joined to its input, and blocks without
convolutions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from regard import spec
from regard.families.config_schema import (
    IGNORED_KEYS,
    Config,
    ConfigSchema,
    NonNegative,
    SizeOrNull,
)
from regard.families.layer_names import LayerNames, norm_rules
from regard.families.preset_settings import PresetFamily, Settings, Size
from regard.families.tensor_table import (
    Rename,
    Reshape,
    Rules,
    module_rules,
    per_layer,
    with_prefix,
)
from regard.system.errors import ModelError

PREFIX = "fastspeech2_conformer."
SPEC_TYPES = (spec.TextToSpeech, spec.Tokens)
_PREDICTORS = ("duration", "pitch", "energy")
_STACK: Config = {
    "layers": 4, "num_attention_heads": 2, "linear_units": 1536, "normalize_before": False,
    "dropout_rate": 0.2, "positional_dropout_rate": 0.2, "attention_dropout_rate": 0.2,
}  # fmt: skip
_SCHEMA = ConfigSchema(
    defaults={
        "hidden_size": 384,
        "vocab_size": 78,  # of phonemes
        "num_mel_bins": 80,
        **{f"encoder_{key}": value for key, value in _STACK.items()},
        **{f"decoder_{key}": value for key, value in _STACK.items()},
        "encoder_kernel_size": 7,  # of the convolution modules
        "decoder_kernel_size": 31,
        "positionwise_conv_kernel_size": 3,  # of the feed-forward networks
        "use_macaron_style_in_conformer": True,
        "convolution_bias": True,
        "speech_decoder_postnet_layers": NonNegative(5),
        "speech_decoder_postnet_units": 256,
        "speech_decoder_postnet_kernel": 5,
        "speech_decoder_postnet_dropout": 0.5,
        "reduction_factor": 1,  # frames of a position
        "speaking_speed": 1.0,  # by which durations are multiplied
        **{f"{name}_predictor_layers": 2 for name in _PREDICTORS},
        **{f"{name}_predictor_channels": 256 for name in _PREDICTORS},
        **{f"{name}_predictor_kernel_size": 3 for name in _PREDICTORS},
        "pitch_predictor_layers": 5,
        "pitch_predictor_kernel_size": 5,
        "duration_predictor_dropout_rate": 0.2,
        "pitch_predictor_dropout": 0.5,
        "energy_predictor_dropout": 0.5,
        "stop_gradient_from_pitch_predictor": True,
        "stop_gradient_from_energy_predictor": False,
        "pitch_embed_kernel_size": 1,
        "energy_embed_kernel_size": 1,
        "pitch_embed_dropout": 0.0,
        "energy_embed_dropout": 0.0,
        # With tables, or a vector that is joined.
        "num_speakers": SizeOrNull(None),
        "num_languages": SizeOrNull(None),
        "speaker_embed_dim": SizeOrNull(None),
    },
    fixed={
        "encoder_concat_after": False,
        "decoder_concat_after": False,
        "use_cnn_in_conformer": True,
        "is_encoder_decoder": True,
    },
    synonyms={
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_num_attention_heads",
    },
    # Of the loss; positions are computed for any length; and what repeats the keys of both sides.
    ignored=IGNORED_KEYS
    | {
        "use_masking", "use_weighted_masking", "max_source_positions", "encoder_config",
        "decoder_config",
    },
)  # fmt: skip
_LAYER = LayerNames(
    qkv=("self_attn.linear_q", "self_attn.linear_k", "self_attn.linear_v"),
    attention_output="self_attn.linear_out",
    feedforward_inner=("feed_forward.conv1",),
    feedforward_outer="feed_forward.conv2",
    attention_norm="self_attn_layer_norm",
    feedforward_norm="ff_layer_norm",
    layer="conformer_layers.{i}",
)
# Their files count batches.
_NORM = spec.BatchNorm(counts=True)

# ------------------------------------------------------------------ config.json


def to_config(model: spec.TextToSpeech, positions: int) -> Config:
    head = model.spectrogram
    adaptor = model.adaptor
    config = {
        "model_type": "fastspeech2_conformer",
        "architectures": ["FastSpeech2ConformerModel"],
        "hidden_size": model.d_model,
        "vocab_size": model.source.vocabulary,
        "num_mel_bins": head.mels,
        **_stack_config("encoder", model.encoder, model.source.dropout),
        **_stack_config("decoder", model.decoder, adaptor.dropout),
        "speech_decoder_postnet_layers": head.layers,
        "speech_decoder_postnet_units": head.channels,
        "speech_decoder_postnet_kernel": head.kernel,
        "speech_decoder_postnet_dropout": head.dropout,
        "reduction_factor": head.frames,
        "speaking_speed": adaptor.slowness,
        **_predictor_config("duration", adaptor.durations),
        "duration_predictor_dropout_rate": adaptor.durations.dropout,
        "num_speakers": model.voice.speakers,
        "num_languages": model.voice.languages,
        "speaker_embed_dim": model.voice.width,
        "is_encoder_decoder": True,
    }
    for name, part in (("pitch", adaptor.pitch), ("energy", adaptor.energy)):
        config |= _predictor_config(name, part.predictor) | {
            f"{name}_predictor_dropout": part.predictor.dropout,
            f"{name}_embed_kernel_size": part.kernel,
            f"{name}_embed_dropout": part.dropout,
            f"stop_gradient_from_{name}_predictor": part.predictor.detached,
        }
    return config


def _stack_config(side: str, stack: spec.Stack, dropout: float) -> Config:
    block = stack.block
    assert block.conformer is not None
    assert isinstance(block.feedforward, spec.ConvFeedForward)
    values = {
        "layers": stack.layers,
        "num_attention_heads": block.attention.heads,
        "linear_units": block.feedforward.d_ff,
        "normalize_before": block.residual == spec.PreNorm(),
        "dropout_rate": block.dropout,
        "positional_dropout_rate": dropout,
        "attention_dropout_rate": block.attention.mixer.dropout,
        "kernel_size": block.conformer.kernel,
    }
    return {
        **{f"{side}_{key}": value for key, value in values.items()},
        "positionwise_conv_kernel_size": block.feedforward.kernels[0],
        "use_macaron_style_in_conformer": block.conformer.macaron,
        "convolution_bias": block.conformer.bias,
    }


def _predictor_config(name: str, part: spec.VariancePredictor) -> Config:
    return {
        f"{name}_predictor_layers": part.layers,
        f"{name}_predictor_channels": part.channels,
        f"{name}_predictor_kernel_size": part.kernel,
    }


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.TextToSpeech:
    values = _SCHEMA.parse(config)
    pitch, energy = (
        spec.Variance(
            _predictor(
                values,
                name,
                f"{name}_predictor_dropout",
                values[f"stop_gradient_from_{name}_predictor"],
            ),
            values[f"{name}_embed_kernel_size"],
            values[f"{name}_embed_dropout"],
        )
        for name in ("pitch", "energy")
    )
    head = spec.SpectrogramHead(
        values["num_mel_bins"],
        values["reduction_factor"],
        values["speech_decoder_postnet_layers"],
        values["speech_decoder_postnet_units"],
        values["speech_decoder_postnet_kernel"],
        values["speech_decoder_postnet_dropout"],
        _NORM,
    )
    dropout = values["encoder_positional_dropout_rate"]
    return spec.TextToSpeech(
        d_model=values["hidden_size"],
        source=spec.Tokens(values["vocab_size"], None, dropout=dropout),
        encoder=_stack(values, "encoder"),
        adaptor=spec.VarianceAdaptor(
            _predictor(values, "duration", "duration_predictor_dropout_rate"),
            pitch,
            energy,
            values["speaking_speed"],
            values["decoder_positional_dropout_rate"],
        ),
        decoder=_stack(values, "decoder"),
        heads=(head,),
        voice=spec.Voice(
            _several(values["num_speakers"]),
            _several(values["num_languages"]),
            values["speaker_embed_dim"],
        ),
    )


def _several(count: int | None) -> int | None:
    """One speaker has no table there."""
    return None if count == 1 else count


def _predictor(
    values: Config, name: str, dropout: str, detached: bool = False
) -> spec.VariancePredictor:
    return spec.VariancePredictor(
        values[f"{name}_predictor_layers"],
        values[f"{name}_predictor_channels"],
        values[f"{name}_predictor_kernel_size"],
        values[dropout],
        detached,
    )


def _stack(values: Config, side: str) -> spec.Stack:
    heads = values[f"{side}_num_attention_heads"]
    d_model = values["hidden_size"]
    if d_model % heads:
        raise ModelError(
            f"config.json: the width {d_model} is not divisible by {heads} heads",
            "change one of them",
        )
    dropout = values[f"{side}_dropout_rate"]
    kernel = values["positionwise_conv_kernel_size"]
    mixer = spec.SoftmaxAttention(values[f"{side}_attention_dropout_rate"])
    d_ff = values[f"{side}_linear_units"]
    block = spec.Block(
        spec.Attention(heads, d_model // heads, d_model // heads, mixer=mixer),
        spec.ConvFeedForward(d_ff, (kernel, kernel), dropout=dropout),
        residual=spec.PreNorm() if values[f"{side}_normalize_before"] else spec.PostNorm(),
        dropout=dropout,
        position=spec.RelativeSinusoids("interleaved"),
        conformer=spec.Conformer(
            values[f"{side}_kernel_size"],
            values["use_macaron_style_in_conformer"],
            values["convolution_bias"],
            _NORM,
        ),
    )
    return spec.Stack.of(values[f"{side}_layers"], block)


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.TextToSpeech, positions: int) -> Rules:
    head = model.spectrogram
    rules: Rules = [
        Rename("source.table.weight", "encoder.embed.weight"),
        *_stack_rules(model.encoder, "encoder"),
        *_stack_rules(model.decoder, "decoder"),
        *_predictor_rules("durations", "duration_predictor", model.adaptor.durations),
    ]
    for name, part in (("pitch", model.adaptor.pitch), ("energy", model.adaptor.energy)):
        rules += _predictor_rules(f"{name}.predictor", f"{name}_predictor", part.predictor)
        rules += module_rules(f"adaptor.{name}.embed", f"{name}_embed.conv")
    if model.voice.speakers:
        rules.append(Rename("adaptor.voices.speakers", "speaker_id_embedding.weight"))
    if model.voice.languages:
        rules.append(Rename("adaptor.voices.languages", "language_id_embedding.weight"))
    if model.voice.width:
        rules += module_rules("adaptor.voices.joined", "projection")
    postnet = "speech_decoder_postnet"
    rules += module_rules("spectrogram.output", f"{postnet}.feat_out")
    layer = f"{postnet}.layers.{{i}}"
    rules += per_layer(
        head.layers,
        [
            *module_rules("spectrogram.convolutions.{i}", f"{layer}.conv", bias=False),
            *norm_rules("spectrogram.norms.{i}", f"{layer}.batch_norm", head.norm),
        ],
    )
    return rules


def _stack_rules(stack: spec.Stack, side: str) -> Rules:
    block = stack.block
    part = block.conformer
    assert part is not None
    d_model = block.attention.heads * block.attention.d_k
    ours = f"{side}.blocks.{{i}}"
    hf = f"{side}.conformer_layers.{{i}}"
    # u and v of Transformer-XL, for each head.
    biases = (block.attention.heads, block.attention.d_k)
    column = (*biases[:1], 1, *biases[1:])
    more: Rules = [
        Reshape(f"{ours}.attention.position.content", f"{hf}.self_attn.pos_bias_u", biases, column),
        Reshape(
            f"{ours}.attention.position.position", f"{hf}.self_attn.pos_bias_v", biases, column
        ),
        *module_rules(f"{ours}.attention.position.project", f"{hf}.self_attn.linear_pos", False),
        *module_rules(
            f"{ours}.convolution.depthwise", f"{hf}.conv_module.depthwise_conv", part.bias
        ),
        *norm_rules(f"{ours}.convolution.norm", f"{hf}.conv_module.norm", part.batch_norm),
        *norm_rules(f"{ours}.convolution_residual.norm", f"{hf}.conv_layer_norm"),
        *norm_rules(f"{ours}.final_norm", f"{hf}.final_layer_norm"),
    ]
    # Convolutions of one position, which are linear maps here.
    pointwise = {"gated": (1, 2 * d_model), "outer": (2, d_model)}
    for name, (number, outputs) in pointwise.items():
        theirs = f"{hf}.conv_module.pointwise_conv{number}"
        shape = (outputs, d_model, 1)
        weight = f"{ours}.convolution.{name}.weight"
        more.append(Reshape(weight, f"{theirs}.weight", shape, (outputs, -1)))
        if part.bias:
            more.append(Rename(f"{ours}.convolution.{name}.bias", f"{theirs}.bias"))
    if part.macaron:
        for name, theirs in (("inner", "conv1"), ("outer", "conv2")):
            more += module_rules(f"{ours}.macaron.{name}", f"{hf}.feed_forward_macaron.{theirs}")
        more += norm_rules(f"{ours}.macaron_residual.norm", f"{hf}.ff_macaron_layer_norm")
    return _LAYER.stack_rules(stack, side, f"{side}.", more)


def _predictor_rules(ours: str, hf: str, part: spec.VariancePredictor) -> Rules:
    layer = f"{hf}.conv_layers.{{i}}"
    layers = per_layer(
        part.layers,
        [
            *module_rules(f"adaptor.{ours}.convolutions.{{i}}", f"{layer}.conv"),
            *norm_rules(f"adaptor.{ours}.norms.{{i}}", f"{layer}.layer_norm"),
        ],
    )
    return [*layers, *module_rules(f"adaptor.{ours}.output", f"{hf}.linear")]


# ------------------------------------------------------------------ vocoder

VOCODER_DEFAULTS: Config = {
    "upsample_initial_channel": 512,
    "upsample_rates": [8, 8, 2, 2],
    "upsample_kernel_sizes": [16, 16, 4, 4],
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "leaky_relu_slope": 0.1,
}
_VOCODER_SCHEMA = ConfigSchema(
    defaults={"model_in_dim": 80, **VOCODER_DEFAULTS, "normalize_before": True},
    fixed={},
    ignored=IGNORED_KEYS | {"is_encoder_decoder"},
)


def vocoder_config(part: spec.HifiGan) -> Config:
    """The keys of a vocoder that all families have."""
    return {
        "upsample_initial_channel": part.channels,
        "upsample_rates": list(part.rates),
        "upsample_kernel_sizes": list(part.kernels),
        "resblock_kernel_sizes": list(part.block_kernels),
        "resblock_dilation_sizes": [list(row) for row in part.dilations],
        "leaky_relu_slope": part.slope,
    }


def vocoder(values: Config, mels: int, **others: Any) -> spec.HifiGan:
    """The vocoder of these keys."""
    return spec.HifiGan(
        mels,
        values["upsample_initial_channel"],
        tuple(values["upsample_rates"]),
        tuple(values["upsample_kernel_sizes"]),
        tuple(values["resblock_kernel_sizes"]),
        tuple(map(tuple, values["resblock_dilation_sizes"])),
        values["leaky_relu_slope"],
        **others,
    )


def _vocoder_config(part: spec.HifiGan) -> Config:
    return {
        "model_type": "fastspeech2_conformer_hifigan",
        "model_in_dim": part.mels,
        **vocoder_config(part),
        "normalize_before": part.normalized,
    }


def _vocoder_spec(config: Config) -> spec.HifiGan:
    values = _VOCODER_SCHEMA.parse(config)
    return vocoder(values, values["model_in_dim"], normalized=values["normalize_before"])


def vocoder_rules(part: spec.HifiGan) -> Rules:
    """The rules of a vocoder, which all families store alike."""
    rules: Rules = [
        *module_rules("vocoder.first", "conv_pre"),
        *module_rules("vocoder.last", "conv_post", not part.of_latents),
    ]
    if not part.of_latents:
        rules.append(Rename("vocoder.mean", "mean"))
        rules.append(Rename("vocoder.deviation", "scale"))
    if part.voice is not None:
        rules += module_rules("vocoder.voice", "cond")
    for i in range(len(part.rates)):
        rules += module_rules(f"vocoder.upsampling.{i}", f"upsampler.{i}")
        for j, dilations in enumerate(part.dilations):
            ours = f"vocoder.blocks.{i}.{j}"
            hf = f"resblocks.{i * len(part.dilations) + j}"
            for k in range(len(dilations)):
                rules += module_rules(f"{ours}.dilated.{k}", f"{hf}.convs1.{k}")
                rules += module_rules(f"{ours}.plain.{k}", f"{hf}.convs2.{k}")
    return rules


@dataclass(frozen=True)
class VocoderFamily:
    """FastSpeech2ConformerHifiGan: the vocoder alone."""

    PREFIX = ""
    SPEC_TYPES = (spec.Vocoder, object)

    def to_config(self, model: spec.Vocoder, positions: int) -> Config:
        return {
            "architectures": ["FastSpeech2ConformerHifiGan"],
            **_vocoder_config(model.part(spec.HifiGan)),
        }

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.Vocoder:
        return spec.Vocoder((_vocoder_spec(config),))

    def tensor_table(self, model: spec.Vocoder, positions: int) -> Rules:
        return vocoder_rules(model.part(spec.HifiGan))


_BOTH_SCHEMA = ConfigSchema(
    defaults={"model_config": {}, "vocoder_config": {}},
    fixed={"is_encoder_decoder": False},
    ignored=IGNORED_KEYS | {"sub_configs_defaults"},
)


@dataclass(frozen=True)
class WithVocoderFamily:
    """FastSpeech2ConformerWithHifiGan: both configs, and both sets of tensors, in one folder."""

    PREFIX = ""
    SPEC_TYPES = (spec.TextToSpeech, spec.Tokens)

    def to_config(self, model: spec.TextToSpeech, positions: int) -> Config:
        vocoder = model.part(spec.HifiGan)
        if vocoder is None:
            raise ModelError("this model has no vocoder", "store it as fastspeech2_conformer")
        return {
            "model_type": "fastspeech2_conformer_with_hifigan",
            "architectures": ["FastSpeech2ConformerWithHifiGan"],
            "model_config": to_config(model, positions),
            "vocoder_config": _vocoder_config(vocoder),
        }

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.TextToSpeech:
        parts = _BOTH_SCHEMA.parse(config)
        return to_spec(parts["model_config"]).with_head(_vocoder_spec(parts["vocoder_config"]))

    def tensor_table(self, model: spec.TextToSpeech, positions: int) -> Rules:
        return [
            *with_prefix(tensor_table(model, positions), "", "model."),
            *with_prefix(vocoder_rules(model.part(spec.HifiGan)), "", "vocoder."),
        ]


HIFI_GAN = VocoderFamily()
WITH_HIFI_GAN = WithVocoderFamily()

# ------------------------------------------------------------------ presets

SIZES = {
    # For words, on a processor.
    "tiny": Size(
        {"layers": 2, "d_model": 64, "heads": 2, "d_ff": 128, "kernel": 1, "channels": 64,
         "dropout": 0.1, "attention_dropout": 0.1, "predictor_dropout": 0.1}
    ),
    "base": Size({}),
}  # fmt: skip
_DEFAULTS: Settings = {
    "layers": 4,
    "decoder_layers": None,
    "d_model": 384,
    "heads": 2,
    "d_ff": 1536,
    "dropout": 0.2,
    "attention_dropout": 0.2,
    "channels": 256,  # of predictors and postnet
    "kernel": 3,  # of the feed-forward convolutions
    "mels": 80,
    "speakers": None,
    "predictor_dropout": 0.5,
}


def _make(settings: Settings) -> spec.TextToSpeech:
    s: Any = settings
    config = {
        "hidden_size": s["d_model"],
        "vocab_size": s["vocabulary"],
        "num_mel_bins": s["mels"],
        "num_speakers": s["speakers"],
        "speech_decoder_postnet_units": s["channels"],
        "speech_decoder_postnet_dropout": s["predictor_dropout"],
        "positionwise_conv_kernel_size": s["kernel"],
    }
    for side in ("encoder", "decoder"):
        config |= {
            f"{side}_layers": s["layers"] if side == "encoder" else s["decoder_layers"],
            f"{side}_num_attention_heads": s["heads"],
            f"{side}_linear_units": s["d_ff"],
            f"{side}_dropout_rate": s["dropout"],
            f"{side}_positional_dropout_rate": s["dropout"],
            f"{side}_attention_dropout_rate": s["attention_dropout"],
        }
    for name in _PREDICTORS:
        rate = "_rate" if name == "duration" else ""
        config[f"{name}_predictor_channels"] = s["channels"]
        config[f"{name}_predictor_dropout{rate}"] = s["predictor_dropout"]
    return to_spec(config)


PRESETS = {"fastspeech2": PresetFamily("speaker", _make, SIZES, _DEFAULTS, 78, 512, "base")}
