"""All families by their `model_type`, and which of them can store a spec."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from regard import spec
from regard.errors import ModelError
from regard.families import (
    albert,
    bart,
    bert,
    bigbird,
    clip,
    clip_text,
    clip_vision,
    deberta,
    deberta_v1,
    deit,
    dinov2,
    distilbert,
    electra,
    gemma,
    gpt2,
    gpt_neox,
    hubert,
    llama,
    longformer,
    marian,
    mbart,
    mistral,
    mpnet,
    mt5,
    native,
    openai_gpt,
    patchtst,
    pegasus,
    qwen2,
    reformer,
    roberta,
    siglip,
    siglip_tower,
    swin,
    t5,
    time_series_transformer,
    vit,
    vit_mae,
    wav2vec2,
    whisper,
)
from regard.families.sequence_classifier import WithSequenceClassifier
from regard.families.tensor_table import Rule


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
FAMILIES: dict[str, Family] = {
    # Encoder–decoders.
    "marian": marian,
    "pegasus": pegasus,
    "bart": bart.BART,
    "mbart": mbart.MBART,
    "t5": t5.T5,
    "mt5": mt5.MT5,
    "whisper": whisper,
    # Decoders, each with its sequence classifier.
    "gpt2": WithSequenceClassifier(gpt2.GPT2, "GPT2"),
    "openai-gpt": WithSequenceClassifier(openai_gpt.GPT, "OpenAIGPT"),
    "gpt_neox": WithSequenceClassifier(gpt_neox, "GPTNeoX"),
    "llama": WithSequenceClassifier(llama.LLAMA, "Llama"),
    "mistral": WithSequenceClassifier(mistral.MISTRAL, "Mistral"),
    "qwen2": WithSequenceClassifier(qwen2.QWEN2, "Qwen2"),
    "gemma": WithSequenceClassifier(gemma.GEMMA, "Gemma"),
    # Text encoders.
    "bert": bert.BERT,
    "roberta": roberta.ROBERTA,
    "camembert": roberta.CAMEMBERT,
    "xlm-roberta": roberta.XLM_ROBERTA,
    "distilbert": distilbert.DISTILBERT,
    "albert": albert.ALBERT,
    "electra": electra.ELECTRA,
    "mpnet": mpnet.MPNET,
    "deberta": deberta_v1,
    "deberta-v2": deberta,
    "longformer": longformer,
    "big_bird": bigbird,
    "reformer": reformer,
    # Images, sound, time series, and pairs of text and image.
    "vit": vit.VIT,
    "deit": deit.DEIT,
    "dinov2": dinov2,
    "vit_mae": vit_mae,
    "swin": swin,
    "wav2vec2": wav2vec2.WAV2VEC2,
    "hubert": hubert.HUBERT,
    "patchtst": patchtst,
    "time_series_transformer": time_series_transformer,
    "clip": clip,
    "clip_text_model": clip_text.TEXT,
    "clip_vision_model": clip_vision.VISION,
    "siglip": siglip,
    "siglip_text_model": siglip_tower.TEXT,
    "siglip_vision_model": siglip_tower.VISION,
    # Our own format.
    "regard": native,
}


def family_of(model: spec.Model, model_type: str | None = None) -> Family:
    """The first family that can store a spec.

    `model_type` is tried before all others, because some families differ in names only.
    """
    # Our own format comes last and stores any spec, so one is always found.
    candidates = list(FAMILIES.values())
    if model_type in FAMILIES:
        candidates.insert(0, FAMILIES[model_type])
    return next(family for family in candidates if _can_store(family, model))


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
