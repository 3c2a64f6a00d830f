"""Ambiguous words and attachments, by contrast pairs: “bank”, “with the telescope”."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.lab.study.figure import Shown, Table, column, line, mean, mean_text, means
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    NO_TARGET,
    RESERVED,
    Batch,
    Vocabulary,
    language_model,
    pad,
    trained,
)
from regard.look.drawing import Axis, Chart

PEOPLE = ("man", "woman", "girl", "boy", "teacher", "doctor")
# A word of the context decides what the ambiguous one means, and so what follows.
WATER = (("walked", "river"), ("swam", "lake"), ("sailed", "sea"))
MONEY = (("worked", "city"), ("paid", "shop"), ("signed", "office"))
SENSES = {"water": ("wet", "green", "sandy"), "money": ("rich", "closed", "expensive")}
# “saw … with the telescope”: the seer has it; “met … with the telescope”: the other one.
TOOLS = ("telescope", "camera", "mirror")
VERBS = {"subject": ("saw", "watched"), "object": ("met", "greeted")}
CASES = ("bank", "attachment")
LAYERS = 3


class Ambiguity(Study):
    """Self-attention resolves ambiguity: the same word has one embedding, but representations that
    differ by its meaning in context, the more the higher the layer.

    A language model of {LAYERS} layers on a generated language, in which “bank” is wet or rich by a
    word before it, and who used the telescope depends on “saw” or “met”. Contrast pairs differ only
    in that word. Of held-out sentences: right continuations, and the cosine distance of the
    ambiguous word across the contrast, and between two such sentences of the same meaning, in each
    layer.
    """

    name = "ambiguity"
    source = "Peters et al. 2018, Section 5.3; Vaswani et al. 2017, Appendix (anaphora)"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(450, 1500)
        return {"runs": effort.each_seed(lambda seed: _run(seed, steps))}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if in both cases 90 % or more of the continuations are right, the two meanings are
        not apart at the input (below 0.01), and after the last layer at least twice as far apart as
        two sentences of one meaning. Within limits if this is so in one case."""
        resolved = []
        parts = []
        for case in CASES:
            runs = column(numbers["runs"], case)
            right = mean(column(runs, "right"))
            first, *_, last = means(column(runs, "between"))
            same = means(column(runs, "within"))[-1]
            # 0.01 is far above the rounding of equal vectors.
            resolved.append(right >= 90 and first < 0.01 and last >= max(2 * same, 0.01))
            parts.append(
                f"{case}: {right:.0f} % right, meanings {first:.2f} apart at the input and "
                f"{last:.2f} after the last layer (one meaning: {same:.2f})"
            )
        reason = f"{'; '.join(parts)}."
        return judge(all(resolved), any(resolved), reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        layers = range(LAYERS + 1)
        x = Axis("layer (0: input)", ticks=tuple(layers))
        y = Axis("cosine distance", low=0.0)
        names = {"between": "two meanings", "within": "one meaning"}
        charts = []
        rows = []
        for case in CASES:
            runs = column(numbers["runs"], case)
            series = [line(name, layers, runs, key) for key, name in names.items()]
            charts.append(Chart(f"How far apart sentences are: {case}", x, y, series))
            right = mean_text(column(runs, "right"))
            for key, name in names.items():
                by_layer = zip(*column(runs, key), strict=True)
                distances = [mean_text(values, ".3f") for values in by_layer]
                rows.append([f"{case}, {name}", right, *distances])
        columns = ["", "right, %", "input", *(f"layer {n + 1}" for n in range(LAYERS))]
        return [*charts, Table("Cosine distance of the ambiguous word", columns, rows)]


# ------------------------------------------------------------------ the language


def bank_text(rng: random.Random, sense: str) -> list[str]:
    """the man walked to the river . the bank was wet"""
    verb, noun = rng.choice(WATER if sense == "water" else MONEY)
    words = f"the {rng.choice(PEOPLE)} {verb} to the {noun} . the bank was".split()
    return [*words, rng.choice(SENSES[sense])]


def attachment_text(rng: random.Random, owner: str) -> list[str]:
    """the man saw the girl with the telescope . used by the man"""
    subject, other = rng.sample(PEOPLE, 2)
    tool = rng.choice(TOOLS)
    verb = rng.choice(VERBS[owner])
    words = f"the {subject} {verb} the {other} with the {tool} . used by the".split()
    return [*words, subject if owner == "subject" else other]


GENERATORS = {"bank": bank_text, "attachment": attachment_text}
PLACES = {"bank": 8, "attachment": 7}  # of the ambiguous word
DECIDING = {"bank": (2, 5), "attachment": (2,)}  # places of the words that decide what it means
MEANINGS = {"bank": ("water", "money"), "attachment": ("subject", "object")}


def _vocabulary() -> Vocabulary:
    rng = random.Random(0)
    return Vocabulary(
        [
            word
            for case, generate in GENERATORS.items()
            for meaning in MEANINGS[case]
            for _ in range(300)
            for word in generate(rng, meaning)
        ]
    )


def _batches(words: Vocabulary, seed: int) -> Iterator[Batch]:
    rng = random.Random(seed)
    while True:
        # Both cases in one language, so that one model learns them.
        texts = []
        for _ in range(32):
            # Who has the telescope is harder to learn.
            case = rng.choice((*CASES, "attachment"))
            texts.append(GENERATORS[case](rng, rng.choice(MEANINGS[case])))
        ids = [words.encode(text) for text in texts]
        yield Batch(pad([row[:-1] for row in ids]), pad([row[1:] for row in ids], NO_TARGET))


# ------------------------------------------------------------------ measurements


def _run(seed: int, steps: int) -> dict[str, Any]:
    words = _vocabulary()
    description = language_model(len(words), 32, d_model=32, d_ff=128, layers=LAYERS)
    model = trained(description, seed, _batches(words, seed), steps)
    return {case: _case(model, case, words, seed) for case in CASES}


@torch.no_grad()
def _case(model: Any, case: str, words: Vocabulary, seed: int) -> dict[str, Any]:
    rng = random.Random(f"held out {seed}")
    first, second = MEANINGS[case]
    right = []
    between = []
    within = []
    for _ in range(60):
        # Two sentences of one meaning, and one of the other, that differ in the deciding word.
        one = GENERATORS[case](rng, first)
        like = _replaced(one, GENERATORS[case](rng, first), DECIDING[case])
        contrast = _contrast(case, one, rng)
        right.append(100 * _continues(model, one, case, first, words))
        right.append(100 * _continues(model, contrast, case, second, words))
        here, other, same = (
            _representations(model, text, PLACES[case], words) for text in (one, contrast, like)
        )
        between.append(_distances(here, other))
        within.append(_distances(here, same))
    return {
        "right": mean(right),
        "between": means(between),
        "within": means(within),
    }


def _contrast(case: str, text: list[str], rng: random.Random) -> list[str]:
    """The same sentence with another word where the meaning is decided."""
    changed = [*text]
    if case == "bank":
        # Positions of the deciding words in the pattern of the sentence
        changed[2], changed[5] = rng.choice(MONEY)
        changed[-1] = rng.choice(SENSES["money"])
    else:
        # Only the verb differs; who has the thing follows from it.
        changed[2] = rng.choice(VERBS["object"])
        changed[-1] = changed[4]
    return changed


def _replaced(text: list[str], other: list[str], places: Sequence[int]) -> list[str]:
    """The sentence with the words of another at some places."""
    return [other[i] if i in places else word for i, word in enumerate(text)]


def _continues(model: Any, text: list[str], case: str, meaning: str, words: Vocabulary) -> bool:
    """Whether the most probable last word fits the meaning."""
    tokens = torch.tensor([words.encode(text[:-1])])
    hidden, _ = model(tokens)
    # The word of the highest logit at the last position
    best = words.words[int(model.head(hidden)[0, -1].argmax()) - RESERVED]
    if case == "bank":
        return best in SENSES[meaning]
    return bool(best == text[-1])


def _representations(model: Any, text: list[str], place: int, words: Vocabulary) -> list[Tensor]:
    """The word at a place at the input and after each layer: [D] each."""
    # Hidden states of all layers come with the context of the call.
    tokens = torch.tensor([words.encode(text)])
    context = Context(layer_outputs=[])
    x = model.tokens(tokens)
    model.stack(x, context=context)
    assert context.layer_outputs is not None
    # [B, T, D] of each layer, at the place of the word
    return [hidden[0, place] for hidden in [x, *context.layer_outputs]]


def _distances(first: Sequence[Tensor], second: Sequence[Tensor]) -> list[float]:
    """Cosine distances layer by layer."""
    pairs = zip(first, second, strict=True)
    # Equal vectors may come out as a little less than 0.
    return [max(0.0, 1 - float(torch.cosine_similarity(a, b, dim=0))) for a, b in pairs]
