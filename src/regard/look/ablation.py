"""Heads switched off: what each is worth, and what a choice between words is without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.probe import Probe
from regard.data.builtin import IT, Sentence
from regard.data.lexicon import NOUNS
from regard.errors import DataError
from regard.look import drawing, terminal
from regard.look.recording import array
from regard.look.result import Array, Result
from regard.look.target import (
    Batch,
    Head,
    Holds,
    Subject,
    at_rest,
    batch,
    heads,
    hidden,
    run,
    subject_of,
    switched_off,
    top,
)
from regard.model import Decoder, EncoderDecoder

# ------------------------------------------------------------------ ablation


@dataclass(frozen=True)
class Ablation(Result):
    """What is lost when each head is switched off. Of a model that writes, by how much its loss rises (nats a token); of
    others, how far what they say moves, as a share of its length. `whole` is the loss with all heads on."""

    names: tuple[str, ...]
    effect: Array  # [attentions, heads]
    measure: str
    whole: float | None

    note = "Each head alone is zeroed, in the model that runs. Heads can stand in for each other, so small is not useless."

    @property
    def title(self) -> str:
        return f"what each head is worth: {self.measure}" + (
            "" if self.whole is None else f", {self.whole:.3f} with all"
        )

    def numpy(self) -> Array:
        return self.effect

    def scene(self) -> drawing.Scene:
        columns = [str(head) for head in range(self.effect.shape[1])]
        inside = [[f"{value:+.3f}" for value in row] for row in self.effect]
        return drawing.heat(
            np.nan_to_num(self.effect),
            self.names,
            columns,
            title=self.title,
            signed=True,
            inside=inside,
        )

    def lines(self, width: int = 100) -> list[str]:
        return terminal.by_head(self.names, self.effect, "+.3f", width=width)


def ablation(
    held: Subject | Holds,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    names: Callable[[str], bool] = lambda name: True,
) -> Ablation:
    """The effect of each head on these texts; an encoder–decoder's loss is that of the targets."""
    subject = subject_of(held)
    data = batch(subject, texts, targets)
    writes = isinstance(subject.model, EncoderDecoder | Decoder)
    whole = loss(subject, data) if writes else None
    usual = said(subject, data)
    found = heads(subject.model, names)
    attentions = list(dict.fromkeys(name for name, _ in found))
    effect = np.full((len(attentions), max(head for _, head in found) + 1), np.nan)
    for name, head in found:
        off = [(name, head)]
        change = (
            moved(usual, said(subject, data, off))
            if whole is None
            else loss(subject, data, off) - whole
        )
        effect[attentions.index(name), head] = change
    measure = (
        "share by which the output moves" if whole is None else "rise of the loss in nats a token"
    )
    return Ablation(tuple(attentions), effect, measure, whole)


def said(subject: Subject, data: Batch, off: Sequence[Head] = ()) -> Tensor:
    """What the model says of a batch with some heads off; nothing at places of padding."""
    with at_rest(subject.model):
        result = run(
            subject.model, data.inputs, data.outputs, data.padding_mask, _off(subject, off)
        )
    each = data.outputs is None and result.ndim == 3
    return result * data.padding_mask[..., None] if each else result


def moved(usual: Tensor, other: Tensor) -> float:
    return (
        torch.linalg.vector_norm(other - usual) / torch.linalg.vector_norm(usual).clamp_min(1e-30)
    ).item()


def loss(subject: Subject, data: Batch, off: Sequence[Head] = ()) -> float:
    """−log p of what is asked for, in nats a token."""
    scores = said(subject, data, off).float()
    return functional.cross_entropy(
        scores.flatten(0, 1), data.asked.flatten(), ignore_index=-1
    ).item()


def right(subject: Subject, data: Batch, off: Sequence[Head] = ()) -> Array:
    """[B] whether each text comes out token for token: greedy decoding writes the target exactly if at every place of the
    target its next token is the likeliest of those that may be chosen."""
    scores = said(subject, data, off)
    banned = torch.tensor(
        subject.ends.banned if subject.ends else (), dtype=torch.long, device=scores.device
    )
    likeliest = scores.index_fill(-1, banned, float("-inf")).argmax(dim=-1)
    return array(((likeliest == data.asked) | (data.asked < 0)).all(dim=1))


def _off(subject: Subject, off: Sequence[Head]) -> Probe | None:
    return Probe(edits=switched_off(subject.model, off)) if off else None


# ------------------------------------------------------------------ choices between words


@dataclass(frozen=True, eq=False)
class Choices:
    """Texts at one place of which there are several words to choose from; the first option is the right one."""

    data: Batch
    places: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]

    def first(self, count: int) -> Choices:
        """The first few of them."""
        return Choices(self.data.first(count), self.places[:count], self.options[:count])


def pronouns(held: Subject | Holds, sentences: Sequence[Sentence]) -> Choices:
    """Pronoun sentences of the built-in language. Where "it" is translated, there is the pronoun of each of the two nouns
    that it could stand for: who does not resolve it is right half of the time."""
    subject = subject_of(held)
    asked = [sentence for sentence in sentences if sentence.triple is not None]
    if not asked:
        raise DataError(
            "none of these sentences has a pronoun to resolve",
            "ask the built-in language for pronouns",
        )
    places, options = [], []
    for sentence in asked:
        place, tokens = _choice(subject, sentence)
        places.append(place + len(subject.start) - 1)
        options.append(tokens)
    data = batch(subject, [s.source for s in asked], [s.target for s in asked])
    return Choices(data, tuple(places), tuple(options))


def _choice(subject: Subject, sentence: Sentence) -> tuple[int, tuple[int, ...]]:
    """Where the pronoun's token stands in the target, and the token that the right and the wrong one would have there."""
    assert sentence.triple is not None
    words = sentence.target.split()
    number = max(
        i for i, word in enumerate(words) if word in IT.values()
    )  # that of the reason, which comes last
    genders = {noun.english: noun.gender for noun in NOUNS}
    both = [IT[genders[noun]] for noun in sentence.triple[:2]]
    right, wrong = both if sentence.referent == "subject" else reversed(both)
    versions = [
        subject.writes.ids(" ".join([*words[:number], word, *words[number + 1 :]]))
        for word in (right, wrong)
    ]
    place = next(i for i, tokens in enumerate(zip(*versions, strict=False)) if len(set(tokens)) > 1)
    return place, tuple(version[place] for version in versions)


def chosen_right(subject: Subject, choices: Choices, off: Sequence[Head] = ()) -> Array:
    """[B] whether the right option has the highest score."""
    data, model = choices.data, subject.model
    with at_rest(model):
        vectors = hidden(model, data.inputs, data.outputs, data.padding_mask, _off(subject, off))
        rows = torch.arange(len(vectors), device=vectors.device)
        picked = vectors[rows, list(choices.places)][
            :, None
        ]  # the vocabulary is looked up at one place only
        options = torch.tensor(choices.options, device=vectors.device)
        scores = top(model, picked, None, data.inputs)[:, 0].gather(1, options)  # [B, options]
    return array((scores[:, :1] > scores[:, 1:]).all(dim=1))
