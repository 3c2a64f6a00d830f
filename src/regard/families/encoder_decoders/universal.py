"""The Universal Transformer (Dehghani et al. 2019): presets.

One block of weights for all layers of a side, which adds positions and steps at each of them, and
adaptive halting. transformers has no such model, so its files are in our own format.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.encoder_decoders import transformer
from regard.families.preset_settings import size, translation_family

# The authors' base and big; the block is wider than the Transformer's, as there is only one.
SIZES = {
    "tiny": size(4, 128, 4, d_ff=256, dropout=0.1),
    "base": size(6, 1024, 16, d_ff=4096, dropout=0.3),
    "big": size(6, 2048, 16, d_ff=8192, dropout=0.3),
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
