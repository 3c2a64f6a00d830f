"""All families by their `model_type`, and which of them can store a spec."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from regard import spec
from regard.families.config_schema import Config
from regard.families.encoders.causal import WithCausalModel
from regard.families.heads import WithHeads
from regard.families.tensor_table import Rules
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

    def to_config(self, model: Any, positions: int) -> Config:
        """The config.json of a spec; `positions` for families whose positions have no limit."""

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> Any:
        """The spec of a config.json.

        `stored` are the tensor names of the file, because a config does not always say which heads
        there are; without them, the config decides.
        """

    def tensor_table(self, model: Any, positions: int) -> Rules:
        """The rules between our parameters and the tensors of the file."""


# The files of this folder, in the order of the list of presets, in which a spec is tried too; of
# each the families in it, by model_type: an object of the file, or the file itself (""). A file
# without any has presets only. A `HEAD_TABLE` has the heads of a language model's family besides
# that of the vocabulary.
FILES: dict[str, dict[str, str]] = {
    # Encoder–decoders.
    "encoder_decoders.transformer": {},
    "encoder_decoders.universal": {},
    "encoder_decoders.t5": {"t5": "T5"},
    "encoder_decoders.mt5": {"mt5": "MT5"},
    "encoder_decoders.bart": {"bart": "BART"},
    "encoder_decoders.mbart": {"mbart": "MBART"},
    "encoder_decoders.pegasus": {"pegasus": "PEGASUS"},
    "encoder_decoders.marian": {"marian": "MARIAN"},
    # Decoders.
    "decoders.openai_gpt": {"openai-gpt": "GPT"},
    "decoders.gpt2": {"gpt2": "GPT2"},
    "decoders.gpt3": {},
    "decoders.transformer_xl": {},
    "encoders.reformer": {"reformer": ""},
    "decoders.llama": {"llama": "LLAMA"},
    "decoders.mistral": {"mistral": "MISTRAL"},
    "decoders.mixtral": {"mixtral": "MIXTRAL"},
    "decoders.qwen2": {"qwen2": "QWEN2"},
    "decoders.gemma": {"gemma": "GEMMA"},
    "decoders.gemma2": {"gemma2": "GEMMA2"},
    "decoders.gemma3": {"gemma3_text": "GEMMA3"},
    "decoders.gpt_oss": {"gpt_oss": "GPT_OSS"},
    "decoders.gpt_neox": {"gpt_neox": ""},
    "decoders.palm": {},
    # Text encoders.
    "encoders.bert": {"bert": "BERT"},
    "encoders.roberta": {
        "roberta": "ROBERTA",
        "camembert": "CAMEMBERT",
        "xlm-roberta": "XLM_ROBERTA",
    },
    "encoders.distilbert": {"distilbert": "DISTILBERT"},
    "encoders.albert": {"albert": "ALBERT"},
    "encoders.electra": {"electra": "ELECTRA"},
    "encoders.mpnet": {"mpnet": "MPNET"},
    "encoders.esm": {"esm": "ESM"},
    "encoders.deberta_v1": {"deberta": ""},
    "encoders.deberta": {"deberta-v2": ""},
    "encoders.longformer": {"longformer": ""},
    "encoders.bigbird": {"big_bird": ""},
    # Images, sound, and pairs of text and image.
    "vision.vit": {"vit": "VIT"},
    "vision.deit": {"deit": "DEIT"},
    "vision.dinov2": {"dinov2": ""},
    "vision.vit_mae": {"vit_mae": ""},
    "vision.swin": {"swin": ""},
    "vision.resnet": {"resnet": ""},
    "vision.detr": {"detr": ""},
    "vision.segformer": {"segformer": ""},
    "vision.timesformer": {"timesformer": ""},
    "vision.videomae": {"videomae": ""},
    "vision.clip": {"clip": "", "clip_text_model": "TEXT", "clip_vision_model": "VISION"},
    "vision.siglip": {"siglip": "", "siglip_text_model": "TEXT", "siglip_vision_model": "VISION"},
    "vision.vilt": {"vilt": ""},
    "vision.vision_encoder_decoder": {"vision-encoder-decoder": ""},
    "vision.blip": {"blip": ""},
    "vision.idefics": {"idefics": ""},
    "speech.whisper": {"whisper": ""},
    "speech.wav2vec2": {"wav2vec2": "WAV2VEC2"},
    "speech.hubert": {"hubert": "HUBERT"},
    "speech.fastspeech2": {
        "fastspeech2_conformer": "",
        "fastspeech2_conformer_hifigan": "HIFI_GAN",
        "fastspeech2_conformer_with_hifigan": "WITH_HIFI_GAN",
    },
    "speech.vits": {"vits": ""},
    # Time series.
    "series.patchtst": {"patchtst": ""},
    "series.time_series_transformer": {"time_series_transformer": ""},
    "series.linear_forecaster": {},
    "series.decision_transformer": {"decision_transformer": ""},
    # Graphs.
    "graph": {},
    # Before the Transformer.
    "encoder_decoders.recurrent": {},
    "memory_network": {},
}
_OWN_FORMAT = "regard"  # takes any spec, so it comes last
_PLACES = {
    model_type: (file, name)
    for file, families in {**FILES, "native": {_OWN_FORMAT: ""}}.items()
    for model_type, name in families.items()
}


class Families(Mapping[str, Family]):
    """The families by model_type, each imported when it is asked for: a command needs one."""

    def __getitem__(self, model_type: str) -> Family:
        file, name = _PLACES[model_type]
        family: Any = importlib.import_module(f"regard.families.{file}")
        if name:
            family = getattr(family, name)
        causal = getattr(family, "CAUSAL_CLASS", None)
        if causal:
            family = WithCausalModel(family, causal)
        heads = getattr(family, "HEAD_TABLE", None)
        return WithHeads(family, heads) if heads else family

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


FAMILIES = Families()


def family_of(model: spec.Model, model_type: str | None = None) -> Family:
    """The first family that can store a spec.

    `model_type` is tried before all others, because some families differ in names only.
    """
    candidates = [model_type, *FAMILIES] if model_type in FAMILIES else FAMILIES
    return next(
        FAMILIES[name]
        for name in candidates
        # Its parts from outside the package are read with their classes only.
        if name == _OWN_FORMAT or _can_store(FAMILIES[name], model)
    )


def _can_store(family: Family, model: spec.Model) -> bool:
    """Whether the family's config.json, read back, gives the same spec."""
    spec_type, front_end = family.SPEC_TYPES
    first = next(iter(model.front_ends.values()), None)
    if not isinstance(model, spec_type) or not isinstance(first, front_end):
        return False
    try:
        return bool(family.to_spec(family.to_config(model, 1)) == model)
    except ModelError:
        return False
