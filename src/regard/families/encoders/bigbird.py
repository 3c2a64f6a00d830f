"""BigBird in transformers: BERT whose long inputs attend to blocks.

Each block sees its neighbours, the first and the last block. Only in training does transformers
draw random blocks; in evaluation all of them are the first block, which then counts that many times
more. That is what is computed here, always. Inputs too short for it use full attention.
The scores of answers come from a feed-forward sublayer of their own. Projections without bias are
refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from regard import spec
from regard.families.block_config import ACTIVATIONS
from regard.families.config_schema import Config, ConfigSchema, token_id
from regard.families.encoders.bert import BERT
from regard.families.encoders.bert_layout import (
    FIXED,
    HEADS,
    IGNORED,
    SEGMENT_DEFAULTS,
    ClassifierDense,
    Heads,
)
from regard.families.heads import classifier_head
from regard.families.preset_settings import (
    BASE_LAYERS,
    ENCODER_DEFAULTS,
    LARGE_LAYERS,
    TINY_LAYERS,
    size,
)
from regard.families.tensor_table import Rules, Unused
from regard.system.errors import ModelError

_SEPARATOR = 66  # sep_token_id where config.json does not say it
_CLASSIFIER = ClassifierDense("classifier.dense", "gelu_tanh")
BASE = replace(
    BERT,
    model_type="big_bird",
    class_prefix="BigBird",
    schema=ConfigSchema(
        {
            **SEGMENT_DEFAULTS,
            "vocab_size": 50358,
            "hidden_act": "gelu_new",
            "max_position_embeddings": 4096,
        },
        {**FIXED, "use_bias": True},
        IGNORED,
    ),
    heads={**HEADS, "ForPreTraining": Heads(language_model=True, task="next")},
    classifiers={
        **BERT.classifiers,
        "classify": "classifier.out_proj",
        "answer": "qa_classifier.qa_outputs",
    },
    classifier_dropout={**BERT.classifier_dropout, "choice": "hidden_dropout_prob"},
    pooler="pooler",
    classifier_dense=_CLASSIFIER,
    answer_feedforward="qa_classifier",
)
SPEC_TYPES = BASE.SPEC_TYPES
PREFIX = BASE.PREFIX
CAUSAL_CLASS = "BigBirdForCausalLM"
# The keys that BERT does not have.
_SPARSE = ConfigSchema(
    {
        "attention_type": "block_sparse",  # or original_full
        "block_size": 64,
        "num_random_blocks": 3,  # that many more times the first block
        "rescale_embeddings": False,  # by √hidden_size
    },
)


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    config = BASE.to_config(model, positions)
    config["attention_type"] = "original_full"
    bias = model.stack.block.position
    if isinstance(bias, spec.RepeatedBlockBias):
        config["attention_type"] = "block_sparse"
        config["block_size"] = bias.size
        config["num_random_blocks"] = bias.times
    config["rescale_embeddings"] = model.tokens.scale
    labels = classifier_head(model)
    if labels and labels.excludes:
        config["sep_token_id"] = labels.excludes.separator
    return config


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    sparse_config, bert_config = _SPARSE.split(config)
    values = _SPARSE.parse(sparse_config)
    # The dense layer before the classifier has the activation of the layers.
    activation = ACTIVATIONS.get(str(config.get("hidden_act") or "gelu_new"), "gelu_tanh")
    base = replace(BASE, classifier_dense=replace(_CLASSIFIER, activation=activation))
    model = base.to_spec(bert_config, stored)
    stack = model.stack
    if values["attention_type"] not in ("original_full", "block_sparse"):
        raise ModelError(
            f"config.json: attention_type cannot be {values['attention_type']!r}",
            "set it to block_sparse or original_full",
        )
    if values["attention_type"] == "block_sparse":
        stack = _block_sparse(stack, values["block_size"], values["num_random_blocks"])
    tokens = replace(model.tokens, scale=values["rescale_embeddings"])
    model = replace(model, input=tokens, stack=stack)
    labels = model.labels
    if isinstance(labels, spec.ClassifierHead) and labels.task == "answer":
        separator = token_id(config, "sep_token_id", _SEPARATOR)
        return model.with_head(replace(labels, excludes=spec.QuestionTokens(separator)))
    return model


def _block_sparse(stack: spec.Stack, size: int, random_blocks: int) -> spec.Stack:
    # transformers falls back to full attention up to this length.
    longest_full = (5 + 2 * random_blocks) * size
    blocks = spec.Or(spec.BlockLocalMask(size, 1), spec.GlobalMask(1, 1, size))
    return stack.with_blocks(
        pattern=spec.LongerThan(longest_full, blocks),
        position=spec.RepeatedBlockBias(size, random_blocks, longest_full),
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    rules = BASE.tensor_table(model, positions)
    labels = classifier_head(model)
    if labels is None or labels.task != "classify":
        return rules
    # The classifier does not use the pooler, but transformers asks for its tensors.
    d_model = model.d_model
    shapes = {f"{PREFIX}pooler.weight": (d_model, d_model), f"{PREFIX}pooler.bias": (d_model,)}
    return [
        Unused(rule.hf, shapes[rule.hf]) if isinstance(rule, Unused) else rule for rule in rules
    ]


# ------------------------------------------------------------------ presets

# Zaheer et al. 2020: RoBERTa's sizes.
SIZES = {
    "tiny": size(*TINY_LAYERS, block=16),
    "base": size(*BASE_LAYERS),
    "large": size(*LARGE_LAYERS),
}
_DEFAULTS = {
    **ENCODER_DEFAULTS,
    "activation": "gelu_tanh",
    "block": 64,  # positions in a block
    "random_blocks": 3,
}
_KEYS = {"block_size": "block", "num_random_blocks": "random_blocks"}
PRESETS = {
    "bigbird": BASE.presets(SIZES, 50_358, 4096, defaults=_DEFAULTS, keys=_KEYS, to_spec=to_spec)
}
