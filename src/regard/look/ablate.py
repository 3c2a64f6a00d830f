"""Heads switched off: what each is worth, and the fewest that something hangs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.trace import Trace
from regard.data.builtin import IT, Sentence
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
    run,
    subject_of,
    switched_off,
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


def pronouns(held: Subject | Holds, sentences: Sequence[Sentence]) -> Choices:
    """Pronoun sentences of the built-in language: where "it" is translated, er, sie and es are to choose from."""
    subject = subject_of(held)
    asked = [sentence for sentence in sentences if sentence.referent is not None]
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
    """Where the pronoun's token stands in the target, and the token that each of the pronouns would have there."""
    words = sentence.target.split()
    number = max(i for i, word in enumerate(words) if word in IT.values())  # that of the reason, which comes last
    others = [word for word in IT.values() if word != words[number]]
    versions = [
        subject.writes.ids(" ".join([*words[:number], word, *words[number + 1 :]])) for word in (words[number], *others)
    ]
    place = next(i for i, tokens in enumerate(zip(*versions, strict=False)) if len(set(tokens)) > 1)
    return place, tuple(version[place] for version in versions)


def chosen_right(subject: Subject, choices: Choices, off: Sequence[Head] = ()) -> Array:
    """[B] whether the right option has the highest score."""
    whole = said(subject, choices.data, off)
    rows = torch.arange(len(whole), device=whole.device)
    options = torch.tensor(choices.options, device=whole.device)
    scores = whole[rows, list(choices.places)].gather(1, options)  # [B, options]
    return array((scores[:, :1] > scores[:, 1:]).all(dim=1))


# ------------------------------------------------------------------ the fewest heads that something hangs on


@dataclass(frozen=True)
class Circuit(Result):
    """The smallest set of heads that was found whose loss takes an ability and leaves the rest."""

    heads: tuple[Head, ...]
    whole: float  # share right with all heads on
    without: float  # … with these off
    rest_whole: float
    rest: float  # share of the other texts right with these off
    found: bool  # whether both bounds are met
    singles: dict[str, float]  # what each head alone leaves of the ability

    note = "Zeroed heads, not retrained ones: what the model as it is relies on."

    @property
    def title(self) -> str:
        names = ", ".join(f"{name} head {head}" for name, head in self.heads)
        return f"{names}: {self.whole:.0%} → {self.without:.0%} right, the rest {self.rest_whole:.0%} → {self.rest:.0%}"

    def numpy(self) -> Array:
        return np.array([self.whole, self.without, self.rest_whole, self.rest])

    def scene(self) -> draw.Scene:
        worst = sorted(self.singles.items(), key=lambda item: item[1])[:12]
        said = [f"{value:.0%}" for _, value in worst]
        return draw.bars([v for _, v in worst], [name for name, _ in worst], title=self.title, said=said)

    def lines(self, width: int = 100) -> list[str]:
        worst = sorted(self.singles.items(), key=lambda item: item[1])[:12]
        return terminal.table([[name, f"{value:.0%}", terminal.bar(value, 1.0)] for name, value in worst], width=width)


def circuit(
    held: Subject | Holds,
    ability: Choices,
    rest: Batch,
    *,
    near: float,
    keep: float = 0.9,
    most: int = 3,
    among: int = 12,
) -> Circuit:
    """The fewest heads, at most `most`, without which at most a share `near` of the choices is right while at least `keep` of
    the other texts still come out whole. Sets are tried smallest first, among the heads that matter most alone."""
    subject = subject_of(held)

    def measured(off: Sequence[Head]) -> float:
        return float(chosen_right(subject, ability, off).mean())

    def kept(off: Sequence[Head]) -> float:
        return float(right(subject, rest, off).mean())

    alone = {head: measured([head]) for head in heads(subject.model)}
    candidates = sorted(alone, key=lambda head: alone[head])[:among]
    best: tuple[float, tuple[Head, ...]] | None = None
    singles = {f"{name} head {head}": value for (name, head), value in alone.items()}
    whole, rest_whole = measured([]), kept([])
    for size in range(1, most + 1):
        tried: list[tuple[float, tuple[Head, ...]]] = sorted(
            (alone[off[0]] if size == 1 else measured(off), off) for off in combinations(candidates, size)
        )
        for value, off in tried:
            if value > near:
                break
            share = kept(off)
            if share >= keep:
                return Circuit(off, whole, value, rest_whole, share, True, singles)
        best = min([best, tried[0]] if best else [tried[0]])
    assert best is not None
    return Circuit(best[1], whole, best[0], rest_whole, kept(best[1]), False, singles)
