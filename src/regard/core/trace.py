"""Named probes: an argument of the call, never a hook or a switch on a module.

A name counts applications: `encoder.3.self` is the self-attention of the fourth block that ran. Of an attention, its
arguments are recorded, and weights are recomputed from them for just the rows and heads that are asked for; the model
itself stays on the fused path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

import torch
from torch import Tensor

from regard.core.pattern import Sight
from regard.errors import SettingError, did_you_mean


class Mixes(Protocol):
    def weights(self, q: Tensor, k: Tensor, sight: Sight, rows: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Attended:
    """The arguments one mixer was called with."""

    mixer: Mixes
    q: Tensor  # [B, H, T, K]
    k: Tensor  # [B, G, S, K]
    v: Tensor  # [B, G, S, E]
    sight: Sight

    def weights(self, rows: Tensor | None = None) -> Tensor:
        """[B, H, rows, S]: attention weights of the query rows asked for, or of all."""
        if rows is None:
            rows = torch.arange(self.q.shape[2], device=self.q.device)
        return self.mixer.weights(self.q, self.k, self.sight, rows)


class Trace:
    """Collects what matches `wanted`, a list of names with * and ?."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.wanted = tuple(wanted)
        self.prefix = ""
        self.tensors: dict[str, Tensor] = {}
        self.attentions: dict[str, Attended] = {}

    def scope(self, name: str) -> Trace:
        """The same collection, seen from inside the part called `name`."""
        inner = Trace(self.wanted)
        inner.prefix = f"{self.prefix}{name}."
        inner.tensors, inner.attentions = self.tensors, self.attentions
        return inner

    def record(self, name: str, value: Tensor) -> None:
        if self._wants(self.prefix + name):
            self.tensors[self.prefix + name] = value.detach()

    def attended(self, call: Attended) -> None:
        """Records the mixer call of the attention whose scope this is."""
        name = self.prefix.removesuffix(".")
        if self._wants(name):
            self.attentions[name] = call

    def weights(self, name: str, rows: Tensor | None = None) -> Tensor:
        if name not in self.attentions:
            raise SettingError(f"no attention named {name!r} was recorded", did_you_mean(name, self.attentions))
        return self.attentions[name].weights(rows)

    def _wants(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.wanted)
