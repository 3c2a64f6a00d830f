"""Two-way tables of tensor names: how Hugging Face stores the parameters of a model.

A table is a list of rules. Each rule says how one parameter of ours becomes tensors in a Hugging
Face file, and back; the shapes to expect in both directions follow from that. Nothing is guessed
and nothing is left over: a tensor that no rule names is an error.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.system.errors import ModelError

Shapes = Mapping[str, torch.Size]

# ------------------------------------------------------------------ rules


@dataclass(frozen=True)
class Rename:
    """One tensor under two names.

    A tied tensor may be stored under one of its `aliases` instead, or under several names at once.
    """

    parameter: str
    hf: str
    aliases: tuple[str, ...] = ()

    def to_hf(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor,)

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0]


@dataclass(frozen=True)
class Concat:
    """Our parameter is the concatenation of theirs along dimension 0, such as a fused q, k, v.

    `rows` are the sizes of the parts, which need not be equal.
    """

    parameter: str
    hf: tuple[str, ...]
    rows: tuple[int, ...]

    def to_hf(self, tensor: Tensor) -> Sequence[Tensor]:
        total = sum(self.rows)
        if tensor.shape[0] != total:
            raise _wrong_shape(self.parameter, tensor.shape, (total, *tensor.shape[1:]))
        return tensor.split(self.rows)  # views: nothing is copied

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(tensors))  # [sum(rows), ...]


@dataclass(frozen=True)
class Reshape:
    """The same numbers in the same order under another shape."""

    parameter: str
    hf: str
    hf_shape: tuple[int, ...]
    shape: tuple[int, ...] = (-1,)  # of our parameter

    def to_hf(self, tensor: Tensor) -> Sequence[Tensor]:
        if tensor.numel() != math.prod(self.hf_shape):
            raise _wrong_shape(self.parameter, tensor.shape, self.hf_shape)
        return (tensor.reshape(self.hf_shape),)

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].reshape(self.shape)


@dataclass(frozen=True)
class Transpose:
    """A transposed matrix, or a stack of several: GPT-2's Conv1D stores inputs × outputs."""

    parameter: str
    hf: str

    def to_hf(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor.mT,)

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].mT


@dataclass(frozen=True)
class InterleavedQkv:
    """A fused q, k, v that is stored head by head (GPT-NeoX).

    Our rows are all queries, then all keys, then all values; theirs are q, k, v of head 0, then
    those of head 1, and so on.
    """

    parameter: str
    hf: str
    heads: int

    def to_hf(self, tensor: Tensor) -> Sequence[Tensor]:
        by_kind = tensor.unflatten(0, (3, self.heads, -1))  # [3, H, K, ...]
        return (by_kind.transpose(0, 1).flatten(0, 2),)  # [H * 3 * K, ...]

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        by_head = tensors[0].unflatten(0, (self.heads, 3, -1))  # [H, 3, K, ...]
        return by_head.transpose(0, 1).flatten(0, 2)  # [3 * H * K, ...]


@dataclass(frozen=True)
class InterleavedGates:
    """Gate and value of all experts, whose columns alternate there: [experts, inputs, 2 · d_ff].

    Ours are [2 · d_ff, inputs] of each expert, or biases without the inputs.
    """

    parameter: str
    hf: str

    def to_hf(self, tensor: Tensor) -> Sequence[Tensor]:
        halves = tensor.unflatten(1, (2, -1))  # [E, 2, F, ...]
        alternating = halves.transpose(1, 2).flatten(1, 2)  # [E, 2 F, ...]
        return (alternating.transpose(1, -1),)

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        alternating = tensors[0].transpose(1, -1).unflatten(1, (-1, 2))  # [E, F, 2, ...]
        return alternating.transpose(1, 2).flatten(1, 2)


@dataclass(frozen=True)
class Count:
    """A whole number there (of batches, in a batch norm), and a number among our parameters."""

    parameter: str
    hf: str

    def to_hf(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor.long(),)

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].float()


@dataclass(frozen=True)
class Constant:
    """A buffer that follows from the spec, such as position ids or a causal mask.

    A file may lack it; if it is there, it must be equal up to `tolerance`. `written` says whether
    files written here contain it.
    """

    hf: str
    make: Callable[[], Tensor]
    tolerance: float = 0.0
    written: bool = True


@dataclass(frozen=True)
class Unused:
    """A tensor that some files hold although no forward pass uses it.

    It is not written, unless `shape` is set: then zeros are, because transformers asks for it.
    """

    hf: str
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class FormerPrefix:
    """The beginning of names that files of earlier versions of transformers have.

    They are read as well; what is written has the names of today.
    """

    hf: str
    former: str


ParameterRule = Rename | Concat | Reshape | Transpose | InterleavedQkv | InterleavedGates | Count
Rule = ParameterRule | Constant | Unused | FormerPrefix


def module_rules(
    parameter: str, hf: str, bias: bool = True, *, transposed: bool = False
) -> list[ParameterRule]:
    """The rules of one module: its weight and, unless it has none, its bias."""
    rules: list[ParameterRule] = []
    if transposed:
        rules.append(Transpose(f"{parameter}.weight", f"{hf}.weight"))
    else:
        rules.append(Rename(f"{parameter}.weight", f"{hf}.weight"))
    if bias:
        rules.append(Rename(f"{parameter}.bias", f"{hf}.bias"))
    return rules


def fused_module_rules(
    parameter: str, hf: Sequence[str], rows: Sequence[int], bias: bool | Sequence[bool] = True
) -> list[ParameterRule]:
    """The rules of several Hugging Face modules that are one fused module here.

    `bias` says whether they have biases; a sequence says it of each one.
    """
    biased = [bias] * len(rows) if isinstance(bias, bool) else bias
    weights = tuple(f"{name}.weight" for name in hf)
    rules: list[ParameterRule] = [Concat(f"{parameter}.weight", weights, tuple(rows))]
    bias_names: list[str] = []
    bias_rows: list[int] = []
    for name, count, has_bias in zip(hf, rows, biased, strict=True):
        if has_bias:
            bias_names.append(f"{name}.bias")
            bias_rows.append(count)
    if bias_names:
        rules.append(Concat(f"{parameter}.bias", tuple(bias_names), tuple(bias_rows)))
    return rules


def embedding_rules(
    model: spec.Decoder, embedding: str, output: str, *aliases: str
) -> list[ParameterRule]:
    """The token embedding of a decoder and its output matrix, if it has one: of its own, or tied.

    `aliases` are further names that the output matrix has had.
    """
    if model.head is None:
        return [Rename("tokens.table.weight", embedding)]
    if model.tied:
        return [Rename("tokens.table.weight", embedding, (output, *aliases))]
    return [
        Rename("tokens.table.weight", embedding),
        Rename("head.table.weight", output, aliases),
    ]


def per_layer(layers: int, rules: Iterable[Rule]) -> list[Rule]:
    """The rules once for each layer, with `{i}` in their names replaced by the layer's index."""
    templates = list(rules)  # a generator could be read for one layer only
    return [_with_index(rule, i) for i in range(layers) for rule in templates]


def _with_index(rule: Rule, i: int) -> Rule:
    return _renamed(rule, lambda name: name.replace("{i}", str(i)))


def with_prefix(rules: Iterable[Rule], old: str, new: str) -> list[Rule]:
    """The rules with another prefix of the base model's tensors in the file."""

    def renamed(name: str) -> str:
        return new + name.removeprefix(old) if name.startswith(old) else name

    return [_renamed(rule, renamed, except_field="parameter") for rule in rules]


def _renamed(rule: Rule, rename: Callable[[str], str], except_field: str = "") -> Rule:
    """The rule with other names, in all of its fields but one."""

    def substitute(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(substitute(item) for item in value)
        return rename(value) if isinstance(value, str) else value

    fields = {
        field.name: substitute(getattr(rule, field.name))
        for field in dataclasses.fields(rule)
        if field.name != except_field
    }
    return dataclasses.replace(rule, **fields)


# ------------------------------------------------------------------ the two directions


def to_hf(table: Sequence[Rule], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict that transformers expects. Every parameter is used by exactly one rule."""
    rules = _parameter_rules(table, parameters)
    state_dict: dict[str, Tensor] = {}
    for rule in table:
        if isinstance(rule, Constant) and rule.written:
            state_dict[rule.hf] = rule.make()
    for rule in table:
        if isinstance(rule, Unused) and rule.shape:
            state_dict[rule.hf] = torch.zeros(rule.shape)
    for rule in rules:
        ours = [parameters[name] for name in _own_names(rule, parameters)]
        tensors = rule.to_hf(torch.stack(ours) if "*" in rule.parameter else ours[0])
        state_dict.update(zip(hf_names(rule), tensors, strict=True))
    return state_dict


def from_hf(
    table: Sequence[Rule], state_dict: Mapping[str, Tensor], shapes: Shapes
) -> dict[str, Tensor]:
    """Our parameters from a Hugging Face state dict. `shapes` are those of all parameters."""
    rules = _parameter_rules(table, shapes)
    # What is left in here at the end was named by no rule.
    unused = dict(state_dict)
    for rule in table:
        if isinstance(rule, Constant) and rule.hf in unused:
            _check_constant(rule, unused.pop(rule.hf))
        elif isinstance(rule, Unused):
            unused.pop(rule.hf, None)
    tensors: dict[str, Tensor] = {}
    missing: list[str] = []
    for rule in rules:
        for name in hf_names(rule):
            tensor = _pop_tensor(rule, name, unused)
            if tensor is None:
                missing.append(name)
            else:
                tensors[name] = tensor
    repair = (
        "compare layers and weight tying in config.json with the file, or download the folder again"
    )
    _check_complete(missing, unused, "the file", repair)
    joined: dict[str, Tensor] = {}
    for rule in rules:
        names = _own_names(rule, shapes)
        shape = shapes[names[0]]
        if "*" in rule.parameter:
            stack = _join(rule, tensors, torch.Size((len(names), *shape)))
            joined.update(zip(names, stack, strict=True))
        else:
            joined[rule.parameter] = _join(rule, tensors, shape)
    return joined


def hf_names(rule: ParameterRule) -> tuple[str, ...]:
    """The Hugging Face names of a rule, without aliases."""
    return (rule.hf,) if isinstance(rule.hf, str) else rule.hf


def _own_names(rule: ParameterRule, parameters: Collection[str]) -> list[str]:
    """The parameters of a rule: with * those of all numbers (of experts), whose stack it reads."""
    if "*" not in rule.parameter:
        return [rule.parameter]
    numbered = (rule.parameter.replace("*", str(i)) for i in itertools.count())
    return list(itertools.takewhile(parameters.__contains__, numbered))


def _parameter_rules(table: Iterable[Rule], parameters: Collection[str]) -> list[ParameterRule]:
    """The rules that read or write a parameter of ours: exactly one for each parameter."""
    rules = [rule for rule in table if isinstance(rule, ParameterRule)]
    names = [name for rule in rules for name in _own_names(rule, parameters)]
    assert len(set(names)) == len(names), "two rules for one parameter"
    missing = [name for name in names if name not in parameters]
    unused = [name for name in parameters if name not in names]
    repair = "build the model from the spec that the table is made for"
    _check_complete(missing, unused, "the model", repair)
    return rules


def match_prefix(
    table: Iterable[Rule], state_dict: Mapping[str, Tensor], prefix: str
) -> dict[str, Tensor]:
    """The state dict with its names as the table has them.

    A file may be that of the base model without a head, whose names lack the base model's prefix,
    or the other way round; transformers accepts both.
    """
    expected: set[str] = set()
    former: dict[str, str] = {}
    for rule in table:
        if isinstance(rule, FormerPrefix):
            former[rule.former] = rule.hf
        elif isinstance(rule, (Constant, Unused)):
            expected.add(rule.hf)
        else:
            expected.update(hf_names(rule))
        if isinstance(rule, Rename):
            expected.update(rule.aliases)

    def table_name(stored: str) -> str:
        for old, new in former.items():
            if stored.startswith(old):
                stored = new + stored.removeprefix(old)
        # As it is; of a base model in one with a head; the other way round.
        for name in (stored, prefix + stored, stored.removeprefix(prefix)):
            if name in expected:
                return name
        return stored

    return {table_name(stored): tensor for stored, tensor in state_dict.items()}


def _pop_tensor(rule: ParameterRule, name: str, unused: dict[str, Tensor]) -> Tensor | None:
    """Takes the tensor stored under `name` or an alias of it; several copies must be equal."""
    aliases = rule.aliases if isinstance(rule, Rename) else ()
    copies = {key: unused.pop(key) for key in (name, *aliases) if key in unused}
    for key, copy in copies.items():
        if not isinstance(rule, Count):
            _check_floating(key, copy)
    if not copies:
        return None
    first, *others = copies
    for other in others:
        # torch.equal compares the numbers only.
        same_dtype = copies[other].dtype == copies[first].dtype
        if not same_dtype or not torch.equal(copies[other], copies[first]):
            raise ModelError(
                f"{first} and {other} differ, but config.json says that they are tied",
                "set tie_word_embeddings or share_encoder_decoder_embeddings "
                "to what the model was trained with",
            )
    return copies[first]


def _join(rule: ParameterRule, tensors: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    """Our parameter from its stored tensors, whose shapes are checked first.

    `to_hf` of an empty parameter says which shapes to expect, so each rule states its layout once.
    """
    expected = rule.to_hf(torch.empty(shape, device="meta"))
    for name, like in zip(hf_names(rule), expected, strict=True):
        if tensors[name].shape != like.shape:
            raise _wrong_shape(name, tensors[name].shape, like.shape)
    return rule.from_hf([tensors[name] for name in hf_names(rule)])


# ------------------------------------------------------------------ checks


def _check_floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise ModelError(
            f"the tensor {name} has the dtype {tensor.dtype}, which is not supported",
            "download the model in a floating-point precision",
        )


def _check_constant(rule: Constant, tensor: Tensor) -> None:
    expected = rule.make()
    if tensor.shape != expected.shape:
        raise _wrong_shape(rule.hf, tensor.shape, expected.shape)
    tolerance = 0.0
    if rule.tolerance and tensor.is_floating_point():
        # Half precision cannot come closer than its own rounding.
        tolerance = max(rule.tolerance, torch.finfo(tensor.dtype).eps)
    if not torch.allclose(tensor.float(), expected.float(), rtol=0.0, atol=tolerance):
        raise ModelError(
            f"the tensor {rule.hf} has other values than config.json implies",
            "correct config.json if it is wrong; otherwise this model cannot be opened",
        )


def _check_complete(
    missing: Collection[str], unused: Collection[str], owner: str, repair: str
) -> None:
    problems = []
    if missing:
        problems.append(f"{owner} lacks {_first_names(missing)}")
    if unused:
        problems.append(f"{owner} has unexpected tensors: {_first_names(unused)}")
    if problems:
        raise ModelError("; ".join(problems), repair)


def _first_names(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:5])
    if len(names) > 5:
        return f"{shown} and {len(names) - 5} more"
    return shown


def _wrong_shape(name: str, shape: Sequence[int], expected: Sequence[int]) -> ModelError:
    return ModelError(
        f"{name} has the shape {tuple(shape)}, but {tuple(expected)} is expected",
        "compare the sizes in config.json with the weights, or download the folder again",
    )
