"""The layout of BERT and its relatives in transformers: one post-norm encoder, several heads.

`BertFamily` is a family as data; the files of the families say where each departs from BERT.
A head that the architecture in config.json does not use but the file holds (a pooler next to a
language-model head, say) is opened and written too. Untied output matrices are refused:
transformers 4 and 5 disagree on which of two biases then acts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from regard import spec
from regard.families.block_config import (
    BERT_KEYS,
    block_from_config,
    stack_config,
)
from regard.families.config_schema import IGNORED_KEYS, Config, ConfigSchema
from regard.families.heads import architecture, classifier_head, label_count, label_names
from regard.families.layer_names import LayerNames, norm_rules
from regard.families.preset_changes import with_changes
from regard.families.preset_settings import (
    ENCODER_DEFAULTS,
    TEXT_KEYS,
    FromConfig,
    PresetFamily,
    Size,
)
from regard.families.tensor_table import (
    Rename,
    Rules,
    Unused,
    module_rules,
    position_ids,
)
from regard.system.errors import ModelError

# ------------------------------------------------------------------ config keys

# What transformers assumes for absent keys. `regard_pooler` is a key of ours: whether there is a
# pooler, where the architecture says otherwise.
DEFAULTS: Config = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,  # d_ff
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,  # on embeddings and sublayer outputs
    "attention_probs_dropout_prob": 0.1,  # on attention weights
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "tie_word_embeddings": True,
    "regard_pooler": True,
}
# For families with token type (segment) embeddings.
SEGMENT_DEFAULTS: Config = {**DEFAULTS, "type_vocab_size": 2, "classifier_dropout": 0.1}
FIXED: Config = {
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "tie_encoder_decoder": False,
    "position_embedding_type": "absolute",  # relative ones are other models
    "pruned_heads": {},
    "use_bfloat16": False,
}
IGNORED = IGNORED_KEYS | {
    "sbert_ce_default_activation_function",  # acts on the scores of sentence-transformers
    "sentence_transformers",
}

# ------------------------------------------------------------------ heads


@dataclass(frozen=True)
class Heads:
    """The heads of an architecture: over the vocabulary or not, and the task of its labels."""

    language_model: bool = False
    task: spec.HeadTask | None = None


# By what follows the family's name in that of an architecture: BertForMaskedLM.
HEADS: dict[str, Heads] = {
    "Model": Heads(),
    "ForMaskedLM": Heads(language_model=True),
    "ForSequenceClassification": Heads(task="classify"),
    "ForTokenClassification": Heads(task="tag"),
    "ForQuestionAnswering": Heads(task="answer"),
    "ForMultipleChoice": Heads(task="choice"),
}
CLASSIFIERS: dict[spec.HeadTask, str] = {
    "classify": "classifier",  # one label for the text
    "tag": "classifier",  # one label for each token
    "answer": "qa_outputs",  # two scores for each token: start and end
    "choice": "classifier",  # one score for each text that may be chosen
}
CLASSIFIER_DROPOUT: dict[spec.HeadTask, str] = {
    "classify": "classifier_dropout",
    "tag": "classifier_dropout",
    "choice": "classifier_dropout",
}


@dataclass(frozen=True)
class LMHeadNames:
    """The module names of a masked-language-model head.

    `activation` is that of the layers, unless set.
    """

    dense: str
    norm: str
    bias: str
    decoder: str
    activation: spec.Activation | None = None


@dataclass(frozen=True)
class ClassifierDense:
    """The dense layer before a sequence classifier, where it is not the pooler.

    `input_dropout`: dropout acts before this layer too.
    """

    name: str
    activation: spec.Activation
    input_dropout: bool = True


# ------------------------------------------------------------------ the family


@dataclass(frozen=True)
class BertFamily:
    """A relative of BERT: its config schema, its tensor names, and where its model differs."""

    model_type: str
    class_prefix: str  # of its architectures: "Bert" in BertForMaskedLM
    PREFIX: str  # of the base model's tensors in one with a head
    schema: ConfigSchema
    lm_head: LMHeadNames  # over the vocabulary
    layer: LayerNames = field(default_factory=LayerNames)
    heads: Mapping[str, Heads] = field(default_factory=lambda: HEADS)
    classifiers: Mapping[spec.HeadTask, str] = field(default_factory=lambda: CLASSIFIERS)
    # The config key of the dropout before a classifier.
    classifier_dropout: Mapping[spec.HeadTask, str] = field(
        default_factory=lambda: CLASSIFIER_DROPOUT
    )
    labelled: tuple[spec.HeadTask, ...] = ("classify", "tag")  # whose classes the config counts
    keys: Mapping[str, str] = field(default_factory=lambda: BERT_KEYS)  # of its stack
    pooler: str | None = "pooler.dense"
    classifier_dense: ClassifierDense | None = None
    choice_dense: ClassifierDense | None = None  # the same before the scores of choices
    detection_dense: str | None = None  # ELECTRA's layer before the detection of replaced tokens
    answer_feedforward: str | None = None  # BigBird's sublayer before the scores of spans
    embedding_projection: str | None = None  # from narrow embeddings to hidden_size
    always_projects: bool = False  # even where embeddings are as wide as the layers
    position_offset: int | None = 0  # None: one more than the id of the padding token
    relative_bias: spec.T5Bias | None = None  # of the attention scores (MPNet)
    CAUSAL_CLASS: str | None = None  # its language model with `is_decoder`
    SPEC_TYPES: ClassVar = (spec.Encoder, spec.Tokens)

    def presets(
        self,
        sizes: Mapping[str, Size],
        vocabulary: int,
        context: int = 512,
        default: str = "base",
        *,
        defaults: Config = ENCODER_DEFAULTS,
        keys: Mapping[str, str] = MappingProxyType({}),
        computed: Callable[[Any], Config] = lambda settings: {},
        to_spec: Callable[..., spec.Encoder] | None = None,
        **constants: Any,
    ) -> PresetFamily:
        """The presets of these sizes, masked language models; `keys` are those besides BERT's."""
        make = FromConfig(
            to_spec or self.to_spec,
            {**self.keys, **TEXT_KEYS, **keys},
            {"architectures": [f"{self.class_prefix}ForMaskedLM"], **constants},
            computed,
        )
        return PresetFamily("encoder", make, sizes, defaults, vocabulary, context, default)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.Encoder, positions: int) -> Config:
        labels = classifier_head(model)
        heads = Heads(model.head is not None, labels.task if labels else None)
        config: Config = {
            "model_type": self.model_type,
            "architectures": [self.class_prefix + self._suffix(heads)],
        }
        if labels and labels.task in self.classifier_dropout:
            config[self.classifier_dropout[labels.task]] = labels.dropout
        sizes = self._sizes(model, positions)
        config |= {key: value for key, value in sizes.items() if key in self.schema.defaults}
        if self.position_offset is None:
            config["pad_token_id"] = learned_positions(model).offset - 1
        if labels and labels.task in self.labelled:
            config |= label_names(labels.count)
        has_pooler = model.pool is not None
        if has_pooler != self._architecture_pools(heads):
            config["regard_pooler"] = has_pooler
        return config

    def _suffix(self, heads: Heads) -> str:
        for suffix, candidate in self.heads.items():
            if candidate == heads:
                return suffix
        return ""  # an architecture that cannot be read back, so that the spec does not match

    def _sizes(self, model: spec.Encoder, positions: int) -> Config:
        """All sizes that a family may have keys for."""
        if model.tokens.position:
            learned = learned_positions(model)
            positions = learned.length + learned.offset
        return {
            **stack_config(model.d_model, model.stack, self.keys),
            "vocab_size": model.tokens.vocabulary,
            "embedding_size": model.tokens.width or model.d_model,
            "max_position_embeddings": positions,
            "type_vocab_size": model.tokens.segments,
            "num_hidden_groups": len(model.stack.unique_layers),
        }

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.Encoder:
        heads = self._heads(config, stored)
        # The file shows whether there is a pooler; without it, the architecture decides.
        if stored:
            has_pooler = self._stores(stored, self.pooler)
        else:
            has_pooler = self._architecture_pools(heads)
        values = self._values(config, has_pooler)
        if heads.language_model and not values["tie_word_embeddings"]:
            raise ModelError(
                "config.json: tie_word_embeddings=false is not supported for masked-LM heads",
                "set it to true if the output matrix is the embedding",
            )
        d_model = values["d_model"]
        embedding_size = values.get("embedding_size") or d_model
        # Embeddings narrower than the layers are projected (ALBERT, ELECTRA).
        projects = self.always_projects or embedding_size != d_model
        block = block_from_config(values, spec.PostNorm(), self.keys)
        tokens = spec.Tokens(
            values["vocab_size"],
            self._positions(values, config.get("pad_token_id", 1)),
            scale=False,
            dropout=block.dropout,
            segments=values.get("type_vocab_size") or 0,
            norm=block.norm,
            width=embedding_size if projects else None,
        )
        groups = values.get("num_hidden_groups")  # ALBERT's
        stack = spec.Stack.of(
            values["layers"],
            block,
            position=self.relative_bias,
            scheme=spec.Shared(groups) if groups else spec.Plain(),
        )
        lm_head = None
        if heads.language_model:
            activation = self.lm_head.activation or block.feedforward.activation
            transform = spec.HeadTransform(embedding_size, activation, block.norm)
            lm_head = spec.LMHead(True, transform=transform)
        return spec.Encoder(
            d_model,
            tokens,
            stack,
            spec.heads(
                self._pool(heads.task, values),
                lm_head,
                self._classifier(heads.task, values, config, block),
            ),
        )

    def _heads(self, config: Config, stored: Collection[str]) -> Heads:
        """The heads that the architecture names, and those that the file holds besides.

        A file whose names lack the prefix is that of the base model, whatever its config says.
        """
        if stored and not any(name.startswith(self.PREFIX) for name in stored):
            config = {}
        heads = self.heads[architecture(config, self.class_prefix, self.heads)]
        # Fine-tuned models have the head of their task only.
        if heads.task not in (None, "next"):
            return heads
        next_sentence = heads.task == "next" or self._stores(stored, self.classifiers.get("next"))
        return Heads(
            heads.language_model or self._stores(stored, self.lm_head.dense),
            "next" if next_sentence else None,
        )

    def _stores(self, stored: Collection[str], module: str | None) -> bool:
        if module is None:
            return False
        return f"{module}.weight" in stored or f"{self.PREFIX}{module}.weight" in stored

    def _architecture_pools(self, heads: Heads) -> bool:
        """Whether transformers builds a pooler for these heads."""
        if heads.task in ("classify", "next", "choice"):
            return True
        return heads == Heads() and self.pooler is not None

    def _values(self, config: Config, has_pooler: bool) -> Config:
        """The values of the config, with those that are fixed, and by what the keys are."""
        config = {key: value for key, value in config.items() if value is not None}
        config.setdefault("regard_pooler", has_pooler)
        defaults = self.schema.defaults
        if "classifier_dropout" in defaults:
            hidden_dropout = config.get("hidden_dropout_prob", defaults["hidden_dropout_prob"])
            # transformers falls back to the dropout of the layers.
            config.setdefault("classifier_dropout", hidden_dropout)
        # Constants of the family, such as DistilBERT's epsilon, are values like any other.
        values = {**self.schema.fixed, **self.schema.parse(config)}
        return {**values, **{name: values[key] for key, name in self.keys.items()}}

    def _positions(self, values: Config, pad: Any) -> spec.LearnedPosition:
        rows = values["max_position_embeddings"]
        offset = self.position_offset
        if offset is None:
            # RoBERTa counts positions from behind the padding token's id.
            is_id = isinstance(pad, int) and pad >= 0
            offset = pad + 1 if is_id else rows
        if offset >= rows:
            raise ModelError(
                f"config.json: pad_token_id {pad!r} leaves no positions of "
                f"max_position_embeddings {rows}",
                "correct pad_token_id or max_position_embeddings",
            )
        return spec.LearnedPosition(rows - offset, offset, offset - 1 if offset else None)

    def _pool(self, task: spec.HeadTask | None, values: Config) -> spec.Pool | None:
        dense = self._dense(task)
        if task and dense is not None:
            dropout = values[self.classifier_dropout[task]] if dense.input_dropout else 0.0
            return spec.Pool("first", dense.activation, dropout)
        if self.pooler and (values["regard_pooler"] or task in ("classify", "next", "choice")):
            return spec.Pool()
        return None

    def _dense(self, task: spec.HeadTask | None) -> ClassifierDense | None:
        """The dense layer before the scores of a task, where it is not the pooler."""
        if task == "classify":
            return self.classifier_dense
        return self.choice_dense if task == "choice" else None

    def _classifier(
        self,
        task: spec.HeadTask | None,
        values: Config,
        config: Config,
        block: spec.Block,
    ) -> spec.ClassifierHead | None:
        if task is None:
            return None
        if task == "detect":
            return spec.ClassifierHead(1, task, block.feedforward.activation)
        # Two: follows or not, where a span starts and where it ends.
        count = 1 if task == "choice" else 2
        if task in self.labelled:
            count = label_count(config)
        key = self.classifier_dropout.get(task)
        feedforward = None
        if task == "answer" and self.answer_feedforward:
            inner = block.feedforward
            feedforward = spec.HeadFeedForward(
                inner.d_ff, inner.activation, block.norm, block.dropout
            )
        dropout = values[key] if key else 0.0
        return spec.ClassifierHead(count, task, dropout=dropout, feedforward=feedforward)

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.Encoder, positions: int) -> Rules:
        labels = classifier_head(model)
        prefix = self.PREFIX if model.head or labels else ""
        rules = self._embedding_rules(model, prefix, positions)
        if self.relative_bias:
            hf = f"{prefix}encoder.relative_attention_bias.weight"
            rules.append(Rename("stack.positions.0.table", hf))
        rules += self.layer.stack_rules(model.stack, hf=prefix)
        if model.head:
            rules += self._lm_head_rules()
        rules += self._pooler_rules(model, prefix)
        if labels:
            rules += self._classifier_rules(labels)
        return rules

    def _embedding_rules(self, model: spec.Encoder, prefix: str, positions: int) -> Rules:
        embeddings = f"{prefix}embeddings"
        position = f"{embeddings}.position_embeddings.weight"
        # The decoder of the language-model head is tied to the embedding.
        aliases = (f"{self.lm_head.decoder}.weight",) if model.head else ()
        rules: Rules = [
            Rename("input.table.weight", f"{embeddings}.word_embeddings.weight", aliases)
        ]
        if model.tokens.position:
            rules.append(Rename("input.position.table", position))
        else:
            # DeBERTa's files may hold absolute positions that only pretraining used.
            rules.append(Unused(position))
        if model.tokens.segments:
            hf = f"{embeddings}.token_type_embeddings"
            rules += module_rules("input.segments", hf, bias=False)
        rules += norm_rules("input.norm", f"{embeddings}.LayerNorm")
        if model.tokens.width:
            rules += module_rules("input.project", f"{prefix}{self.embedding_projection}")
        return [*rules, position_ids(f"{embeddings}.position_ids", 1, positions)]

    def _lm_head_rules(self) -> Rules:
        names = self.lm_head
        decoder_bias = f"{names.decoder}.bias"  # another name of the same tensor
        aliases = (decoder_bias,) if decoder_bias != names.bias else ()
        return [
            *module_rules("head.transform.dense", names.dense),
            *norm_rules("head.transform.norm", names.norm),
            Rename("head.bias", names.bias, aliases),
        ]

    def _pooler_rules(self, model: spec.Encoder, prefix: str) -> Rules:
        labels = classifier_head(model)
        pooler = f"{prefix}{self.pooler}"
        dense = self._dense(labels.task) if labels else None
        if dense is not None:
            rules: Rules = [*module_rules("pool.dense", dense.name)]
            if self.pooler:
                # Old files hold the pooler even where the classifier does not use it.
                rules += [Unused(f"{pooler}.weight"), Unused(f"{pooler}.bias")]
            return rules
        return [*module_rules("pool.dense", pooler)] if model.pool else []

    def _classifier_rules(self, labels: spec.ClassifierHead) -> Rules:
        rules: Rules = []
        if labels.hidden:
            rules += module_rules("labels.dense", str(self.detection_dense))
        if labels.feedforward:
            hf = self.answer_feedforward
            rules += module_rules(
                "labels.feedforward.feedforward.inner", f"{hf}.intermediate.dense"
            )
            rules += module_rules("labels.feedforward.feedforward.outer", f"{hf}.output.dense")
            rules += norm_rules("labels.feedforward.norm", f"{hf}.output.LayerNorm")
        return rules + module_rules("labels.output", self.classifiers[labels.task])


def with_attention(presets: PresetFamily) -> PresetFamily:
    """The presets with an attention option, which is changed in the spec."""

    def make(settings: Any) -> Any:
        changes = {"attention": settings["attention"]}
        return with_changes(presets.make(settings), settings["context"], changes)

    return replace(presets, make=make)


def learned_positions(model: spec.Encoder) -> spec.LearnedPosition:
    """The learned positions of an encoder.

    Other positions are described as a single learned one; read back, such a spec does not match.
    """
    position = model.tokens.position
    if isinstance(position, spec.LearnedPosition):
        return position
    return spec.LearnedPosition(1)
