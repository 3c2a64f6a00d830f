"""The logit lens: the next-token distribution after each layer of the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from regard.core.finite_outputs import require_finite
from regard.core.stack import Stack
from regard.look import drawing
from regard.look.forward import evaluation_mode
from regard.look.probe_names import require_positions, residual_probes
from regard.look.recording import Look, array
from regard.look.result import AnalysisResult, Array, Names
from regard.look.views import require_view
from regard.system.arguments import whole_number


@dataclass(frozen=True)
class Lens(AnalysisResult):
    """What the model would predict if it stopped after each layer: the most probable tokens."""

    layers: Names
    positions: Names
    tokens: tuple[tuple[Names, ...], ...]  # [layers][positions][top]
    probabilities: Array  # [layers, positions, top]

    note = (
        "Final norm and vocabulary on the residual stream after each layer. "
        "The last layer is the output of the model."
    )
    title = "logit lens: the most probable next token after each layer"
    numbers = "probabilities"

    def scene(self) -> drawing.Scene:
        inside = [[drawing.shown(best[0]) for best in layer] for layer in self.tokens]
        probabilities = self.probabilities[:, :, 0]
        return drawing.heat(
            probabilities, self.layers, self.positions, title=self.title, most=1.0, inside=inside
        )

    def table(self) -> list[list[str]]:
        rows = [["reads", *self.layers]]
        for i, position in enumerate(self.positions):
            best = zip(self.tokens, self.probabilities[:, i, 0], strict=True)
            cells = [f"{drawing.shown(layer[i][0])} {share:.2f}" for layer, share in best]
            rows.append([drawing.shown(position), *cells])
        return rows


def layer_outputs(run: Look) -> Iterator[Tensor]:
    """What the head would read of the last stack before its first and after each layer."""
    core = run.model.model
    stack = core.stacks()[run.stack()]
    assert isinstance(stack, Stack), "others were refused"
    for name in residual_probes(core, run.stack()):
        residual = run.tensor(name)  # [1, T, D]
        if name.endswith(".embedded"):
            residual = stack.residual_stream(residual)
        yield stack.finish(residual)  # which has the final norm


def lens(run: Look, *, top: int = 5, positions: Sequence[int] | None = None) -> Lens:
    """The `top` most probable tokens after each layer of the stack that the LM head stands on.

    `positions` picks some of its positions.
    """
    whole_number("top", top, least=1)
    core = run.model.model
    require_view(run.model, "lens")
    head = core.lm_head
    assert head is not None, "others were refused"
    # A position is named by the token that is read there; what is predicted is the next one.
    position_tokens = run.model_inputs.tokens_of(run.stack())
    if positions is None:
        positions = range(len(position_tokens))
    positions = require_positions(positions, len(position_tokens))
    tokens = []
    probabilities = []
    with evaluation_mode(core):
        for hidden in layer_outputs(run):
            logits = require_finite(head(hidden[:, positions]), core)  # [1, positions, V]
            # Half precision would make equal probabilities of different logits.
            best = logits[0].float().softmax(dim=-1).topk(min(top, logits.shape[-1]), dim=-1)
            rows = best.indices.tolist()
            tokens.append(tuple(tuple(run.model.output_tokenizer.tokens(row)) for row in rows))
            probabilities.append(array(best.values))
    layers = ("embedded", *(f"layer {i}" for i in range(len(tokens) - 1)))
    return Lens(
        layers,
        tuple(position_tokens[i] for i in positions),
        tuple(tokens),
        np.stack(probabilities),
    )
