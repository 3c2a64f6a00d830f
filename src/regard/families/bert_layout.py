"""BERT and its kin, as transformers has them: one post-norm encoder under several names, with the heads of its tasks.

`Kin` is a family as data; the files of the families say where each departs from BERT. What the architecture in
config.json does not use but the file holds (a pooler beside a vocabulary, say) is opened and written too. Untied
vocabularies are refused: transformers 4 and 5 disagree on which of two biases then acts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.common import Layer, activation, block, label_count, named_labels, norm, sizes
from regard.families.tensor_table import (
    HARMLESS,
    ConfigSchema,
    Constant,
    Moved,
    Rule,
    Same,
    Unread,
    each,
    labels_of,
    module,
)

# What transformers assumes for absent keys. `regard_pooler` is ours: whether there is a pooler, where the architecture
# says otherwise.
SIZES: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "layer_norm_eps": 1e-12, "tie_word_embeddings": True,
    "regard_pooler": True,
}  # fmt: skip
SEGMENTED: dict[str, Any] = {**SIZES, "type_vocab_size": 2, "classifier_dropout": 0.1}
FIXED: dict[str, Any] = {
    "is_decoder": False, "add_cross_attention": False, "is_encoder_decoder": False, "tie_encoder_decoder": False,
    "position_embedding_type": "absolute", "pruned_heads": {}, "use_bfloat16": False,
}  # fmt: skip
# A way to save memory, and what sentence-transformers does with the scores afterwards.
IGNORED = HARMLESS | {
    "chunk_size_feed_forward",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
}

# What follows the family's name in that of an architecture: whether it has a vocabulary, and the task of its labels.
Top = tuple[bool, kinds.HeadTask | None]
TOPS: dict[str, Top] = {
    "Model": (False, None), "ForMaskedLM": (True, None), "ForSequenceClassification": (False, "classify"),
    "ForTokenClassification": (False, "tag"), "ForQuestionAnswering": (False, "answer"),
}  # fmt: skip
LABELS: dict[kinds.HeadTask, str] = {
    "classify": "classifier",
    "tag": "classifier",
    "answer": "qa_outputs",
}
DROPS: dict[kinds.HeadTask, str] = {"classify": "classifier_dropout", "tag": "classifier_dropout"}


@dataclass(frozen=True)
class Head:
    """Their names for the parts of the map to the vocabulary. Its activation is that of the layers, unless said."""

    dense: str
    norm: str
    bias: str
    decoder: str
    activation: kinds.Activation | None = None


@dataclass(frozen=True)
class Dense:
    """The layer that makes the vector to classify by, where it is not the pooler; `dropped`: dropout acts before it too."""

    name: str
    activation: kinds.Activation
    dropped: bool = True


@dataclass(frozen=True)
class Kin:
    """One of these families: what its config may say, its names for tensors, and where its machine is not BERT's."""

    name: str
    stem: str  # of its architectures
    PREFIX: str
    keys: ConfigSchema
    head: Head
    layer: Layer = field(default_factory=Layer)
    tops: Mapping[str, Top] = field(default_factory=lambda: TOPS)
    labels: Mapping[kinds.HeadTask, str] = field(default_factory=lambda: LABELS)
    drops: Mapping[kinds.HeadTask, str] = field(
        default_factory=lambda: DROPS
    )  # the key that says the labels' dropout
    words: Mapping[str, str] = field(default_factory=dict)  # its own, for BERT's keys
    pooler: str | None = "pooler.dense"
    dense: Dense | None = None
    hidden: str | None = None  # before the labels that detect
    project: str | None = None
    projects: bool = False  # even where both widths are equal
    shared: bool = False
    offset: int | None = 0  # of the positions; None: one more than the padding token
    buckets: kinds.T5Bias | None = None
    FORM: ClassVar = (kinds.Encoder, kinds.Tokens)

    def config(self, model: kinds.Encoder, positions: int) -> dict[str, Any]:
        labels, place = labels_of(model), learned(model)
        top = (model.head is not None, labels.task if labels else None)
        suffix = next((name for name, known in self.tops.items() if known == top), "")
        all_sizes = {
            **sizes(model.d_model, model.stack),
            "vocab_size": model.tokens.vocabulary,
            "embedding_size": model.tokens.width or model.d_model,
            "max_position_embeddings": place.length + place.offset
            if model.tokens.position
            else positions,
            "type_vocab_size": model.tokens.segments,
        }
        said = {self.words.get(key, key): value for key, value in all_sizes.items()}
        dropout = (
            {self.drops[labels.task]: labels.dropout}
            if labels and labels.task in self.drops
            else {}
        )
        counted = labels.count if labels and labels.task in ("classify", "tag") else 0
        pooler = model.pool is not None
        return {
            "model_type": self.name,
            "architectures": [self.stem + suffix],
            **dropout,
            **{key: value for key, value in said.items() if key in self.keys.read},
            **({"pad_token_id": place.offset - 1} if self.offset is None else {}),
            **(named_labels(counted) if counted else {}),
            **({"regard_pooler": pooler} if pooler != self._pooled(top) else {}),
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
        top = vocabulary, task = self._top(config, stored)
        values = self._values(
            config, self._stores(stored, self.pooler) if stored else self._pooled(top)
        )
        if vocabulary and not values["tie_word_embeddings"]:
            raise ModelError(
                "the vocabulary is not tied to the embeddings", "set tie_word_embeddings if it is"
            )
        d_model, dropout = values["hidden_size"], values["hidden_dropout_prob"]
        width, layer = values.get("embedding_size", d_model), block(values, kinds.PostNorm())
        transform = kinds.HeadTransform(
            width, self.head.activation or layer.feedforward.activation, layer.norm
        )
        return kinds.Encoder(
            d_model,
            kinds.Tokens(
                values["vocab_size"], self._positions(values, config.get("pad_token_id", 1)), False, dropout,
                values.get("type_vocab_size") or 0, layer.norm, width if self.projects or width != d_model else None,
            ),
            kinds.Stack(values["num_hidden_layers"], layer, position=self.buckets, shared=self.shared),
            self._pool(task, values),
            kinds.LMHead(True, transform=transform) if vocabulary else None,
            self._labels(task, values, config),
        )  # fmt: skip

    def _top(self, config: Mapping[str, Any], stored: Collection[str]) -> Top:
        """What stands on the stack: what the architecture says, and what the file holds beside it. A file whose names lack
        the prefix is that of the bare model, whatever its config goes on saying."""
        bare = bool(stored) and not any(name.startswith(self.PREFIX) for name in stored)
        named = config.get("architectures")
        said = f"{self.stem}Model" if bare or not named or not isinstance(named, list) else named[0]
        known = {self.stem + suffix: top for suffix, top in self.tops.items()}
        if said not in known:
            raise ModelError(
                f"the architecture {said!r} is not understood", f"known: {', '.join(known)}"
            )
        vocabulary, task = known[said]
        if task not in (None, "next"):
            return vocabulary, task
        follows = task == "next" or self._stores(stored, self.labels.get("next"))
        return vocabulary or self._stores(stored, self.head.dense), "next" if follows else None

    def _stores(self, stored: Collection[str], name: str | None) -> bool:
        return name is not None and any(
            f"{prefix}{name}.weight" in stored for prefix in ("", self.PREFIX)
        )

    def _pooled(self, top: Top) -> bool:
        """Whether the architecture makes one vector of an input."""
        return top[1] in ("classify", "next") or (top == (False, None) and self.pooler is not None)

    def _values(self, config: Mapping[str, Any], pooler: bool) -> dict[str, Any]:
        """The config in BERT's words, with what is fixed."""
        said = {
            "regard_pooler": pooler,
            **{key: value for key, value in config.items() if value is not None},
        }
        if "classifier_dropout" in self.keys.read:
            said.setdefault(
                "classifier_dropout",
                said.get("hidden_dropout_prob", self.keys.read["hidden_dropout_prob"]),
            )
        values = self.keys(said)
        return {
            **self.keys.fixed,
            **values,
            **{word: values[own] for word, own in self.words.items()},
        }

    def _positions(self, values: Mapping[str, Any], pad: Any) -> kinds.LearnedPosition:
        rows, offset = values["max_position_embeddings"], self.offset
        if offset is None:
            offset = pad + 1 if isinstance(pad, int) and pad >= 0 else rows
        if offset >= rows:
            raise ModelError(
                f"config.json leaves none of {rows} positions",
                "correct pad_token_id or max_position_embeddings",
            )
        return kinds.LearnedPosition(rows - offset, offset)

    def _pool(self, task: kinds.HeadTask | None, values: Mapping[str, Any]) -> kinds.Pool | None:
        if task == "classify" and self.dense is not None:
            dropout = values[self.drops[task]] if self.dense.dropped else 0.0
            return kinds.Pool("first", self.dense.activation, dropout)
        return (
            kinds.Pool()
            if self.pooler and (values["regard_pooler"] or task in ("classify", "next"))
            else None
        )

    def _labels(
        self, task: kinds.HeadTask | None, values: Mapping[str, Any], config: Mapping[str, Any]
    ) -> kinds.ClassifierHead | None:
        if task is None:
            return None
        if task == "detect":
            return kinds.ClassifierHead(1, task, activation(values["hidden_act"]))
        count = label_count(config) if task in ("classify", "tag") else 2
        return kinds.ClassifierHead(
            count, task, dropout=values[self.drops[task]] if task in self.drops else 0.0
        )

    def table(self, model: kinds.Encoder, positions: int) -> list[Rule]:
        labels = labels_of(model)
        inside = self.PREFIX if model.head or labels else ""
        absolute = f"{inside}embeddings.position_embeddings.weight"
        embeddings, tied = (
            f"{inside}embeddings",
            (f"{self.head.decoder}.weight",) if model.head else (),
        )
        return [
            Same("input.table.weight", f"{embeddings}.word_embeddings.weight", tied),
            # Files may hold a table of places that only their pretraining used.
            Same("input.position.table", absolute) if model.tokens.position else Unread(absolute),
            *(
                module("input.segments", f"{embeddings}.token_type_embeddings", False)
                if model.tokens.segments
                else []
            ),
            *norm("input.norm", f"{embeddings}.LayerNorm"),
            *(module("input.project", f"{inside}{self.project}") if model.tokens.width else []),
            *(
                [Same("stack.position.table", f"{inside}encoder.relative_attention_bias.weight")]
                if self.buckets
                else []
            ),
            *each(1 if self.shared else model.stack.layers, self.layer.rules(model, inside)),
            *(self._vocabulary() if model.head else []),
            *self._pooling(model, inside),
            *(self._classes(labels) if labels else []),
            Constant(
                f"{embeddings}.position_ids", lambda: torch.arange(positions)[None], written=False
            ),
        ]

    def _vocabulary(self) -> list[Rule]:
        copy = f"{self.head.decoder}.bias"
        return [
            *module("head.transform.dense", self.head.dense),
            *norm("head.transform.norm", self.head.norm),
            Same("head.bias", self.head.bias, (copy,) if copy != self.head.bias else ()),
        ]

    def _pooling(self, model: kinds.Encoder, inside: str) -> list[Rule]:
        """Old files hold the pooler even where the classifier has a dense layer of its own."""
        pooler = [f"{inside}{self.pooler}.{kind}" for kind in ("weight", "bias") if self.pooler]
        labels = labels_of(model)
        if labels and labels.task == "classify" and self.dense is not None:
            return [*module("pool.dense", self.dense.name), *(Unread(name) for name in pooler)]
        return [*module("pool.dense", f"{inside}{self.pooler}")] if model.pool else []

    def _classes(self, labels: kinds.ClassifierHead) -> list[Moved]:
        hidden = module("labels.dense", str(self.hidden)) if labels.hidden else []
        return [*hidden, *module("labels.output", self.labels[labels.task])]


def learned(model: kinds.Encoder) -> kinds.LearnedPosition:
    """Its positions; those of a model that is none of these are read back as others, and so it does not match."""
    place = model.tokens.position
    return place if isinstance(place, kinds.LearnedPosition) else kinds.LearnedPosition(1)
