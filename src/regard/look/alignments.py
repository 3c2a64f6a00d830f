"""Alignment: of target tokens by cross-attention, and of letters to a recording by CTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch

from regard.look import drawing
from regard.look.backdrop import Backdrop, SoundBackdrop
from regard.look.drawing import terminal
from regard.look.probe_names import require_indices
from regard.look.recording import (
    Look,
    array,
    even_weights,
    mean_over_heads,
    recorded_attentions,
)
from regard.look.result import PICTURE_ONLY, AnalysisResult, Array, Names, TokenAttention
from regard.look.views import spells_frames
from regard.system.errors import SettingError


@dataclass(frozen=True)
class Alignment(TokenAttention):
    """The cross-attention of each target token; `links` are its strongest source tokens."""

    source: Names
    target: Names
    links: tuple[tuple[int, int], ...]  # (target, source)
    layer: int
    heads: tuple[int, ...]
    layers: int = 1  # of the decoder
    is_best: bool = False  # the layer was chosen because it aligns best

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

    def scene(self) -> drawing.Scene:
        if self.backdrop is not None:
            return self.backdrop.table(self.panel, self.target)
        names = (self.panel, self.target, self.source)
        # Lines for the strongest weights only; the heat map shows all.
        links = drawing.links(*names, only=self.links)
        return drawing.below([drawing.attention_heat(*names), links])

    def lines(self, width: int = 100) -> list[str]:
        names = (self.weights, self.target, self.source)
        return terminal.heat(*names, width=width, shades=self.shades())


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
    heads = require_indices("head", range(head_count) if heads is None else heads, head_count)
    weights = mean_over_heads(call, heads)  # [target, source]
    links = tuple((row, int(column)) for row, column in enumerate(weights.argmax(axis=1)))
    return Alignment(
        run.labels(name)[1],
        run.model_inputs.target_tokens or run.labels(name)[0],
        links,
        layer,
        tuple(heads),
        len(names),
        is_best,
        weights=weights,
        backdrop=run.backdrop_of(name),
        even=even_weights(call).mean(axis=0),
    )


def mutual_information(weights: Array) -> float:
    """The mutual information of target and source positions, in nats, of weights [target, source].

    It is high where each target token attends to few places, and different tokens to different
    ones. Garg et al. (2019) take the penultimate of six layers; of two, the last one aligns.
    """
    shares = torch.from_numpy(weights)
    entropies = torch.special.entr(shares).sum(dim=1)  # of each row
    return float(torch.special.entr(shares.mean(dim=0)).sum() - entropies.mean())


def monotonic_spans(weights: Array) -> list[tuple[int, int]]:
    """For each target position of weights [target, source], the source positions that it spans.

    Spans follow each other and cover the source; of all such paths, the one with the largest sum of
    weights, each source position in proportion to its own (dynamic time warping).
    """
    shares = weights / np.maximum(weights.sum(axis=0, keepdims=True), 1e-12)
    targets, sources = shares.shape
    # best[i, j]: the sum of the best path to source j inside the span of target i.
    best = np.full((targets + 1, sources + 1), -np.inf)
    best[0, 0] = 0.0
    begins = np.zeros((targets, sources), dtype=np.int64)
    for i, row in enumerate(shares):
        sums = np.concatenate([[0.0], np.cumsum(row)])
        # A span begins behind the one before it, or shares its last position.
        before = np.maximum(best[i, :-1], best[i, 1:])
        gains = before - sums[:-1]
        begins[i] = np.maximum.accumulate(
            np.where(gains >= np.maximum.accumulate(gains), np.arange(sources), 0)
        )
        best[i + 1, 1:] = gains[begins[i]] + sums[1:]
    spans = []
    end = sources - 1
    for i in reversed(range(targets)):
        begin = int(begins[i, end])
        spans.append((begin, end + 1))
        end = begin if best[i, begin + 1] > best[i, begin] else max(0, begin - 1)
    return spans[::-1]


@dataclass(frozen=True)
class CTCAlignment(AnalysisResult):
    """The letters of the best path with the probability that each frame gives them.

    `spans` are the first frame of each letter and the one after its last; `blank` is what is left.
    """

    letters: Names
    spans: tuple[tuple[int, int], ...]
    probabilities: Array  # [letters, frames]
    seconds: float
    backdrop: Backdrop | None = field(default=None, metadata=PICTURE_ONLY)

    note = "The most probable label of each frame (best path decoding, Graves et al. 2006)."
    title = "CTC alignment"
    numbers = "probabilities"

    def scene(self) -> drawing.Scene:
        if isinstance(self.backdrop, SoundBackdrop):
            return self.backdrop.table(drawing.Panel(self.title, self.probabilities), self.letters)
        frames = [str(i) for i in range(self.probabilities.shape[1])]
        return drawing.heat(self.probabilities, self.letters, frames, title=self.title)

    def table(self) -> list[list[str]]:
        frames = max(1, self.probabilities.shape[1])
        rows = [["letter", "from", "to"]]
        for letter, (begin, end) in zip(self.letters, self.spans, strict=True):
            times = (self.seconds * begin / frames, self.seconds * end / frames)
            rows.append([letter, *(f"{time:.2f} s" for time in times)])
        return rows


def ctc_alignment(run: Look, names: Mapping[int, str], blank: int) -> CTCAlignment:
    """The alignment of a recorded pass that asked for `logits`; `names` are those of the labels."""
    logits = run.tensor("logits")[0]  # [frames, labels]
    backdrop = run.model_inputs.backdrop
    if logits.ndim != 2 or not isinstance(backdrop, SoundBackdrop):
        raise SettingError(
            "CTC alignment needs a CTC model and an audio input", "run a CTC model on an audio file"
        )
    [blank] = require_indices("label", [blank], logits.shape[-1])
    shares = array(logits.float().softmax(dim=-1))
    best = shares.argmax(axis=-1).tolist()
    letters = []
    spans = []
    rows = []
    begin = 0
    for label, frames in groupby(best):
        end = begin + len(list(frames))
        if label != blank:
            letters.append(names[label])
            spans.append((begin, end))
            # Its own frames only: the same letter may come again.
            row = np.zeros(len(best))
            row[begin:end] = shares[begin:end, label]
            rows.append(row)
        begin = end
    table = np.array(rows).reshape(len(rows), len(best))
    return CTCAlignment(tuple(letters), tuple(spans), table, backdrop.seconds, backdrop)


@dataclass(frozen=True)
class SpokenAlignment(CTCAlignment):
    """The tokens of a spoken text over its spectrogram: each lasts as many frames as predicted."""

    note = "Durations that the model predicts; each token is repeated so often (length regulation)."
    title = "durations of the tokens"
    numbers = "frames"


def spoken_alignment(
    tokens: Sequence[str], durations: Sequence[int], spectrogram: Array, seconds: float
) -> SpokenAlignment:
    """The durations of tokens, in frames, over a spectrogram [frames, mels] that they made."""
    ends = np.cumsum(durations)
    frames = int(ends[-1])
    spans = tuple(zip((ends - durations).tolist(), ends.tolist(), strict=True))
    table = np.zeros((len(tokens), frames))
    for row, (begin, end) in enumerate(spans):
        table[row, begin:end] = 1.0
    low = spectrogram.min()
    loudness = (spectrogram - low) / max(1e-9, float(spectrogram.max() - low))
    picture = (loudness.T * 255).round().astype(np.uint8)
    backdrop = SoundBackdrop(picture, seconds)
    return SpokenAlignment(tuple(tokens), spans, table, seconds, backdrop)
