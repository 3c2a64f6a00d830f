"""look: one forward pass that records what named probes ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import PARTS, AttentionCall, Edit, Probe
from regard.look import drawing
from regard.look.backdrop import Backdrop
from regard.look.drawing import even_attention, terminal
from regard.look.forward import evaluation_mode, forward, hidden_states
from regard.look.inspectable import Input, Inspectable
from regard.look.model_inputs import ModelInputs, prepare_inputs
from regard.look.probe_names import Head, attentions, probes, require_indices, switched_off
from regard.look.result import PICTURE_ONLY, Array, Names, TokenAttention, to_json
from regard.look.views import VIEWS, other_views, require_view
from regard.system.errors import SettingError, did_you_mean


@dataclass(frozen=True)
class AttentionMap(TokenAttention):
    """The attention weights of some heads and queries of one attention; each row sums to 1."""

    name: str
    heads: tuple[int, ...]
    rows: Names  # queries
    columns: Names  # keys
    # The row that is laid over the backdrop; None is the mean of all.
    query: int | None = field(default=None, metadata=PICTURE_ONLY)

    note = (
        "Rows are queries, columns keys. Attention weights show where a head attends, not why the "
        "model predicts something."
    )

    @property
    def title(self) -> str:
        return f"{self.name}, head {', '.join(map(str, self.heads))}"

    def scene(self) -> drawing.Scene:
        panels = self._panels()
        if self.backdrop is not None:
            return self._overlay(self.backdrop, panels)
        if len(panels) > 1:
            return drawing.grid(panels, self.rows, self.columns, title=self.name)
        names = (replace(panels[0], name=self.title), self.rows, self.columns)
        maps = [drawing.attention_heat(*names)]
        if self.weights.size <= drawing.MOST_CELLS:
            # Beyond that, the lines would be a black block.
            maps.append(drawing.links(*names))
        return drawing.below(maps)

    def _panels(self) -> list[drawing.Panel]:
        """A panel for each head."""
        panels = []
        for number, head in enumerate(self.heads):
            even = None if self.even is None else self.even[number % len(self.even)]
            panels.append(drawing.Panel(f"head {head}", self.weights[number], even))
        return panels

    def _overlay(self, backdrop: Backdrop, panels: Sequence[drawing.Panel]) -> drawing.Scene:
        """Where each head looks, on the input itself; of tokens, a row for each of them."""
        if self.name.endswith(".cross"):
            return backdrop.table(replace(self.panel.of_query(None), name=self.name), self.rows)
        who = "all positions"
        if self.query is not None:
            who = backdrop.position_name(self.rows[self.query])
        return backdrop.attended(
            [panel.of_query(self.query) for panel in panels],
            title=f"{self.name}: attention from {who}",
        )

    def lines(self, width: int = 100) -> list[str]:
        lines: list[str] = []
        for panel in self._panels():
            name = ["", panel.name] if len(self.heads) > 1 else []
            names = (panel.weights, self.rows, self.columns)
            lines += [*name, *terminal.heat(*names, width=width, shades=panel.shades)]
        return lines


MOST_TOKENS = 64  # of a recording whose attention a notebook shows unasked
CHUNK = 1 << 22  # attention weights computed at a time where only their sums are needed


class Look:
    """The recording of one forward pass.

    `look["decoder.2.residual"]` is a recorded probe, without the batch dimension; `weights`
    computes the attention weights of just the queries and heads asked for.
    """

    def __init__(self, model: Inspectable, model_inputs: ModelInputs, probe: Probe) -> None:
        self.model = model
        self.model_inputs = model_inputs
        self.probe = probe  # holds the recorded tensors and attention calls

    def __repr__(self) -> str:
        return f"Look({' '.join(self.source)!r}, {len(self.names)} probes)"

    def _repr_html_(self) -> str:
        """For a notebook: the last attention that was recorded, and the names of all probes."""
        names = "".join(f"<li><code>{escape(name)}</code></li>" for name in self.names)
        recorded = f"<details><summary>{len(self.names)} probes</summary><ul>{names}</ul></details>"
        # The last one; over many tokens it is drawn when it is asked for: it takes a while.
        for name in reversed(attentions(self.model.model)):
            if name in self.probe.attentions and len(self.labels(name)[1]) <= MOST_TOKENS:
                return self.attention(name)._repr_html_() + recorded
        return f"<p>{escape(repr(self))}</p>{recorded}"

    @property
    def source(self) -> Names:
        """The tokens of the input."""
        return self.model_inputs.input_tokens

    @property
    def target(self) -> Names:
        """The tokens that the decoder of an encoder–decoder predicts."""
        return self.model_inputs.target_tokens

    @property
    def names(self) -> list[str]:
        """The recorded probes, in forward order."""
        return [name for name in probes(self.model.model) if self._has(name)]

    def __getitem__(self, name: str) -> Array:
        return array(self.tensor(name)[0])

    def tensor(self, name: str) -> Tensor:
        """A recorded probe as it is on the device: [1, …]."""
        if not self._has(name):
            repair = did_you_mean(name, self.names) + "; `ask` selects what is recorded"
            if name in probes(self.model.model):
                repair = f"record it: model.look(…, ask=[{name!r}])"
            raise SettingError(f"{name!r} was not recorded", repair)
        if name in self.probe.tensors:
            return self.probe.tensors[name]
        # Of an attention only its arguments are recorded; weights are computed when asked for.
        attention, _, part = name.rpartition(".")
        call = self.probe.attentions[attention]
        recorded: Tensor = call.weights() if part == "weights" else getattr(call, part)
        return recorded

    def call(self, name: str) -> AttentionCall:
        """The recorded arguments of an attention, such as `encoder.3.self`."""
        if name not in self.probe.attentions:
            repair = "record it: model.look(…, ask=['*.weights'])"
            if self.probe.attentions:
                repair = did_you_mean(name, self.probe.attentions)
            raise SettingError(f"the attention {name!r} was not recorded", repair)
        return self.probe.attentions[name]

    def weights(
        self, name: str, rows: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> Array:
        """The weights [heads, rows, columns] of an attention, such as `encoder.3.self`.

        Those of other rows (queries) and heads are not computed.
        """
        call = self.call(name)
        _, head_count, query_count, _ = call.q.shape
        row_index = _index("row", rows, query_count, call.q.device)
        head_index = _index("head", heads, head_count, call.q.device)
        return array(call.weights(row_index, head_index)[0])

    def attention(
        self, name: str, *, rows: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> AttentionMap:
        """The weights of an attention with the tokens of its rows and columns."""
        weights = self.weights(name, rows, heads)
        call = self.call(name)
        even = even_weights(call, _index("row", rows, call.q.shape[2], call.q.device))
        if heads is None:
            heads = range(len(weights))
        elif len(even) > 1:
            even = even[list(heads)]
        queries, keys = self.labels(name)
        backdrop = self.backdrop_of(name)
        query = None if backdrop is None or name.endswith(".cross") else backdrop.query
        if rows is not None:
            queries = tuple(queries[i] for i in rows)
            query = 0 if len(queries) == 1 else None
        shown = (name, tuple(heads), queries, keys, query)
        return AttentionMap(*shown, weights=weights, backdrop=backdrop, even=even)

    def backdrop_of(self, name: str) -> Backdrop | None:
        """What the keys of an attention stand on; None of those of a decoder's own tokens."""
        if name.startswith("decoder.") and not name.endswith(".cross"):
            return None
        backdrop = self.model_inputs.backdrop
        rows, _, keys, _ = self.call(name).k.shape
        if backdrop is None or keys == len(self.model_inputs.input_tokens):
            return backdrop
        # Windows of an image (Swin) are rows, each with some of its patches. Other keys are of a
        # later stage, or of a map that is reduced (SegFormer).
        return backdrop if rows == 1 and backdrop.holds(keys) else None

    def labels(self, name: str) -> tuple[Names, Names]:
        """The tokens of the queries and of the keys of an attention.

        The queries of a decoder behind an encoder are named by what they read and predict.
        """
        input_tokens = self.model_inputs.input_tokens
        if name.startswith("memory."):
            # The question, which comes last, attends to the sentences before it.
            return input_tokens[-1:], input_tokens[:-1]
        if name.endswith(".cross"):
            return self.model_inputs.queries_of("decoder"), input_tokens
        if name.startswith("decoder.") and self.model_inputs.target_tokens:
            return self.model_inputs.queries_of("decoder"), self.model_inputs.tokens_of("decoder")
        call = self.call(name)
        return self._places(call.q.shape[2]), self._places(call.k.shape[2])

    def _places(self, count: int) -> Names:
        """The names of so many positions of the input: of other numbers, row and column in the
        first window of an image (Swin), or in a smaller map of it (SegFormer)."""
        input_tokens = self.model_inputs.input_tokens
        if count == len(input_tokens):
            return input_tokens
        side = max(1, math.isqrt(count))
        return tuple(f"{i // side},{i % side}" for i in range(count))

    def stack(self) -> str:
        """The name of the last stack, on which the head stands."""
        return list(self.model.model.stacks())[-1]

    def _has(self, name: str) -> bool:
        if name in self.probe.tensors:
            return True
        attention, _, part = name.rpartition(".")
        # q, k and v are recorded together; only those that a pattern names are shown.
        if part not in PARTS or attention not in self.probe.attentions:
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.probe.wanted)


def _index(
    what: str, numbers: Sequence[int] | None, count: int, device: torch.device
) -> Tensor | None:
    """The numbers of rows or heads as an index, after a check of their range."""
    if numbers is None:
        return None
    return torch.tensor(require_indices(what, numbers, count), dtype=torch.long, device=device)


def look(
    model: Inspectable,
    text: Input,
    *,
    target: str | Sequence[int] | None = None,
    ask: Sequence[str] = ("*.weights",),
    off: Sequence[Head] = (),
    edits: Mapping[str, Edit] | None = None,
) -> Look:
    """Runs a model on one text, on its fused path, and records the probes that `ask` names.

    Names are `encoder.3.self.weights`, `decoder.0.cross.q`, `decoder.2.residual`,
    `encoder.embedded`, `decoder.output`, `logits`, with the wildcards * and ?. An encoder–decoder
    translates the text first, unless it is given a `target`, as a text or as token ids. `off` are
    heads to ablate, such as ("decoder.1.cross", 3), and `edits` change what passes at other points.
    Inputs other than text are tensors as the model's front end takes them, with a batch of 1.
    """
    core = model.model
    patterns = (ask,) if isinstance(ask, str) else ask
    _check_patterns(model, patterns)
    with evaluation_mode(core):
        # The translation is made with the same heads off as the pass that is recorded.
        model_inputs = prepare_inputs(model, text, target, off)
        probe = Probe(patterns, {**switched_off(core, off), **(edits or {})})
        named = model_inputs.arguments
        # Logits over a large vocabulary can cost as much as all layers: only if asked for.
        asks_logits = any(fnmatchcase("logits", pattern) for pattern in patterns)
        if asks_logits or model_inputs.backdrop is not None:
            logits = forward(core, named, probe)
            if model_inputs.backdrop is not None:
                backdrop = model.with_answer(model_inputs.backdrop, logits)
                model_inputs = replace(model_inputs, backdrop=backdrop)
        elif patterns:
            hidden_states(core, named, probe)
    return Look(model, model_inputs, probe)


def _check_patterns(model: Inspectable, patterns: Sequence[str]) -> None:
    """Each pattern must match the name of something."""
    names = [*probes(model.model), *attentions(model.model)]
    for pattern in patterns:
        if any(fnmatchcase(name, pattern) for name in names):
            continue
        # A view that asks for it says why there is none.
        for view in VIEWS:
            if VIEWS[view].probes == (pattern,):
                require_view(model, view)
        raise SettingError(f"this model has no probe {pattern!r}", did_you_mean(pattern, names))


# ------------------------------------------------------------------ for the analyses


def array(values: Tensor) -> Array:
    """A tensor as a NumPy array, which has no half precision: that becomes float32."""
    values = values.detach()
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()
    return values.cpu().numpy()


def rounded(values: Tensor | Array, digits: int) -> Any:
    """JSON values with so many decimals."""
    if isinstance(values, Tensor):
        values = array(values)
    return to_json(np.round(values.astype(np.float64), digits))


def weights_in_chunks(call: AttentionCall) -> Iterator[tuple[Tensor, Tensor]]:
    """Some queries after the other and their weights [B, H, rows, S].

    A long input never needs all of its weights in memory.
    """
    batch, heads, length, _ = call.q.shape
    rows_at_once = max(1, CHUNK // max(1, batch * heads * call.k.shape[2]))
    for first in range(0, length, rows_at_once):
        rows = torch.arange(first, min(first + rows_at_once, length), device=call.q.device)
        yield rows, call.weights(rows)


def recorded_attentions(run: Look, kind: str) -> list[str]:
    """The names of the recorded attentions of a kind, first layer first.

    A kind is `self`, `cross`, or a pattern such as `encoder.*.self`.
    """
    # "self" is short for the self-attention of every stack.
    pattern = kind if "." in kind else f"*.{kind}"
    # Longformer's global tokens are rows of the attention around them, not one of their own.
    known_names = attentions(run.model.model)
    matching = [name for name in known_names if fnmatchcase(name, pattern)]
    names = [name for name in run.probe.attentions if name in matching]
    if not matching:
        raise SettingError(
            f"this model has no attention that matches {kind!r}", other_views(run.model)
        )
    if not names:
        raise SettingError(
            f"no attention that matches {kind!r} was recorded",
            "record it: model.look(…, ask=['*.weights'])",
        )
    return names


def even_weights(call: AttentionCall, rows: Tensor | None = None) -> Array:
    """[H or 1, rows, S]: the weights if each query attended alike to all keys that it may."""
    if rows is None:
        rows = torch.arange(call.q.shape[2], device=call.q.device)
    visible = call.visible(rows)[0]  # [H or 1, rows or 1, S], of the first row of the batch
    return even_attention(array(visible.expand(len(visible), len(rows), -1)))


def mean_over_heads(call: AttentionCall, heads: Sequence[int] | None = None) -> Array:
    """[T, S]: the mean weights of some heads, of the first row of the batch."""
    selected = slice(None) if heads is None else list(heads)
    # [rows, S] of some rows after the other
    means = [array(weights[0, selected].mean(dim=0)) for _, weights in weights_in_chunks(call)]
    return np.concatenate(means)
