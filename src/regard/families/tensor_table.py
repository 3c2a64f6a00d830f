"""What a family's file is made of: a table of tensors, read in both directions, and a closed schema of config keys.

A table is a list of rules. A rule says how one of our parameters comes apart into their tensors; the shapes in both
directions follow from that. Nothing is guessed and nothing is left over: a tensor that no rule names is an error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.errors import ModelError

Shapes = Mapping[str, torch.Size]

# ------------------------------------------------------------------ rules


@dataclass(frozen=True)
class Same:
    """One tensor under two names. Where it is tied, a file may hold it under `aliases` instead, or as well."""

    ours: str
    theirs: str
    aliases: tuple[str, ...] = ()

    def apart(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor,)

    def together(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0]


@dataclass(frozen=True)
class Rows:
    """Ours is theirs stacked along dimension 0; `parts` are the heights, which need not be equal."""

    ours: str
    theirs: tuple[str, ...]
    parts: tuple[int, ...]

    def apart(self, tensor: Tensor) -> Sequence[Tensor]:
        if tensor.shape[0] != sum(self.parts):
            raise _misshapen(self.ours, tensor.shape, (sum(self.parts), *tensor.shape[1:]))
        return tensor.split(self.parts)

    def together(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(tensors))


@dataclass(frozen=True)
class Reshaped:
    """The same numbers in the same order; `shape` is theirs."""

    ours: str
    theirs: str
    shape: tuple[int, ...]
    flat: tuple[int, ...] = (-1,)  # ours

    def apart(self, tensor: Tensor) -> Sequence[Tensor]:
        if tensor.numel() != math.prod(self.shape):
            raise _misshapen(self.ours, tensor.shape, self.shape)
        return (tensor.reshape(self.shape),)

    def together(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].reshape(self.flat)


@dataclass(frozen=True)
class Transposed:
    """Ours is theirs turned over (GPT-2 stores its weights as inputs × outputs)."""

    ours: str
    theirs: str

    def apart(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor.mT,)

    def together(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].mT


@dataclass(frozen=True)
class PerHead:
    """Ours holds all queries, then all keys, then all values; theirs holds the three of each head together (GPT-NeoX)."""

    ours: str
    theirs: str
    heads: int

    def apart(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2),)

    def together(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)


@dataclass(frozen=True)
class Constant:
    """A tensor that follows from the spec: in a file it may be absent, or must be equal up to `tolerance`.

    `written` says whether their own files hold it.
    """

    theirs: str
    make: Callable[[], Tensor]
    tolerance: float = 0.0
    written: bool = True


@dataclass(frozen=True)
class Unread:
    """A tensor that some files hold and that nothing computes with, neither here nor there. It is not written, unless their
    reader would miss it: then zeros of `shape` are."""

    theirs: str
    shape: tuple[int, ...] | None = None


Moved = Same | Rows | Reshaped | Transposed | PerHead
Rule = Moved | Constant | Unread


def module(ours: str, theirs: str, bias: bool = True, *, turned: bool = False) -> list[Moved]:
    """The weight of a module, `turned` over or not, and its bias unless it has none."""
    weight, kind = (f"{ours}.weight", f"{theirs}.weight"), Transposed if turned else Same
    return [kind(*weight), *([Same(f"{ours}.bias", f"{theirs}.bias")] if bias else [])]


def modules(
    ours: str, theirs: Sequence[str], parts: Sequence[int], bias: bool | Sequence[bool] = True
) -> list[Moved]:
    """Several modules of theirs that are one of ours; `bias` says whether they have one, or which of them."""
    biased = [bias] * len(parts) if isinstance(bias, bool) else bias
    rules: list[Moved] = [
        Rows(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), tuple(parts))
    ]
    held = [
        (f"{name}.bias", part) for name, part, has in zip(theirs, parts, biased, strict=True) if has
    ]
    if held:
        names, heights = zip(*held, strict=True)
        rules.append(Rows(f"{ours}.bias", names, heights))
    return rules


def vocabulary(
    tied: bool, embedding: str, output: str, *others: str, ours: str = "tokens"
) -> list[Moved]:
    """An embedding and an output that is the same matrix, or one of its own; `others` are names that it has had."""
    if tied:
        return [Same(f"{ours}.table.weight", embedding, (output, *others))]
    return [Same(f"{ours}.table.weight", embedding), Same("head.table.weight", output, others)]


def each(layers: int, rules: Iterable[Rule]) -> list[Rule]:
    """The rules once for each layer, with `{i}` in their names replaced by its number."""
    return [_numbered(rule, i) for i in range(layers) for rule in rules]


def _numbered(rule: Rule, i: int) -> Rule:
    def number(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(number(item) for item in value)
        return value.replace("{i}", str(i)) if isinstance(value, str) else value

    return dataclasses.replace(
        rule, **{f.name: number(getattr(rule, f.name)) for f in dataclasses.fields(rule)}
    )


# ------------------------------------------------------------------ the two directions


def to_theirs(table: Sequence[Rule], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors from our parameters. Every parameter is used, and every rule finds its own."""
    moved = _moved(table, ours)
    theirs = {
        rule.theirs: rule.make() for rule in table if isinstance(rule, Constant) and rule.written
    }
    theirs |= {
        rule.theirs: torch.zeros(rule.shape)
        for rule in table
        if isinstance(rule, Unread) and rule.shape
    }
    for rule in moved:
        theirs.update(zip(_names(rule), rule.apart(ours[rule.ours]), strict=True))
    return theirs


def to_ours(
    table: Sequence[Rule], theirs: Mapping[str, Tensor], shapes: Shapes
) -> dict[str, Tensor]:
    """Our parameters from their tensors. `shapes` are the parameters that the model has; each gets its value."""
    moved = _moved(table, shapes)
    unused = dict(theirs)
    for rule in table:
        if isinstance(rule, Constant) and rule.theirs in unused:
            _check(rule, unused.pop(rule.theirs))
        elif isinstance(rule, Unread):
            unused.pop(rule.theirs, None)
    found = {name: _take(rule, name, unused) for rule in moved for name in _names(rule)}
    unset = [name for name, tensor in found.items() if tensor is None]
    _complete(
        unset,
        unused,
        "the file",
        "compare config.json (layers, tying) with it, or fetch the folder again",
    )
    present = {name: tensor for name, tensor in found.items() if tensor is not None}
    return {rule.ours: _join(rule, present, shapes[rule.ours]) for rule in moved}


def _names(rule: Moved) -> tuple[str, ...]:
    return (rule.theirs,) if isinstance(rule.theirs, str) else rule.theirs


def _moved(table: Iterable[Rule], ours: Collection[str]) -> list[Moved]:
    """The rules with a parameter of ours: exactly one for each."""
    moved = [rule for rule in table if not isinstance(rule, (Constant, Unread))]
    named = {rule.ours for rule in moved}
    assert len(named) == len(moved), "two rules for one parameter"
    unset, unused = (
        [name for name in named if name not in ours],
        [name for name in ours if name not in named],
    )
    _complete(
        unset, unused, "the model", "build the model from the spec that the table is made for"
    )
    return moved


def aligned(table: Iterable[Rule], theirs: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Their tensors under the names of the table: a file may be that of the model without its head, whose names lack a
    prefix, or the other way round."""
    known: set[str] = set()
    for rule in table:
        known |= {rule.theirs} if isinstance(rule, (Constant, Unread)) else {*_names(rule)}
        known |= {*rule.aliases} if isinstance(rule, Same) else set()

    def name(stored: str) -> str:
        shorter = stored.removeprefix(prefix)
        return next((n for n in (stored, prefix + stored, shorter) if n in known), stored)

    return {name(stored): tensor for stored, tensor in theirs.items()}


def _take(rule: Moved, name: str, unused: dict[str, Tensor]) -> Tensor | None:
    """The tensor stored under `name` or an alias of it; several copies must be one and the same."""
    aliases = rule.aliases if isinstance(rule, Same) else ()
    copies = {key: unused.pop(key) for key in (name, *aliases) if key in unused}
    for key, copy in copies.items():
        _floating(key, copy)
    if not copies:
        return None
    first, *others = copies
    for other in others:
        if copies[other].dtype != copies[first].dtype or not torch.equal(
            copies[other], copies[first]
        ):
            raise ModelError(
                f"{first} and {other} differ, but config.json says that they are tied",
                "set tie_word_embeddings or share_encoder_decoder_embeddings to what the model was trained with",
            )
    return copies[first]


def _floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise ModelError(
            f"{name} holds {tensor.dtype} numbers", "fetch the model in a floating-point precision"
        )


def _join(rule: Moved, theirs: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    """Our parameter. The shapes to expect are those of ours taken apart, so each rule states its layout once."""
    expected = rule.apart(torch.empty(shape, device="meta"))
    for name, like in zip(_names(rule), expected, strict=True):
        if theirs[name].shape != like.shape:
            raise _misshapen(name, theirs[name].shape, like.shape)
    return rule.together([theirs[name] for name in _names(rule)])


def _check(rule: Constant, tensor: Tensor) -> None:
    expected = rule.make()
    if tensor.shape != expected.shape:
        raise _misshapen(rule.theirs, tensor.shape, expected.shape)
    # Half precision cannot come closer than its own rounding.
    rounded = rule.tolerance and tensor.is_floating_point()
    tolerance = max(rule.tolerance, torch.finfo(tensor.dtype).eps) if rounded else 0.0
    if not torch.allclose(tensor.float(), expected.float(), rtol=0.0, atol=tolerance):
        raise ModelError(
            f"{rule.theirs} is not what config.json implies",
            "this model computes something else and cannot be opened here",
        )


def _complete(unset: Collection[str], unused: Collection[str], where: str, repair: str) -> None:
    problems = [f"{where} lacks {_some(unset)}"] if unset else []
    problems += [f"{where} has {_some(unused)}, which nothing uses"] if unused else []
    if problems:
        raise ModelError("; ".join(problems), repair)


def _some(names: Collection[str]) -> str:
    few = ", ".join(sorted(names)[:5])
    return few + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _misshapen(name: str, found: Sequence[int], expected: Sequence[int]) -> ModelError:
    return ModelError(
        f"{name} has the shape {tuple(found)}, but {tuple(expected)} is expected",
        "compare the sizes in config.json with the weights, or fetch the folder again",
    )


# ------------------------------------------------------------------ our side


def labels_of(model: spec.Encoder | spec.Decoder) -> spec.ClassifierHead | None:
    """Its labels, if there are any and they are of one voice."""
    return (
        model.labels
        if isinstance(model, spec.Encoder) and isinstance(model.labels, spec.ClassifierHead)
        else None
    )


# ------------------------------------------------------------------ keys of config.json

# What all configs may say, and what these models are not.
ALONE: dict[str, Any] = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
}

# None of these changes what the model computes: notes; token ids, which `folder.Ids` reads; and settings of `generate`,
# which old versions keep here and decoding takes from elsewhere. (`auto_map` would run the folder's code: it is refused.)
HARMLESS = frozenset(
    {
        "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels", "architectures", "classif_dropout",
        "classifier_dropout", "dtype", "extra_pos_embeddings", "finetuning_task", "gradient_checkpointing",
        "id2label", "init_std", "initializer_range", "label2id", "language", "max_sequence_length", "model_type", "name",
        "name_or_path", "num_labels", "output_attentions",
        "output_hidden_states", "output_past", "prefix", "problem_type", "return_dict", "task_specific_params",
        "tokenizer_class", "torch_dtype", "torchscript", "total_flos", "transformers_version", "use_cache",
        "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id",
        "pad_token_id", "sep_token_id", "unk_token_id",
        "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
        "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "force_bos_token_to_be_generated",
        "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
        "num_return_sequences", "output_scores", "remove_invalid_values", "renormalize_logits",
        "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p",
        "typical_p",
    }
)  # fmt: skip


@dataclass(frozen=True)
class OrNone:
    """The default of a size where null is not the same as absence: null says that there is none."""

    absent: int


@dataclass(frozen=True)
class FromZero:
    """The default of a whole number that is no size: it may be 0."""

    absent: int


@dataclass(frozen=True)
class Sizes:
    """The default of one size or a list of them, which is read as a tuple; none where there is none."""


@dataclass(frozen=True)
class ConfigSchema:
    """The closed schema of a family's config.json.

    `read`: what is understood, with the value that transformers assumes for an absent key; `fixed`: keys that may have
    one value only; `equal`: other names of a key that is read; `ignored`: what changes nothing.
    """

    read: Mapping[str, Any]
    fixed: Mapping[str, Any]
    equal: Mapping[str, str]
    ignored: frozenset[str] = HARMLESS

    def __call__(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every key that is read. Anything not understood is an error."""
        values = {key: _value(config, key, default) for key, default in self.read.items()}
        for key, value in values.items():
            if not _like(value, self.read[key]):
                raise ModelError(
                    f"config.json: {key} cannot be {value!r}",
                    f"give it a value like {self.read[key]!r}",
                )
        expected = {**self.fixed, **{other: values[key] for other, key in self.equal.items()}}
        for key, value in config.items():
            if key in expected and value is not None and value != expected[key]:
                raise ModelError(
                    f"config.json: {key} is {value!r}, but only {expected[key]!r} is understood here",
                    "such a model computes something else and cannot be opened; correct the key if it is wrong",
                )
            if not (key in expected or key in values or key in self.ignored):
                raise ModelError(
                    f"config.json has a key that is not understood: {key}",
                    "remove it if it does not change what the model computes; otherwise this model cannot be opened",
                )
        return values


def _value(config: Mapping[str, Any], key: str, default: Any) -> Any:
    if isinstance(default, OrNone):
        return config.get(key, default.absent)
    if isinstance(default, Sizes):
        value = config.get(key)
        return tuple(value) if isinstance(value, list) else None if value is None else (value,)
    if isinstance(default, FromZero):
        default = default.absent
    return default if config.get(key) is None else config[key]


def _like(value: Any, default: Any) -> bool:
    """Of the kind of the default, and so are the items of a list; whole numbers are sizes, so they start at 1."""
    if default is None or isinstance(default, OrNone):
        return value is None or _like(value, 1)
    if isinstance(default, Sizes):
        return value is None or (len(value) > 0 and all(_like(item, 1) for item in value))
    if isinstance(default, list) and default:
        return isinstance(value, list) and all(_like(item, default[0]) for item in value)
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, FromZero):
        return isinstance(value, int) and value >= 0
    if isinstance(default, int):
        return isinstance(value, int) and value >= 1
    if isinstance(default, float):
        return isinstance(value, (int, float)) and 0 <= value < math.inf
    return isinstance(value, type(default))
