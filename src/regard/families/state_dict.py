"""State dicts of Hugging Face from parameters of ours, and back, by a table of tensor names.

Nothing is guessed and nothing is left over: a tensor that no rule names is an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from regard.families.tensor_table import (
    Constant,
    Count,
    FormerPrefix,
    ParameterRule,
    Rename,
    Rule,
    Unused,
    UnusedPart,
    hf_names,
    wrong_shape,
)
from regard.system.errors import ModelError

Shapes = Mapping[str, torch.Size]

# ------------------------------------------------------------------ the two directions


def to_hf(table: Sequence[Rule], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict that transformers expects. Every parameter is used by exactly one rule."""
    rules = _parameter_rules(table, parameters)
    state_dict: dict[str, Tensor] = {}
    for rule in table:
        if isinstance(rule, Constant) and rule.written:
            state_dict[rule.hf] = rule.make()
        elif isinstance(rule, Unused) and rule.shape:
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
        elif isinstance(rule, UnusedPart):
            unused = {name: one for name, one in unused.items() if not name.startswith(rule.hf)}
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
        elif isinstance(rule, (Constant, Unused, UnusedPart)):
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
        if not isinstance(rule, Count) and not copy.is_floating_point():
            raise ModelError(
                f"the tensor {key} has the dtype {copy.dtype}, which is not supported",
                "download the model in a floating-point precision",
            )
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
            raise wrong_shape(name, tensors[name].shape, like.shape)
    return rule.from_hf([tensors[name] for name in hf_names(rule)])


# ------------------------------------------------------------------ checks


def _check_constant(rule: Constant, tensor: Tensor) -> None:
    expected = rule.make()
    if tensor.shape != expected.shape:
        raise wrong_shape(rule.hf, tensor.shape, expected.shape)
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
