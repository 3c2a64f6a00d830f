"""Word alignment from cross-attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from regard.look import drawing
from regard.look.arguments import require_indices
from regard.look.backdrop import Backdrop
from regard.look.drawing import terminal
from regard.look.recording import (
    Look,
    even_weights,
    mean_over_heads,
    recorded_attentions,
)
from regard.look.result import PICTURE_ONLY, AnalysisResult, Array
from regard.look.views import spells_frames
from regard.system.errors import SettingError


@dataclass(frozen=True)
class Alignment(AnalysisResult):
    """The cross-attention of each target token; `links` are its strongest source tokens."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Array  # [target, source]
    links: tuple[tuple[int, int], ...]  # (target, source)
    layer: int
    heads: tuple[int, ...]
    layers: int = 1  # of the decoder
    is_best: bool = False  # the layer was chosen because it aligns best
    backdrop: Backdrop | None = field(default=None, metadata=PICTURE_ONLY)
    even: Array | None = field(default=None, metadata=PICTURE_ONLY)  # weights of even attention

    note = (
        "Cross-attention while each target token was generated, averaged over the heads. "
        "Not a reliable word alignment."
    )

    @property
    def title(self) -> str:
        heads = ", ".join(map(str, self.heads))
        is_choice = self.is_best and self.layers > 1
        chosen = f", which aligns best of {self.layers}" if is_choice else ""
        return f"cross-attention alignment, decoder layer {self.layer}{chosen}, heads {heads}"

    def numpy(self) -> Array:
        return self.weights

    def shades(self) -> Array:
        """The weights as they are drawn: shades from 0 to 1, against even attention."""
        return drawing.attention_shades(self.weights, self.even)

    def scene(self) -> drawing.Scene:
        if self.backdrop is not None:
            return self.backdrop.table(
                self.weights, self.target, title=self.title, scale="attention", even=self.even
            )
        cells = drawing.attention_heat(
            self.weights, self.target, self.source, even=self.even, title=self.title
        )
        # Lines for the strongest weights only; the heat map shows all.
        lines = drawing.links(
            self.weights, self.target, self.source, even=self.even, only=self.links
        )
        return drawing.below([cells, lines])

    def lines(self, width: int = 100) -> list[str]:
        return terminal.heat(
            self.weights, self.target, self.source, width=width, shades=self.shades()
        )


def alignment(run: Look, layer: int | None = None, heads: Sequence[int] | None = None) -> Alignment:
    """The alignment by one decoder layer's cross-attention, as the mean of some heads.

    By default of the layer whose attention says most about which source token belongs to which
    target token, and of all heads.
    """
    if spells_frames(run.model.model):
        raise SettingError(
            "a CTC model has no cross-attention to align with",
            "use `ctc_alignment(model.look(path, ask='logits'), model.decoder.names, "
            "model.decoder.blank)`",
        )
    names = recorded_attentions(run, "cross")
    is_best = layer is None
    if layer is None:
        scores = [mutual_information(mean_over_heads(run.call(name))) for name in names]
        layer = int(np.argmax(scores))
    [layer] = require_indices("decoder layer", [layer], len(names))
    name = names[layer]
    call = run.call(name)
    head_count = call.q.shape[1]
    if heads is None:
        heads = range(head_count)
    heads = require_indices("head", heads, head_count)
    weights = mean_over_heads(call, heads)  # [target, source]
    links = tuple((row, int(column)) for row, column in enumerate(weights.argmax(axis=1)))
    target, source = run.labels(name)
    return Alignment(
        source,
        target,
        weights,
        links,
        layer,
        tuple(heads),
        len(names),
        is_best,
        run.backdrop_of(name),
        even_weights(call).mean(axis=0),
    )


def mutual_information(weights: Array) -> float:
    """The mutual information of target and source positions, in nats, of weights [target, source].

    It is high where each target token attends to few places, and different tokens to different
    ones. Garg et al. (2019) take the penultimate of six layers; of two, the last one aligns.
    """
    mean = weights.mean(axis=0)
    return float(_entropy(mean) - np.mean([_entropy(row) for row in weights]))


def _entropy(shares: Array) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())
