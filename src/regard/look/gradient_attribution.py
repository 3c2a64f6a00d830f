"""Gradient × input attribution: the input tokens that a logit depends on, to first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import Edit, Probe
from regard.look import drawing
from regard.look.backdrop import Backdrop, GraphBackdrop, SeriesBackdrop, SoundBackdrop
from regard.look.drawing import terminal
from regard.look.forward import evaluation_mode, forward
from regard.look.inspectable import Input, Inspectable
from regard.look.model_inputs import ModelInputs
from regard.look.probe_names import Head, require_positions, switched_off
from regard.look.recording import array, look
from regard.look.result import PICTURE_ONLY, AnalysisResult, Array, Names
from regard.look.views import require_view
from regard.wirings.core_model import CoreModel

ROWS = 32  # logits whose gradients are computed in one batch


@dataclass(frozen=True)
class Attribution(AnalysisResult):
    """The gradient of each predicted token's logit times the embedding of each input token."""

    predictions: Names
    tokens: Names
    values: Array  # [predictions, tokens]
    scores: Array  # [predictions]: the logits
    backdrop: Backdrop | None = field(default=None, metadata=PICTURE_ONLY)
    decoder_columns: int = field(default=0, metadata=PICTURE_ONLY)  # the last ones

    note = (
        "Attention is not explanation: a weight shows where a head attends, not what the "
        "prediction depends on. Gradient × input is the first-order effect on its logit: blue "
        "raises it, brown lowers it."
    )
    title = "gradient × input"
    numbers = "values"

    def scene(self) -> drawing.Scene:
        if self.backdrop is not None:
            return self._overlay(self.backdrop)
        return drawing.heat(
            self.values, self.predictions, self.tokens, title=self.title, signed=True
        )

    def _overlay(self, backdrop: Backdrop) -> drawing.Scene:
        """What raises and what lowers the answer, on the input itself."""
        # An encoder–decoder's columns end with what its decoder has read.
        values = self.values[:, : len(self.tokens) - self.decoder_columns]
        panel = drawing.Panel("", values, signed=True)
        query = backdrop.query
        if len(self.predictions) == 1:
            query = 0
        elif query is None and isinstance(backdrop, SoundBackdrop):
            return backdrop.table(replace(panel, name=self.title), self.predictions)
        return backdrop.attended([panel.of_query(query)], title=self.title)

    def lines(self, width: int = 100) -> list[str]:
        return terminal.heat(np.abs(self.values), self.predictions, self.tokens, width=width)


def attribution(
    model: Inspectable,
    text: Input,
    *,
    target: str | None = None,
    positions: Sequence[int] | None = None,
    off: Sequence[Head] = (),
) -> Attribution:
    """The attribution of what is predicted at each output position to each input token.

    `positions` picks some of the output. An encoder–decoder's columns are the source, then what its
    decoder has read; a language model's are its own tokens, and its rows the tokens that follow or,
    at the end, the most probable one. A classifier's row is its most probable label. `off` are
    heads to ablate.
    """
    require_view(model, "attribution")
    core = model.model
    edits = switched_off(core, off)
    run = look(model, text, target=target, ask=["logits"], off=off)
    inputs = run.model_inputs
    output = run.tensor("logits")
    backdrop = inputs.backdrop
    if positions is None and isinstance(backdrop, GraphBackdrop) and output.ndim == 3:
        positions = None if backdrop.node is None else [backdrop.node]
    logits = output[0] if output.ndim > 2 else output  # [positions, V]
    if positions is None:
        positions = range(len(logits))
    distinct = [*dict.fromkeys(require_positions(positions, len(logits)))]
    ids = [_predicted_id(inputs, logits, position) for position in distinct]
    selected = torch.tensor([distinct, ids], device=logits.device)
    # The edges of a graph are those of one row.
    at_once = 1 if inputs.side_inputs else ROWS
    rows = [
        _gradient_times_input(core, inputs, chunk, edits)
        for chunk in selected.split(at_once, dim=1)
    ]
    return Attribution(
        tuple(_names(model, backdrop, distinct, ids)),
        (*inputs.input_tokens, *inputs.decoder_tokens[:-1]),
        np.concatenate(rows),
        array(logits[distinct, ids]),
        backdrop,
        len(inputs.decoder_tokens[:-1]),
    )


def _predicted_id(inputs: ModelInputs, logits: Tensor, position: int) -> int:
    """The token that follows at a position, where that is known, or the most probable one."""
    if isinstance(inputs.backdrop, SeriesBackdrop):
        return 0  # the channel that is shown
    if position < len(inputs.next_ids):
        return inputs.next_ids[position]
    return int(logits[position].argmax())


def _names(
    model: Inspectable, backdrop: Backdrop | None, positions: list[int], ids: list[int]
) -> list[str]:
    """What is predicted at the positions: steps of a forecast, labels, or tokens."""
    core = model.model
    if isinstance(backdrop, SeriesBackdrop) and len(backdrop.forecast):
        return [f"+{position + 1}" for position in positions]
    if core.lm_head is None and "decoder" in core.stacks():  # an encoder–decoder of series
        return [f"channel {i}" for i in ids]
    if core.lm_head is None:
        return [model.label_name(i) for i in ids]
    return model.output_tokenizer.tokens(ids)


def _gradient_times_input(
    model: CoreModel, inputs: ModelInputs, selected: Tensor, edits: dict[str, Edit]
) -> Array:
    """[N, tokens] of logits by position and id [2, N].

    Each has a row of the batch, so that one backward pass serves them all.
    """
    leaves: dict[str, Tensor] = {}  # the embeddings, in the order of the forward pass

    def record_leaf(name: str) -> Edit:
        def edit(embedded: Tensor) -> Tensor:
            # Detached, so that the backward pass ends at the embeddings.
            leaves[name] = embedded.detach().requires_grad_()
            return leaves[name]

        return edit

    names = [f"{stack}.embedded" for stack in model.stacks()]
    probe = Probe(edits=edits | {name: record_leaf(name) for name in names})
    positions, ids = selected
    count = len(ids)
    # Tensors made in inference mode cannot take part in autograd: hence the clones.
    with torch.inference_mode(False), evaluation_mode(model, gradients=True):
        named = {name: tensor.clone() for name, tensor in inputs.arguments.items()}
        for name in inputs.named:
            named[name] = named[name].expand(count, *named[name].shape[1:])
        logits = forward(model, named, probe)
        if logits.ndim == 2:  # a pooled output is that of position 0
            logits = logits[:, None]
        chosen = logits[torch.arange(count, device=logits.device), positions.clone(), ids.clone()]
        # Of a dual encoder only one of the two stacks runs.
        embedded = [leaves[name] for name in names if name in leaves]
        # Rows do not interact: the gradient of the sum is each row's own.
        gradients = torch.autograd.grad(chosen.sum(), embedded)
    products = [
        # [N · channels, T, D] → [N, T]: each channel of a series is a row of the batch.
        (leaf * gradient).sum(dim=-1).unflatten(0, (count, -1))[:, 0]
        for leaf, gradient in zip(embedded, gradients, strict=True)
    ]
    return array(torch.cat(products, dim=1))
