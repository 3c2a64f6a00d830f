"""BERT (Devlin et al. 2019), with the small sizes of Turc et al. 2019."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.sizes import chosen
from regard.families.transformer import attending

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 2},
    "mini": {"layers": 4, "d_model": 256, "heads": 4},
    "small": {"layers": 4, "d_model": 512, "heads": 8},
    "medium": {"layers": 8, "d_model": 512, "heads": 8},
    "base": {"layers": 12, "d_model": 768, "heads": 12},
    "large": {"layers": 24, "d_model": 1024, "heads": 16},
}
DEFAULTS: dict[str, Any] = {"d_ff": None, "d_k": None, "dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu",
                            "attention": "softmax"}  # fmt: skip
NORM = spec.LayerNorm(1e-12)


def preset(
    name: str,
    vocabulary: int = 30522,
    context: int = 512,
    *,
    next_sentence: bool = False,
    **changes: Any,
) -> spec.Encoder:
    """With a head over the vocabulary, and one that says whether the second sentence follows the first."""
    s = chosen("bert", PRESETS, name, DEFAULTS, changes)
    return encoder(
        s,
        vocabulary,
        context,
        pool=spec.Pool() if next_sentence else None,
        head=spec.LMHead(True, transform=spec.HeadTransform(s["d_model"], s["activation"], NORM)),
        labels=spec.ClassifierHead(2, "next") if next_sentence else None,
    )


def classifier(
    name: str, vocabulary: int, context: int, count: int, **changes: Any
) -> spec.Encoder:
    """With scores of `count` classes of the whole text, by its first token."""
    s = chosen("bert", PRESETS, name, DEFAULTS, changes)
    dropout = s["dropout"]
    return encoder(
        s, vocabulary, context, pool=spec.Pool(), labels=spec.ClassifierHead(count, dropout=dropout)
    )


def encoder(
    s: Any, vocabulary: int, context: int, width: int | None = None, **top: Any
) -> spec.Encoder:
    """The stack with its embeddings of a `width` of their own; `top` is what stands on it."""
    softmax = spec.Attention(
        s["heads"], s["d_k"], s["d_k"], mixer=spec.SoftmaxAttention(s["attention_dropout"])
    )
    own, sees = attending(s["attention"], softmax, context, decodes=False)
    block = spec.Block(
        own,
        spec.FeedForward(s["d_ff"], s["activation"]),
        norm=NORM,
        dropout=s["dropout"],
    )
    narrow = None if width == s["d_model"] else width
    tokens = spec.Tokens(
        vocabulary, spec.LearnedPosition(context), False, s["dropout"], 2, NORM, narrow
    )
    return spec.Encoder(s["d_model"], tokens, spec.Stack(s["layers"], block, sees), **top)
