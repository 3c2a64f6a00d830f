"""Alignment of a transcript to a recording by CTC: which letter each frame stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from regard.look import drawing
from regard.look.arguments import require_indices
from regard.look.backdrop import Backdrop, SoundBackdrop
from regard.look.drawing import terminal
from regard.look.recording import Look, array
from regard.look.result import PICTURE_ONLY, AnalysisResult, Array
from regard.system.errors import SettingError


@dataclass(frozen=True)
class CTCAlignment(AnalysisResult):
    """The letters of the best path with the probability that each frame gives them.

    `spans` are the first frame of each letter and the one after its last; `blank` is what is left.
    """

    letters: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    probabilities: Array  # [letters, frames]
    seconds: float
    backdrop: Backdrop | None = field(default=None, metadata=PICTURE_ONLY)

    note = "The most probable label of each frame (best path decoding, Graves et al. 2006)."

    @property
    def title(self) -> str:
        return "CTC alignment"

    def numpy(self) -> Array:
        return self.probabilities

    def scene(self) -> drawing.Scene:
        if isinstance(self.backdrop, SoundBackdrop):
            return self.backdrop.table(
                self.probabilities, self.letters, title=self.title, scale="amount"
            )
        frames = [str(i) for i in range(self.probabilities.shape[1])]
        return drawing.heat(self.probabilities, self.letters, frames, title=self.title)

    def lines(self, width: int = 100) -> list[str]:
        frames = max(1, self.probabilities.shape[1])
        rows = [["letter", "from", "to"]]
        for letter, (begin, end) in zip(self.letters, self.spans, strict=True):
            times = (self.seconds * begin / frames, self.seconds * end / frames)
            rows.append([letter, *(f"{time:.2f} s" for time in times)])
        return terminal.table(rows, width=width)


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
    for label in best:
        if label != blank and label not in names:
            raise SettingError(f"label {label} has no name", "pass `model.decoder.names`")
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
