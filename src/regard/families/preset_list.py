"""The list of presets: every family by name, with its sizes and their published parameter counts.

A count is what the paper prints, or the model card where the paper has none, in millions; where
ours differs by more than half a percent, the size has a reason. The numbers of each size (layers,
widths, heads) are in the family's own file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from regard import spec
from regard.families import graph, memory_network
from regard.families.decoders import (
    gemma,
    gpt2,
    gpt3,
    gpt_decoder,
    gpt_neox,
    llama,
    mistral,
    mixtral,
    openai_gpt,
    palm,
    qwen2,
    transformer_xl,
)
from regard.families.encoder_decoders import (
    bart,
    marian,
    mbart,
    mt5,
    pegasus,
    recurrent,
    t5,
    transformer,
    universal,
)
from regard.families.encoders import (
    albert,
    bert,
    bigbird,
    deberta_presets,
    deberta_v1,
    distilbert,
    electra,
    longformer,
    mpnet,
    reformer_presets,
    roberta,
)
from regard.families.preset_settings import ConfigPresets
from regard.families.series import linear_forecaster, patchtst_presets, time_series_transformer
from regard.families.speech import hubert, wav2vec2_presets, whisper
from regard.families.vision import clip, deit, dinov2_presets, siglip, swin_presets, vit, vit_mae

# ------------------------------------------------------------------ what a preset is

Kind = Literal[
    "encoder-decoder",  # text to text
    "decoder",  # a language model
    "encoder",  # a masked language model, or a detector of replaced tokens
    "image",  # a classifier of images; the vocabulary are its classes, the context its side
    "dual encoder",  # of texts and images
    "speech",  # an encoder–decoder over spectrograms
    "ctc",  # an encoder of sound that spells letters
    "memory network",
    "graph",  # a classifier of nodes or graphs; the vocabulary are its classes
    "series",  # a forecaster; the vocabulary are its channels, the context its look-back
]


@dataclass(frozen=True)
class Size:
    """A named size: its published parameter count, and what it does not share with the family."""

    published: float | None = None  # in millions; None where nobody printed one
    reason: str = ""  # why ours is another number
    vocabulary: int | None = None
    context: int | None = None


@dataclass(frozen=True)
class PresetFamily:
    """The presets of a family: how a size becomes a spec, with the usual vocabulary and context."""

    kind: Kind
    make: Callable[..., spec.Model]  # of (size, vocabulary, context, **changes)
    options: Collection[str]  # the changes that `make` knows; the others are made to the spec
    vocabulary: int
    context: int
    default: str  # the size of the bare name
    sizes: Mapping[str, Size]


# ------------------------------------------------------------------ how families are made


def _options(presets: Mapping[str, Mapping[str, Any]], *defaults: Collection[str]) -> set[str]:
    keys = {key for settings in presets.values() for key in settings}
    return keys.union(*defaults)


def _from_config(
    kind: Kind,
    make: ConfigPresets,
    vocabulary: int,
    context: int,
    default: str,
    **sizes: Size,
) -> PresetFamily:
    """A family whose presets are Hugging Face configs."""
    options = _options(make.sizes, make.defaults)
    return PresetFamily(kind, make, options, vocabulary, context, default, sizes)


_TRANSFORMER_OPTIONS = (
    "d_model",
    "d_ff",
    "heads",
    "layers",
    "decoder_layers",
    "d_k",
    "d_v",
    "dropout",
    "attention_dropout",
    "feedforward_dropout",
    "activation",
    "attention",
    "decoder_attention",
)


def _transformer(size: str, vocabulary: int, context: int, **changes: Any) -> spec.EncoderDecoder:
    return transformer.preset(size, vocabulary, vocabulary, max_length=context, **changes)


def _universal(size: str, vocabulary: int, context: int, **changes: Any) -> spec.EncoderDecoder:
    return universal.preset(size, vocabulary, vocabulary, max_length=context, **changes)


def _electra(size: str, vocabulary: int, context: int, **changes: Any) -> spec.Encoder:
    # Of the two models the discriminator, which is what fine-tuning keeps.
    return electra.preset(size, vocabulary, context, **changes)[0]


def _memory_network(size: str, vocabulary: int, context: int, **changes: Any) -> spec.MemoryNetwork:
    return memory_network.preset(size, vocabulary, **changes)


def _linear_forecaster(name: Literal["dlinear", "nlinear"]) -> PresetFamily:
    def make(size: str, vocabulary: int, context: int, **changes: Any) -> spec.LinearForecaster:
        return linear_forecaster.preset(name, vocabulary, context, **changes)

    options = linear_forecaster.OPTIONS
    return PresetFamily("series", make, options, 7, 336, "tiny", {"tiny": Size()})


def _graph(*, neighbours: bool) -> PresetFamily:
    def make(size: str, vocabulary: int, context: int, **changes: Any) -> spec.Encoder:
        return graph.preset(size, vocabulary, context, neighbours=neighbours, **changes)

    sizes = dict.fromkeys(graph.PRESETS, Size())
    return PresetFamily("graph", make, _options(graph.PRESETS, graph.DEFAULTS), 7, 1, "tiny", sizes)


def _sequence_to_sequence(name: str) -> PresetFamily:
    def make(size: str, vocabulary: int, context: int, **changes: Any) -> spec.SequenceToSequence:
        return recurrent.preset(name, size, vocabulary, vocabulary, max_length=context, **changes)

    options = _options(recurrent.PRESETS)
    sizes = dict.fromkeys(recurrent.PRESETS, Size())
    return PresetFamily("encoder-decoder", make, options, 37_000, 512, "base", sizes)


def _recurrent_language_model(cell: recurrent.Cell) -> PresetFamily:
    def make(size: str, vocabulary: int, context: int, **changes: Any) -> spec.RecurrentDecoder:
        return recurrent.language_model(cell, size, vocabulary, **changes)

    options = _options(recurrent.PRESETS)
    sizes = dict.fromkeys(recurrent.PRESETS, Size())
    return PresetFamily("decoder", make, options, 37_000, 512, "base", sizes)


# ------------------------------------------------------------------ the list

# Reasons that several sizes have.
ROUNDED = "rounded in the paper"
_POOLER = "without the pooler, which the published number counts"
_LINEAR_HEAD = "rounded, and without the head of 1,000 classes"


def _rounded(millions: int) -> str:
    return f"Table 2.1 rounds; Table D.1 of the paper prints {millions:,} M"


def _corrected(millions: int) -> str:
    return f"Table 2 of the paper miscounts; the authors' release says {millions:,} M"


def _fixed_positions(fixed: float, released: float) -> str:
    return f"{fixed} M of fixed positions are not trained; the released model has {released:,} M"


_GPT_OPTIONS = _options(gpt2.PRESETS, gpt_decoder.PRESET_DEFAULTS)


# By the names that people use.
PRESET_FAMILIES: dict[str, PresetFamily] = {
    # Encoder–decoders. 37,000 tokens are the joint vocabulary of English and German in 2017.
    "transformer": PresetFamily(
        "encoder-decoder",
        _transformer,
        _TRANSFORMER_OPTIONS,
        vocabulary=37_000,
        context=512,
        default="base",
        sizes={
            "tiny": Size(),
            "small": Size(),
            "base": Size(65, "37,000 shared tokens; the paper's 65 M take about 41,000"),
            "big": Size(213, "37,000 shared tokens; the paper's 213 M take about 35,800"),
        },
    ),
    "universal": PresetFamily(
        "encoder-decoder",
        _universal,
        _TRANSFORMER_OPTIONS,
        vocabulary=37_000,
        context=512,
        default="base",
        sizes={"tiny": Size(), "base": Size(), "big": Size()},
    ),
    "t5": PresetFamily(
        "encoder-decoder",
        t5.preset,
        _options(t5.PRESETS, t5.PRESET_DEFAULTS),
        vocabulary=32_128,
        context=512,
        default="base",
        sizes={
            "tiny": Size(),
            "small": Size(60, ROUNDED),
            "base": Size(220, ROUNDED),
            "large": Size(770, "the paper's number; its released model has 737.7 M"),
            "3b": Size(2800, ROUNDED),
            "11b": Size(11_000, ROUNDED),
        },
    ),
    # The counts are those of Chung et al. 2022 (Flan-T5), who trained it further.
    "t5-v1.1": _from_config(
        "encoder-decoder",
        t5.preset_1_1,
        32_128,
        512,
        "base",
        tiny=Size(),
        small=Size(80, ROUNDED),
        base=Size(250, ROUNDED),
        large=Size(780),
        xl=Size(3000, ROUNDED),
        xxl=Size(11_000, ROUNDED),
    ),
    "mt5": _from_config(
        "encoder-decoder",
        mt5.preset,
        250_112,
        512,
        "base",
        tiny=Size(),
        small=Size(300),
        base=Size(580),
        large=Size(1200, ROUNDED),
        xl=Size(3700, ROUNDED),
        xxl=Size(13_000, ROUNDED),
    ),
    "bart": PresetFamily(
        "encoder-decoder",
        bart.preset,
        _options(bart.PRESETS, bart.PRESET_DEFAULTS),
        vocabulary=50_265,
        context=1024,
        default="base",
        sizes={"tiny": Size(), "base": Size(140), "large": Size(400, ROUNDED)},
    ),
    "mbart": _from_config(
        "encoder-decoder", mbart.preset, 250_027, 1024, "large", tiny=Size(), large=Size(610)
    ),
    "pegasus": _from_config(
        "encoder-decoder",
        pegasus.preset,
        96_103,
        512,
        "base",
        tiny=Size(),
        base=Size(223, vocabulary=32_000),
        large=Size(568),
    ),
    "marian": _from_config(
        "encoder-decoder", marian.preset, 58_101, 512, "base", tiny=Size(), base=Size()
    ),
    # Decoders.
    "gpt1": _from_config(
        "decoder", openai_gpt.preset, 40_478, 512, "base", tiny=Size(), base=Size(117)
    ),
    "gpt2": PresetFamily(
        "decoder",
        gpt2.preset,
        _GPT_OPTIONS,
        vocabulary=50_257,
        context=1024,
        default="small",
        sizes={
            "tiny": Size(),
            "small": Size(117, _corrected(124)),
            "medium": Size(345, _corrected(355)),
            "large": Size(762, _corrected(774)),
            "xl": Size(1542, _corrected(1558)),
        },
    ),
    "gpt3": PresetFamily(
        "decoder",
        gpt3.preset,
        _GPT_OPTIONS,
        vocabulary=50_257,
        context=2048,
        default="small",
        sizes={
            "tiny": Size(),
            "small": Size(125),
            "medium": Size(350, _rounded(356)),
            "large": Size(760),
            "xl": Size(1300, _rounded(1320)),
            "2.7b": Size(2700, _rounded(2650)),
            "6.7b": Size(6700, _rounded(6660)),
            "13b": Size(13_000, _rounded(12_850)),
            "175b": Size(175_000),
        },
    ),
    "transformer-xl": PresetFamily(
        "decoder",
        transformer_xl.preset,
        _options(transformer_xl.PRESETS, transformer_xl.DEFAULTS),
        vocabulary=267_735,
        context=150,
        default="base",
        sizes={
            "tiny": Size(),
            "base": Size(151),
            "large": Size(
                257, "the paper's embeddings become narrower for rarer words; here all have d_model"
            ),
            "enwik8-12": Size(41, vocabulary=204, context=512),
            "enwik8-24": Size(277, vocabulary=204, context=768),
        },
    ),
    "reformer": _from_config(
        "decoder",
        reformer_presets.preset,
        258,
        4096,
        "enwik8",
        **{
            "tiny": Size(),
            "crime-and-punishment": Size(vocabulary=320, context=524_288),
            "enwik8": Size(149, context=65_536),
        },
    ),
    "llama": _from_config(
        "decoder",
        llama.preset,
        32_000,
        2048,
        "7b",
        **{
            "tiny": Size(),
            "7b": Size(6700, ROUNDED),
            "13b": Size(13_000),
            "33b": Size(32_500),
            "65b": Size(65_200),
        },
    ),
    "llama2": _from_config(
        "decoder",
        llama.preset_2,
        32_000,
        4096,
        "7b",
        **{"tiny": Size(), "7b": Size(6738), "13b": Size(13_016), "70b": Size(68_977)},
    ),
    "llama3": _from_config(
        "decoder",
        llama.preset_3,
        128_256,
        8192,
        "8b",
        **{"tiny": Size(), "8b": Size(8030), "70b": Size(70_554), "405b": Size(405_853)},
    ),
    "mistral": _from_config(
        "decoder", mistral.preset, 32_000, 8192, "7b", **{"tiny": Size(), "7b": Size(7242)}
    ),
    "mixtral": _from_config(
        "decoder",
        mixtral.preset,
        32_000,
        32_768,
        "8x7b",
        **{
            "tiny": Size(),
            "8x7b": Size(46_700),
            "8x22b": Size(141_000, vocabulary=32_768, context=65_536),
        },
    ),
    "qwen2": _from_config(
        "decoder",
        qwen2.preset,
        151_936,
        32_768,
        "0.5b",
        **{
            "tiny": Size(),
            "0.5b": Size(494),
            "1.5b": Size(1544),
            "7b": Size(7616, vocabulary=152_064),
            "72b": Size(72_706, vocabulary=152_064),
        },
    ),
    "gemma": _from_config(
        "decoder",
        gemma.preset,
        256_000,
        8192,
        "2b",
        **{"tiny": Size(), "2b": Size(2506), "7b": Size(8538)},
    ),
    "gpt-neox": _from_config(
        "decoder", gpt_neox.preset, 50_432, 2048, "20b", **{"tiny": Size(), "20b": Size(20_555)}
    ),
    "pythia": _from_config(
        "decoder",
        gpt_neox.pythia,
        50_304,
        2048,
        "160m",
        **{
            "tiny": Size(),
            "70m": Size(70.4),
            "160m": Size(162.3),
            "410m": Size(405.3),
            "1b": Size(1011.8),
            "1.4b": Size(1414.6),
            "2.8b": Size(2775.2),
            "6.9b": Size(6857.3, vocabulary=50_432),
            "12b": Size(11_846.1, vocabulary=50_688),
        },
    ),
    "palm": PresetFamily(
        "decoder",
        palm.preset,
        _options(palm.PRESETS, palm.DEFAULTS),
        vocabulary=256_000,
        context=2048,
        default="8b",
        sizes={
            "tiny": Size(),
            "8b": Size(8630),
            "62b": Size(62_500),
            "540b": Size(540_350),
        },
    ),
    # Text encoders.
    "bert": PresetFamily(
        "encoder",
        bert.preset,
        _options(bert.PRESETS, bert.DEFAULTS, ("next_sentence",)),
        vocabulary=30_522,
        context=512,
        default="base",
        sizes={
            "tiny": Size(4.4),
            "mini": Size(11.3, _POOLER),
            "small": Size(29.1, _POOLER),
            "medium": Size(41.7, _POOLER),
            "base": Size(110),
            "large": Size(340, "the paper's number; its released model has 335 M"),
        },
    ),
    "roberta": _from_config(
        "encoder",
        roberta.preset,
        50_265,
        512,
        "base",
        tiny=Size(),
        base=Size(125),
        large=Size(355),
    ),
    "camembert": _from_config(
        "encoder",
        roberta.camembert_preset,
        32_005,
        512,
        "base",
        tiny=Size(),
        base=Size(110, ROUNDED),
        large=Size(335, ROUNDED),
    ),
    "xlm-roberta": _from_config(
        "encoder",
        roberta.xlm_roberta_preset,
        250_002,
        512,
        "base",
        tiny=Size(),
        base=Size(270, "the paper's number; its released model has 278 M"),
        large=Size(550, "the paper's number; its released model has 560 M"),
    ),
    "distilbert": _from_config(
        "encoder",
        distilbert.preset,
        30_522,
        512,
        "base",
        tiny=Size(),
        base=Size(66, "with the masked-language-model head, of 0.6 M"),
    ),
    "albert": _from_config(
        "encoder",
        albert.preset,
        30_000,
        512,
        "base",
        tiny=Size(),
        base=Size(12, _POOLER),
        large=Size(18, _POOLER),
        xlarge=Size(60, _POOLER),
        xxlarge=Size(235, "without the pooler; with it 223 M, as its released model has"),
    ),
    "electra": PresetFamily(
        "encoder",
        _electra,
        _options(electra.PRESETS, bert.DEFAULTS),
        vocabulary=30_522,
        context=512,
        default="base",
        sizes={
            "tiny": Size(),
            "small": Size(14, ROUNDED),
            "base": Size(110),
            "large": Size(335),
        },
    ),
    "mpnet": _from_config(
        "encoder", mpnet.preset, 30_527, 512, "base", tiny=Size(), base=Size(110)
    ),
    "deberta": _from_config(
        "encoder",
        deberta_v1.preset,
        50_265,
        512,
        "base",
        tiny=Size(),
        base=Size(),
        large=Size(),
        xlarge=Size(),
    ),
    "deberta-v2": _from_config(
        "encoder",
        deberta_presets.preset_v2,
        128_100,
        512,
        "xlarge",
        tiny=Size(),
        xlarge=Size(900, ROUNDED),
        xxlarge=Size(1500, ROUNDED),
    ),
    "deberta-v3": _from_config(
        "encoder",
        deberta_presets.preset_v3,
        128_100,
        512,
        "base",
        tiny=Size(),
        xsmall=Size(70, ROUNDED),
        small=Size(142),
        base=Size(184),
        large=Size(435),
    ),
    "longformer": _from_config(
        "encoder",
        longformer.preset,
        50_265,
        4096,
        "base",
        tiny=Size(),
        base=Size(149),
        large=Size(435),
    ),
    "bigbird": _from_config(
        "encoder",
        bigbird.preset,
        50_358,
        4096,
        "base",
        tiny=Size(),
        base=Size(),
        large=Size(),
    ),
    # Images, sound, and pairs of text and image.
    "vit": _from_config(
        "image",
        vit.preset,
        1000,
        224,
        "base/16",
        **{
            "tiny": Size(5.7),
            "small/16": Size(22),
            "base/16": Size(86, "with the head of 1,000 classes, of 0.8 M"),
            "base/32": Size(88.2),
            "large/16": Size(307, "the paper's one number for large, which large/32 has"),
            "large/32": Size(307),
            "huge/14": Size(632),
        },
    ),
    "deit": _from_config(
        "image",
        deit.preset,
        1000,
        224,
        "base",
        tiny=Size(6, ROUNDED),
        small=Size(22, ROUNDED),
        base=Size(87),
    ),
    "dinov2": _from_config(
        "image",
        dinov2_presets.preset,
        1000,
        224,
        "base",
        tiny=Size(),
        small=Size(21, _LINEAR_HEAD),
        base=Size(86, _LINEAR_HEAD),
        large=Size(300, _LINEAR_HEAD),
        giant=Size(1100, _LINEAR_HEAD),
    ),
    "vit-mae": _from_config(
        "image",
        vit_mae.preset,
        1000,
        224,
        "base/16",
        **{
            "tiny": Size(),
            "base/16": Size(),
            "large/16": Size(),
            "huge/14": Size(),
        },
    ),
    "swin": _from_config(
        "image",
        swin_presets.preset,
        1000,
        224,
        "tiny",
        tiny=Size(28.3),
        small=Size(49.6),
        base=Size(87.8),
        large=Size(196.5),
    ),
    "clip": _from_config(
        "dual encoder",
        clip.preset,
        49_408,
        77,
        "vit-b/32",
        **{
            "tiny": Size(),
            "vit-b/32": Size(151.3),
            "vit-b/16": Size(149.6),
            "vit-l/14": Size(427.6),
        },
    ),
    "clip-text": _from_config(
        "encoder",
        clip.text_preset,
        49_408,
        77,
        "vit-b/32",
        **{
            "tiny": Size(),
            "vit-b/32": Size(63.4),
            "vit-b/16": Size(63.4),
            "vit-l/14": Size(123.7),
        },
    ),
    "clip-image": _from_config(
        "image",
        clip.image_preset,
        49_408,
        77,
        "vit-b/32",
        **{
            "tiny": Size(),
            "vit-b/32": Size(87.8),
            "vit-b/16": Size(86.2),
            "vit-l/14": Size(304),
        },
    ),
    "siglip": _from_config(
        "dual encoder",
        siglip.preset,
        32_000,
        64,
        "base/16",
        **{
            "tiny": Size(),
            "base/16": Size(203),
            "large/16": Size(652),
            "so400m/14": Size(878),
        },
    ),
    "whisper": _from_config(
        "speech",
        whisper.preset,
        51_865,
        448,
        "tiny",
        tiny=Size(39, _fixed_positions(0.6, 37.8)),
        base=Size(74, _fixed_positions(0.8, 72.6)),
        small=Size(244, _fixed_positions(1.2, 241.7)),
        medium=Size(769, _fixed_positions(1.5, 763.9)),
        large=Size(1550, _fixed_positions(1.9, 1543.3)),
    ),
    "wav2vec2": _from_config(
        "ctc",
        wav2vec2_presets.preset,
        32,
        480_000,
        "base",
        tiny=Size(),
        base=Size(95, "the paper counts the quantizer of pretraining too"),
        large=Size(317),
    ),
    "hubert": _from_config(
        "ctc",
        hubert.preset,
        32,
        480_000,
        "base",
        tiny=Size(),
        base=Size(95, "with the norms and the letters of CTC"),
        large=Size(317),
        xlarge=Size(964),
    ),
    # Time series: seven channels as the electricity transformers (ETT) have.
    "patchtst": _from_config(
        "series", patchtst_presets.preset, 7, 336, "tiny", tiny=Size(), base=Size()
    ),
    "time-series-transformer": _from_config(
        "series", time_series_transformer.preset, 7, 96, "tiny", tiny=Size(), base=Size()
    ),
    "dlinear": _linear_forecaster("dlinear"),
    "nlinear": _linear_forecaster("nlinear"),
    # Graphs.
    "graph": _graph(neighbours=True),
    "graphormer": _graph(neighbours=False),
    # Before the Transformer. Their papers print no counts for these sizes.
    **{name: _sequence_to_sequence(name) for name in recurrent.FAMILIES},
    "rnn-lm": _recurrent_language_model("rnn"),
    "rnn_relu-lm": _recurrent_language_model("rnn_relu"),
    "gru-lm": _recurrent_language_model("gru"),
    "lstm-lm": _recurrent_language_model("lstm"),
    "memory": PresetFamily(
        "memory network",
        _memory_network,
        _options(memory_network.PRESETS),
        vocabulary=200,
        context=50,
        default="tiny",
        sizes={"tiny": Size(), "small": Size()},
    ),
}
# Other names: those of Hugging Face's `model_type`.
ALIASES = {
    "openai-gpt": "gpt1",
    "gpt_neox": "gpt-neox",
    "big_bird": "bigbird",
    "clip_text_model": "clip-text",
    "clip_vision_model": "clip-image",
    "vit_mae": "vit-mae",
    "time_series_transformer": "time-series-transformer",
}
