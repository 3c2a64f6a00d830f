"""Inside trained models: units as memories, ambiguous words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.probe import Probe
from regard.lab.study.evidence import judge_cases, judge_tasks
from regard.lab.study.figure import (
    Shown,
    Table,
    chart_and_table,
    column,
    columns,
    mean,
    means,
    measured_bars,
    named_columns,
    table,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.lab.study.training_run import (
    NO_TARGET,
    Batch,
    Vocabulary,
    as_text,
    builtin_text,
    builtin_vocabulary,
    language_model,
    logits,
    shifted_batch,
    trained,
)

LAYERS = 2  # of the small language model
TRIGGERS = 8  # the texts on which a unit fires most
SHOWN = 6  # units in the table
KEYS = {
    "shared": "same last word, %",
    "chance": "chance, %",
    "follows": "promoted follows, %",
    "shuffled": "shuffled, %",
}


class FeedForwardUnits(Study):
    """Feed-forward layers are key–value memories: a unit's key (its row of the first matrix) fires
    on texts with a pattern in common, and its value (its column of the second) promotes the tokens
    that follow them.

    A language model of the built-in language (2 layers, ReLU). Of each unit: the {TRIGGERS}
    positions of held-out sentences on which it fires most, the share of them with the most frequent
    last word, and whether the token that its value promotes most (through the output matrix) is one
    that follows there; the same with the values of other units for comparison.
    """

    source = "Geva et al. 2021, Sections 3 and 4"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(400, 2500)
        batch = next(builtin_text("test", 1000, seed=0, rows=effort.choose(300, 1000)))
        description = language_model(
            len(builtin_vocabulary()), d_model=32, d_ff=128, layers=LAYERS, activation="relu"
        )

        def measure(seed: int) -> Numbers:
            model = trained(description, seed, builtin_text("train", 20_000, seed), steps)
            probe = Probe(["*.hidden"])
            with torch.no_grad():
                logits(model, batch, probe)
            rng = random.Random(seed)
            layers = [
                _layer(model, layer, hidden, batch, rng)
                for layer, hidden in enumerate(probe.tensors.values())
            ]
            units = [unit for one in layers for unit in one["units"][: SHOWN // LAYERS]]
            return columns(layers, KEYS) | {"units": units}

        return {"runs": effort.each_seed(measure)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the triggers of a unit share their last word at least twice as often as
        positions chosen at random, and the promoted token follows at least twice as often as with
        shuffled values. Within limits if only one of the two is so."""
        runs = numbers["runs"]
        values = {key: mean(mean(run[key]) for run in runs) for key in KEYS}
        has_key = values["shared"] >= 2 * values["chance"]
        # Both may be 0 in a model that learned little, and 0 ≥ 2 · 0.
        has_value = values["follows"] >= 2 * values["shuffled"] and values["follows"] > 0
        return judge_cases(
            [has_key, has_value],
            f"The triggers of a unit share their last word in {values['shared']:.0%} (chance "
            f"{values['chance']:.0%}); the token that it promotes most follows one of them for "
            f"{values['follows']:.0%} of the units ({values['shuffled']:.0%} with shuffled "
            "values).",
        )

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        # In %, of each seed
        layers = {
            f"layer {layer + 1}": [{key: 100 * run[key][layer] for key in KEYS} for run in runs]
            for layer in range(LAYERS)
        }
        titles = {
            "Triggers with the same last word": ("shared", "chance"),
            "Promoted token follows a trigger": ("follows", "shuffled"),
        }
        return [
            *(
                measured_bars(title, "%", layers, {key: key for key in keys}, high=100.0)
                for title, keys in titles.items()
            ),
            table("", KEYS, layers, "Units as keys and values"),
            Table("Some units", ["unit", "fires most after", "promotes"], runs[0]["units"]),
        ]


@torch.no_grad()
def _layer(model: Any, layer: int, hidden: Tensor, batch: Batch, rng: random.Random) -> Numbers:
    """The units of a layer by their activations [B, T, F].

    f(x · Kᵀ), the coefficients of the memories (Geva et al. 2021, Section 2).
    """
    is_position = batch.targets != NO_TARGET
    active = hidden[is_position]
    last = batch.tokens[is_position].tolist()  # the word that a text ends with
    following = batch.targets[is_position].tolist()
    values = model.stack.blocks[layer].feedforward.outer.weight.mT  # [F, D]
    # The value vector read by the output matrix, as the logit lens reads the stream.
    promoted = model.head(values).argmax(-1).tolist()
    # Dead units have no triggers.
    units = active.any(0).nonzero()[:, 0].tolist()
    # A permutation, so that on the whole the same tokens are promoted.
    other = dict(zip(units, rng.sample(units, len(units)), strict=True))

    def measured(unit: int) -> Numbers:
        # Positions stand for the text that ends there.
        triggers = active[:, unit].topk(TRIGGERS).indices.tolist()
        tokens = [last[i] for i in triggers]
        next_tokens = {following[i] for i in triggers}
        common = sorted(set(tokens), key=tokens.count, reverse=True)[:4]
        return {
            "shared": _most_frequent(tokens),
            # Eight positions at random share a word too, now and then.
            "chance": _most_frequent(rng.choices(last, k=TRIGGERS)),
            "follows": promoted[unit] in next_tokens,
            # What another unit of the layer promotes: frequent words follow anyway.
            "shuffled": promoted[other[unit]] in next_tokens,
            "unit": [
                f"{layer + 1}.{unit}",
                *(as_text(builtin_vocabulary(), words) for words in (common, [promoted[unit]])),
            ],
        }

    measurements = [measured(unit) for unit in units]
    return {key: mean(column(measurements, key)) for key in KEYS} | {
        "units": column(measurements, "unit")
    }


def _most_frequent(tokens: list[int]) -> float:
    """The share of the most frequent token."""
    return max(map(tokens.count, tokens)) / len(tokens)


PEOPLE = ("man", "woman", "girl", "boy", "teacher", "doctor")
# A word of the context decides what the ambiguous one means, and so what follows.
WATER = (
    ("walked to the river", "swam to the lake", "sailed to the sea"),
    ("wet", "green", "sandy"),
)
MONEY = (
    ("worked to the city", "paid to the shop", "signed to the office"),
    ("rich", "closed", "expensive"),
)
# “saw … with the telescope”: the seer has it; “met … with the telescope”: the other one.
TOOLS = ("telescope", "camera", "mirror")
SEEN = ("saw", "watched")
MET = ("met", "greeted")
AMBIGUITY_LAYERS = 3
# A text up to its last word, and the words that may be the last.
Text = tuple[list[str], Sequence[str]]


def bank_texts(rng: random.Random) -> list[Text]:
    """the man walked to the river . the bank was wet: twice with one meaning, and with the other"""
    person = rng.choice(PEOPLE)
    return [
        (f"the {person} {rng.choice(ways)} . the bank was".split(), senses)
        for ways, senses in (WATER, WATER, MONEY)
    ]


def attachment_texts(rng: random.Random) -> list[Text]:
    """the man saw the girl with the telescope . used by the man: the same of who has it"""
    subject, other = rng.sample(PEOPLE, 2)
    tool = rng.choice(TOOLS)
    return [
        (
            f"the {subject} {rng.choice(verbs)} the {other} with the {tool} . used by the".split(),
            [owner],
        )
        for verbs, owner in ((SEEN, subject), (SEEN, subject), (MET, other))
    ]


CASES = {"bank": bank_texts, "attachment": attachment_texts}
PLACES = {"bank": 8, "attachment": 7}  # of the ambiguous word


class Ambiguity(Study):
    """Self-attention resolves ambiguity: the same word has one embedding, but representations that
    differ by its meaning in context, the more the higher the layer.

    A language model of {AMBIGUITY_LAYERS} layers on a generated language, in which “bank” is wet or
    rich by a word before it, and who used the telescope depends on “saw” or “met”. Contrast pairs
    differ only in that word. Of held-out sentences: right continuations, and the cosine distance of
    the ambiguous word across the contrast, and between two such sentences of the same meaning, in
    each layer.
    """

    source = "Peters et al. 2018, Section 5.3; Vaswani et al. 2017, Appendix (anaphora)"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(450, 1500)
        rng = random.Random(0)
        texts = [text for case in CASES.values() for _ in range(300) for text in case(rng)]
        words = Vocabulary([word for text, last in texts for word in (*text, *last)])
        description = language_model(len(words), d_model=32, d_ff=128, layers=AMBIGUITY_LAYERS)

        def measure(seed: int) -> Numbers:
            model = trained(description, seed, _batches(words, seed), steps)
            return {case: _contrasts(model, case, words, seed) for case in CASES}

        return {"runs": effort.each_seed(measure)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if in both cases 90 % or more of the continuations are right, the two meanings are
        not apart at the input (below 0.01), and after the last layer at least twice as far apart as
        two sentences of one meaning. Within limits if this is so in one case."""
        resolved = {}
        for case in CASES:
            runs = column(numbers["runs"], case)
            right = mean(column(runs, "right"))
            first, *_, last = means(column(runs, "between"))
            same = means(column(runs, "within"))[-1]
            part = (
                f"{case}: {right:.0f} % right, meanings {first:.2f} apart at the input and "
                f"{last:.2f} after the last layer (one meaning: {same:.2f})"
            )
            # 0.01 is far above the rounding of equal vectors.
            resolved[part] = right >= 90 and first < 0.01 and last >= max(2 * same, 0.01)
        return judge_tasks(resolved)

    def show(self, numbers: Numbers) -> Shown:
        layers = range(AMBIGUITY_LAYERS + 1)
        names = {"between": "two meanings", "within": "one meaning"}
        place = "layer (0: input)"
        shown: list[Any] = []
        for case in CASES:
            runs = column(numbers["runs"], case)
            curves = named_columns(runs, names)
            title = f"The ambiguous word: {case}"
            shown += [
                *chart_and_table(title, place, "cosine distance", layers, curves, low=0.0),
                table("", {"right": "right continuations, %"}, {case: runs}),
            ]
        return shown


# ------------------------------------------------------------------ the ambiguous language


def _batches(words: Vocabulary, seed: int) -> Iterator[Batch]:
    rng = random.Random(seed)

    def ids() -> list[int]:
        # Both cases in one language, so that one model learns them; who has the telescope is harder
        # to learn.
        texts = CASES[rng.choice((*CASES, "attachment"))](rng)
        text, last = rng.choice(texts[1:])  # one of each meaning
        return words.encode([*text, rng.choice(last)])

    while True:
        yield shifted_batch([ids() for _ in range(32)])


@torch.no_grad()
def _contrasts(model: Any, case: str, words: Vocabulary, seed: int) -> Numbers:
    rng = random.Random(f"held out {seed}")
    right = []
    distances = []
    for _ in range(60):
        texts, last = zip(*CASES[case](rng), strict=True)
        tokens = torch.tensor([words.encode(text) for text in texts])  # [3, T]
        # Hidden states of all layers come with the context of the call.
        context: Any = Context(layer_outputs=[])
        hidden, _ = model(tokens, None, context)
        best = model.head(hidden[:, -1]).argmax(-1).tolist()
        right += [as_text(words, [token]) in fit for token, fit in zip(best, last, strict=True)]
        # The ambiguous word at the input and after each layer: [layers + 1, 3, D]
        layers = torch.stack([model.tokens(tokens), *context.layer_outputs])[:, :, PLACES[case]]
        similarity = torch.cosine_similarity(layers[:, :1], layers[:, 1:], dim=-1)
        # Equal vectors may come out as a little less than 0.
        distances.append((1 - similarity).clamp_min(0))  # [layers + 1, 2]
    within, between = torch.stack(distances).mean(0).T.tolist()
    return {"right": 100 * mean(right), "between": between, "within": within}
