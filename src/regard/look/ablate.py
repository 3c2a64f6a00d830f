"""Heads switched off: what each is worth, and the fewest that something hangs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import comb

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.trace import Trace
from regard.data.builtin import IT, Sentence, sentences
from regard.data.lexicon import NOUNS
from regard.errors import DataError
from regard.look import draw, terminal
from regard.look.looking import array
from regard.look.result import Array, Result
from regard.look.subject import (
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

    note = (
        "Each head alone is zeroed, in the model that runs. Heads can stand in for each other, so small is not useless."
    )

    @property
    def title(self) -> str:
        return f"what each head is worth: {self.measure}" + (
            "" if self.whole is None else f", {self.whole:.3f} with all"
        )

    def numpy(self) -> Array:
        return self.effect

    def scene(self) -> draw.Scene:
        columns = [str(head) for head in range(self.effect.shape[1])]
        inside = [[f"{value:+.3f}" for value in row] for row in self.effect]
        return draw.heat(np.nan_to_num(self.effect), self.names, columns, title=self.title, signed=True, inside=inside)

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
        change = moved(usual, said(subject, data, off)) if whole is None else loss(subject, data, off) - whole
        effect[attentions.index(name), head] = change
    measure = "share by which the output moves" if whole is None else "rise of the loss in nats a token"
    return Ablation(tuple(attentions), effect, measure, whole)


def said(subject: Subject, data: Batch, off: Sequence[Head] = ()) -> Tensor:
    """What the model says of a batch with some heads off; nothing at places of padding."""
    with at_rest(subject.model):
        result = run(subject.model, data.inputs, data.outputs, data.real, _off(subject, off))
    each = data.outputs is None and result.ndim == 3
    return result * data.real[..., None] if each else result


def moved(usual: Tensor, other: Tensor) -> float:
    return (torch.linalg.vector_norm(other - usual) / torch.linalg.vector_norm(usual).clamp_min(1e-30)).item()


def loss(subject: Subject, data: Batch, off: Sequence[Head] = ()) -> float:
    """−log p of what is asked for, in nats a token."""
    scores = said(subject, data, off).float()
    return functional.cross_entropy(scores.flatten(0, 1), data.asked.flatten(), ignore_index=-1).item()


def right(subject: Subject, data: Batch, off: Sequence[Head] = ()) -> Array:
    """[B] whether each text comes out token for token: greedy decoding writes the target exactly if at every place of the
    target its next token is the likeliest of those that may be chosen."""
    scores = said(subject, data, off)
    banned = torch.tensor(subject.ends.banned if subject.ends else (), dtype=torch.long, device=scores.device)
    likeliest = scores.index_fill(-1, banned, float("-inf")).argmax(dim=-1)
    return array(((likeliest == data.asked) | (data.asked < 0)).all(dim=1))


def _off(subject: Subject, off: Sequence[Head]) -> Trace | None:
    return Trace(edits=switched_off(subject.model, off)) if off else None


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
        raise DataError("none of these sentences has a pronoun to resolve", "ask the built-in language for pronouns")
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
    number = max(i for i, word in enumerate(words) if word in IT.values())  # that of the reason, which comes last
    genders = {noun.english: noun.gender for noun in NOUNS}
    both = [IT[genders[noun]] for noun in sentence.triple[:2]]
    right, wrong = both if sentence.referent == "subject" else reversed(both)
    versions = [subject.writes.ids(" ".join([*words[:number], word, *words[number + 1 :]])) for word in (right, wrong)]
    place = next(i for i, tokens in enumerate(zip(*versions, strict=False)) if len(set(tokens)) > 1)
    return place, tuple(version[place] for version in versions)


def chosen_right(subject: Subject, choices: Choices, off: Sequence[Head] = ()) -> Array:
    """[B] whether the right option has the highest score."""
    data, model = choices.data, subject.model
    with at_rest(model):
        vectors = hidden(model, data.inputs, data.outputs, data.real, _off(subject, off))
        rows = torch.arange(len(vectors), device=vectors.device)
        picked = vectors[rows, list(choices.places)][:, None]  # the vocabulary is looked up at one place only
        options = torch.tensor(choices.options, device=vectors.device)
        scores = top(model, picked, None, data.inputs)[:, 0].gather(1, options)  # [B, options]
    return array((scores[:, :1] > scores[:, 1:]).all(dim=1))


# ------------------------------------------------------------------ the fewest heads that something hangs on

SCREEN = 64  # choices that every set is tried on; only a set that does harm there is tried on all
SLACK = 0.15  # by which a share of so few may miss the whole's


@dataclass(frozen=True)
class Circuit(Result):
    """The smallest set of heads that was found whose loss takes an ability and leaves the rest."""

    heads: tuple[Head, ...]
    whole: float  # share right with all heads on
    without: float  # … with these off
    rest_whole: float
    rest: float  # share of the other texts right with these off
    found: bool  # whether both bounds are met
    tried: int  # sets of heads
    every: bool  # whether these were all there are, up to the size of this one
    singles: dict[str, float]  # what each head alone leaves of the ability

    note = "Heads are zeroed, and nothing is retrained: what the model as it is relies on."

    @property
    def title(self) -> str:
        names = ", ".join(f"{name} head {head}" for name, head in self.heads)
        return f"{names}: {self.whole:.0%} → {self.without:.0%} right, the rest {self.rest_whole:.0%} → {self.rest:.0%}"

    def numpy(self) -> Array:
        return np.array([self.whole, self.without, self.rest_whole, self.rest])

    def scene(self) -> draw.Scene:
        worst = self._worst()
        said = [f"{value:.0%}" for _, value in worst]
        return draw.bars([v for _, v in worst], [name for name, _ in worst], title=self.title, said=said)

    def lines(self, width: int = 100) -> list[str]:
        all_of = "all" if self.every else "the most harmful"
        sets = f"{self.tried:,} sets tried, {all_of} of at most {len(self.heads)} heads"
        summary = [
            ["", "right", f"without the {len(self.heads)}"],
            ["the choice", f"{self.whole:.1%}", f"{self.without:.1%}"],
            ["other texts", f"{self.rest_whole:.1%}", f"{self.rest:.1%}"],
        ]
        rows = [[name, f"{value:.1%}", terminal.bar(value, 1.0)] for name, value in self._worst()]
        return [
            *([] if self.found else ["no such set was found; the nearest:", ""]),
            *terminal.table(summary, width=width), "", sets, "", "right without one head alone:",
            *terminal.table(rows, width=width),
        ]  # fmt: skip

    def _worst(self) -> list[tuple[str, float]]:
        return sorted(self.singles.items(), key=lambda item: item[1])[:12]


def circuit(
    held: Subject | Holds,
    ability: Choices,
    rest: Batch,
    *,
    near: float = 0.6,
    keep: float = 0.9,
    most: int = 3,
    tries: int = 3000,
) -> Circuit:
    """The fewest heads, at most `most`, without which at most a share `near` of the choices is right while at least `keep` of
    the other texts still come out whole. Of several such sets, the one that leaves least of the choices.

    Sets of each size are all tried if there are at most `tries`; of more, those among the heads that matter most alone.
    """
    subject = subject_of(held)
    few, fewer = ability.first(SCREEN), rest.first(SCREEN)

    def measured(off: Sequence[Head], choices: Choices = ability) -> float:
        return float(chosen_right(subject, choices, off).mean())

    def kept(off: Sequence[Head], texts: Batch = rest) -> float:
        return float(right(subject, texts, off).mean())

    whole, rest_whole = measured([]), kept([])
    if whole <= near or rest_whole < keep:
        raise DataError(
            f"with all heads on, {whole:.0%} of the choices and {rest_whole:.0%} of the other texts are right: "
            "there is no ability to take, or nothing to keep",
            "look at a model that has learnt this language",
        )
    alone = {head: measured([head]) for head in heads(subject.model)}
    singles = {f"{name} head {head}": value for (name, head), value in alone.items()}
    ranked = sorted(alone, key=lambda head: alone[head])
    best: tuple[float, tuple[Head, ...]] = (alone[ranked[0]], (ranked[0],))
    tried, every = 0, True
    for size in range(1, most + 1):
        candidates = max(n for n in range(size, len(ranked) + 1) if n == size or comb(n, size) <= tries)
        sets = list(combinations(ranked[:candidates], size))
        tried, every = tried + len(sets), every and candidates == len(ranked)
        harmful = [off for off in sets if measured(off, few) <= near + SLACK]
        values = sorted((measured(off), off) for off in harmful)
        for value, off in values:
            if value > near:
                break
            if kept(off, fewer) >= keep - SLACK and (share := kept(off)) >= keep:
                return Circuit(off, whole, value, rest_whole, share, True, tried, every, singles)
        best = min([best, *values[:1]])
    return Circuit(best[1], whole, best[0], rest_whole, kept(best[1]), False, tried, every, singles)


def pronoun_circuit(held: Subject | Holds, count: int = 300, *, near: float = 0.6, keep: float = 0.9) -> Circuit:
    """The fewest heads that resolve "it" in the built-in language: chosen on `count` pronoun and as many other sentences of
    the valid split, and measured on as many of the test split, so that the figures are of sentences that chose nothing."""
    subject = subject_of(held)
    chosen = circuit(subject, *_asked(subject, "valid", count), near=near, keep=keep)
    ability, rest = _asked(subject, "test", count)
    off = chosen.heads
    whole, without = (float(chosen_right(subject, ability, heads).mean()) for heads in ((), off))
    rest_whole, left = (float(right(subject, rest, heads).mean()) for heads in ((), off))
    found = chosen.found and without <= near and left >= keep
    return replace(chosen, whole=whole, without=without, rest_whole=rest_whole, rest=left, found=found)


def _asked(subject: Subject, split: str, count: int) -> tuple[Choices, Batch]:
    """Sentences of a split with a pronoun to resolve, and others."""
    others = list(islice((s for s in sentences(split) if s.triple is None), count))
    data = batch(subject, [s.source for s in others], [s.target for s in others])
    return pronouns(subject, list(islice(sentences(split, pronouns=True), count))), data
