"""Circuits: the fewest heads that an ability hangs on, and where they look while it is used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, islice
from math import comb
from pathlib import Path

import numpy as np

from regard.core.probe import Probe
from regard.data.builtin import Sentence, sentences
from regard.errors import DataError, SettingError
from regard.look import drawing, terminal
from regard.look.ablation import Choices, chosen_right, pronouns, right
from regard.look.head_roles import word_tokens
from regard.look.recording import array
from regard.look.result import Array, Result
from regard.look.target import (
    Batch,
    Head,
    Holds,
    Subject,
    at_rest,
    attentions,
    batch,
    heads,
    hidden,
    subject_of,
    switched_off,
)
from regard.model import EncoderDecoder

SCREEN = 64  # texts that every set is tried on; only a set that does well there is tried on all
SLACK = 0.15  # by which a share of so few may miss that of all

# ------------------------------------------------------------------ the fewest heads


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
    reader: Head | None = None  # the head that looks most at what a pronoun stands for
    looks: tuple[float, float] | None = None  # how much, with all heads on and with the circuit off

    note = "Heads are zeroed, and nothing is retrained: what the model as it is relies on."

    @property
    def title(self) -> str:
        names = ", ".join(f"{name} head {head}" for name, head in self.heads)
        return f"{names}: {self.whole:.0%} → {self.without:.0%} right, the rest {self.rest_whole:.0%} → {self.rest:.0%}"

    def numpy(self) -> Array:
        return np.array([self.whole, self.without, self.rest_whole, self.rest])

    def scene(self) -> drawing.Scene:
        worst = self._worst()
        said = [f"{value:.0%}" for _, value in worst]
        return drawing.bars(
            [v for _, v in worst], [name for name, _ in worst], title=self.title, said=said
        )

    def lines(self, width: int = 100) -> list[str]:
        rows = [
            ["", "all heads", "circuit off"],
            ["the choice", f"{self.whole:.1%}", f"{self.without:.1%}"],
            ["other texts", f"{self.rest_whole:.1%}", f"{self.rest:.1%}"],
        ]
        if self.reader is not None and self.looks is not None:
            name, head = self.reader
            rows.append(
                [
                    f"{name} head {head} looks at the referent",
                    *(f"{share:.1%}" for share in self.looks),
                ]
            )
        which = "all there are" if self.every else "those among the most harmful heads"
        alone = [[name, f"{value:.1%}", terminal.bar(value, 1.0)] for name, value in self._worst()]
        return [
            *([] if self.found else ["no such set was found; the nearest:", ""]),
            *terminal.table(rows, width=width),
            "",
            f"{self.tried:,} sets of at most {len(self.heads)} heads tried: {which}. Right without one head alone:",
            *terminal.table(alone, width=width),
        ]

    def _worst(self) -> list[tuple[str, float]]:
        return sorted(self.singles.items(), key=lambda item: item[1])[:12]


def circuit(
    held: Subject | Holds,
    ability: Choices,
    rest: Batch,
    *,
    near: float = 0.55,
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
        candidates = max(
            n for n in range(size, len(ranked) + 1) if n == size or comb(n, size) <= tries
        )
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


# ------------------------------------------------------------------ who resolves "it"


@dataclass(frozen=True)
class Referents(Result):
    """Where heads look from a pronoun: from "it" in the encoder, and in cross-attention from where its translation is about
    to be written. Mean attention to each of `words`."""

    names: tuple[str, ...]
    weights: Array  # [attentions, heads, words]
    words: tuple[str, ...] = ("what it stands for", "the other noun", "it", "the adjective")

    note = "Only the adjective tells which of the two nouns is meant. Attention shows where, an ablation whether it matters."
    title = "where each head looks while a pronoun is resolved"

    @property
    def reader(self) -> Head:
        """The head that looks most at what the pronoun stands for, rather than at the other noun."""
        gap = np.nan_to_num(self.weights[:, :, 0] - self.weights[:, :, 1], nan=-1.0)
        name, head = np.unravel_index(int(gap.argmax()), gap.shape)
        return self.names[int(name)], int(head)

    def of(self, head: Head) -> Array:
        """[words] of one head."""
        return self.weights[self.names.index(head[0]), head[1]]

    def numpy(self) -> Array:
        return self.weights

    def scene(self) -> drawing.Scene:
        every = [
            f"{name} head {head}" for name in self.names for head in range(self.weights.shape[1])
        ]
        values = np.nan_to_num(self.weights.reshape(len(every), -1))
        inside = [[f"{value:.2f}" for value in row] for row in values]
        return drawing.heat(values, every, self.words, title=self.title, most=1.0, inside=inside)

    def lines(self, width: int = 100) -> list[str]:
        rows = [["", *self.words]]
        for name, heads_of in zip(self.names, self.weights, strict=True):
            for head, row in enumerate(heads_of):
                rows.append(
                    [
                        f"{name} head {head}",
                        *(f"{value:.2f} {terminal.bar(value, 1.0, 8)}" for value in row),
                    ]
                )
        return terminal.table(rows, width=width)


def referents(
    held: Subject | Holds, asked: Sequence[Sentence], off: Sequence[Head] = ()
) -> Referents:
    """Over pronoun sentences of the built-in language, while the model reads their translation, with some heads off."""
    subject = subject_of(held)
    if not isinstance(subject.model, EncoderDecoder):
        raise SettingError(
            "this model does not translate", "give a translator of the built-in language"
        )
    choices = pronouns(subject, asked)
    data = choices.data
    names = [
        name
        for name in attentions(subject.model)
        if name.startswith("encoder.") or name.endswith(".cross")
    ]
    probe = Probe(names, switched_off(subject.model, off))
    with at_rest(subject.model):
        hidden(subject.model, data.inputs, data.outputs, data.padding_mask, probe)
    known = [_places(subject, sentence) for sentence in asked if sentence.triple is not None]
    found = np.full(
        (len(names), max(attentions(subject.model)[name].heads for name in names), 4), np.nan
    )
    for i, name in enumerate(names):
        weights = array(probe.weights(name))  # [B, H, T, S]
        from_it = (
            [words[2][0] for words in known] if name.startswith("encoder.") else choices.places
        )
        rows = weights[np.arange(len(known)), :, from_it]  # [B, H, S]
        for j in range(4):
            shares = [row[:, words[j]].sum(axis=1) for row, words in zip(rows, known, strict=True)]
            found[i, : weights.shape[1], j] = np.mean(shares, axis=0)
    return Referents(tuple(names), found)


def _places(subject: Subject, sentence: Sentence) -> list[list[int]]:
    """The tokens of what "it" stands for, of the other noun, of "it", and of the adjective."""
    ends = {
        link.kind: link for link in reversed(sentence.links)
    }  # of two subjects, that of the main clause
    both = (ends["subject-verb"].start, ends["verb-object"].end)
    referent = ends["pronoun-referent"].end
    other = both[0] if referent == both[1] else both[1]
    words = word_tokens(subject, sentence.source)
    return [words[i] for i in (referent, other, ends["pronoun-referent"].start, max(words))]


def pronoun_circuit(
    held: Subject | Holds,
    count: int = 300,
    *,
    near: float = 0.55,
    keep: float = 0.9,
    tries: int = 3000,
) -> Circuit:
    """The fewest heads that resolve "it" in the built-in language: chosen on `count` pronoun and as many other sentences of
    the valid split, and measured on as many of the test split, so that the figures are of sentences that chose nothing.

    Who does not resolve it is right half of the time, and of 300 such guesses 55 % or fewer are right in 19 of 20 cases.
    """
    subject = subject_of(held)
    asked, others = _sample(subject, "valid", count)
    chosen = circuit(subject, pronouns(subject, asked), others, near=near, keep=keep, tries=tries)
    asked, others = _sample(subject, "test", count)
    ability, off = pronouns(subject, asked), chosen.heads
    whole, without = (float(chosen_right(subject, ability, each).mean()) for each in ((), off))
    rest_whole, rest = (float(right(subject, others, each).mean()) for each in ((), off))
    found = chosen.found and without <= near and rest >= keep
    usual, less = (referents(subject, asked, each) for each in ((), off))
    looks = (float(usual.of(usual.reader)[0]), float(less.of(usual.reader)[0]))
    return replace(
        chosen,
        whole=whole,
        without=without,
        rest_whole=rest_whole,
        rest=rest,
        found=found,
        reader=usual.reader,
        looks=looks,
    )


def stored_circuit(folder: Path) -> Circuit | None:
    """The circuit that was found when the model in a folder was made: what `regard look MODEL --what circuit --json` wrote to
    circuit.json beside it."""
    path = folder / "circuit.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    try:
        given = {field.name: found[field.name] for field in fields(Circuit)}
        given |= {
            "heads": tuple((str(name), int(head)) for name, head in found["heads"]),
            "reader": found["reader"] and (str(found["reader"][0]), int(found["reader"][1])),
            "looks": found["looks"] and (float(found["looks"][0]), float(found["looks"][1])),
        }
    except (KeyError, TypeError, ValueError, IndexError):
        raise DataError(
            f"{path} holds no circuit", "write it anew: regard look MODEL --what circuit --json"
        ) from None
    return Circuit(**given)


def _sample(subject: Subject, split: str, count: int) -> tuple[list[Sentence], Batch]:
    """Sentences of a split with a pronoun to resolve, and others."""
    others = list(islice((s for s in sentences(split) if s.triple is None), count))
    data = batch(subject, [s.source for s in others], [s.target for s in others])
    return list(islice(sentences(split, pronouns=True), count)), data
