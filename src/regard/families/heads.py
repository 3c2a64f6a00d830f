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
from regard.families.config_schema import token_id
from regard.families.one_side import (
    KINDS,
    Side,
    config_of_part,
    config_of_whole,
    part_of,
    rules_of_part,
    whole,
)
from regard.families.tensor_table import Rule, module_rules, with_prefix
from regard.system.errors import ModelError

_LANGUAGE_MODELS = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel")


@dataclass(frozen=True)
class HeadLayout:
    """What stands on the hidden states in a class of transformers, and how its files name it."""

    parts: Callable[[Mapping[str, Any]], tuple[spec.Head, ...]]  # of a config
    modules: Mapping[str, str] = field(default_factory=dict)  # of ours with weights: their names
    prefix: str | None = None  # before the base model's tensors, where the class has another one
    strips: str = ""  # what of their names goes besides the family's own prefix
    side: Side | None = None  # the stack of an encoder–decoder that stands alone


@dataclass(frozen=True)
class HeadTable:
    """The classes of a family besides its language model, by what follows its prefix."""

    class_prefix: str  # "GPT2" in GPT2ForTokenClassification
    layouts: Mapping[str, HeadLayout]


BASE_MODEL = HeadLayout(lambda config: (), prefix="")
DECODER_ALONE = HeadLayout(lambda config: (), prefix="", strips="decoder.", side="decoder")
LANGUAGE_MODEL_ALONE = HeadLayout(lambda config: (spec.LMHead(),), side="decoder")


@dataclass(frozen=True)
class WithHeads:
    """A family of language models with its other heads, as one family."""

    family: Any
    table: HeadTable

    @property
    def SPEC_TYPES(self) -> tuple[Any, Any]:
        kinds, front_ends = self.family.SPEC_TYPES
        for layout in self.table.layouts.values():
            if layout.side is not None:
                kinds |= KINDS[layout.side]
                front_ends |= spec.Tokens
        return kinds, front_ends

    @property
    def PREFIX(self) -> str:
        return str(self.family.PREFIX)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: Any, positions: int) -> dict[str, Any]:
        ending = self._ending(model)
        side = None if ending is None else self.table.layouts[ending].side
        config: dict[str, Any] = self.family.to_config(whole(model) if side else model, positions)
        if side is not None:
            config = config_of_part(config, side, model.embeddings)
        config |= label_config(model)
        if ending is not None:
            config["architectures"] = [self.table.class_prefix + ending]
        return config

    def _ending(self, model: Any) -> str | None:
        """What follows the prefix in the class of a model; None of a language model."""
        config = label_config(model)
        whole_kind = self.family.SPEC_TYPES[0]
        for ending, layout in self.table.layouts.items():
            kind: Any = KINDS[layout.side] if layout.side else whole_kind
            if isinstance(model, kind) and layout.parts(config) == model.heads:
                return ending
        if isinstance(model, whole_kind):
            return None
        raise ModelError("no class of the family has these heads", "save it as another family")

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> Any:
        layout = self._layout(config)
        if layout is None:
            return self.family.to_spec(config, stored)
        if layout.side is None:
            model = self.family.to_spec(config, stored)
        else:
            entire = self.family.to_spec(config_of_whole(config, layout.side), stored)
            model = part_of(entire, layout.side)
        return model.with_heads(*layout.parts(config))

    def _layout(self, config: Mapping[str, Any]) -> HeadLayout | None:
        """That of the class that a config names; None of a language model."""
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            return None
        name = str(architectures[0])
        by_name = {
            self.table.class_prefix + ending: layout
            for ending, layout in self.table.layouts.items()
        }
        if "For" in name and name not in by_name and not name.endswith(_LANGUAGE_MODELS):
            plain = {key: value for key, value in config.items() if key != "architectures"}
            written = self.family.to_config(self.family.to_spec(plain), 1)["architectures"]
            raise ModelError(
                f"the architecture {name!r} is not supported",
                f"known: {', '.join([*written, *by_name])}",
            )
        return by_name.get(name)

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: Any, positions: int) -> list[Rule]:
        ending = self._ending(model)
        if ending is None:
            rules: list[Rule] = self.family.tensor_table(model, positions)
            return rules
        layout = self.table.layouts[ending]
        if layout.side is None:
            rules = self.family.tensor_table(model, positions)
        else:
            rules = self.family.tensor_table(whole(model), positions)
            rules = rules_of_part(rules, layout.side)
        if layout.prefix is not None:
            rules = with_prefix(rules, self.PREFIX + layout.strips, layout.prefix)
        for ours, theirs in layout.modules.items():
            has_bias = model.labels.bias if ours == "labels.output" else True
            rules += module_rules(ours, theirs, has_bias)
        return rules


def label_config(model: Any) -> dict[str, Any]:
    """What a config says of the labels of a model; nothing without any."""
    labels = classifier_head(model)
    config: dict[str, Any] = {}
    if labels is None:
        return config
    if labels.task in ("classify", "tag"):
        config |= label_names(labels.count)
    if labels.task == "choice":
        config["summary_first_dropout"] = labels.dropout
    elif labels.task == "tag" or labels.dropout:
        config["classifier_dropout"] = labels.dropout
    if model.pool is not None and isinstance(model.pool.which, spec.EndToken):
        config["eos_token_id"] = model.pool.which.token
    if model.pool is not None and model.pool.width:
        config["classifier_proj_size"] = model.pool.width
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


def end_token_labels(
    default: int,
) -> Callable[[Mapping[str, Any]], tuple[spec.Head, ...]]:
    """Labels of a text, scored by two layers from its last end token, whose id has this default."""

    def parts(config: Mapping[str, Any]) -> tuple[spec.Head, ...]:
        dropout = config.get("classifier_dropout") or 0.0  # on the input of both layers
        end = spec.EndToken(token_id(config, "eos_token_id", default), "last")
        labels = spec.ClassifierHead(label_count(config), dropout=dropout)
        return spec.Pool(end, "tanh", dropout), labels

    return parts


def spans(config: Mapping[str, Any]) -> tuple[spec.Head, ...]:
    """The start and the end of an answer."""
    return (spec.ClassifierHead(2, "answer"),)


def named_token_choices(config: Mapping[str, Any]) -> tuple[spec.Head, ...]:
    """A language model, and the score of a text among several, from a token that a call names."""
    summary = {
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "summary_activation": None,
        "summary_proj_to_labels": True,
    }
    for key, value in summary.items():
        if config.get(key, value) != value:
            raise ModelError(
                f"config.json: {key} is {config[key]!r}, but only {value!r} is supported",
                "correct the key if it is wrong; otherwise this model cannot be opened",
            )
    dropout = config.get("summary_first_dropout", 0.1)
    return spec.LMHead(), spec.ClassifierHead(1, "choice", dropout=dropout, pool="named")


# GPT's.
DOUBLE_HEADS = HeadLayout(named_token_choices, {"labels.output": "multiple_choice_head.summary"})
SPANS = HeadLayout(spans, {"labels.output": "qa_outputs"})
# Of decoders, in which a class of labels reads the last token that is no padding.
DECODER_HEADS: dict[str, HeadLayout] = {
    "Model": BASE_MODEL,
    "ForSequenceClassification": HeadLayout(last_token_labels, {"labels.output": "score"}),
    "ForTokenClassification": HeadLayout(token_labels, {"labels.output": "score"}),
    "ForQuestionAnswering": SPANS,
}

# Of encoder–decoders: a class of labels reads the decoder's state at the end token of the text.
END_TOKEN_MODULES = {
    "pool.dense": "classification_head.dense",
    "labels.output": "classification_head.out_proj",
}
