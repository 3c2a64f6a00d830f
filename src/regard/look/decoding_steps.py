"""Greedy decoding and sampling step by step: the candidates and the token that was taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from regard.decode.batch_decoding import DecodingSettings
from regard.decode.events import BeamStep, TokenStep
from regard.decode.greedy_and_sampling import filtered_distribution
from regard.decode.strategy import Greedy, Sampling, Strategy
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.generation import decoding_settings, translate, written
from regard.look.inspectable import Input, Inspectable
from regard.look.probe_names import Head
from regard.look.result import AnalysisResult, Array
from regard.system.arguments import whole_number
from regard.system.errors import SettingError


@dataclass(frozen=True)
class Candidate:
    """A token that could come next.

    `probability` is the model's; `drawn` is what temperature and filters leave of it.
    """

    id: int
    token: str
    probability: float
    drawn: float


@dataclass(frozen=True)
class DecodingStep:
    """The token that was taken at one step, and the candidates there were."""

    token: str
    id: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Steps(AnalysisResult):
    """Greedy decoding or sampling: at each step the most probable tokens and the one taken."""

    text: str
    output: str
    steps: tuple[DecodingStep, ...]

    note = "The chosen token, then the most probable tokens with their probabilities."

    @property
    def title(self) -> str:
        return f"{self.text} → {self.output}"

    def numpy(self) -> Array:
        """[steps, candidates], filled up with zeros."""
        most = max((len(step.candidates) for step in self.steps), default=0)
        probabilities = np.zeros((len(self.steps), most))
        for row, step in zip(probabilities, self.steps, strict=True):
            row[: len(step.candidates)] = [c.probability for c in step.candidates]
        return probabilities

    def scene(self) -> drawing.Scene:
        values = self.numpy()
        inside = []
        for step in self.steps:
            tokens = [drawing.shown(candidate.token) for candidate in step.candidates]
            # Rows may have fewer candidates than there are columns.
            inside.append([*tokens, *[""] * (values.shape[1] - len(tokens))])
        columns = [str(i + 1) for i in range(values.shape[1])]
        rows = [f"{i}. {drawing.shown(step.token)}" for i, step in enumerate(self.steps)]
        return drawing.heat(values, rows, columns, title=self.title, most=1.0, inside=inside)

    def lines(self, width: int = 100) -> list[str]:
        rows = []
        most = max((len(step.candidates) for step in self.steps), default=0)
        for i, step in enumerate(self.steps):
            cells = [f"{drawing.shown(c.token)} {c.probability:.2f}" for c in step.candidates]
            # A token that is not among the likeliest was drawn by chance: one candidate more.
            filling = [""] * (most - len(cells))
            rows.append([str(i), drawing.shown(step.token), *cells, *filling])
        return terminal.table(rows, width=width)


def steps(
    model: Inspectable,
    text: Input,
    strategy: Greedy | Sampling | DecodingSettings | None = None,
    *,
    top: int = 5,
    off: Sequence[Head] = (),
) -> Steps:
    """The `top` candidates at each step of greedy decoding or sampling.

    Decoding is greedy by default; `off` are heads to ablate.
    """
    settings = decoding_settings(strategy, Greedy())
    whole_number("top", top, least=1)
    recorded: list[DecodingStep] = []

    def watch(event: BeamStep | TokenStep) -> None:
        if not isinstance(event, TokenStep):
            raise SettingError(
                "this view shows single decoding steps, but decoding uses beam search",
                "use --what beam, or greedy decoding: --beam 1",
            )
        recorded.append(_step(model, event, settings.strategy, top))

    best = translate(model, text, settings, off=off, watch=watch)[0]
    return Steps(input_title(text), written(model, best), tuple(recorded))


def input_title(text: Input) -> str:
    """The text of an input, for titles; other inputs have none."""
    return str(text) if isinstance(text, str | Path) else ""


def _step(model: Inspectable, event: TokenStep, strategy: Strategy, top: int) -> DecodingStep:
    logits = event.logits[:1]  # [1, V]
    probabilities = logits.softmax(dim=-1)[0]  # [V]
    taken = int(event.tokens[0])
    drawn = torch.zeros_like(probabilities, dtype=torch.float64)  # [V]
    if isinstance(strategy, Sampling):
        # Top-k and top-p leave some ids, whose shares sum to 1.
        shares, ids_left = filtered_distribution(logits, strategy)
        drawn[ids_left[0]] = shares[0]
    else:
        drawn[taken] = 1.0
    ids = probabilities.topk(min(top, len(probabilities))).indices.tolist()
    # A sampled token may be none of the most probable ones.
    if taken not in ids:
        ids.append(taken)
    tokens = model.output_tokenizer.tokens(ids)
    candidates = tuple(
        Candidate(i, token, probabilities[i].item(), drawn[i].item())
        for i, token in zip(ids, tokens, strict=True)
        if probabilities[i] > 0  # banned tokens are no candidates
    )
    return DecodingStep(model.output_tokenizer.tokens([taken])[0], taken, candidates)
