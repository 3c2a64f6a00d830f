"""Named probes: an argument of the call, never a hook or a switch on a module.

A name counts applications: `encoder.3.self` is the self-attention of the fourth block that ran. Of an attention, its
arguments are recorded, and weights are recomputed from them for just the rows and heads that are asked for; the model
itself stays on the fused path. What passes a named place can also be edited there: heads are switched off, activations
of another run put in, and gradients asked for, in the model that trains and serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.core.mask import AttentionMask
from regard.errors import SettingError, did_you_mean

Edit = Callable[[Tensor], Tensor]
PARTS = ("weights", "q", "k", "v")  # what can be asked of an attention's arguments


class AttentionKernel(Protocol):
    def weights(
        self,
        q: Tensor,
        k: Tensor,
        attention_mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
    ) -> Tensor: ...


@runtime_checkable
class SelectsKeys(Protocol):
    """A mixer that looks at fewer keys than the pattern allows, by what stands there."""

    def visible(
        self, q: Tensor, k: Tensor, attention_mask: AttentionMask, rows: Tensor
    ) -> Tensor: ...


class HasHeads(Protocol):
    """A part that looks with some heads. `handed_on` [D, H·E] is the map of what they find."""

    @property
    def heads(self) -> int: ...
    @property
    def out_weight(self) -> Tensor: ...


@dataclass(frozen=True)
class AttentionCall:
    """The arguments one mixer was called with."""

    mixer: AttentionKernel
    q: Tensor  # [B, H, T, K]
    k: Tensor  # [B, G, S, K]
    v: Tensor  # [B, G, S, E]
    attention_mask: AttentionMask

    def weights(self, rows: Tensor | None = None, heads: Tensor | None = None) -> Tensor:
        """[B, heads, rows, S]: attention weights of the query rows and heads asked for, or of all."""
        if rows is None:
            rows = torch.arange(self.q.shape[2], device=self.q.device)
        return self.mixer.weights(self.q, self.k, self.attention_mask, rows, heads)

    def visible(self, rows: Tensor) -> Tensor:
        """[B or 1, H or 1, rows or 1, S]: which keys these query rows could look at."""
        if isinstance(self.mixer, SelectsKeys):
            return self.mixer.visible(self.q, self.k, self.attention_mask, rows)
        return self.attention_mask.asked(rows)


class Probe:
    """Collects what matches `wanted`, a list of names with * and ?, and applies `edits` at the places they name."""

    def __init__(self, wanted: Iterable[str] = (), edits: Mapping[str, Edit] | None = None) -> None:
        self.wanted = tuple(wanted)
        self.edits = edits or {}
        self.prefix = ""
        self.tensors: dict[str, Tensor] = {}
        self.attentions: dict[str, AttentionCall] = {}

    def scope(self, name: str) -> Probe:
        """The same collection, seen from inside the part called `name`."""
        inner = Probe(self.wanted, self.edits)
        inner.prefix = f"{self.prefix}{name}."
        inner.tensors, inner.attentions = self.tensors, self.attentions
        return inner

    def through(self, name: str, value: Tensor) -> Tensor:
        """What goes on from the place called `name`: the value that came, or what an edit makes of it."""
        name = self.prefix + name
        if name in self.edits:
            value = self.edits[name](value)
        if self._wants(name):
            self.tensors[name] = value.detach()
        return value

    def attended(self, call: AttentionCall) -> None:
        """Records the mixer call of the attention whose scope this is."""
        name = self.prefix.removesuffix(".")
        if self._wants(name) or any(self._wants(f"{name}.{part}") for part in PARTS):
            self.attentions[name] = call

    def weights(self, name: str, rows: Tensor | None = None, heads: Tensor | None = None) -> Tensor:
        if name not in self.attentions:
            raise SettingError(
                f"no attention named {name!r} was recorded", did_you_mean(name, self.attentions)
            )
        return self.attentions[name].weights(rows, heads)

    def _wants(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.wanted)
