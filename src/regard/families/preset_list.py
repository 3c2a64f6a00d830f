"""The list of presets: every family by name, in order. Its sizes are in the family's own file."""

from __future__ import annotations

from regard.families import graph, memory_network
from regard.families.decoders import (
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt3,
    gpt_neox,
    gpt_oss,
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
    deberta,
    deberta_v1,
    distilbert,
    electra,
    longformer,
    mpnet,
    reformer,
    roberta,
)
from regard.families.preset_settings import PresetFamily
from regard.families.series import linear_forecaster, patchtst, time_series_transformer
from regard.families.speech import hubert, wav2vec2, whisper
from regard.families.vision import clip, deit, dinov2, siglip, swin, vit, vit_mae

PRESET_FAMILIES: dict[str, PresetFamily] = {
    # Encoder–decoders.
    **transformer.PRESETS,
    **universal.PRESETS,
    **t5.PRESETS,
    **mt5.PRESETS,
    **bart.PRESETS,
    **mbart.PRESETS,
    **pegasus.PRESETS,
    **marian.PRESETS,
    # Decoders.
    **openai_gpt.PRESETS,
    **gpt2.PRESETS,
    **gpt3.PRESETS,
    **transformer_xl.PRESETS,
    **reformer.PRESETS,
    **llama.PRESETS,
    **mistral.PRESETS,
    **mixtral.PRESETS,
    **qwen2.PRESETS,
    **gemma.PRESETS,
    **gemma2.PRESETS,
    **gemma3.PRESETS,
    **gpt_oss.PRESETS,
    **gpt_neox.PRESETS,
    **palm.PRESETS,
    # Text encoders.
    **bert.PRESETS,
    **roberta.PRESETS,
    **distilbert.PRESETS,
    **albert.PRESETS,
    **electra.PRESETS,
    **mpnet.PRESETS,
    **deberta_v1.PRESETS,
    **deberta.PRESETS,
    **longformer.PRESETS,
    **bigbird.PRESETS,
    # Images, sound, and pairs of text and image.
    **vit.PRESETS,
    **deit.PRESETS,
    **dinov2.PRESETS,
    **vit_mae.PRESETS,
    **swin.PRESETS,
    **clip.PRESETS,
    **siglip.PRESETS,
    **whisper.PRESETS,
    **wav2vec2.PRESETS,
    **hubert.PRESETS,
    # Time series.
    **patchtst.PRESETS,
    **time_series_transformer.PRESETS,
    **linear_forecaster.PRESETS,
    # Graphs.
    **graph.PRESETS,
    # Before the Transformer.
    **recurrent.PRESETS,
    **memory_network.PRESETS,
}
# Other names: those of Hugging Face's `model_type`.
ALIASES = {
    "openai-gpt": "gpt1",
    "gpt_neox": "gpt-neox",
    "gpt_oss": "gpt-oss",
    "gemma3_text": "gemma3",
    "big_bird": "bigbird",
    "clip_text_model": "clip-text",
    "clip_vision_model": "clip-image",
    "vit_mae": "vit-mae",
    "time_series_transformer": "time-series-transformer",
}
