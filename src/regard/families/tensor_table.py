"""Two-way tables of tensor names: how Hugging Face stores the parameters of a model.

A table is a list of rules. Each rule says how one parameter of ours becomes tensors in a Hugging
Face file, and back; the shapes to expect in both directions follow from that (`state_dict`).

No torch here: the list of presets, which a shell completes, comes with the families' tables.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard import spec
from regard.system.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

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
            raise wrong_shape(self.parameter, tensor.shape, (total, *tensor.shape[1:]))
        return tensor.split(self.rows)  # views: nothing is copied

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        import torch

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
            raise wrong_shape(self.parameter, tensor.shape, self.hf_shape)
        return (tensor.reshape(self.hf_shape),)

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].reshape(self.shape)


@dataclass(frozen=True)
class Flipped:
    """Rows in the opposite order, below a first dimension of one: vectors of distances there, which
    are counted from the other side."""

    parameter: str
    hf: str

    def to_hf(self, tensor: Tensor) -> Sequence[Tensor]:
        return (tensor.flip(0)[None],)

    def from_hf(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0][0].flip(0)


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
class UnusedPart:
    """All tensors whose names begin so: of a part that only training needs. They are written as
    they came."""

    hf: str


@dataclass(frozen=True)
class FormerPrefix:
    """The beginning of names that files of earlier versions of transformers have.

    They are read as well; what is written has the names of today.
    """

    hf: str
    former: str


ParameterRule = (
    Rename | Concat | Reshape | Flipped | Transpose | InterleavedQkv | InterleavedGates | Count
)
Rule = ParameterRule | Constant | Unused | UnusedPart | FormerPrefix
Rules = list[Rule]


def position_ids(hf: str, *shape: int) -> Constant:
    """The numbers of all positions, which old files hold in this shape."""

    def numbers() -> Tensor:
        import torch

        return torch.arange(shape[-1]).view(shape)

    return Constant(hf, numbers, written=False)


def mask_rules(hf: str, length: int) -> Rules:
    """The causal mask, and the number that stood for minus infinity, which old files hold."""

    def causal_mask() -> Tensor:
        import torch

        return torch.ones(1, 1, length, length).tril()

    return [Constant(f"{hf}.bias", causal_mask, written=False), Unused(f"{hf}.masked_bias")]


def module_rules(parameter: str, hf: str, bias: bool = True, *, transposed: bool = False) -> Rules:
    """The rules of one module: its weight and, unless it has none, its bias."""
    rules: Rules = []
    if transposed:
        rules.append(Transpose(f"{parameter}.weight", f"{hf}.weight"))
    else:
        rules.append(Rename(f"{parameter}.weight", f"{hf}.weight"))
    if bias:
        rules.append(Rename(f"{parameter}.bias", f"{hf}.bias"))
    return rules


def fused_module_rules(
    parameter: str,
    hf: Sequence[str],
    rows: Sequence[int],
    bias: bool | Sequence[bool] = True,
    *,
    transposed: bool = False,
) -> Rules:
    """The rules of Hugging Face modules that are one fused module here: several, or one there too.

    `bias` says whether they have biases; a sequence says it of each one.
    """
    biased = [bias] * len(rows) if isinstance(bias, bool) else bias
    if len(hf) == 1:
        return module_rules(parameter, hf[0], biased[0], transposed=transposed)
    sizes = dict(zip(hf, rows, strict=True))
    with_bias = [name for name, has_bias in zip(hf, biased, strict=True) if has_bias]
    return [
        Concat(
            f"{parameter}.{kind}",
            tuple(f"{name}.{kind}" for name in names),
            tuple(sizes[name] for name in names),
        )
        for kind, names in (("weight", hf), ("bias", with_bias))
        if names
    ]


def embedding_rules(model: spec.Decoder, embedding: str, output: str, *aliases: str) -> Rules:
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


def per_layer(layers: int, rules: Iterable[Rule]) -> Rules:
    """The rules once for each layer, with `{i}` in their names replaced by the layer's index."""
    templates = list(rules)  # a generator could be read for one layer only
    return [_with_index(rule, i) for i in range(layers) for rule in templates]


def _with_index(rule: Rule, i: int) -> Rule:
    return rewritten(rule, lambda name: name.replace("{i}", str(i)))


def with_prefix(rules: Iterable[Rule], old: str, new: str) -> Rules:
    """The rules with another prefix of the base model's tensors in the file."""

    def with_new(name: str) -> str:
        return new + name.removeprefix(old) if name.startswith(old) else name

    return [rewritten(rule, with_new, "parameter") for rule in rules]


def renamed(rules: Iterable[Rule], endings: Mapping[str, str]) -> Rules:
    """The rules with other endings of the tensors' names in the file."""

    def other(name: str) -> str:
        for ending, new in endings.items():
            if name.endswith(ending):
                return name.removesuffix(ending) + new
        return name

    return [rewritten(rule, other, "parameter") for rule in rules]


def rewritten(rule: Rule, rename: Callable[[str], str], *but: str) -> Rule:
    """The rule with other names, in all of its fields but these."""

    def substitute(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(substitute(item) for item in value)
        return rename(value) if isinstance(value, str) else value

    fields = {
        field.name: substitute(getattr(rule, field.name))
        for field in dataclasses.fields(rule)
        if field.name not in but
    }
    return dataclasses.replace(rule, **fields)


def hf_names(rule: ParameterRule) -> tuple[str, ...]:
    """The Hugging Face names of a rule, without aliases."""
    return (rule.hf,) if isinstance(rule.hf, str) else rule.hf


def wrong_shape(name: str, shape: Sequence[int], expected: Sequence[int]) -> ModelError:
    return ModelError(
        f"{name} has the shape {tuple(shape)}, but {tuple(expected)} is expected",
        "compare the sizes in config.json with the weights, or download the folder again",
    )
