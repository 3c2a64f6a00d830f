"""Attention heads: how many, tied projections, their roles, and how they compose."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core.probe import Probe
from regard.data.conllu import parse_conllu, read_conllu, write_conllu
from regard.data.generated import builtin
from regard.data.generated.builtin import Sentence
from regard.lab.study.evidence import judge_cases, judge_sentences, some
from regard.lab.study.figure import (
    Shown,
    Table,
    bar_chart,
    chart,
    column,
    exceeds,
    mean,
    mean_text,
    table,
    table_of_columns,
    transposed,
)
from regard.lab.study.study import Effort, Numbers, Study, Truth, Verdict, judge
from regard.lab.study.training_run import (
    NO_TARGET,
    Batch,
    build_seeded,
    compare,
    english,
    evaluate,
    language_model,
    logits,
    mean_loss,
    packaged_translator,
    train,
    trained,
    with_attention,
)
from regard.look.drawing import BarChart, HeatMap
from regard.look.forward import evaluation_mode
from regard.look.head_circuits import (
    composition_scores,
    head_circuits,
    induction_scores,
    previous_token_scores,
)
from regard.look.head_roles import POSITIONAL, Roles, roles
from regard.look.probe_names import Head, heads, switched_off

MANY = 8  # the number of heads that are pruned
LAYERS = 2  # of the small language model
TOLERANCE = 0.01  # relative rise of the loss that a pruned model may have
CUT = "The axis does not begin at 0."


class Heads(Study):
    """Several heads are better than one of the same total width, and after training most of them
    can be removed without a loss.

    Language models of two layers and d_model 64 on the built-in English, with 1 to 16 heads (d_k =
    64/h, so that all have as many parameters): validation loss. In those with {MANY} heads, each
    head is ablated alone, then all of them in the order of what they are worth.
    """

    source = (
        "Vaswani et al. 2017, Section 3.2.2 and Table 3 (A); Michel et al. 2019, Sections 3 and 4; "
        "Voita et al. 2019"
    )
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        # d_model 64 is divisible by all of them.
        counts = effort.choose([1, 8], [1, 2, 4, 8, 16])
        steps = effort.choose(200, 800)
        task = english(effort)

        def measure(heads: int, seed: int) -> Numbers:
            model = trained(
                language_model(task.vocabulary, heads=heads), seed, task.stream(seed), steps
            )
            pruning = _prune(model, task.test[0]) if heads == MANY else None
            return {"loss": evaluate(model, task.test).loss, "pruning": pruning}

        runs = effort.each(counts, measure)
        return {
            "losses": {heads: column(each, "loss") for heads, each in runs.items()},
            "pruning": column(runs[MANY], "pruning"),
            "steps": steps,
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the best number of heads beats one head by more than the standard deviations of
        both, and at least half of all heads go together for 1 % of the loss; within limits if one
        of the two is true; else it does not hold."""
        losses = numbers["losses"]
        best = min((name for name in losses if name != "1"), key=lambda name: mean(losses[name]))
        # Of all heads of both layers.
        share = mean(removable(run["curve"]) / (LAYERS * MANY) for run in numbers["pruning"])
        return judge_cases(
            [exceeds(losses["1"], losses[best]), share >= 0.5],
            f"Loss {mean_text(losses['1'])} with one head, {mean_text(losses[best])} with {best}; "
            f"{100 * share:.0f} % of {LAYERS * MANY} heads can go for "
            f"{100 * TOLERANCE:.0f} % of the loss.",
        )

    def show(self, numbers: Numbers) -> Shown:
        losses = numbers["losses"]
        curves = column(numbers["pruning"], "curve")
        gone = range(len(curves[0]))
        worth = [
            [f"layer {layer}", *(f"{value:+.3f}" for value in values)]
            for layer, values in enumerate(numbers["pruning"][0]["worth"])
        ]
        return [
            _losses("Loss by the number of heads", losses),
            chart(
                f"Loss as heads are removed, of {gone[-1]}",
                "heads removed, the least important first",
                "loss, nats a token",
                gone,
                {"": curves},
            ),
            table_of_columns(
                "Loss after training", {"heads": losses, "loss": map(mean_text, losses.values())}
            ),
            Table(
                "Rise of the loss where one head is ablated, first seed",
                ["", *(f"head {head}" for head in range(MANY))],
                worth,
            ),
        ]


def _losses(title: str, losses: Mapping[str, Sequence[float]]) -> BarChart:
    # Losses differ by a few per cent: from zero, all bars would look alike.
    low = round(0.9 * min(map(min, losses.values())), 1)
    label = "validation loss, nats a token"
    return bar_chart(title, label, losses, {"": losses.values()}, CUT, low=low)


def removable(curve: list[float]) -> int:
    """How many heads can be removed together within the tolerance."""
    # The curve begins with no head removed.
    limit = curve[0] * (1 + TOLERANCE)
    return max(count for count, loss in enumerate(curve) if loss <= limit)


@torch.no_grad()
def _prune(model: Any, batch: Batch) -> Numbers:
    """What each head is worth, and the loss as the least important are ablated one by one."""

    def loss_without(off: Sequence[Head]) -> float:
        return float(mean_loss(model, batch, probe=Probe(edits=switched_off(model, off))))

    base = loss_without([])
    # Importance by ablation of each head alone, as Michel et al. measure it first (Section 3.2).
    worth = {head: loss_without([head]) - base for head in heads(model)}
    order = sorted(worth, key=worth.__getitem__)
    return {
        "worth": np.reshape([*worth.values()], (LAYERS, MANY)).tolist(),
        "curve": [loss_without(order[:count]) for count in range(len(order) + 1)],
    }


# ------------------------------------------------------------------ tied projections

WIDER = "Q = K = V, wider"
# How `spec.Attention.projection` calls them.
PROJECTIONS = {
    "separate": "apart",
    "K = V": "tied_kv",
    "Q = K": "tied_qk",
    "Q = K = V": "tied_qkv",
    WIDER: "tied_qkv",
}
# The variants that the rule needs.
QUICK = ("separate", "Q = K = V", WIDER)


class TiedProjections(Study):
    """Queries, keys and values need matrices of their own: with one matrix for all three the scores
    are symmetric, each position attends to itself first, and quality falls.

    Language models of two layers and d_model 64 on the built-in English, whose queries, keys and
    values have three matrices, two, or one: validation loss and parameters. Once more with d_ff
    raised until all have as many parameters.
    """

    source = (
        "Vaswani et al. 2017, Section 3.2.2 (three projections for each head); for shared queries "
        "and keys the opposite is claimed by Kitaev et al. 2020, Section 5 (Figure 3)"
    )
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(200, 800)
        task = english(effort)
        model = language_model(task.vocabulary)
        # Two matrices of d² are missing; a unit of the feed-forward network has 2·d weights.
        wider = language_model(task.vocabulary, d_ff=256 + model.d_model)
        variants = {
            name: with_attention(wider if name == WIDER else model, projection=word)
            for name, word in PROJECTIONS.items()
            if not effort.quick or name in QUICK
        }
        return compare(variants, task, steps, effort)

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if one matrix for all three has a higher loss than separate ones, at equal width
        and at equal parameters, by more than the standard deviations of both; within limits if only
        at one of the two; else it does not hold."""
        # Separate ones, one with fewer parameters, one with as many.
        separate, tied, equal = (column(numbers["runs"][name], "loss") for name in QUICK)
        return judge_cases(
            [exceeds(values, separate) for values in (tied, equal)],
            f"Loss after {numbers['steps']} steps: {mean_text(separate)} with separate matrices, "
            f"{mean_text(tied)} with one, {mean_text(equal)} with one and as many parameters.",
        )

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        losses = {name: column(each, "loss") for name, each in runs.items()}
        columns = {"loss": "loss", "accuracy": "accuracy, %"}
        return [
            _losses("Loss with tied projections", losses),
            table("matrices", columns, runs, parameters=numbers["parameters"]),
        ]


# ------------------------------------------------------------------ head roles

# The standard error of a mean over 20 weights is below a quarter of their deviation.
FEWEST_PAIRS = 20  # of words, below which a role is open
TIMES_UNIFORM = 3  # what a head must attend, in uniform attention
TIMES_CONTROL = 2  # and in its own attention to other words at the same distance


class HeadRoles(Study):
    """Some heads specialise: they attend to the neighbouring token, or along a grammatical relation
    such as subject and verb.

    The packaged translator of the built-in language on parsed sentences in CoNLL-U: those of the
    file in $REGARD_CONLLU, or test sentences of the built-in language. The mean attention of each
    encoder head from the first word of a relation to the second, and what uniform attention would
    give. The strongest head of each role is chosen on one half of the sentences and measured on the
    other; there also its attention to words at the same distance between which the relation is not,
    as a control for position.
    """

    source = "Voita et al. 2019, Section 5; Clark et al. 2019, Section 4"
    seeds = (1, 1)  # the model is trained already

    def measure(self, effort: Effort) -> Numbers:
        sentences, name = _sentences(effort.choose(100, 1000))
        # The model that the studio opens with: nothing is trained here.
        model = packaged_translator()
        half = len(sentences) // 2
        chosen = roles(model, sentences[:half])
        scored = roles(model, sentences[half:])
        control = roles(model, [at_same_distance(one) for one in sentences[half:]])
        rows = [
            {
                "role": role,
                "head": "{} {}".format(*chosen.best[role]),
                "attention": _attention(scored, role, chosen.best[role]),
                "chance": chance,
                "control": _attention(control, role, chosen.best[role]),
                "pairs": pairs,
            }
            for role, chance, pairs in zip(scored.roles, scored.chance, scored.links, strict=True)
            if role in chosen.best and role in control.best
        ]
        return {"sentences": len(sentences), "text": name, "roles": rows}

    def verdict(self, numbers: Numbers) -> Verdict:
        """A relation has a head if that attends {TIMES_UNIFORM} times as much as uniform attention
        and {TIMES_CONTROL} times as much as in the control; a positional role, if the first is so.
        With fewer than {FEWEST_PAIRS} pairs of words a role is open. Holds if some head attends to
        the neighbouring token and some along a relation, within limits if only one of the two is
        so, fails if neither; too small to say where the open ones decide that."""
        # Voita et al. judge positional and syntactic heads apart, and so does the rule.
        relations = [row for row in numbers["roles"] if row["role"] not in POSITIONAL]
        related = [*map(_has_head, relations)]
        # Heads for neighbours are the commonest (Voita et al., Section 5.2).
        near = [_has_head(row) for row in numbers["roles"] if row["role"] in POSITIONAL]
        best = max(relations, key=lambda row: row["attention"] / max(row["chance"], row["control"]))
        sentences = {
            "heads for a neighbouring token": some(near),
            "heads for a relation": some(related),
        }
        return judge_sentences(
            sentences,
            f"{related.count(True)} of {len(related)} relations and {near.count(True)} of "
            f"{len(near)} positional roles have a head on {numbers['text']}; the strongest is "
            f"{best['head']} for {best['role']}: {best['attention'] / best['chance']:.1f} times "
            f"uniform attention, {best['attention'] / best['control']:.1f} times the control.",
        )

    def show(self, numbers: Numbers) -> Shown:
        counted = [row for row in numbers["roles"] if row["pairs"] >= FEWEST_PAIRS]
        keys = {
            "attention": "strongest head",
            "chance": "uniform attention",
            "control": "same distance",
        }
        rows = [
            [row["role"], row["head"], *(f"{row[key]:.2f}" for key in keys), str(row["pairs"])]
            for row in numbers["roles"]
        ]
        return [
            bar_chart(
                "The strongest head for each role",
                "mean attention",
                column(counted, "role"),
                {name: [[row[key]] for row in counted] for key, name in keys.items()},
                high=1.0,
            ),
            Table(
                f"{numbers['sentences']} sentences of {numbers['text']}",
                ["role", "head", *keys.values(), "pairs"],
                rows,
            ),
        ]


def _has_head(row: Numbers) -> Truth:
    # Means over a few pairs are chance.
    if row["pairs"] < FEWEST_PAIRS:
        return None
    # The control of a positional role is the role itself.
    is_related = row["role"] in POSITIONAL or row["attention"] >= TIMES_CONTROL * row["control"]
    return bool(row["attention"] >= TIMES_UNIFORM * row["chance"] and is_related)


def _attention(scored: Roles, role: str, head: Head) -> float:
    """The mean attention of a head along a role."""
    name, number = head
    return float(scored.scores[scored.roles.index(role), scored.names.index(name), number])


def at_same_distance(sentence: Sentence) -> Sentence:
    """The sentence with links between other words, each as far apart as two that are related."""
    words = range(len(sentence.source.split()))
    links = [
        replace(link, start=start, end=start + link.end - link.start)
        for link in sentence.links
        for start in words
        if start + link.end - link.start in words
    ]
    # What is related in truth, by the same kind of relation, is no control.
    others = [link for link in links if link not in sentence.links]
    return replace(sentence, links=tuple(others))


def _sentences(count: int) -> tuple[list[Sentence], str]:
    """Parsed sentences, and the name of their text."""
    if file := os.environ.get("REGARD_CONLLU"):
        return read_conllu(file)[:count], Path(file).name
    generated = islice(builtin.sentences("test", pronouns=False), count)
    # Through the format: what holds for these holds for a file of the user's.
    return list(parse_conllu(write_conllu(generated))), "the built-in language"


# ------------------------------------------------------------------ induction heads

VOCABULARY = 32
HEADS = 4
PERIODS = (6, 16)  # a text repeats after a random number of tokens: no fixed distance helps
TEST_PERIOD = 12  # inside the range of training
NAMES = [f"{layer + 1}.{head}" for layer in range(LAYERS) for head in range(HEADS)]


class Induction(Study):
    """Models of two layers learn to continue repeated texts by induction heads: a head of the first
    layer writes which token came before, and a head of the second reads it through its keys
    (K-composition) and copies what followed.

    A language model of {LAYERS} layers with {HEADS} heads (ALiBi), trained on random texts that
    repeat after {PERIODS[0]} to {PERIODS[1]} tokens. Of each head: attention to the token before,
    the induction score (attention to the token after the last occurrence), and ‖W_OV
    W_QKᵀ‖/(‖W_OV‖‖W_QK‖) between the layers; loss in the second half of a text.
    """

    source = "Elhage et al. 2021; Olsson et al. 2022, Sections 1 and 2"

    def measure(self, effort: Effort) -> Numbers:
        description = language_model(VOCABULARY, layers=LAYERS, heads=HEADS, position="alibi")
        steps = effort.choose(450, 3000)
        tokens = repeated(TEST_PERIOD, 32, torch.Generator().manual_seed(0))
        names = [f"decoder.{layer}.self" for layer in range(LAYERS)]

        def measure(seed: int) -> Numbers:
            model: Any = build_seeded(description, seed)
            losses = train(model, _batches(seed), steps)
            probe = Probe(names)
            with evaluation_mode(model):
                # Arguments of the kernels are recorded; weights follow from them.
                logits(model, Batch(tokens, tokens), probe)
            weights = [probe.weights(name) for name in names]  # [B, H, T, T] each
            # Of the weights alone, without a text
            scores = composition_scores(head_circuits(model.stack), "K")  # [L, H, L, H]
            return {
                "loss": mean(losses[-20:]),  # of the last updates: single batches vary
                "previous": [previous_token_scores(one).tolist() for one in weights],
                "induction": [induction_scores(one, TEST_PERIOD).tolist() for one in weights],
                # [H, H]: from the heads of layer 1 to those of layer 2
                "composition": scores[0, :, 1].tolist(),
            }

        return {"runs": effort.each_seed(measure)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the best induction score of layer 2 is 0.4 or more and none of layer 1 reaches
        half of it, the best previous-token head is in layer 1 with 0.4 or more, and these two
        compose through keys more than the mean pair of heads. Within limits if the induction head
        is there, but not the composition."""
        best = [_best(run) for run in numbers["runs"]]
        induction = mean(column(best, "induction"))
        first_layer = mean(max(run["induction"][0]) for run in numbers["runs"])
        previous = mean(column(best, "previous"))
        ratio = mean(column(best, "composition"))
        # One layer cannot do it: it would need to know what came before a key.
        is_induction = induction >= 0.4 and first_layer < induction / 2
        return judge(
            previous >= 0.4 and ratio > 1,
            is_induction,
            f"The best induction score of layer 2 is {induction:.2f} (layer 1: {first_layer:.2f}), "
            f"the best previous-token head of layer 1 attends {previous:.2f} to the token before, "
            f"and their K-composition is {ratio:.2f} times the mean of all pairs.",
        )

    def show(self, numbers: Numbers) -> Shown:
        # A score of each head, with all seeds: they have stored [layers][heads].
        runs = numbers["runs"]
        scores = {
            name: transposed([*chain(*heads)] for heads in column(runs, key))
            for name, key in (("token before", "previous"), ("induction score", "induction"))
        }
        columns = {name: map(mean_text, values) for name, values in scores.items()}
        return [
            bar_chart(
                "What heads attend to (layer.head)", "mean attention", NAMES, scores, high=1.0
            ),
            HeatMap(
                "K-composition, layer 1 to layer 2",
                runs[0]["composition"],
                NAMES[:HEADS],
                NAMES[HEADS:],
                x_label="reads by its keys",
                y_label="writes",
            ),
            table_of_columns("Heads", {"layer.head": NAMES, **columns}),
            table("", {"loss": "loss, nats"}, {"repeated half of a text": runs}),
        ]


def _best(run: Numbers) -> Numbers:
    """The strongest previous-token and induction heads, and their composition over the mean."""
    # The two heads that the mechanism is made of, by what they do.
    previous = run["previous"][0]
    induction = run["induction"][1]
    writer = np.argmax(previous)
    reader = np.argmax(induction)
    composition = run["composition"]
    return {
        "previous": previous[writer],
        "induction": induction[reader],
        "composition": composition[writer][reader] / mean(chain(*composition)),
    }


def repeated(period: int, rows: int, generator: torch.Generator) -> Tensor:
    """Random texts that are said twice: [rows, 2 · period]."""
    half = torch.randint(0, VOCABULARY, (rows, period), generator=generator)
    return torch.cat([half, half], dim=1)


def _batches(seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        period = int(torch.randint(PERIODS[0], PERIODS[1] + 1, (), generator=generator))
        tokens = repeated(period, 32, generator)
        targets = tokens[:, 1:].clone()
        targets[:, : period - 1] = NO_TARGET  # what comes first is random
        yield Batch(tokens[:, :-1], targets)
