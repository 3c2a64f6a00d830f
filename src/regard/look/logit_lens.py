"""The logit lens: the next-token distribution after each layer of the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from regard.baselines.linear_forecaster import LinearForecaster
from regard.core.finite_outputs import require_finite
from regard.core.stack import Stack
from regard.dual_encoder import DualEncoder
from regard.encoder_decoder import EncoderDecoder
from regard.errors import SettingError
from regard.look import drawing, terminal
from regard.look.forward import evaluation_mode
from regard.look.inspectable import CoreModel
from regard.look.probe_names import residual_probes, stacks
from regard.look.recording import Look, array, require_look
from regard.look.result import AnalysisResult, Array
from regard.series_encoder_decoder import SeriesEncoderDecoder


@dataclass(frozen=True)
class Lens(AnalysisResult):
    """What the model would predict if it stopped after each layer: the most probable tokens."""

    layers: tuple[str, ...]
    positions: tuple[str, ...]
    tokens: tuple[tuple[tuple[str, ...], ...], ...]  # [layers][positions][top]
    probabilities: Array  # [layers, positions, top]

    note = (
        "Final norm and vocabulary on the residual stream after each layer. "
        "The last layer is what the model says."
    )

    @property
    def title(self) -> str:
        return "logit lens: the likeliest next token, layer by layer"

    def numpy(self) -> Array:
        return self.probabilities

    def scene(self) -> drawing.Scene:
        inside = [[drawing.shown(best[0]) for best in layer] for layer in self.tokens]
        probabilities = self.probabilities[:, :, 0]
        return drawing.heat(
            probabilities, self.layers, self.positions, title=self.title, most=1.0, inside=inside
        )

    def lines(self, width: int = 100) -> list[str]:
        rows = [["reads", *self.layers]]
        for i, position in enumerate(self.positions):
            row = [drawing.shown(position)]
            for layer, probability in zip(self.tokens, self.probabilities[:, i, 0], strict=True):
                row.append(f"{drawing.shown(layer[i][0])} {probability:.2f}")
            rows.append(row)
        return terminal.table(rows, width=width)


def lens(run: Look, *, top: int = 5, positions: Sequence[int] | None = None) -> Lens:
    """The `top` most probable tokens after each layer of the stack that the LM head stands on.

    `positions` picks some of its positions.
    """
    require_look(run)
    core = run.model.model
    stack, head = _stack_and_head(core)
    probes = residual_probes(core, run.stack())
    for name in probes:
        if name not in run.probe.tensors:
            raise SettingError(f"{name} was not recorded", "ask for '*.embedded' and '*.residual'")
    # A position is named by the token that is read there; what is predicted is the next one.
    position_tokens = run.model_inputs.input_tokens
    if isinstance(core, EncoderDecoder):
        position_tokens = run.model_inputs.decoder_tokens[:-1]
    if positions is None:
        positions = range(len(position_tokens))
    tokens = []
    probabilities = []
    with evaluation_mode(core):
        for name in probes:
            residual = run.tensor(name)[:, list(positions)]  # [1, positions, D]
            logits = require_finite(head(stack.finish(residual)), core)  # [1, positions, V]
            # Half precision would make equal probabilities of different logits.
            best = logits[0].float().softmax(dim=-1).topk(min(top, logits.shape[-1]), dim=-1)
            rows = best.indices.tolist()
            tokens.append(tuple(tuple(run.model.output_tokenizer.tokens(row)) for row in rows))
            probabilities.append(array(best.values))
    layers = ("embedded", *(f"layer {i}" for i in range(len(probes) - 1)))
    return Lens(
        layers,
        tuple(position_tokens[i] for i in positions),
        tuple(tokens),
        np.stack(probabilities),
    )


def _stack_and_head(model: CoreModel) -> tuple[Stack, Callable[[Tensor], Tensor]]:
    """The last stack, which has the final norm, and the LM head on it."""
    without = DualEncoder | LinearForecaster | SeriesEncoderDecoder
    if isinstance(model, without) or model.head is None:
        raise SettingError(
            "this model has no scores over a vocabulary",
            "look through a lens at one that writes or fills in",
        )
    stack = list(stacks(model).values())[-1]
    if not isinstance(stack, Stack):
        raise SettingError(
            "only a stack of blocks has a residual stream", "look at a Transformer through a lens"
        )
    return stack, model.head
