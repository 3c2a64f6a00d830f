"""look: one run of a model with named probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor

from regard.baselines.memory_network import MemoryNetwork
from regard.core.probe import PARTS, AttentionCall, Probe
from regard.errors import SettingError, did_you_mean
from regard.look import drawing, terminal
from regard.look.result import Array, Result
from regard.look.target import (
    Head,
    Holds,
    Reading,
    Subject,
    at_rest,
    attentions,
    hidden,
    probes,
    read,
    run,
    stacks,
    subject_of,
    switched_off,
)
from regard.model import EncoderDecoder

CHUNK = 1 << 22  # weights computed at a time where all are needed but only their sums are kept


@dataclass(frozen=True)
class AttentionMap(Result):
    """The weights of some heads and rows of one attention; each row sums to 1."""

    name: str
    heads: tuple[int, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    weights: Array  # [heads, rows, columns]

    note = "A row is a query, a column what it looks at. Attention shows where a head looks, not why the model says something."

    @property
    def title(self) -> str:
        return f"{self.name}, head {', '.join(map(str, self.heads))}"

    def numpy(self) -> Array:
        return self.weights

    def scene(self) -> drawing.Scene:
        if len(self.heads) > 1:
            panels = [
                (f"head {head}", weights)
                for head, weights in zip(self.heads, self.weights, strict=True)
            ]
            return drawing.grid(panels, title=self.name)
        weights = self.weights[0]
        maps = [drawing.heat(weights, self.rows, self.columns, title=self.title)]
        if weights.size <= drawing.MOST_CELLS:
            maps.append(drawing.links(weights, self.rows, self.columns))
        return drawing.below(maps)

    def lines(self, width: int = 100) -> list[str]:
        found: list[str] = []
        for head, weights in zip(self.heads, self.weights, strict=True):
            found += [""] if found else []
            found += [f"head {head}"] if len(self.heads) > 1 else []
            found += terminal.heat(weights, self.rows, self.columns, width=width)
        return found


class Look:
    """What one run showed. `look["decoder.2.residual"]` is a probe that was asked for, without the dimension of the batch;
    `weights` computes those of an attention for just the rows and heads asked."""

    def __init__(self, subject: Subject, reading: Reading, probe: Probe) -> None:
        self.subject = subject
        self.reading = reading
        self.probe = probe

    @property
    def source(self) -> tuple[str, ...]:
        """The tokens of the input."""
        return self.reading.labels

    @property
    def target(self) -> tuple[str, ...]:
        """The tokens that a decoder behind an encoder wrote."""
        return self.reading.said

    @property
    def names(self) -> list[str]:
        """What was asked for, in the order of the computation."""
        return [name for name in probes(self.subject.model) if self._has(name)]

    def __getitem__(self, name: str) -> Array:
        return array(self.tensor(name)[0])

    def tensor(self, name: str) -> Tensor:
        """A probe as it is on the device: [1, …]."""
        if not self._has(name):
            raise SettingError(
                f"nothing was asked of {name!r}", did_you_mean(name, self.names) + "; see `ask`"
            )
        if name in self.probe.tensors:
            return self.probe.tensors[name]
        attention, _, part = name.rpartition(".")
        call = self.probe.attentions[attention]
        return {
            "weights": call.weights,
            "q": lambda: call.q,
            "k": lambda: call.k,
            "v": lambda: call.v,
        }[part]()

    def call(self, name: str) -> AttentionCall:
        """The recorded arguments of an attention, as `encoder.3.self`."""
        if name not in self.probe.attentions:
            known = (
                did_you_mean(name, self.probe.attentions)
                if self.probe.attentions
                else "ask for '*.weights'"
            )
            raise SettingError(f"the attention {name!r} was not recorded", known)
        return self.probe.attentions[name]

    def weights(
        self, name: str, rows: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> Array:
        """[heads, rows, columns] of an attention, as `encoder.3.self`; nothing else of it is computed."""
        call = self.call(name)
        _, many, length, _ = call.q.shape
        for what, asked, most in (("row", rows, length), ("head", heads, many)):
            beyond = [i for i in asked or () if not 0 <= i < most]
            if beyond:
                raise SettingError(
                    f"{name} has no {what} {beyond[0]}", f"there are {most}, counted from 0"
                )
        device = call.q.device
        return array(
            call.weights(
                None if rows is None else torch.tensor(list(rows), dtype=torch.long, device=device),
                None
                if heads is None
                else torch.tensor(list(heads), dtype=torch.long, device=device),
            )[0]
        )

    def attention(
        self, name: str, *, rows: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> AttentionMap:
        """The same with the names of its rows and columns."""
        weights = self.weights(name, rows, heads)
        left, right = self.labels(name)
        chosen = range(self.call(name).q.shape[1]) if heads is None else heads
        picked = left if rows is None else tuple(left[i] for i in rows)
        return AttentionMap(name, tuple(chosen), picked, right, weights)

    def labels(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The queries and the keys of an attention. Where a decoder looks at its source, its queries are named by what it is
        about to write there."""
        own = self.reading.labels
        if isinstance(self.subject.model, EncoderDecoder) and name.startswith("decoder."):
            written = self.reading.written[:-1]
            return (self.reading.said, own) if name.endswith(".cross") else (written, written)
        if isinstance(self.subject.model, MemoryNetwork):
            return own[-1:], own[:-1]
        return own, own

    def stack(self, name: str | None = None) -> str:
        """A stack's name, the last one's unless said."""
        known = stacks(self.subject.model)
        if name is not None and name not in known:
            raise SettingError(f"this model has no stack {name!r}", did_you_mean(name, known))
        return name or list(known)[-1]

    def _has(self, name: str) -> bool:
        attention, _, part = name.rpartition(".")
        return name in self.probe.tensors or (
            part in PARTS
            and attention in self.probe.attentions
            and any(fnmatchcase(name, pattern) for pattern in self.probe.wanted)
        )


def look(
    held: Subject | Holds,
    text: str | Tensor,
    *,
    target: str | None = None,
    ask: Sequence[str] = ("*.weights",),
    off: Sequence[Head] = (),
) -> Look:
    """Runs a model on one text, on its fused path, and keeps what `ask` names: `encoder.3.self.weights`,
    `decoder.0.cross.q`, `decoder.2.residual`, `encoder.embedded`, `decoder.output`, `logits`, with * and ?.

    An encoder–decoder translates the text first, unless it is given a `target`. `off`: heads to switch off, as
    ("decoder.1.cross", 3). Other inputs than text are tensors as their front end takes them, with a batch of 1.
    """
    subject = subject_of(held)
    asked = checked(subject, ask)
    with at_rest(subject.model):
        reading = read(subject, text, target, off)
        probe = Probe(asked, switched_off(subject.model, off))
        if asked:
            # The scores of a large vocabulary can cost as much as all the rest: they are made if they are asked for.
            said = any(fnmatchcase("logits", pattern) for pattern in asked)
            (run if said else hidden)(subject.model, reading.inputs, reading.outputs, probe=probe)
    return Look(subject, reading, probe)


def checked(subject: Subject, ask: Sequence[str]) -> tuple[str, ...]:
    """The names asked for, each of which must name something."""
    known = [*probes(subject.model), *attentions(subject.model)]
    for pattern in (ask,) if isinstance(ask, str) else ask:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SettingError(
                f"no probe of this model is called {pattern!r}", did_you_mean(pattern, known)
            )
    return (ask,) if isinstance(ask, str) else tuple(ask)


def array(values: Tensor) -> Array:
    """On the host, in float32 or what it is."""
    values = values.detach()
    return (
        (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values)
        .cpu()
        .numpy()
    )


def in_rows(call: AttentionCall) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows after the other and their weights [B, H, rows, S], so that a long input never needs them all."""
    batch, many, length, _ = call.q.shape
    step = max(1, CHUNK // max(1, batch * many * call.k.shape[2]))
    for first in range(0, length, step):
        rows = torch.arange(first, min(first + step, length), device=call.q.device)
        yield rows, call.weights(rows)


def layers_of(found: Look, kind: str) -> list[str]:
    """The recorded attentions of a kind (`self`, `cross`, or a stack's, as `encoder.*.self`), first layer first."""
    names = [
        name
        for name in found.probe.attentions
        if fnmatchcase(name, kind if "." in kind else f"*.{kind}")
    ]
    if not names:
        raise SettingError(
            f"no attention like {kind!r} was recorded",
            "ask for '*.weights' of a model that has one",
        )
    return names


def mean_heads(call: AttentionCall, heads: Sequence[int] | None = None) -> Array:
    """[T, S]: the mean over the heads of the first row of the batch."""
    chosen = slice(None) if heads is None else list(heads)
    return np.concatenate([array(weights[0, chosen].mean(dim=0)) for _, weights in in_rows(call)])
