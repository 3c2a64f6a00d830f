"""Inside trained models: weights as explanations, units as memories, ambiguous words."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.probe import NO_PROBE, AttentionCall, Edit, NullProbe, Probe
from regard.data.generated.algorithmic_tasks import Copying
from regard.lab.study.evidence import judge_cases
from regard.lab.study.figure import (
    Shown,
    Table,
    bar_chart,
    by_key,
    cells,
    chart,
    column,
    curve_cells,
    mean,
    mean_text,
    means,
    measured_bars,
    table,
    table_of_columns,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.lab.study.training_run import (
    NO_TARGET,
    PADDING,
    Batch,
    Task,
    TaskBatches,
    Vocabulary,
    as_text,
    builtin_text,
    builtin_vocabulary,
    language_model,
    logits,
    pad,
    trained,
)
from regard.look.drawing import Axis

LAYERS = 2  # of the small language model
WEAK = 0.5  # rank correlation; 1 is the same order
SMALL = 0.1  # total variation of the prediction


class Explanation(Study):
    """Attention weights do not explain a prediction: they agree only weakly with what happens if a
    token is removed, and shuffled weights often give the same prediction.

    Language models of two layers, one that copies letters and one of the built-in English. At each
    predicted token: the weights of its row (mean over heads and layers) against the total variation
    of the prediction if one earlier token is removed, as a rank correlation; and the total
    variation if the weights of each row are shuffled in all heads, or the token with the largest
    weight is removed.
    """

    source = "Jain and Wallace 2019, Sections 4.1 and 4.2; against it Wiegreffe and Pinter 2019"
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(200, 800)
        rows = effort.choose(12, 40)
        tasks = {
            "copying": TaskBatches(Copying(min_length=4, max_length=8)).learned(1),
            "English": Task(
                len(builtin_vocabulary()),
                partial(builtin_text, "train", 5000),
                [next(builtin_text("test", 500, 0))],
            ),
        }
        runs = effort.each(tasks, lambda name, seed: _experiment(tasks[name], seed, steps, rows))
        return {"runs": runs, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """On a task the claim is true if the rank correlation is below {WEAK:g} or shuffled weights
        move the median prediction by less than {SMALL:g}. Holds if it is true on both tasks, within
        limits on one; else it does not hold."""
        is_true = []
        parts = []
        for task, runs in numbers["runs"].items():
            correlation = mean(column(runs, "correlation"))
            shuffled = mean(column(runs, "shuffled"))
            is_true.append(correlation < WEAK or shuffled < SMALL)
            parts.append(
                f"{task}: rank correlation {correlation:.2f}, shuffled weights move the median "
                f"prediction by {shuffled:.2f}"
            )
        return judge_cases(is_true, "; ".join(parts) + ".")

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        moved = {
            "shuffled": "weights shuffled",
            "most": "most attended removed",
            "least": "least attended removed",
        }
        columns = {
            "correlation": "rank correlation",
            "shuffled": "shuffled",
            "most": "most attended gone",
            "least": "least attended",
        }
        return [
            measured_bars(
                "How far the median prediction moves",
                "total variation, 0 to 1",
                runs,
                moved,
                low=0.0,
                high=1.0,
            ),
            measured_bars(
                "Do weights and removal agree?",
                "rank correlation",
                runs,
                {"correlation": ""},
                low=0.0,
                high=1.0,
            ),
            table("task", columns, runs, number_format=".2f"),
        ]


def _experiment(task: Task, seed: int, steps: int, rows: int) -> dict[str, float]:
    """Trains a model for the task and asks what its weights say."""
    model = trained(language_model(task.vocabulary), seed, task.stream(seed), steps)
    (test,) = task.test
    texts = zip(test.tokens[:rows], test.targets[:rows], strict=True)
    # The correlation is not defined where all effects are equal: nanmean leaves these out.
    columns = torch.tensor([one for text in texts for one in _row(model, *text, seed)])  # [N, 4]
    shuffled, most, least = columns[:, 1:].median(0).values.tolist()
    return {
        "correlation": float(columns[:, 0].nanmean()),
        "shuffled": shuffled,
        "most": most,
        "least": least,
    }


@torch.no_grad()
def _row(model: Any, tokens: Tensor, targets: Tensor, seed: int) -> list[list[float]]:
    """Correlation, shuffled, most and least attended removed, for each predicted token."""
    length = int((tokens != PADDING).sum())
    tokens = tokens[:length]
    probe = Probe(["*.weights"])
    predicted = _predict(model, tokens[None], probe)[0]  # [T, V]
    calls = [probe.attentions[f"decoder.{layer}.self"] for layer in range(LAYERS)]
    weights = torch.stack([call.weights()[0].mean(0) for call in calls]).mean(0)  # [T, T]
    # Row j: the sequence with token j replaced by padding.
    removed = tokens.repeat(length, 1)
    removed.diagonal().fill_(PADDING)
    # One forward pass for all removals.
    without = _predict(model, removed)  # [length, T, V]
    effect = _variation(without, predicted[None])  # [removed, T]
    shuffled = _predict(model, tokens[None], _shuffling(calls, seed))[0]
    moved = _variation(shuffled, predicted)  # [T]
    results = []
    for position in range(length):
        # With few tokens before it, a rank says nothing; its own token is no earlier one.
        if position < 4 or targets[position] == NO_TARGET:
            continue
        # Weights and effects of the same tokens, so that their orders can be compared.
        earlier = weights[position, :position]
        effects = effect[:position, position]
        results.append(
            [
                _rank_correlation(earlier, effects),
                float(moved[position]),
                float(effects[earlier.argmax()]),
                float(effects[earlier.argmin()]),
            ]
        )
    return results


def _predict(model: Any, tokens: Tensor, probe: NullProbe = NO_PROBE) -> Tensor:
    """Probabilities of the next token: [B, T, V]."""
    return logits(model, Batch(tokens, tokens), probe).softmax(-1)


def _shuffling(calls: list[AttentionCall], seed: int) -> Probe:
    """A probe that gives each row of each head its own weights in another order.

    The weights are those of the first pass: the second layer's are not computed anew.
    """
    generator = torch.Generator().manual_seed(seed)
    edits: dict[str, Edit] = {}
    for layer, call in enumerate(calls):
        weights = call.weights()  # [1, H, T, T]
        shuffled = torch.zeros_like(weights)
        for head in range(weights.shape[1]):
            for row in range(weights.shape[2]):
                # A causal row has weights on its first row + 1 keys only.
                order = torch.randperm(row + 1, generator=generator)
                shuffled[0, head, row, : row + 1] = weights[0, head, row, order]
        edits[f"decoder.{layer}.self.mixed"] = partial(_constant, shuffled @ call.v)
    return Probe(edits=edits)


def _constant(mixed: Tensor, _: Tensor) -> Tensor:
    return mixed


def _variation(a: Tensor, b: Tensor) -> Tensor:
    """Total variation distance of distributions over the last dimension."""
    return 0.5 * (a - b).abs().sum(-1)


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation: that of the ranks."""
    # argsort of argsort gives the rank of each element.
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


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
        sentences = effort.choose(300, 1000)
        return {"runs": effort.each_seed(lambda seed: _units_run(seed, steps, sentences))}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the triggers of a unit share their last word at least twice as often as
        positions chosen at random, and the promoted token follows at least twice as often as with
        shuffled values. Within limits if only one of the two is so."""
        runs = numbers["runs"]
        values = {key: mean(mean(run[key]) for run in runs) for key in KEYS}
        has_key = values["shared"] >= 2 * values["chance"]
        # Both may be 0 in a model that learned little, and 0 ≥ 2 · 0.
        has_value = values["follows"] >= 2 * values["shuffled"] and values["follows"] > 0
        reason = (
            f"The triggers of a unit share their last word in {values['shared']:.0%} (chance "
            f"{values['chance']:.0%}); the token that it promotes most follows one of them for "
            f"{values['follows']:.0%} of the units ({values['shuffled']:.0%} with shuffled values)."
        )
        return judge_cases([has_key, has_value], reason)

    def show(self, numbers: Numbers) -> Shown:
        layers = [f"layer {layer + 1}" for layer in range(LAYERS)]
        # [layers][seeds] of each key, in %
        shares = {
            key: [
                [100 * share for share in of_layer]
                for of_layer in zip(*column(numbers["runs"], key), strict=True)
            ]
            for key in KEYS
        }
        titles = {
            "Triggers with the same last word": ("shared", "chance"),
            "Promoted token follows a trigger": ("follows", "shuffled"),
        }
        columns = {heading: map(mean_text, shares[key]) for key, heading in KEYS.items()}
        units = numbers["runs"][0]["units"]
        return [
            *(
                bar_chart(
                    title, "%", layers, {key: shares[key] for key in keys}, low=0.0, high=100.0
                )
                for title, keys in titles.items()
            ),
            table_of_columns("Units as keys and values", {"": layers, **columns}),
            Table("Some units", ["unit", "fires most after", "promotes"], units),
        ]


def _units_run(seed: int, steps: int, sentences: int) -> dict[str, Any]:
    description = language_model(
        len(builtin_vocabulary()), d_model=32, d_ff=128, layers=LAYERS, activation="relu"
    )
    model = trained(description, seed, builtin_text("train", 20_000, seed), steps)
    batch = next(builtin_text("test", 1000, seed=0, rows=sentences))
    probe = Probe(["*.hidden"])
    with torch.no_grad():
        logits(model, batch, probe)
    rng = random.Random(seed)
    layers = [
        _layer(model, layer, hidden[batch.targets != NO_TARGET], batch, rng)
        for layer, hidden in enumerate(probe.tensors.values())
    ]
    result: dict[str, Any] = {key: column(layers, key) for key in KEYS}
    return result | {"units": [unit for one in layers for unit in one["units"][: SHOWN // LAYERS]]}


@torch.no_grad()
def _layer(
    model: Any, layer: int, active: Tensor, batch: Batch, rng: random.Random
) -> dict[str, Any]:
    """The units of a layer by their activations [positions, F] where there is a target.

    f(x · Kᵀ), the coefficients of the memories (Geva et al. 2021, Section 2).
    """
    is_position = batch.targets != NO_TARGET
    last = batch.tokens[is_position].tolist()  # the word that a text ends with
    following = batch.targets[is_position].tolist()
    values = model.stack.blocks[layer].feedforward.outer.weight.mT  # [F, D]
    # The value vector read by the output matrix, as the logit lens reads the stream.
    promoted = model.head(values).argmax(-1).tolist()
    # Dead units have no triggers.
    units = [unit for unit in range(active.shape[1]) if bool(active[:, unit].max() > 0)]
    # A permutation, so that on the whole the same tokens are promoted.
    other = dict(zip(units, rng.sample(units, len(units)), strict=True))

    def measured(unit: int) -> dict[str, Any]:
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
            "unit": [f"{layer + 1}.{unit}", *map(_text, (common, [promoted[unit]]))],
        }

    measurements = [measured(unit) for unit in units]
    return {key: mean(column(measurements, key)) for key in KEYS} | {
        "units": column(measurements, "unit")
    }


def _text(tokens: Sequence[int]) -> str:
    return as_text(builtin_vocabulary(), tokens)


def _most_frequent(tokens: list[int]) -> float:
    """The share of the most frequent token."""
    return max(tokens.count(token) for token in set(tokens)) / len(tokens)


PEOPLE = ("man", "woman", "girl", "boy", "teacher", "doctor")
# A word of the context decides what the ambiguous one means, and so what follows.
WATER = (("walked", "river"), ("swam", "lake"), ("sailed", "sea"))
MONEY = (("worked", "city"), ("paid", "shop"), ("signed", "office"))
SENSES = {"water": ("wet", "green", "sandy"), "money": ("rich", "closed", "expensive")}
# “saw … with the telescope”: the seer has it; “met … with the telescope”: the other one.
TOOLS = ("telescope", "camera", "mirror")
VERBS = {"subject": ("saw", "watched"), "object": ("met", "greeted")}
CASES = ("bank", "attachment")
AMBIGUITY_LAYERS = 3


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
        return {"runs": effort.each_seed(lambda seed: _ambiguity_run(seed, steps))}

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
        return judge_cases(resolved, f"{'; '.join(parts)}.")

    def show(self, numbers: Numbers) -> Shown:
        layers = range(AMBIGUITY_LAYERS + 1)
        x = Axis("layer (0: input)", ticks=layers)
        y = Axis("cosine distance", low=0.0)
        names = {"between": "two meanings", "within": "one meaning"}
        charts = []
        rows = []
        for case in CASES:
            runs = column(numbers["runs"], case)
            curves = by_key(runs, names)
            charts.append(chart(f"How far apart sentences are: {case}", x, y, layers, curves))
            for name, distances in curves.items():
                shown = curve_cells(distances, ".3f")
                rows.append([f"{case}, {name}", *cells(runs, ["right"]), *shown])
        columns = ["", "right, %", "input", *(f"layer {n + 1}" for n in range(AMBIGUITY_LAYERS))]
        return [*charts, Table("Cosine distance of the ambiguous word", columns, rows)]


# ------------------------------------------------------------------ the ambiguous language


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


def _ambiguity_run(seed: int, steps: int) -> dict[str, Any]:
    words = _vocabulary()
    description = language_model(len(words), d_model=32, d_ff=128, layers=AMBIGUITY_LAYERS)
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
        other = GENERATORS[case](rng, first)
        like = [other[i] if i in DECIDING[case] else word for i, word in enumerate(one)]
        contrast = _contrast(case, one, rng)
        right.append(100 * _continues(model, one, case, first, words))
        right.append(100 * _continues(model, contrast, case, second, words))
        here, apart, same = (
            _representations(model, text, PLACES[case], words) for text in (one, contrast, like)
        )
        between.append(_distances(here, apart))
        within.append(_distances(here, same))
    return {"right": mean(right), "between": means(between), "within": means(within)}


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


def _continues(model: Any, text: list[str], case: str, meaning: str, words: Vocabulary) -> bool:
    """Whether the most probable last word fits the meaning."""
    tokens = torch.tensor([words.encode(text[:-1])])
    # The word of the highest logit at the last position
    best = as_text(words, [int(logits(model, Batch(tokens, tokens))[0, -1].argmax())])
    return best in (SENSES[meaning] if case == "bank" else text[-1:])


def _representations(model: Any, text: list[str], place: int, words: Vocabulary) -> Tensor:
    """The word at a place at the input and after each layer: [layers + 1, D]."""
    # Hidden states of all layers come with the context of the call.
    tokens = torch.tensor([words.encode(text)])
    context = Context(layer_outputs=[])
    x = model.tokens(tokens)
    model.stack(x, context=context)
    assert context.layer_outputs is not None
    # [B, T, D] of each layer, at the place of the word
    return torch.stack([hidden[0, place] for hidden in [x, *context.layer_outputs]])


def _distances(first: Tensor, second: Tensor) -> list[float]:
    """Cosine distances layer by layer."""
    # Equal vectors may come out as a little less than 0.
    distances: list[float] = (1 - torch.cosine_similarity(first, second)).clamp_min(0).tolist()
    return distances
