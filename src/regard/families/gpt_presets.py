"""GPT-2 (Radford et al. 2019), with the sizes of GPT-3 (Brown et al. 2020, Table 2.1)."""

from __future__ import annotations

from typing import Any, Literal

from regard import spec
from regard.families.sizes import chosen
from regard.families.transformer import attending, looking
from regard.options import construct

# The paper prints 24 heads for the fourth and a width of 5140 for the seventh; its own parameter counts are those of these.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "d_model": 128, "heads": 4},
    "small": {"layers": 12, "d_model": 768, "heads": 12},
    "medium": {"layers": 24, "d_model": 1024, "heads": 16},
    "large": {"layers": 24, "d_model": 1536, "heads": 16},
    "xl": {"layers": 24, "d_model": 2048, "heads": 16},
    "2.7b": {"layers": 32, "d_model": 2560, "heads": 32},
    "6.7b": {"layers": 32, "d_model": 4096, "heads": 32},
    "13b": {"layers": 40, "d_model": 5120, "heads": 40},
    "175b": {"layers": 96, "d_model": 12288, "heads": 96},
}
_DEFAULTS = {
    "d_ff": None, "d_k": None, "dropout": 0.1, "attention_dropout": None, "activation": "gelu_tanh", "attention": "softmax",
    "memory": None, "compressed": None,
}  # fmt: skip


def compressing(word: str) -> spec.CompressiveMemory:
    """`64:4` are 64 places, each made of 4 that left the memory by a convolution; `64:4:mean` and `64:4:max` pool them."""
    functions: dict[str, Literal["convolution", "mean", "max"]] = {
        "conv": "convolution",
        "mean": "mean",
        "max": "max",
    }

    def memory(length: str, factor: str, function: str = "conv") -> spec.CompressiveMemory:
        return spec.CompressiveMemory(int(length), int(factor), functions[function])

    return construct(
        memory,
        word.split(":"),
        problem=f"a compressed memory cannot be {word!r}",
        usage="write it like 64:4, 64:4:mean, 64:4:max or 64:4:conv",
    )


def preset(name: str, vocabulary: int = 50257, context: int = 2048, **changes: Any) -> spec.Decoder:
    """Attention weights are dropped as often as the rest, unless said or never made. `attention` is a word that
    `vaswani.looking` knows; with a `memory` the model reads segments of `context`, and knows distances instead of places
    (Transformer-XL); `compressed` is a word that `compressing` knows, for what leaves it (Compressive Transformer)."""
    s = chosen("gpt", PRESETS, name, _DEFAULTS, changes)
    usual = 0.0 if isinstance(looking(s["attention"])[0], spec.LinearAttention) else s["dropout"]
    dropped = usual if s["attention_dropout"] is None else s["attention_dropout"]
    softmax = spec.Attention(s["heads"], s["d_k"], s["d_k"], mixer=spec.SoftmaxAttention(dropped))
    own, sees = attending(s["attention"], softmax, context, decodes=True)
    block = spec.Block(
        own,
        spec.FeedForward(s["d_ff"], s["activation"]),
        residual=spec.PreNorm(),
        dropout=s["dropout"],
    )
    return spec.Decoder(
        s["d_model"],
        spec.Tokens(
            vocabulary,
            None if s["memory"] else spec.LearnedPosition(context),
            scale=False,
            dropout=s["dropout"],
        ),
        spec.Stack(
            s["layers"],
            block,
            sees,
            spec.RelativeSinusoids() if s["memory"] else None,
            final=spec.LayerNorm(),
            memory=s["memory"],
            compressed=compressing(s["compressed"]) if s["compressed"] else None,
        ),
    )
