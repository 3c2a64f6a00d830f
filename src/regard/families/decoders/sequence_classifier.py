"""Decoders that classify a text instead of continuing it (...ForSequenceClassification).

The same decoder with another head: the labels are scored from the last token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from regard import spec
from regard.families.classifier_labels import classifier_head, label_count, label_names
from regard.families.tensor_table import Rename, Rule

SUFFIX = "ForSequenceClassification"


@dataclass(frozen=True)
class WithSequenceClassifier:
    """A family of decoders with its sequence classifier, as one family."""

    decoders: Any
    class_prefix: str  # of its architectures: "GPT2" in GPT2ForSequenceClassification
    SPEC_TYPES: ClassVar = (spec.Decoder, spec.Tokens)

    @property
    def PREFIX(self) -> str:
        return str(self.decoders.PREFIX)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.Decoder, positions: int) -> dict[str, Any]:
        config = dict(self.decoders.to_config(model, positions))
        labels = classifier_head(model)
        if labels is None:
            return config
        config["architectures"] = [self.class_prefix + SUFFIX]
        del config["tie_word_embeddings"]
        return {**config, **label_names(labels.count)}

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.Decoder:
        model: spec.Decoder = self.decoders.to_spec(config, stored)
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            return model
        if architectures[0] != self.class_prefix + SUFFIX:
            return model
        labels = spec.ClassifierHead(label_count(config), bias=False)
        # There is nothing to tie.
        return replace(model, heads=(spec.Pool("last", None), labels), tied=True)

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.Decoder, positions: int) -> list[Rule]:
        rules: list[Rule] = self.decoders.tensor_table(model, positions)
        if model.labels is None:
            return rules
        return [*rules, Rename("labels.output.weight", "score.weight")]
