"""ELECTRA (Clark et al. 2020): a small generator puts words where words were hidden, a discriminator finds them."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.bert_presets import DEFAULTS, NORM, encoder
from regard.families.sizes import chosen

# `generator`: its width, heads and d_ff as a part of the discriminator's (their Table 6).
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 4, "width": 64, "generator": 0.5},
    "small": {"layers": 12, "d_model": 256, "heads": 4, "width": 128, "generator": 0.25},
    "base": {"layers": 12, "d_model": 768, "heads": 12, "width": 768, "generator": 1 / 3},
    "large": {"layers": 24, "d_model": 1024, "heads": 16, "width": 1024, "generator": 0.25},
}


def preset(
    name: str, vocabulary: int = 30522, context: int = 512, **changes: Any
) -> tuple[spec.Encoder, spec.Encoder]:
    """The discriminator and the generator, whose embeddings have one width, so that they can be the same."""
    s = chosen("electra", PRESETS, name, DEFAULTS, changes)
    small = {
        **s,
        **{key: max(1, round(s[key] * s["generator"])) for key in ("d_model", "heads", "d_ff")},
    }
    small["d_model"] = small["heads"] * s["d_k"]
    transform = spec.HeadTransform(s["width"], "gelu", NORM)
    return (
        encoder(
            s, vocabulary, context, s["width"], labels=spec.ClassifierHead(1, "detect", "gelu")
        ),
        encoder(
            small, vocabulary, context, s["width"], head=spec.LMHead(True, transform=transform)
        ),
    )
