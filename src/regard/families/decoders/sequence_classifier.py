"""Decoders that classify a text instead of continuing it (...ForSequenceClassification).

The same stack without a language-model head: the labels are scored from the last token. As a spec
that is a causal encoder, so that everything done with classifiers is done with these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from regard import spec
from regard.families.classifier_labels import classifier_head, label_count, label_names
from regard.families.tensor_table import ParameterRule, Rename, Rule
from regard.system.errors import ModelError

SUFFIX = "ForSequenceClassification"


@dataclass(frozen=True)
class WithSequenceClassifier:
    """A family of decoders with its sequence classifier, as one family."""

    decoders: Any
    class_prefix: str  # of its architectures: "GPT2" in GPT2ForSequenceClassification
    SPEC_TYPES: ClassVar = (spec.Decoder | spec.Encoder, spec.Tokens)

    @property
    def PREFIX(self) -> str:
        return str(self.decoders.PREFIX)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.Decoder | spec.Encoder, positions: int) -> dict[str, Any]:
        if isinstance(model, spec.Decoder):
            return dict(self.decoders.to_config(model, positions))
        labels = classifier_head(model)
        config = dict(self.decoders.to_config(_as_decoder(model), positions))
        config["architectures"] = [self.class_prefix + SUFFIX]
        del config["tie_word_embeddings"]  # there is nothing to tie
        return {**config, **label_names(labels.count if labels else 1)}

    # -------------------------------------------------------------- config.json → spec

    def to_spec(
        self, config: Mapping[str, Any], stored: Collection[str] = ()
    ) -> spec.Decoder | spec.Encoder:
        model: spec.Decoder = self.decoders.to_spec(config, stored)
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            return model
        if architectures[0] != self.class_prefix + SUFFIX:
            return model
        labels = spec.ClassifierHead(label_count(config), bias=False)
        pool = spec.Pool("last", None)
        return spec.Encoder(model.d_model, model.tokens, model.stack, pool, labels=labels)

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.Decoder | spec.Encoder, positions: int) -> list[Rule]:
        if isinstance(model, spec.Decoder):
            return list(self.decoders.tensor_table(model, positions))
        rules: list[Rule] = self.decoders.tensor_table(_as_decoder(model), positions)
        classifier = Rename("labels.output.weight", "score.weight")
        return [*(_of_encoder(rule) for rule in rules), classifier]


def _as_decoder(model: spec.Encoder) -> spec.Decoder:
    if model.pool is None or model.pool.which != "last":
        raise ModelError(
            "a sequence classifier of a decoder needs Pool('last')",
            "set pool=Pool('last'), or save the model as an encoder",
        )
    return spec.Decoder(model.d_model, model.tokens, model.stack)


def _of_encoder(rule: Rule) -> Rule:
    """A decoder's rule for the encoder, whose embeddings are called `input` instead of `tokens`."""
    if not isinstance(rule, ParameterRule) or not rule.parameter.startswith("tokens."):
        return rule
    parameter = f"input.{rule.parameter.removeprefix('tokens.')}"
    if isinstance(rule, Rename):
        return Rename(parameter, rule.hf)  # without aliases: no output matrix is tied to it
    return replace(rule, parameter=parameter)
