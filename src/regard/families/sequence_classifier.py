"""A decoder's family whose models may also judge a text instead of going on from it (…ForSequenceClassification).

The same stack, read to its end: the labels are scored from the last token, and there is no vocabulary on top. As a spec that
is an encoder that does not see what follows, so that everything done with classifiers is done with these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.common import label_count, named_labels
from regard.families.tensor_table import Constant, Rule, Same, Unread, labels_of

SUFFIX = "ForSequenceClassification"


@dataclass(frozen=True)
class WithSequenceClassifier:
    """`family`: that of the decoders; `stem`: what the names of its classes begin with."""

    family: Any
    stem: str
    FORM: ClassVar = (kinds.Decoder | kinds.Encoder, kinds.Tokens)

    @property
    def PREFIX(self) -> str:
        return str(self.family.PREFIX)

    def config(self, model: kinds.Decoder | kinds.Encoder, positions: int) -> dict[str, Any]:
        if isinstance(model, kinds.Decoder):
            return dict(self.family.config(model, positions))
        labels = labels_of(model)
        said = self.family.config(_decoder(model), positions) | {
            "architectures": [self.stem + SUFFIX]
        }
        del said["tie_word_embeddings"]  # there is nothing to tie
        return {**said, **named_labels(labels.count if labels else 1)}

    def spec(
        self, config: Mapping[str, Any], stored: Collection[str] = ()
    ) -> kinds.Decoder | kinds.Encoder:
        model: kinds.Decoder = self.family.spec(config, stored)
        named = config.get("architectures")
        if not isinstance(named, list) or not named or named[0] != self.stem + SUFFIX:
            return model
        labels = kinds.ClassifierHead(label_count(config), bias=False)
        return kinds.Encoder(
            model.d_model, model.tokens, model.stack, kinds.Pool("last", None), labels=labels
        )

    def table(self, model: kinds.Decoder | kinds.Encoder, positions: int) -> list[Rule]:
        if isinstance(model, kinds.Decoder):
            return list(self.family.table(model, positions))
        rules: list[Rule] = self.family.table(_decoder(model), positions)
        return [*map(_renamed, rules), Same("labels.output.weight", "score.weight")]


def _decoder(model: kinds.Encoder) -> kinds.Decoder:
    if model.pool is None or model.pool.which != "last":
        raise ModelError(
            "an encoder that does not judge by its last token is no decoder",
            "describe it as an encoder",
        )
    return kinds.Decoder(model.d_model, model.tokens, model.stack)


def _renamed(rule: Rule) -> Rule:
    if isinstance(rule, (Constant, Unread)) or not rule.ours.startswith("tokens."):
        return rule
    ours = f"input.{rule.ours.removeprefix('tokens.')}"
    return Same(ours, rule.theirs) if isinstance(rule, Same) else replace(rule, ours=ours)
