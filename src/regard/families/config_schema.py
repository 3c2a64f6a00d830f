"""The closed schema of a family's config.json: an unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.system.arguments import is_number, is_whole
from regard.system.errors import ModelError, UnknownKeyError

# A config.json, or the values of its keys.
Config = dict[str, Any]

# Keys that every config may have, with the one value that an encoder or a decoder alone can have.
NOT_ENCODER_DECODER: Config = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
}

# None of these changes what the model computes. `auto_map`, which would run the folder's own code,
# is missing on purpose: it is refused.
IGNORED_KEYS = frozenset(
    {
        # Notes of transformers, of training and of old versions.
        "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels",
        "architectures", "chunk_size_feed_forward", "classif_dropout", "classifier_dropout",
        "dtype", "extra_pos_embeddings",
        "finetuning_task", "gradient_checkpointing", "id2label", "init_std", "initializer_range",
        "label2id", "language", "max_sequence_length", "model_type", "name", "name_or_path",
        "num_labels", "output_attentions", "output_hidden_states", "output_past", "prefix",
        "problem_type", "return_dict", "task_specific_params", "tokenizer_class", "torch_dtype",
        "torchscript", "total_flos", "transformers_version", "use_cache",
        # Token ids: `folder.special_tokens` reads them.
        "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id",
        "forced_eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
        # Settings of `generate`, which now belong to generation_config.json.
        "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample",
        "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
        "force_bos_token_to_be_generated", "length_penalty", "max_length", "min_length",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
        "output_scores", "remove_invalid_values", "renormalize_logits", "repetition_penalty",
        "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
    }
)  # fmt: skip


# Keys of transformers that no family here reads: code and weights of other kinds, masks and rotary
# positions that a stack may be told to use, and attributes of the configuration class itself.
COMMON_UNSUPPORTED = frozenset(
    {
        "_auto_class", "attention_chunk_size", "attribute_map", "auto_map", "base_config_key",
        "base_model_ep_plan", "base_model_fsdp_plan", "base_model_pp_plan", "base_model_tp_plan",
        "compression_config", "fusion_config", "is_causal", "kernel_config", "layer_types",
        "partial_rotary_factor", "per_layer_config", "quantization_config", "rope_parameters",
        "rope_scaling", "rope_theta", "sliding_window", "sub_configs_defaults",
        "transformers_weights",
    }
)  # fmt: skip

# ------------------------------------------------------------------ kinds of defaults


@dataclass(frozen=True)
class SizeOrNull:
    """The default of a size where null differs from absence: null means that there is none."""

    default: int | None
    words = "a whole number of at least 1, or null"

    def allows(self, value: Any) -> bool:
        return value is None or _is_size(value)


@dataclass(frozen=True)
class NumberOrNull:
    """The default of a number where null differs from absence."""

    default: float | None = None
    words = "a number, or null"

    def allows(self, value: Any) -> bool:
        return value is None or is_number(value, 0)


@dataclass(frozen=True)
class NonNegative:
    """The default of a whole number that is no size: it may be 0."""

    default: int
    words = "a whole number of at least 0"

    def allows(self, value: Any) -> bool:
        return is_whole(value)


@dataclass(frozen=True)
class OptionalSizes:
    """One size, or a list of them, which is read as a tuple; None where there is none."""

    default = None
    words = "a whole number of at least 1, or a list of such"

    def allows(self, value: Any) -> bool:
        return value is None or (len(value) > 0 and all(map(_is_size, value)))


DefaultKind = SizeOrNull | NumberOrNull | NonNegative | OptionalSizes


# ------------------------------------------------------------------ the schema


@dataclass(frozen=True)
class ConfigSchema:
    """The closed schema of a family's config.json.

    `defaults`: the keys that are read, with the value that transformers assumes for an absent one.
    `fixed`: keys that may have one value only.
    `synonyms`: other names of a key that is read.
    `ignored`: keys that change nothing.
    `unsupported`: keys that transformers reads, so that a model without them would be another one.
    """

    defaults: Config
    fixed: Config = field(default_factory=dict)
    ignored: frozenset[str] = IGNORED_KEYS
    synonyms: Mapping[str, str] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()

    def parse(self, config: Config) -> Config:
        """The value of every key that is read.

        A key that is not even transformers' raises an `UnknownKeyError`: `folder.reading` ignores
        it.
        """
        values = {key: _value(config, key, default) for key, default in self.defaults.items()}
        for key, value in values.items():
            is_rate = "drop" in key  # a probability
            if not _is_valid(value, self.defaults[key]) or (is_rate and value > 1):
                raise ModelError(
                    f"config.json: {key} cannot be {value!r}",
                    f"set it to {_expected(self.defaults[key])}",
                )
        # A synonym must agree with the key that it stands for.
        expected = {**self.fixed, **{name: values[key] for name, key in self.synonyms.items()}}
        for key, value in config.items():
            if key in expected and value is not None and value != expected[key]:
                raise ModelError(
                    f"config.json: {key} is {value!r}, but only {expected[key]!r} is supported",
                    "correct the key if it is wrong; otherwise this model cannot be opened",
                )
            if not (key in expected or key in values or key in self.ignored):
                raise self._unknown(key)
        return values

    def _unknown(self, key: str) -> ModelError:
        if key == "quantization_config":
            return ModelError(
                "config.json has a quantization_config: quantized weights are not supported",
                "download it in bf16, or let transformers dequantize and save it",
            )
        problem = f"config.json has an unsupported key: {key}"
        repair = (
            "remove it if it does not change what the model computes; "
            "otherwise this model cannot be opened"
        )
        if key in COMMON_UNSUPPORTED | self.unsupported:
            return ModelError(problem, repair)
        return UnknownKeyError(problem, repair, key)

    def split(self, config: Config) -> tuple[Config, Config]:
        """The keys that this schema reads, and all others."""
        read = {key: value for key, value in config.items() if key in self.defaults}
        others = {key: value for key, value in config.items() if key not in self.defaults}
        return read, others


def part_config(part: Any, keys: Mapping[str, str]) -> Config:
    """The config keys of fields of a part."""
    return {key: getattr(part, name) for key, name in keys.items()}


def part_fields(values: Config, keys: Mapping[str, str]) -> Config:
    """The fields of a part from their config keys."""
    return {name: values[key] for key, name in keys.items()}


def token_id(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """The token id under a key, or the default of the family."""
    value = config.get(key)
    # Some configs have a list of end tokens; with more than one, none is the end.
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        value = default
    if not is_whole(value):
        raise ModelError(
            f"config.json: {key} is {value!r}, not a token id", "set it to the id of one token"
        )
    return int(value)


def _value(config: Config, key: str, default: Any) -> Any:
    value = config.get(key)
    if isinstance(default, OptionalSizes):
        sizes = value if isinstance(value, list | None) else [value]
        return sizes and tuple(sizes)
    if value is not None or (key in config and isinstance(default, SizeOrNull | NumberOrNull)):
        return value
    # Elsewhere null means the default in transformers.
    return default.default if isinstance(default, DefaultKind) else default


def _is_valid(value: Any, default: Any) -> bool:
    """Whether a value is of its default's type, and so are the items of a list.

    Whole numbers are sizes, so they start at 1.
    """
    match default:
        case SizeOrNull() | NumberOrNull() | NonNegative() | OptionalSizes():
            return default.allows(value)
        case None:
            return SizeOrNull(None).allows(value)
        case [first, *_]:
            return isinstance(value, list) and all(_is_valid(item, first) for item in value)
        case bool():  # before int, of which bool is a subclass
            return isinstance(value, bool)
        case int():
            return _is_size(value)
        case float():
            return is_number(value, 0)
    return isinstance(value, type(default))


def _expected(default: Any) -> str:
    """The values that `_is_valid` allows, in words."""
    if default is None:
        return SizeOrNull.words
    return default.words if isinstance(default, DefaultKind) else f"a value like {default!r}"


def _is_size(value: Any) -> bool:
    return is_whole(value, 1)
