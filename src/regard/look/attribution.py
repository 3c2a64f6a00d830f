"""Gradient × input: which input tokens a score depends on, to first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import Edit, Probe
from regard.look import drawing, terminal
from regard.look.recording import array
from regard.look.result import Array, Result
from regard.look.target import (
    Head,
    Holds,
    Model,
    Reading,
    Subject,
    at_rest,
    read,
    run,
    stacks,
    subject_of,
    switched_off,
)
from regard.model import Decoder, Encoder, EncoderDecoder

ROWS = 32  # scores whose gradients are computed in one batch


@dataclass(frozen=True)
class Attribution(Result):
    """How much each input token adds to the score of each thing said: the gradient of the score times the token's vector."""

    said: tuple[str, ...]
    tokens: tuple[str, ...]
    values: Array  # [said, tokens]
    scores: Array  # [said]

    note = (
        "Attention is not explanation: a weight shows where a head looks, not what the answer depends on. Gradient × input "
        "asks the answer itself, to first order: orange raises its score, blue lowers it."
    )

    @property
    def title(self) -> str:
        return "gradient × input"

    def numpy(self) -> Array:
        return self.values

    def scene(self) -> drawing.Scene:
        return drawing.heat(self.values, self.said, self.tokens, title=self.title, signed=True)

    def lines(self, width: int = 100) -> list[str]:
        return terminal.heat(np.abs(self.values), self.said, self.tokens, width=width)


def attribution(
    held: Subject | Holds,
    text: str | Tensor,
    *,
    target: str | None = None,
    places: Sequence[int] | None = None,
    off: Sequence[Head] = (),
) -> Attribution:
    """Of what is said at each place of the output (or at some `places`) to each token of the input.

    An encoder–decoder's columns are the source, then what it has already written; a language model's are its own tokens, and
    its rows the tokens it was followed by or, at the end, its likeliest next one. A classifier's row is its likeliest label.
    `off`: heads to switch off.
    """
    subject = subject_of(held)
    model = subject.model
    with at_rest(model):
        edits = switched_off(model, off)
        reading = read(subject, text, target, off)
        said = run(model, reading.inputs, reading.outputs, probe=Probe(edits=edits))[0]
    whole = said[None] if said.ndim == 1 else said  # [places, scores]
    every = range(len(whole)) if places is None else (place % len(whole) for place in places)
    chosen = list(dict.fromkeys(every))
    answers = [_answer(reading, model, whole, place) for place in chosen]
    names = [f"{name}.embedded" for name in stacks(model)]
    found = [
        _gradients(
            model,
            reading,
            names,
            chosen[i : i + ROWS],
            answers[i : i + ROWS],
            said.ndim == 1,
            edits,
        )
        for i in range(0, len(chosen), ROWS)
    ]
    labels = (*reading.labels, *reading.written[:-1])
    scores = array(
        torch.stack([whole[place, answer] for place, answer in zip(chosen, answers, strict=True)])
    )
    return Attribution(tuple(_names(subject, answers)), labels, np.concatenate(found), scores)


def _answer(reading: Reading, model: Model, said: Tensor, place: int) -> int:
    if isinstance(model, EncoderDecoder | Decoder) and place < len(reading.next):
        return reading.next[place]
    return int(said[place].argmax())


def _names(subject: Subject, answers: list[int]) -> list[str]:
    model = subject.model
    if isinstance(model, Encoder) and model.head is None:
        return [f"label {answer}" for answer in answers]
    return subject.writes.tokens(answers)


def _gradients(
    model: Model,
    reading: Reading,
    names: list[str],
    places: list[int],
    answers: list[int],
    pooled: bool,
    edits: dict[str, Edit],
) -> Array:
    """[places, tokens]: one row of the batch for each score, so that one backward pass serves them all."""
    leaves: dict[str, Tensor] = {}

    def leaf(name: str) -> Edit:
        def edit(x: Tensor) -> Tensor:
            leaves[name] = x.detach().requires_grad_()
            return leaves[name]

        return edit

    count = len(places)
    with torch.inference_mode(False), at_rest(model, gradients=True):
        inputs = reading.inputs.clone().expand(count, *reading.inputs.shape[1:])
        outputs = None if reading.outputs is None else reading.outputs.clone().expand(count, -1)
        said = run(
            model, inputs, outputs, probe=Probe(edits=edits | {name: leaf(name) for name in names})
        )
        rows = torch.arange(count, device=said.device)
        scores = said[rows, answers] if pooled else said[rows, places, answers]
        used = [name for name in names if name in leaves]
        gradients = torch.autograd.grad(scores.sum(), [leaves[name] for name in used])
    parts = [
        (leaves[name] * gradient).sum(dim=-1)
        for name, gradient in zip(used, gradients, strict=True)
    ]
    return array(torch.cat(parts, dim=1))
