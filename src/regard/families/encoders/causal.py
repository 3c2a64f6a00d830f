"""The causal language model of a family of encoders: BertLMHeadModel, RobertaForCausalLM.

Its layers, head and files are those of the masked language model; each position attends to itself
and to those before it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from regard import spec
from regard.families.config_schema import Config
from regard.families.tensor_table import ParameterRule, Rules
from regard.system.errors import ModelError


@dataclass(frozen=True)
class WithCausalModel:
    """A family of encoders with its causal language model, as one family."""

    family: Any
    name: str  # of the class
    SPEC_TYPES: ClassVar = (spec.Encoder | spec.Decoder, spec.Tokens)

    @property
    def PREFIX(self) -> str:
        return str(self.family.PREFIX)

    def to_config(self, model: Any, positions: int) -> Config:
        config: Config = self.family.to_config(_encoder(model), positions)
        if isinstance(model, spec.Decoder):
            config |= {"architectures": [self.name], "is_decoder": True}
        return config

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> Any:
        if config.get("architectures") != [self.name] or config.get("is_decoder") is not True:
            return self.family.to_spec(config, stored)
        masked = self.name.removesuffix("LMHeadModel").removesuffix("ForCausalLM") + "ForMaskedLM"
        encoder = self.family.to_spec(
            {**config, "architectures": [masked], "is_decoder": False}, stored
        )
        stack = _with_pattern(encoder.stack, spec.FullMask(), spec.CausalMask())
        return spec.Decoder(encoder.d_model, encoder.input, stack, encoder.heads)

    def tensor_table(self, model: Any, positions: int) -> Rules:
        rules: Rules = self.family.tensor_table(_encoder(model), positions)
        if isinstance(model, spec.Encoder):
            return rules
        return [
            replace(rule, parameter="tokens." + rule.parameter.removeprefix("input."))
            if isinstance(rule, ParameterRule) and rule.parameter.startswith("input.")
            else rule
            for rule in rules
        ]


def _encoder(model: spec.Encoder | spec.Decoder) -> spec.Encoder:
    """The masked language model of a causal one."""
    if isinstance(model, spec.Encoder):
        return model
    stack = _with_pattern(model.stack, spec.CausalMask(), spec.FullMask())
    return spec.Encoder(model.d_model, model.tokens, stack, model.heads)


def _with_pattern(stack: spec.Stack, old: spec.MaskPattern, new: spec.MaskPattern) -> spec.Stack:
    if any(block.pattern != old for block in stack.blocks):
        raise ModelError(
            "the causal form of this model is not supported: its layers have masks of their own",
            "set attention_type to original_full",
        )
    return stack.with_blocks(pattern=new)
