"""BART, as transformers has it: Marian with learned positions and a norm after the embeddings. mBART is another `Kin`.

One matrix serves both embeddings and the output, as in PEGASUS.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard import spec as kinds
from regard.families.fairseq_layout import (
    EQUAL,
    FIXED,
    SIZES,
    TIED,
    assemble,
    logits_bias,
    sizes,
    stacks,
)
from regard.families.tensor_table import ConfigSchema, Rule, Same, module

_OFFSET = 2  # rows of the position table that belong to no position
_BIAS = "final_logits_bias"


@dataclass(frozen=True)
class Kin:
    """One of these families; its norms stand before the sublayers or after them."""

    name: str
    architecture: str
    residual: kinds.PostNorm | kinds.PreNorm
    PREFIX: str = "model."
    FORM: ClassVar = (kinds.EncoderDecoder, kinds.Tokens)

    @property
    def keys(self) -> ConfigSchema:
        before = isinstance(self.residual, kinds.PreNorm)
        old = {"static_position_embeddings": False, "normalize_embedding": True}
        fixed = {
            "normalize_before": before,
            "add_final_layer_norm": before,
            "tie_word_embeddings": True,
        }
        return ConfigSchema({**SIZES, "vocab_size": 50265}, {**FIXED, **old, **fixed}, EQUAL)

    def config(self, model: kinds.EncoderDecoder, positions: int) -> dict[str, Any]:
        learned = model.source.position
        return {
            "model_type": self.name,
            "architectures": [self.architecture],
            **sizes(model),
            "max_position_embeddings": learned.length
            if isinstance(learned, kinds.LearnedPosition)
            else positions,
            "vocab_size": model.target.vocabulary,
            "tie_word_embeddings": True,
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.EncoderDecoder:
        values = self.keys(config)
        position = kinds.LearnedPosition(values["max_position_embeddings"], _OFFSET)
        tokens = kinds.Tokens(
            values["vocab_size"],
            position,
            values["scale_embedding"],
            values["dropout"],
            norm=kinds.LayerNorm(1e-5),
        )
        # The file of a model without its head has no bias of the logits.
        bias = values["regard_head_bias"] and (not stored or _BIAS in stored)
        return assemble(values, tokens, tokens, self.residual, bias=bias)

    def table(self, model: kinds.EncoderDecoder, positions: int) -> list[Rule]:
        sides = (("source", "model.encoder"), ("target", "model.decoder"))
        return [
            Same("source.table.weight", "model.shared.weight", aliases=TIED),
            *(
                Same(f"{ours}.position.table", f"{theirs}.embed_positions.weight")
                for ours, theirs in sides
            ),
            *(
                rule
                for ours, theirs in sides
                for rule in module(f"{ours}.norm", f"{theirs}.layernorm_embedding")
            ),
            *stacks(model),
            logits_bias(model),
        ]


BART = Kin("bart", "BartForConditionalGeneration", kinds.PostNorm())
