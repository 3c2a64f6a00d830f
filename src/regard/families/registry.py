"""All families by their `model_type`, and which of them can store a spec."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from regard import spec
from regard.families import native
from regard.families.encoders.causal import WithCausalModel
from regard.families.heads import WithHeads
from regard.families.tensor_table import Rule
from regard.system.errors import ModelError


class Family(Protocol):
    """What each family offers: a two-way mapping of configs and of tensors."""

    @property
    def SPEC_TYPES(self) -> tuple[Any, type]:
        """The classes of its specs and of their front end.

        `to_config` and `tensor_table` are called with such specs only.
        """

    @property
    def PREFIX(self) -> str:
        """transformers' `base_model_prefix`: stands before the base model's tensor names."""

    def to_config(self, model: Any, positions: int) -> dict[str, Any]:
        """The config.json of a spec; `positions` for families whose positions have no limit."""

    def to_spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> Any:
        """The spec of a config.json.

        `stored` are the tensor names of the file, because a config does not always say which heads
        there are; without them, the config decides.
        """

    def tensor_table(self, model: Any, positions: int) -> list[Rule]:
        """The rules between our parameters and the tensors of the file."""


# By model_type, in the order in which a spec is tried; the last one, our own format, takes any.
# A family is a file of this folder, or an object in one. A `HEAD_TABLE` has the heads of a language
# model's family besides that of the vocabulary.
PLACES = {
    # Encoder–decoders.
    "marian": "encoder_decoders.marian:MARIAN",
    "pegasus": "encoder_decoders.pegasus:PEGASUS",
    "bart": "encoder_decoders.bart:BART",
    "mbart": "encoder_decoders.mbart:MBART",
    "t5": "encoder_decoders.t5:T5",
    "mt5": "encoder_decoders.mt5:MT5",
    "whisper": "speech.whisper",
    # Decoders.
    "gpt2": "decoders.gpt2:GPT2",
    "openai-gpt": "decoders.openai_gpt:GPT",
    "gpt_neox": "decoders.gpt_neox",
    "llama": "decoders.llama:LLAMA",
    "mistral": "decoders.mistral:MISTRAL",
    "mixtral": "decoders.mixtral:MIXTRAL",
    "qwen2": "decoders.qwen2:QWEN2",
    "gemma": "decoders.gemma:GEMMA",
    "gemma2": "decoders.gemma2:GEMMA2",
    "gemma3_text": "decoders.gemma3:GEMMA3",
    "gpt_oss": "decoders.gpt_oss:GPT_OSS",
    # Text encoders.
    "bert": "encoders.bert:BERT",
    "roberta": "encoders.roberta:ROBERTA",
    "camembert": "encoders.roberta:CAMEMBERT",
    "xlm-roberta": "encoders.roberta:XLM_ROBERTA",
    "distilbert": "encoders.distilbert:DISTILBERT",
    "albert": "encoders.albert:ALBERT",
    "electra": "encoders.electra:ELECTRA",
    "mpnet": "encoders.mpnet:MPNET",
    "deberta": "encoders.deberta_v1",
    "deberta-v2": "encoders.deberta",
    "longformer": "encoders.longformer",
    "big_bird": "encoders.bigbird",
    "reformer": "encoders.reformer",
    # Images, sound, time series, and pairs of text and image.
    "vit": "vision.vit:VIT",
    "deit": "vision.deit:DEIT",
    "dinov2": "vision.dinov2",
    "vit_mae": "vision.vit_mae",
    "swin": "vision.swin",
    "wav2vec2": "speech.wav2vec2:WAV2VEC2",
    "hubert": "speech.hubert:HUBERT",
    "patchtst": "series.patchtst",
    "time_series_transformer": "series.time_series_transformer",
    "clip": "vision.clip",
    "clip_text_model": "vision.clip:TEXT",
    "clip_vision_model": "vision.clip:VISION",
    "siglip": "vision.siglip",
    "siglip_text_model": "vision.siglip:TEXT",
    "siglip_vision_model": "vision.siglip:VISION",
    # Our own format.
    "regard": "native",
}


class Families(Mapping[str, Family]):
    """The families by model_type, each imported when it is asked for: a command needs one."""

    def __getitem__(self, model_type: str) -> Family:
        file, _, name = PLACES[model_type].partition(":")
        family: Any = importlib.import_module(f"regard.families.{file}")
        if name:
            family = getattr(family, name)
        causal = getattr(family, "CAUSAL_CLASS", None)
        if causal:
            family = WithCausalModel(family, causal)
        heads = getattr(family, "HEAD_TABLE", None)
        return WithHeads(family, heads) if heads else family

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


FAMILIES = Families()


def family_of(model: spec.Model, model_type: str | None = None) -> Family:
    """The first family that can store a spec.

    `model_type` is tried before all others, because some families differ in names only.
    """
    # Our own format comes last and stores any spec, so one is always found.
    candidates = list(FAMILIES)
    if model_type is not None and model_type in FAMILIES:
        candidates.insert(0, model_type)
    return next(FAMILIES[name] for name in candidates if _can_store(FAMILIES[name], model))


def _can_store(family: Family, model: spec.Model) -> bool:
    """Whether the family's config.json, read back, gives the same spec."""
    if family is native:  # parts from outside the package are read with their classes only
        return True
    spec_type, front_end = family.SPEC_TYPES
    if not isinstance(model, spec_type) or not isinstance(_front_end(model), front_end):
        return False
    try:
        return bool(family.to_spec(family.to_config(model, 1)) == model)
    except ModelError:
        return False


def _front_end(model: spec.Model) -> spec.FrontEnd | spec.LaggedValues | None:
    match model:
        case spec.MemoryNetwork() | spec.LinearForecaster():
            return None
        case spec.Encoder() | spec.RecurrentEncoder() | spec.SeriesEncoderDecoder():
            return model.input
        case spec.Decoder() | spec.RecurrentDecoder():
            return model.tokens
        case spec.EncoderDecoder() | spec.SequenceToSequence():
            return model.source
        case spec.DualEncoder():
            return model.text.input
