"""What the residual stream holds: the logit lens, and patching one run's activations into another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import Edit, Probe
from regard.core.stack import Stack
from regard.errors import DataError, SettingError
from regard.look import drawing, terminal
from regard.look.recording import Look, array
from regard.look.result import Array, Result
from regard.look.target import (
    Holds,
    Model,
    Reading,
    Subject,
    at_rest,
    read,
    run,
    stacks,
    subject_of,
)
from regard.model import Decoder, DualEncoder, EncoderDecoder

# ------------------------------------------------------------------ logit lens


@dataclass(frozen=True)
class Lens(Result):
    """What the model would say if it stopped after each layer: the likeliest tokens at each place, and how likely."""

    layers: tuple[str, ...]
    places: tuple[str, ...]
    tokens: tuple[tuple[tuple[str, ...], ...], ...]  # [layers][places][top]
    probabilities: Array  # [layers, places, top]

    note = "Final norm and vocabulary on the residual stream after each layer. The last row is what the model says."

    @property
    def title(self) -> str:
        return "logit lens: the likeliest next token, layer by layer"

    def numpy(self) -> Array:
        return self.probabilities

    def scene(self) -> drawing.Scene:
        inside = [[drawing.shown(place[0]) for place in layer] for layer in self.tokens]
        best = self.probabilities[:, :, 0]
        return drawing.heat(
            best, self.layers, self.places, title=self.title, most=1.0, inside=inside
        )

    def lines(self, width: int = 100) -> list[str]:
        rows = [["reads", *self.layers]]
        for i, place in enumerate(self.places):
            said = [
                f"{drawing.shown(layer[i][0])} {p:.2f}"
                for layer, p in zip(self.tokens, self.probabilities[:, i, 0], strict=True)
            ]
            rows.append([drawing.shown(place), *said])
        return terminal.table(rows, width=width)


def lens(found: Look, *, top: int = 5, places: Sequence[int] | None = None) -> Lens:
    """The stack that speaks, layer by layer; `places` picks some of its positions."""
    model = found.subject.model
    _speaking(model)
    name = found.stack()
    names = [
        f"{name}.embedded",
        *(f"{name}.{i}.residual" for i in range(stacks(model)[name].layers)),
    ]
    missing = [n for n in names if n not in found.probe.tensors]
    if missing:
        raise SettingError(
            f"{missing[0]} was not recorded", "ask for '*.embedded' and '*.residual'"
        )
    read = found.reading.written[:-1] if isinstance(model, EncoderDecoder) else found.reading.labels
    chosen = list(range(len(read))) if places is None else list(places)
    words, numbers = [], []
    with at_rest(model):
        for each in names:
            logits = said_after(model, found.tensor(each)[:, chosen])
            best = logits[0].float().softmax(dim=-1).topk(min(top, logits.shape[-1]), dim=-1)
            words.append(
                tuple(tuple(found.subject.writes.tokens(row)) for row in best.indices.tolist())
            )
            numbers.append(array(best.values))
    layers = ("embedded", *(f"layer {i}" for i in range(len(names) - 1)))
    return Lens(layers, tuple(read[i] for i in chosen), tuple(words), np.stack(numbers))


def said_after(model: Model, residual: Tensor) -> Tensor:
    """The scores of tokens that a residual stream [B, T, D] would give if no block came after it."""
    stack, head = _speaking(model)
    return head(stack.finish(residual))


def _speaking(model: Model) -> tuple[Stack, Callable[[Tensor], Tensor]]:
    """The stack from which scores of tokens are made, and what makes them."""
    if isinstance(model, DualEncoder) or model.head is None:
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


# ------------------------------------------------------------------ activation patching


@dataclass(frozen=True)
class Patching(Result):
    """The score of `answer` in the run on `other`, less that of `instead` if there is one, when the residual at one layer and
    place comes from the run on `text`; `at` is where in the output that is.

    `effect` is 0 where that changes nothing and 1 where it restores what the run on `text` said.
    """

    layers: tuple[str, ...]
    tokens: tuple[str, ...]
    others: tuple[str, ...]
    answer: str
    instead: str | None
    at: int
    clean: float
    corrupted: float
    scores: Array  # [layers, places]
    effect: Array

    note = "Which layer and place carries the difference between the two texts: 1 restores the first text's answer."

    @property
    def title(self) -> str:
        against = f" − {drawing.shown(self.instead)}" if self.instead else ""
        return f"patching: score of {drawing.shown(self.answer)}{against}, {self.corrupted:.3f} → {self.clean:.3f}"

    def numpy(self) -> Array:
        return self.effect

    def scene(self) -> drawing.Scene:
        return drawing.heat(self.effect, self.layers, self._places(), title=self.title, signed=True)

    def lines(self, width: int = 100) -> list[str]:
        rows = [["", *self.layers]]
        for place, row in zip(self._places(), self.effect.T, strict=True):
            rows.append(
                [
                    drawing.shown(place),
                    *(f"{value:5.2f} {terminal.bar(max(0.0, value), 1.0, 10)}" for value in row),
                ]
            )
        return terminal.table(rows, width=width)

    def _places(self) -> list[str]:
        pairs = zip(self.tokens, self.others, strict=True)
        return [a if a == b else f"{drawing.shown(b)}←{drawing.shown(a)}" for a, b in pairs]


def patching(
    held: Subject | Holds,
    text: str,
    other: str,
    *,
    target: str | None = None,
    at: int | None = None,
    instead: str | None = None,
    stack: str | None = None,
) -> Patching:
    """Replaces the residual of `other` by that of `text`, at each layer and place of a stack, the first unless said.

    The score is that of what the model says of `text` at place `at` of its last stack, less that of the token `instead`.
    Unless they are said, `at` is the first place where the run on `other` says something else (of a language model, the last
    place), and `instead` is what it says there. A `target` is what both runs read; without one they read what the model makes
    of `text`.
    """
    subject = subject_of(held)
    model = subject.model
    with at_rest(model):
        one = read(subject, text, target)
        two = _aligned(subject, one, other)
        name = stack or next(iter(stacks(model)))
        names = [
            f"{name}.embedded",
            *(f"{name}.{i}.residual" for i in range(stacks(model)[name].layers)),
        ]
        clean = Probe(names)
        said, wrong = (
            run(model, one.inputs, one.outputs, probe=clean),
            run(model, two.inputs, one.outputs),
        )
        answers = (
            list(one.next) if target is not None else said[0].argmax(dim=-1).flatten().tolist()
        )
        others = wrong[0].argmax(dim=-1).flatten().tolist()
        place = _parting(model, answers, others) if at is None else at % len(others)
        answer = answers[place]
        versus = _token(subject, instead) if instead else None
        if at is None and instead is None and others[place] != answer:
            versus = others[place]
        before, after = (
            _score(scores, place, answer, versus)[0].item() for scores in (wrong, said)
        )
        places = clean.tensors[names[0]].shape[1]
        rows = [
            t.expand(places, *t.shape[1:]) if t is not None else None
            for t in (two.inputs, one.outputs)
        ]
        found = []
        for each in names:
            probe = Probe(edits={each: _diagonal(clean.tensors[each])})
            assert rows[0] is not None
            found.append(
                array(_score(run(model, rows[0], rows[1], probe=probe), place, answer, versus))
            )
    scores = np.stack(found)
    gap = after - before
    effect = (scores - before) / gap if abs(gap) > 1e-12 else np.zeros_like(scores)
    decoder = isinstance(model, EncoderDecoder) and name == "decoder"
    tokens, instead_of = (one.written[:-1],) * 2 if decoder else (one.labels, two.labels)
    words = (
        [f"label {i}" for i in (answer, versus)]
        if said.ndim < 3
        else subject.writes.tokens([answer, versus or 0])
    )
    return Patching(
        ("embedded", *(f"layer {i}" for i in range(len(names) - 1))),
        tokens, instead_of, words[0], None if versus is None else words[1], place, after, before, scores, effect,
    )  # fmt: skip


def _parting(model: Model, answers: Sequence[int], others: Sequence[int]) -> int:
    """Where two runs begin to say different things; a language model is asked what comes after the whole text."""
    if isinstance(model, Decoder):
        return len(others) - 1
    parted = [i for i, (one, two) in enumerate(zip(answers, others, strict=False)) if one != two]
    if not parted:
        raise DataError(
            "the model says the same of both texts",
            "choose texts that differ in what is said, or a place",
        )
    return parted[0]


def patched(
    held: Subject | Holds, text: str, other: str, name: str, target: str | None = None
) -> tuple[Tensor, Tensor]:
    """The scores of the run on `text`, and of the run on `other` with the whole of the place called `name` from it."""
    subject = subject_of(held)
    with at_rest(subject.model):
        one = read(subject, text, target)
        two = _aligned(subject, one, other)
        clean = Probe([name])
        said = run(subject.model, one.inputs, one.outputs, probe=clean)
        edits: dict[str, Edit] = {name: lambda _: clean.tensors[name]}
        return said, run(subject.model, two.inputs, one.outputs, probe=Probe(edits=edits))


def _aligned(subject: Subject, one: Reading, other: str) -> Reading:
    """The other text, which must have as many tokens."""
    ids = subject.ids(other)
    labels = tuple(subject.reads.tokens(ids))
    if len(labels) != len(one.labels):
        raise DataError(
            f"the texts have {len(one.labels)} and {len(labels)} tokens, so their places do not correspond",
            "change words for others of as many tokens",
        )
    return Reading(torch.tensor([ids], device=subject.device), labels)


def _token(subject: Subject, word: str) -> int:
    ids = subject.writes.inner(word)
    if len(ids) != 1:
        raise DataError(
            f"{word!r} is not one token but {subject.writes.tokens(ids)}",
            "choose a word that is one token",
        )
    return ids[0]


def _score(said: Tensor, at: int, answer: int, versus: int | None) -> Tensor:
    """[B]: the score of the answer at a place, less that of another token."""
    row = (said[:, at] if said.ndim > 2 else said).float()
    return row[:, answer] - (row[:, versus] if versus is not None else 0.0)


def _diagonal(clean: Tensor) -> Edit:
    """Row i of the batch gets the clean activation at place i."""

    def edit(x: Tensor) -> Tensor:
        places = torch.arange(clean.shape[1], device=x.device)
        x = x.clone()
        x[places, places] = clean[0]
        return x

    return edit
