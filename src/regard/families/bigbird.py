"""BigBird, as transformers has it: BERT whose long inputs see blocks around them, and the first and last block.

Only in training does transformers draw random blocks. In evaluation all of them are the first block, which then counts
that many times more: so computed is this model here, always. Inputs too short for that see everything. Its answers to
questions, which have a layer of their own, are refused, and so are projections without bias.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.bert import BERT
from regard.families.bert_layout import FIXED, IGNORED, SEGMENTED, TOPS, Dense
from regard.families.common import ACTIVATIONS
from regard.families.tensor_table import ConfigSchema, Rule, Unread, labels_of

BASE = replace(
    BERT,
    name="big_bird",
    stem="BigBird",
    keys=ConfigSchema(
        {
            **SEGMENTED,
            "vocab_size": 50358,
            "hidden_act": "gelu_new",
            "max_position_embeddings": 4096,
        },
        {**FIXED, "use_bias": True},
        {},
        IGNORED,
    ),
    tops={
        **{name: top for name, top in TOPS.items() if name != "ForQuestionAnswering"},
        "ForPreTraining": (True, "next"),
    },
    labels={**BERT.labels, "classify": "classifier.out_proj"},
    pooler="pooler",
    dense=Dense("classifier.dense", "gelu_tanh"),
)
FORM, PREFIX = BASE.FORM, BASE.PREFIX
OWN = ConfigSchema(
    {
        "attention_type": "block_sparse",
        "block_size": 64,
        "num_random_blocks": 3,
        "rescale_embeddings": False,
    },
    {},
    {},
)


def config(model: kinds.Encoder, positions: int) -> dict[str, Any]:
    sparse = model.stack.position
    said: dict[str, Any] = {"attention_type": "original_full"}
    if isinstance(sparse, kinds.RepeatedBlockBias):
        said = {
            "attention_type": "block_sparse",
            "block_size": sparse.size,
            "num_random_blocks": sparse.times,
        }
    return {**BASE.config(model, positions), **said, "rescale_embeddings": model.tokens.scale}


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
    own = OWN({key: value for key, value in config.items() if key in OWN.read})
    rest = {key: value for key, value in config.items() if key not in OWN.read}
    act = ACTIVATIONS.get(config.get("hidden_act") or "gelu_new", "gelu_tanh")
    model = replace(BASE, dense=Dense("classifier.dense", act)).spec(rest, stored)
    stack = model.stack
    if own["attention_type"] not in ("original_full", "block_sparse"):
        raise ModelError(
            f"config.json: attention_type cannot be {own['attention_type']!r}",
            "say block_sparse or original_full",
        )
    if own["attention_type"] == "block_sparse":
        stack = replace(stack, pattern=_pattern(own), position=_repeated(own))
    return replace(model, input=replace(model.tokens, scale=own["rescale_embeddings"]), stack=stack)


def _pattern(own: Mapping[str, Any]) -> kinds.MaskPattern:
    size = own["block_size"]
    return kinds.LongerThan(
        _short(own), kinds.Or(kinds.BlockLocalMask(size, 1), kinds.GlobalMask(1, 1, size))
    )


def _repeated(own: Mapping[str, Any]) -> kinds.RepeatedBlockBias:
    return kinds.RepeatedBlockBias(own["block_size"], own["num_random_blocks"], _short(own))


def _short(own: Mapping[str, Any]) -> int:
    """The longest input that sees everything."""
    return (5 + 2 * own["num_random_blocks"]) * own["block_size"]


def table(model: kinds.Encoder, positions: int) -> list[Rule]:
    """Where the classifier has a layer of its own, their reader still asks for the pooler."""
    rules, labels, d_model = BASE.table(model, positions), labels_of(model), model.d_model
    if labels is None or labels.task != "classify":
        return rules
    shapes = {f"{PREFIX}pooler.weight": (d_model, d_model), f"{PREFIX}pooler.bias": (d_model,)}
    return [
        Unread(rule.theirs, shapes[rule.theirs]) if isinstance(rule, Unread) else rule
        for rule in rules
    ]
