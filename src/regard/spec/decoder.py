"""Decoder-only language models: Transformers and recurrent networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from regard.spec.attention import LshAttention
from regard.spec.baselines import Recurrent
from regard.spec.frontend import FrontEnd, LaggedValues, Tokens
from regard.spec.head import LMHead
from regard.spec.inputs import Input, arguments
from regard.spec.model_spec import (
    Head,
    ModelSpec,
    check_decoder,
    check_no_cross,
    check_tied,
    chunks_shift,
)
from regard.spec.stack import Segments, Stack
from regard.spec.validation import Size
from regard.system.errors import ModelError


@dataclass(frozen=True)
class Decoder(ModelSpec):
    """Decoder-only Transformer (GPT): a causal language model, unless its heads say otherwise."""

    d_model: Size
    tokens: Tokens
    stack: Stack
    heads: tuple[Head, ...] = (LMHead(),)
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's

    def validate(self) -> None:
        check_no_cross(self.stack)
        check_decoder(self.stack)
        if self.head is not None:
            check_tied(self.tied, self.stack, self.d_model)
        if any(
            isinstance(b.attention.mixer, LshAttention) and b.attention.mixer.ring is None
            for b in self.stack.blocks
        ):
            raise chunks_shift()
        if isinstance(self.stack.scheme, Segments) and self.tokens.position is not None:
            raise ModelError(
                "positions added at the input start again in each segment, so they do not "
                "work with a segment memory",
                "set `position` of the stack, for example RelativeSinusoids, and "
                "tokens.position=None",
            )

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"tokens": self.tokens}

    @property
    def front_ends(self) -> dict[str, FrontEnd | LaggedValues]:
        return {"decoder": self.tokens}

    @property
    def inputs(self) -> tuple[Input, ...]:
        segments = " token_type_ids" if self.tokens.segment_tokens else ""
        return arguments(self.tokens.main_input_name, f"attention_mask{segments}")

    @property
    def vocab_size(self) -> int:
        return self.tokens.vocabulary

    @property
    def stacks(self) -> dict[str, Stack]:
        return {"decoder": self.stack}

    def with_stacks(self, stacks: Mapping[str, Stack]) -> Self:
        return dataclasses.replace(self, stack=stacks["decoder"])

    @property
    def kv_cache_size(self) -> int:
        return self.stack.kv_cache_size


@dataclass(frozen=True)
class RecurrentDecoder(ModelSpec):
    """Recurrent language model, whose state may be carried over from segment to segment."""

    d_model: Size
    tokens: Tokens
    stack: Recurrent
    heads: tuple[Head, ...] = (LMHead(),)
    tied: bool = True  # weight tying: the LM head's matrix is the embedding's

    def validate(self) -> None:
        if self.stack.bidirectional:
            raise ModelError("a language model cannot be bidirectional", "set bidirectional=False")
        if self.stack.looks is not None:
            raise ModelError("a language model has no encoder to attend to", "remove `looks`")

    @property
    def embeddings(self) -> dict[str, Tokens]:
        return {"tokens": self.tokens}

    @property
    def front_ends(self) -> dict[str, FrontEnd | LaggedValues]:
        return {"decoder": self.tokens}

    @property
    def inputs(self) -> tuple[Input, ...]:
        return arguments(self.tokens.main_input_name, "attention_mask")

    @property
    def vocab_size(self) -> int:
        return self.tokens.vocabulary

    @property
    def kv_cache_size(self) -> int:
        return 0  # a state of a fixed size
