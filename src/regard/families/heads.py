"""The heads of a class of transformers, by the ending of its name: GPT2ForTokenClassification.

A family reads and writes its language model; with a table of other heads, `WithHeads` reads and
writes those too, and the base model without any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from regard import spec
from regard.families.classifier_labels import classifier_head, label_count, label_names
from regard.families.tensor_table import Rule, module_rules, with_prefix
from regard.system.errors import ModelError

_LANGUAGE_MODELS = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel")


@dataclass(frozen=True)
class HeadLayout:
    """What stands on the hidden states in a class of transformers, and how its files name it."""

    parts: Callable[[Mapping[str, Any]], tuple[spec.Head, ...]]  # of a config
    modules: Mapping[str, str] = field(default_factory=dict)  # of ours with weights: their names
    prefix: str | None = None  # before the base model's tensors, where the class has another one


@dataclass(frozen=True)
class HeadTable:
    """The classes of a family besides its language model, by what follows its prefix."""

    class_prefix: str  # "GPT2" in GPT2ForTokenClassification
    layouts: Mapping[str, HeadLayout]


BASE_MODEL = HeadLayout(lambda config: (), prefix="")


@dataclass(frozen=True)
class WithHeads:
    """A family of language models with its other heads, as one family."""

    family: Any
    table: HeadTable

    @property
    def SPEC_TYPES(self) -> tuple[Any, type]:
        types: tuple[Any, type] = self.family.SPEC_TYPES
        return types

    @property
    def PREFIX(self) -> str:
        return str(self.family.PREFIX)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: Any, positions: int) -> dict[str, Any]:
        config: dict[str, Any] = {
            **self.family.to_config(model, positions),
            **label_config(model),
        }
        ending = self._ending(model, config)
        if ending is not None:
            config["architectures"] = [self.table.class_prefix + ending]
        return config

    def _ending(self, model: Any, config: Mapping[str, Any]) -> str | None:
        """What follows the prefix in the class of a model; None of a language model."""
        for ending, layout in self.table.layouts.items():
            if layout.parts(config) == model.heads:
                return ending
        return None

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> Any:
        model = self.family.to_spec(config, stored)
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            return model
        name = str(architectures[0])
        by_name = {
            self.table.class_prefix + ending: layout
            for ending, layout in self.table.layouts.items()
        }
        if name in by_name:
            return model.with_heads(*by_name[name].parts(config))
        if "For" in name and not name.endswith(_LANGUAGE_MODELS):
            written = self.family.to_config(model, 1)["architectures"]
            raise ModelError(
                f"the architecture {name!r} is not supported",
                f"known: {', '.join([*written, *by_name])}",
            )
        return model

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: Any, positions: int) -> list[Rule]:
        rules: list[Rule] = self.family.tensor_table(model, positions)
        ending = self._ending(model, label_config(model))
        if ending is None:
            return rules
        layout = self.table.layouts[ending]
        if layout.prefix is not None:
            rules = with_prefix(rules, self.PREFIX, layout.prefix)
        for ours, theirs in layout.modules.items():
            has_bias = model.labels.bias if ours == "labels.output" else True
            rules += module_rules(ours, theirs, has_bias)
        return rules


def label_config(model: Any) -> dict[str, Any]:
    """What a config says of the labels of a model; nothing without any."""
    labels = classifier_head(model)
    if labels is None:
        return {}
    config: dict[str, Any] = {}
    if labels.task in ("classify", "tag"):
        config |= label_names(labels.count)
    if labels.task == "tag" or labels.dropout:
        config["classifier_dropout"] = labels.dropout
    return config


# ------------------------------------------------------------------ heads that many families have


def last_token_labels(config: Mapping[str, Any]) -> tuple[spec.Head, ...]:
    """Labels of a text, scored from its last token."""
    return spec.Pool("last", None), spec.ClassifierHead(label_count(config), bias=False)


def token_labels(config: Mapping[str, Any]) -> tuple[spec.Head, ...]:
    """A label for each token."""
    dropouts = (config.get(key) for key in ("classifier_dropout", "hidden_dropout"))
    dropout = next((rate for rate in dropouts if rate is not None), 0.1)
    return (spec.ClassifierHead(label_count(config), "tag", dropout=dropout),)


def spans(config: Mapping[str, Any]) -> tuple[spec.Head, ...]:
    """The start and the end of an answer."""
    return (spec.ClassifierHead(2, "answer"),)


# Of decoders, in which a class of labels reads the last token that is no padding.
DECODER_HEADS: dict[str, HeadLayout] = {
    "Model": BASE_MODEL,
    "ForSequenceClassification": HeadLayout(last_token_labels, {"labels.output": "score"}),
    "ForTokenClassification": HeadLayout(token_labels, {"labels.output": "score"}),
    "ForQuestionAnswering": HeadLayout(spans, {"labels.output": "qa_outputs"}),
}
