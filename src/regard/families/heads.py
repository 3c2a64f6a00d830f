"""The heads of a class of transformers, by the ending of its name: GPT2ForTokenClassification.

A family reads and writes its language model; with a table of other heads, `WithHeads` reads and
writes those too, and the base model without any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from regard import spec
from regard.families.config_schema import Config, token_id
from regard.families.tensor_table import (
    ParameterRule,
    Rename,
    Rule,
    Rules,
    Unused,
    hf_names,
    module_rules,
    with_prefix,
)
from regard.system.arguments import is_whole
from regard.system.errors import ModelError


def classifier_head(model: spec.ModelSpec) -> spec.ClassifierHead | None:
    """The classifier of a model, unless it has none or two (DeiT's distilled head)."""
    return model.part(spec.ClassifierHead)


def architecture(
    config: Config, prefix: str, endings: Collection[str], default: str = "Model"
) -> str:
    """What follows the family's prefix in the class that a config names: one of these endings."""
    name = (config.get("architectures") or [prefix + default])[0]
    by_name = {prefix + ending: ending for ending in endings}
    if name not in by_name:
        raise ModelError(
            f"the architecture {name!r} is not supported", f"known: {', '.join(by_name)}"
        )
    return by_name[name]


def label_count(config: Config) -> int:
    """The number of labels. transformers writes their names, or nothing when there are two."""
    names = config.get("id2label")
    if isinstance(names, dict) and names:
        return len(names)
    count = config.get("num_labels") or 2
    if not is_whole(count, 1):
        raise ModelError(
            f"config.json: num_labels cannot be {count!r}", "set it to the number of labels"
        )
    return int(count)


def label_names(count: int) -> Config:
    """The config keys of labels without names: transformers calls them LABEL_0, LABEL_1, ..."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


Side = Literal["encoder", "decoder"]

# Cross-attention and its residual, the second of a decoder's layer.
_CROSS = re.compile(r"\.cross\.|\.residual\.each\.1\.")
KINDS: dict[Side, type] = {"encoder": spec.Encoder, "decoder": spec.Decoder}
_OTHER: dict[Side, Side] = {"encoder": "decoder", "decoder": "encoder"}
_FRONT_ENDS = {"encoder": ("source", "input"), "decoder": ("target", "tokens")}  # there, and alone
_STACK_KEYS = ("layers", "attention_heads", "ffn_dim")
# Keys that say nothing of a class with one stack, besides those of the other stack.
_OTHER_KEYS: dict[Side, tuple[str, ...]] = {
    "encoder": (
        "num_decoder_layers", "max_target_positions", "regard_head_bias", "is_encoder_decoder",
        "tie_word_embeddings", "scale_decoder_outputs",
    ),
    "decoder": ("num_mel_bins", "max_source_positions", "regard_head_bias"),
}  # fmt: skip


# ------------------------------------------------------------------ spec


def part_of(model: spec.EncoderDecoder, side: Side) -> spec.Encoder | spec.Decoder:
    """One stack of a model with what it reads, without heads."""
    if side == "encoder":
        return spec.Encoder(model.d_model, model.source, model.encoder)
    stack = model.decoder.with_blocks(cross=None)
    tied = model.share in ("all", "target")
    return spec.Decoder(model.d_model, model.target_tokens, stack, (), tied)


def whole(model: spec.Encoder | spec.Decoder) -> spec.EncoderDecoder:
    """An encoder–decoder that this model is a stack of; its other stack has one layer."""
    block = model.stack.block
    if isinstance(model, spec.Decoder):
        encoder = spec.Stack.of(1, block, final=model.stack.final)
        decoder = model.stack.with_blocks(cross=block.attention)
        source: Any = model.tokens
        target = model.tokens
        share: Any = "all" if model.tied else "none"
    else:
        encoder = model.stack
        decoder = spec.Stack.of(1, replace(block, cross=block.attention), spec.CausalMask())
        source = model.input
        reads_text = isinstance(source, spec.Tokens)
        target = source if reads_text else spec.Tokens(1)  # it reads nothing
        share = "all" if reads_text else "target"
    return spec.EncoderDecoder(model.d_model, source, target, encoder, decoder, model.heads, share)


# ------------------------------------------------------------------ config.json


def config_of_part(config: Config, side: Side, reads_text: bool) -> Config:
    """The config of `whole` without what it says of the other stack."""
    left_out = {f"{_OTHER[side]}_{key}" for key in _STACK_KEYS} | set(_OTHER_KEYS[side])
    if not reads_text:
        left_out.add("vocab_size")
    one_side = {key: value for key, value in config.items() if key not in left_out}
    if side == "decoder":
        one_side |= {"is_decoder": True, "is_encoder_decoder": False}
    return one_side


def config_of_whole(config: Config, side: Side) -> Config:
    """The config of an encoder–decoder with this stack; what is not said of the other one is as of
    this one, because nothing that transformers assumes for it need fit."""
    alone = ("is_encoder_decoder", "is_decoder")
    other = {
        f"{_OTHER[side]}_{key}": config[f"{side}_{key}"]
        for key in _STACK_KEYS
        if f"{side}_{key}" in config
    }
    return {**other, **{key: value for key, value in config.items() if key not in alone}}


# ------------------------------------------------------------------ tensors


def rules_of_part(rules: Iterable[Rule], side: Side) -> Rules:
    """The rules of `whole` for one stack of it; the tensors of cross-attention are unused."""
    rules = list(rules)
    front, alone = _FRONT_ENDS[side]
    parts = {rule.parameter for rule in rules if isinstance(rule, ParameterRule)}
    # One table of both sides is named by the source.
    table = f"{front if f'{front}.table.weight' in parts else 'source'}.table.weight"
    result: Rules = []
    for rule in rules:
        if not isinstance(rule, ParameterRule):
            if f"{side}." in rule.hf:
                result.append(rule)
            continue
        part, _, name = rule.parameter.partition(".")
        if rule.parameter == table:
            result.append(_table_rule(rule, f"{alone}.{name}", side))
        elif part == "head":
            result.append(rule)
        elif part == front and name != "table.weight":
            result.append(replace(rule, parameter=f"{alone}.{name}"))
        elif part == side and side == "decoder" and _CROSS.search(name):
            result += [Unused(hf) for hf in hf_names(rule)]
        elif part == side:
            if side == "decoder":
                name = name.replace("residual.each.2.", "residual.each.1.")
            result.append(replace(rule, parameter=f"stack.{name}"))
    return result


def _table_rule(rule: ParameterRule, parameter: str, side: Side) -> Rename:
    """The table of a decoder alone is stored as its own; that of an encoder as the shared one."""
    assert isinstance(rule, Rename), "embeddings are stored as they are"
    names = [rule.hf, *rule.aliases]
    if side == "decoder":
        names.sort(key=lambda name: "decoder." not in name)
    return Rename(parameter, names[0], tuple(names[1:]))


_LANGUAGE_MODELS = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel")


@dataclass(frozen=True)
class HeadLayout:
    """What stands on the hidden states in a class of transformers, and how its files name it."""

    parts: Callable[[Config], tuple[spec.Head, ...]]  # of a config
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

    def to_config(self, model: Any, positions: int) -> Config:
        ending = self._ending(model)
        side = None if ending is None else self.table.layouts[ending].side
        config: Config = self.family.to_config(whole(model) if side else model, positions)
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

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> Any:
        layout = self._layout(config)
        if layout is None:
            return self.family.to_spec(config, stored)
        if layout.side is None:
            model = self.family.to_spec(config, stored)
        else:
            entire = self.family.to_spec(config_of_whole(config, layout.side), stored)
            model = part_of(entire, layout.side)
        return model.with_heads(*layout.parts(config))

    def _layout(self, config: Config) -> HeadLayout | None:
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

    def tensor_table(self, model: Any, positions: int) -> Rules:
        ending = self._ending(model)
        if ending is None:
            rules: Rules = self.family.tensor_table(model, positions)
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


def label_config(model: Any) -> Config:
    """What a config says of the labels of a model; nothing without any."""
    labels = classifier_head(model)
    config: Config = {}
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


def last_token_labels(config: Config) -> tuple[spec.Head, ...]:
    """Labels of a text, scored from its last token."""
    return spec.Pool("last", None), spec.ClassifierHead(label_count(config), bias=False)


def token_labels(config: Config) -> tuple[spec.Head, ...]:
    """A label for each token."""
    dropouts = (config.get(key) for key in ("classifier_dropout", "hidden_dropout"))
    dropout = next((rate for rate in dropouts if rate is not None), 0.1)
    return (spec.ClassifierHead(label_count(config), "tag", dropout=dropout),)


def end_token_labels(
    default: int,
) -> Callable[[Config], tuple[spec.Head, ...]]:
    """Labels of a text, scored by two layers from its last end token, whose id has this default."""

    def parts(config: Config) -> tuple[spec.Head, ...]:
        dropout = config.get("classifier_dropout") or 0.0  # on the input of both layers
        end = spec.EndToken(token_id(config, "eos_token_id", default), "last")
        labels = spec.ClassifierHead(label_count(config), dropout=dropout)
        return spec.Pool(end, "tanh", dropout), labels

    return parts


def spans(config: Config) -> tuple[spec.Head, ...]:
    """The start and the end of an answer."""
    return (spec.ClassifierHead(2, "answer"),)


def named_token_choices(config: Config) -> tuple[spec.Head, ...]:
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
