"""The Universal Transformer (Dehghani et al. 2019): presets.

One block of weights for all layers of a side, which adds positions and steps at each of them, and
adaptive halting. transformers has no such model, so its files are in our own format.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.encoder_decoders import transformer
from regard.families.preset_settings import Size, translation_family

# The authors' base and big; the block is wider than the Transformer's, as there is only one.
SIZES = {
    "tiny": Size({"d_model": 128, "d_ff": 256, "heads": 4, "layers": 4, "dropout": 0.1}),
    "base": Size({"d_model": 1024, "d_ff": 4096, "heads": 16, "layers": 6, "dropout": 0.3}),
    "big": Size({"d_model": 2048, "d_ff": 8192, "heads": 16, "layers": 6, "dropout": 0.3}),
}


def preset(
    name: str, source_vocabulary: int, target_vocabulary: int, **changes: Any
) -> spec.EncoderDecoder:
    """A named size; `changes` are those of the Transformer, `layers` is the most steps."""
    return _universal(source_vocabulary, target_vocabulary, **{**SIZES[name].settings, **changes})


def _universal(
    source_vocabulary: int, target_vocabulary: int, **settings: Any
) -> spec.EncoderDecoder:
    # Positions are added at each step (Equation 4), and not once at the input.
    settings = {"position": None, **settings}
    model = transformer.transformer(source_vocabulary, target_vocabulary, **settings)
    encoder = replace(model.encoder, scheme=spec.Universal())
    return replace(model, encoder=encoder, decoder=replace(model.decoder, scheme=encoder.scheme))


PRESETS = {"universal": translation_family(_universal, SIZES, transformer.DEFAULTS)}
