"""What a model is made of, as plain frozen data.

A choice is a type that carries its own options; a union lists what may stand in a place. `build.build` turns a spec into
modules, `size.parameters` counts it without building it, `to_dict`/`from_dict` write it as JSON with a closed schema.
Nothing here imports torch or knows a family's name.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from regard.errors import ModelError, did_you_mean

# ------------------------------------------------------------------ positions that are added at the input


@dataclass(frozen=True)
class Sinusoidal:
    """Section 3.5: sines and cosines of geometric wavelengths.

    `halves` puts all sines before all cosines (the authors' code, and Marian); `interleaved` alternates them (the paper's
    formula). The two differ by a renaming of dimensions only.
    """

    order: Literal["halves", "interleaved"] = "halves"
    base: float = 10_000.0


@dataclass(frozen=True)
class Learned:
    """One trained vector for each position up to `length` (Table 3, row E)."""

    length: int = 512


InputPosition = Sinusoidal | Learned

# ------------------------------------------------------------------ parts of a block


@dataclass(frozen=True)
class LayerNorm:
    eps: float = 1e-5


Norm = LayerNorm


@dataclass(frozen=True)
class Plain:
    """Section 3.3: two linear maps with an activation between; `dropout` acts on the inner activations."""

    d_ff: int
    activation: Literal["relu", "gelu", "silu"] = "relu"
    dropout: float = 0.0


FeedForward = Plain


@dataclass(frozen=True)
class Softmax:
    """Exact attention; `dropout` acts on the attention weights."""

    dropout: float = 0.0


Mixer = Softmax


@dataclass(frozen=True)
class Attention:
    """Section 3.2.2: `heads` queries of width d_k look at `groups` keys (as many as heads unless said) and d_v values."""

    heads: int
    d_k: int
    d_v: int
    groups: int | None = None
    bias: bool = True
    mixer: Mixer = field(default_factory=Softmax)

    @property
    def key_heads(self) -> int:
        return self.groups or self.heads


@dataclass(frozen=True)
class PostNorm:
    """The paper: norm(x + sublayer(x))."""


@dataclass(frozen=True)
class PreNorm:
    """x + sublayer(norm(x)); the stack ends with a norm of its own."""


Residual = PostNorm | PreNorm

# ------------------------------------------------------------------ who may look at whom, inside a stack


@dataclass(frozen=True)
class Everything:
    """Each position looks at all positions."""


@dataclass(frozen=True)
class Causal:
    """Each position looks at itself and what came before."""


Pattern = Everything | Causal

# ------------------------------------------------------------------ assemblies


@dataclass(frozen=True)
class Block:
    """Self-attention, then cross-attention if there is a memory, then the feed-forward, each inside a residual."""

    attention: Attention
    feedforward: FeedForward
    cross: Attention | None = None
    residual: Residual = field(default_factory=PostNorm)
    norm: Norm = field(default_factory=LayerNorm)
    dropout: float = 0.1


@dataclass(frozen=True)
class Stack:
    layers: int
    block: Block
    pattern: Pattern = field(default_factory=Everything)


@dataclass(frozen=True)
class Tokens:
    """Token embeddings, times √d_model if `scale`, plus positions, then dropout (Sections 3.4, 3.5, 5.4)."""

    vocabulary: int
    position: InputPosition | None = field(default_factory=Sinusoidal)
    scale: bool = True
    dropout: float = 0.1


@dataclass(frozen=True)
class LanguageHead:
    """Linear map to the vocabulary; the softmax belongs to the loss and to decoding."""

    bias: bool = False


@dataclass(frozen=True)
class EncoderDecoder:
    """`share`: one matrix for both embeddings and the output (`all`), for target and output (`target`), or none."""

    d_model: int
    source: Tokens
    target: Tokens
    encoder: Stack
    decoder: Stack
    head: LanguageHead = field(default_factory=LanguageHead)
    share: Literal["all", "target", "none"] = "all"

    def __post_init__(self) -> None:
        if self.share == "all" and self.source.vocabulary != self.target.vocabulary:
            raise ModelError(
                f"share='all' needs one vocabulary, not {self.source.vocabulary} and {self.target.vocabulary} tokens",
                "learn a joint tokenizer, or share='target'",
            )
        if self.decoder.block.cross is None:
            raise ModelError("the decoder of an encoder–decoder has no cross-attention", "give decoder.block a `cross`")


Model = EncoderDecoder

# ------------------------------------------------------------------ as JSON

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Sinusoidal, Learned, LayerNorm, Plain, Softmax, Attention, PostNorm, PreNorm,
        Everything, Causal, Block, Stack, Tokens, LanguageHead, EncoderDecoder,
    )
}  # fmt: skip


def to_dict(part: Any) -> Any:
    """A spec as JSON values; every part carries its type's name under `kind`."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {f.name: to_dict(getattr(part, f.name)) for f in dataclasses.fields(part)}
        return {"kind": type(part).__name__, **fields}
    return part


def from_dict(data: Any) -> Any:
    """The inverse of `to_dict`. An unknown kind or key, or a value of the wrong type, is an error, not a guess."""
    if not isinstance(data, dict):
        return data
    name = data.get("kind")
    if not isinstance(name, str) or name not in _KINDS:
        raise ModelError(f"the model's description has an unknown kind {name!r}", did_you_mean(str(name), _KINDS))
    kind = _KINDS[name]
    known = typing.get_type_hints(kind)
    values = {}
    for key, value in data.items():
        if key == "kind":
            continue
        if key not in known:
            raise ModelError(f"{name} has no option {key!r}", did_you_mean(key, known))
        values[key] = from_dict(value)
        if not _fits(values[key], known[key]):
            raise ModelError(f"{name}.{key} cannot be {value!r}", f"expected {known[key]}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ModelError(
            f"{name} is incomplete: {error}", "compare it with a config.json written by this version"
        ) from None


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if hint is type(None) else isinstance(value, hint)
