"""Probes: what a caller records or edits inside a forward pass, by name.

A probe is an argument of the call, never a hook or a switch on a module. A name counts
applications: `encoder.3.self` is the self-attention of the fourth block that ran. Of an attention,
its arguments are recorded, and attention weights are recomputed from them for just the rows and
heads that are asked for; the model itself stays on the fused path. What passes a named point can
also be edited there (head ablation, activation patching).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.system.errors import SettingError, did_you_mean

Edit = Callable[[Tensor], Tensor]
PARTS = ("weights", "q", "k", "v")  # what can be asked of a recorded attention


class HasWeights(Protocol):
    """An attention kernel that can give its weights."""

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
        bias: ScoreBias | None = None,
    ) -> Tensor: ...


@runtime_checkable
class SelectsKeys(Protocol):
    """An attention kernel that attends to fewer keys than the mask allows, depending on their
    content."""

    def visible(self, q: Tensor, k: Tensor, mask: AttentionMask, rows: Tensor) -> Tensor: ...


class RowsOfInputs(Protocol):
    """How the inputs of an attention became rows of its batch: the frames of a clip."""

    def whole(self, call: AttentionCall) -> AttentionCall: ...


class HasHeads(Protocol):
    """A part with attention heads. `out_weight` [D, H·E] is the weight of the output projection."""

    @property
    def heads(self) -> int: ...
    @property
    def out_weight(self) -> Tensor: ...


@dataclass(frozen=True)
class AttentionCall:
    """The recorded arguments of one call of an attention kernel."""

    mixer: HasWeights
    q: Tensor  # [B, H, T, K]
    k: Tensor  # [B, G, S, K]
    v: Tensor  # [B, G, S, E]
    mask: AttentionMask
    bias: ScoreBias | None = None
    # Longformer: which queries [B, T] are global, and the call that computes their rows.
    global_rows: Tensor | None = None
    global_call: AttentionCall | None = None
    # The call that was made, where its rows are parts of an input (frames of a clip).
    in_rows: AttentionCall | None = None

    def weights(self, rows: Tensor | None = None, heads: Tensor | None = None) -> Tensor:
        """Attention weights [B, heads, rows, S] of the query rows and heads asked for, or of
        all."""
        if rows is None:
            rows = torch.arange(self.q.shape[2], device=self.q.device)
        weights = self.mixer.weights(self.q, self.k, self.mask, rows, heads, self.bias)
        if self.global_call is None or self.global_rows is None:
            return weights
        is_global = self.global_rows[:, None, rows, None]  # [B, 1, rows, 1]
        return torch.where(is_global, self.global_call.weights(rows, heads), weights)

    def visible(self, rows: Tensor) -> Tensor:
        """Which keys these query rows could attend to: [B or 1, H or 1, rows or 1, S]."""
        if isinstance(self.mixer, SelectsKeys):
            return self.mixer.visible(self.q, self.k, self.mask, rows)
        if self.global_call is None or self.global_rows is None:
            return self.mask.for_rows(rows)
        is_global = self.global_rows[:, None, rows, None]  # [B, 1, rows, 1]
        return torch.where(is_global, self.global_call.visible(rows), self.mask.for_rows(rows))


# ------------------------------------------------------------------ probes


class NullProbe:
    """The probe of a plain call: records nothing, edits nothing."""

    active = False

    def scope(self, name: str) -> NullProbe:
        """The same probe, seen from inside the part called `name`."""
        return self

    def through(self, name: str, value: Tensor) -> Tensor:
        """Records or edits the value at the point `name`, and returns it."""
        return value

    def attention(
        self,
        mixer: HasWeights,
        qkv: tuple[Tensor, Tensor, Tensor],
        mask: AttentionMask,
        bias: ScoreBias | None = None,
        *,
        global_rows: Tensor | None = None,
        rows: RowsOfInputs | None = None,
    ) -> None:
        """Records the kernel call of the attention whose scope this is.

        With `global_rows` [B, T], it computes these rows of the attention around it. `rows` says
        how its batch was made of inputs.
        """


NO_PROBE = NullProbe()


class Probe(NullProbe):
    """Collects what matches `wanted`, a list of names with * and ?, and applies `edits` at the
    points they name.

    Recorded tensors have no gradients, unless `gradients` are asked for.
    """

    active = True

    def __init__(
        self,
        wanted: Iterable[str] = (),
        edits: Mapping[str, Edit] | None = None,
        *,
        gradients: bool = False,
    ) -> None:
        self.wanted = tuple(wanted)
        self.edits = edits or {}
        self.gradients = gradients
        self.prefix = ""
        self.tensors: dict[str, Tensor] = {}
        self.attentions: dict[str, AttentionCall] = {}

    def scope(self, name: str) -> Probe:
        inner = copy(self)  # one collection for all scopes
        inner.prefix += f"{name}."
        return inner

    def through(self, name: str, value: Tensor) -> Tensor:
        name = self.prefix + name
        if name in self.edits:
            value = self.edits[name](value)
        if self._wants(name):
            self.tensors[name] = value if self.gradients else value.detach()
        return value

    def attention(
        self,
        mixer: HasWeights,
        qkv: tuple[Tensor, Tensor, Tensor],
        mask: AttentionMask,
        bias: ScoreBias | None = None,
        *,
        global_rows: Tensor | None = None,
        rows: RowsOfInputs | None = None,
    ) -> None:
        name = self.prefix.removesuffix(".")
        call = AttentionCall(mixer, *qkv, mask, bias)
        # An attention is recorded if it is asked for, or any part of it: `encoder.0.self.weights`.
        if self._wants(name) or any(self._wants(f"{name}.{part}") for part in PARTS):
            self.attentions[name] = call if rows is None else rows.whole(call)
        outer = name.rpartition(".")[0]
        if global_rows is not None and outer in self.attentions:
            self.attentions[outer] = replace(
                self.attentions[outer], global_rows=global_rows, global_call=call
            )

    def weights(self, name: str, rows: Tensor | None = None, heads: Tensor | None = None) -> Tensor:
        """Attention weights of the attention called `name`."""
        if name not in self.attentions:
            raise SettingError(
                f"no attention named {name!r} was recorded", did_you_mean(name, self.attentions)
            )
        return self.attentions[name].weights(rows, heads)

    def _wants(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.wanted)


# ------------------------------------------------------------------ rows of a batch


@dataclass(frozen=True)
class RowPart:
    """The probe of some rows of a batch; `fail` takes what it raises."""

    rows: Tensor
    probe: NullProbe
    fail: Callable[[BaseException], None]


class RowProbe(NullProbe):
    """Probes of different rows of a batch, of which each sees and edits its own rows only. What one
    of them raises is that one's, and its rows pass unedited."""

    active = True

    def __init__(self, parts: Iterable[RowPart]) -> None:
        self.parts = tuple(parts)

    def scope(self, name: str) -> RowProbe:
        return RowProbe(replace(part, probe=part.probe.scope(name)) for part in self.parts)

    def through(self, name: str, value: Tensor) -> Tensor:
        if not value.ndim:
            return value  # of the whole batch, and of no row
        for part in self.parts:
            before = value[part.rows]
            try:
                after = part.probe.through(name, before)
                if after is not before:
                    value = value.index_copy(0, part.rows, after)
            except Exception as error:
                part.fail(error)
        return value
