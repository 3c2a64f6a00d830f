"""Attention weights as explanations: whether they agree with what a model does."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import spec
from regard.core.probe import NO_PROBE, Edit, NullProbe, Probe
from regard.data.generated.algorithmic_tasks import Copying
from regard.lab.study.evidence import (
    above,
    differences,
    every,
    judge_sentences,
    judge_tasks,
    reductions,
)
from regard.lab.study.figure import (
    Shown,
    column,
    mean,
    mean_text,
    measured_bars,
    table,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.lab.study.training_run import (
    NO_TARGET,
    PADDING,
    Batch,
    TaskBatches,
    Variants,
    builtin_task,
    builtin_text,
    english,
    evaluate,
    language_model,
    logits,
    trained,
    with_attention,
    with_block,
)

LAYERS = 2  # of the small language model
WEAK = 0.5  # rank correlation; 1 is the same order
SMALL = 0.1  # total variation of the prediction
FEWEST = 4  # tokens before a predicted one: of fewer, a rank says nothing


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
            "English": builtin_task(builtin_text, [next(builtin_text("test", 500, 0))], 5000),
        }

        def measure(name: str, seed: int) -> Numbers:
            task = tasks[name]
            model = trained(language_model(task.vocabulary), seed, task.stream(seed), steps)
            (test,) = task.test
            texts = zip(test.tokens[:rows], test.targets[:rows], strict=True)
            columns = torch.tensor([one for text in texts for one in _row(model, *text, seed)])
            shuffled, most, least = columns[:, 1:].median(0).values.tolist()
            # Not defined where all effects are equal: nanmean leaves these out.
            correlation = float(columns[:, 0].nanmean())
            return {
                "correlation": correlation,
                "shuffled": shuffled,
                "most": most,
                "least": least,
            }

        return {"runs": effort.each(tasks, measure), "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """On a task the claim is true if the rank correlation is below {WEAK:g} or shuffled weights
        move the median prediction by less than {SMALL:g}. Holds if it is true on both tasks, within
        limits on one; else it does not hold."""
        is_true = {}
        for task, runs in numbers["runs"].items():
            correlation = mean(column(runs, "correlation"))
            shuffled = mean(column(runs, "shuffled"))
            part = (
                f"{task}: rank correlation {correlation:.2f}, shuffled weights move the median "
                f"prediction by {shuffled:.2f}"
            )
            is_true[part] = correlation < WEAK or shuffled < SMALL
        return judge_tasks(is_true)

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        moved = {
            "shuffled": "weights shuffled",
            "most": "most attended removed",
            "least": "least attended removed",
        }
        agree = {"correlation": "rank correlation"}
        return [
            measured_bars(
                "How far the median prediction moves",
                "total variation, 0 to 1",
                runs,
                moved,
                high=1.0,
            ),
            measured_bars("Do weights and removal agree?", "", runs, agree, high=1.0),
            table("task", agree | moved, runs, number_format=".2f"),
        ]


class Removals(NamedTuple):
    """Attention in a text, and what happens if one of its tokens is removed."""

    predicted: Tensor  # [T, V], the probabilities of the next token
    calls: list[Any]  # of attention, one a layer
    by_head: Tensor  # [L, H, T, T], their weights
    effect: Tensor  # [removed, T], the total variation of each prediction


def _removals(model: Any, tokens: Tensor) -> Removals:
    tokens = tokens[tokens != PADDING]
    probe = Probe(["*.weights"])
    predicted = _predict(model, tokens[None], probe)[0]  # [T, V]
    calls = [probe.attentions[f"decoder.{layer}.self"] for layer in range(LAYERS)]
    # Row j: the sequence with token j replaced by padding.
    removed = tokens.repeat(len(tokens), 1)
    removed.diagonal().fill_(PADDING)
    # One forward pass for all removals.
    effect = _variation(_predict(model, removed), predicted[None])
    return Removals(predicted, calls, torch.cat([call.weights() for call in calls]), effect)


@torch.no_grad()
def _row(model: Any, tokens: Tensor, targets: Tensor, seed: int) -> list[list[float]]:
    """Correlation, shuffled, most and least attended removed, for each predicted token."""
    text = _removals(model, tokens)
    length = len(text.predicted)
    calls, by_head, effect = text.calls, text.by_head, text.effect
    weights = by_head.mean((0, 1))  # [T, T]
    # In another order, but on the same keys: a causal row has its weights on the first ones. Those
    # of the second layer are not computed anew.
    noise = torch.rand(by_head.shape, generator=torch.Generator().manual_seed(seed))
    order = (noise + torch.ones(length, length).triu(1)).argsort(-1)
    edits: dict[str, Edit] = {
        f"decoder.{layer}.self.mixed": partial(lambda mixed, _: mixed, shuffled[None] @ call.v)
        for layer, (shuffled, call) in enumerate(zip(by_head.gather(-1, order), calls, strict=True))
    }
    again = _predict(model, tokens[None, :length], Probe(edits=edits))[0]
    moved = _variation(again, text.predicted)  # [T]

    def measured(position: int) -> list[float]:
        # Weights and effects of the same tokens, so that their orders can be compared.
        earlier = weights[position, :position]
        effects = effect[:position, position]
        return [
            _rank_correlation(earlier, effects),
            float(moved[position]),
            float(effects[earlier.argmax()]),
            float(effects[earlier.argmin()]),
        ]

    return [measured(at) for at in range(FEWEST, length) if targets[at] != NO_TARGET]


def _predict(model: Any, tokens: Tensor, probe: NullProbe = NO_PROBE) -> Tensor:
    """Probabilities of the next token: [B, T, V]."""
    return logits(model, Batch(tokens, tokens), probe).softmax(-1)


def _variation(a: Tensor, b: Tensor) -> Tensor:
    """Total variation distance of distributions over the last dimension."""
    return 0.5 * (a - b).abs().sum(-1)


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation: that of the ranks."""
    # argsort of argsort gives the rank of each element.
    ranks = torch.stack([a, b]).argsort().argsort()
    return float(torch.corrcoef(ranks.double())[0, 1])


# ------------------------------------------------------------------ what else there is

HEADS = 8
# The same model with one head, with weights that are all equal, and with attention to itself alone.
KINDS = (f"{HEADS} heads", "1 head", "uniform", "none")
OVERRIDES = 0.05  # share of the predictions
USEFUL = 0.01  # share of the loss
BLURS = 0.05  # of a rank correlation


class BeyondWeights(Study):
    """Attention weights alone do not tell what a model does: the feed-forward network can override
    attention, uniform attention can still be useful, and many heads complicate the picture.

    Language models of two layers on the built-in English. The predictions that change where the
    last feed-forward network says the same everywhere (the mean of what it adds), and right tokens
    with it and so. The loss of a model whose attention weights are all equal against one whose
    tokens attend to themselves alone. And with one head and with {HEADS}, the rank correlation of
    the weights of a single head with what the removal of a token does.
    """

    source = "Practical advice on reading attention; Jain and Wallace 2019; Kobayashi et al. 2020"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(150, 500)
        rows = effort.choose(12, 40)
        task = english(effort)
        descriptions = models(task.vocabulary)

        def measure(name: str, seed: int) -> Numbers:
            model = trained(descriptions[name], seed, task.stream(seed), steps)
            measured: Numbers = {"loss": evaluate(model, task.test).loss}
            if name in KINDS[:2]:
                measured |= overriding(model, task.test[0])
                measured["correlation"] = single_heads(model, task.test[0], rows)
            return measured

        return {"runs": effort.each(descriptions, measure), "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Three sentences, over the seeds (Student's t, 95 %): the last feed-forward network
        changes {OVERRIDES:.0%} or more of the predictions and makes more of them right; the loss
        with uniform attention is lower by {USEFUL:.0%} or more than without attention; a single
        head's correlation is lower by {BLURS:g} or more with {HEADS} heads than with one. Holds if
        all are so, within limits if some are, fails if none is; too small to say where the seeds
        do not tell."""
        runs = numbers["runs"]
        many, one, uniform, none = (runs[name] for name in KINDS)
        overridden = column(many, "overridden")
        gains = differences(column(many, "accuracy"), column(many, "without"))
        useful = reductions(column(uniform, "loss"), column(none, "loss"))
        correlations = [column(each, "correlation") for each in (one, many)]
        sentences = {
            "the feed-forward network overrides attention": every(
                [above(overridden, OVERRIDES), above(gains, 0.0)]
            ),
            "uniform attention is useful": above(useful, USEFUL),
            "many heads complicate it": above(differences(*correlations), BLURS),
        }
        return judge_sentences(
            sentences,
            f"The last feed-forward network changes {mean(overridden):.0%} of the predictions, and "
            f"{mean(gains):+.1f} points more are right. Uniform attention lowers the loss by "
            f"{mean(useful):.1%}. A single head's weights correlate {mean_text(correlations[0])} "
            f"with removals where it is the only one, {mean_text(correlations[1])} where there are "
            f"{HEADS}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        with_one = {name: runs[name] for name in KINDS[:2]}
        changed = {"accuracy": "as it is, %", "without": "last feed-forward constant, %"}
        agree = {"correlation": "correlation of one head"}
        return [
            measured_bars("Loss with equal models", "nats a token", runs, {"loss": ""}),
            measured_bars("A single head and removals", "rank correlation", with_one, agree),
            table("attention", {"loss": "loss"}, runs, "Test loss"),
            table("heads", changed | agree, with_one, "Right tokens, and what one head tells"),
        ]


def models(vocabulary: int) -> Variants:
    """The model of each kind."""
    one, many = (language_model(vocabulary, heads=heads) for heads in (1, HEADS))
    # As good as 0, which is no scale: all scores are equal.
    uniform = with_attention(many, scale=1e-9)
    alone = with_block(many, pattern=spec.CausalMask(window=1))
    return dict(zip(KINDS, (many, one, uniform, alone), strict=True))


@torch.no_grad()
def overriding(model: Any, batch: Batch) -> Numbers:
    """The share of predictions that change where the last feed-forward network adds its mean, and
    the right ones with it and so, in %."""
    name = f"decoder.{LAYERS - 1}.feedforward.output"
    probe = Probe([name])
    counts = batch.targets != NO_TARGET
    predicted = logits(model, batch, probe).argmax(-1)[counts]
    constant = probe.tensors[name][counts].mean(0)  # [D]
    edits: dict[str, Edit] = {name: lambda output: constant.expand_as(output)}
    without = logits(model, batch, Probe(edits=edits)).argmax(-1)[counts]
    targets = batch.targets[counts]
    return {
        "overridden": float((predicted != without).double().mean()),
        "accuracy": 100 * float((predicted == targets).double().mean()),
        "without": 100 * float((without == targets).double().mean()),
    }


@torch.no_grad()
def single_heads(model: Any, batch: Batch, rows: int) -> float:
    """The rank correlation of a head's weights with what removals do, the mean of all heads."""
    correlations = []
    for tokens, targets in zip(batch.tokens[:rows], batch.targets[:rows], strict=True):
        text = _removals(model, tokens)
        for at in range(FEWEST, len(text.predicted)):
            if targets[at] != NO_TARGET:
                effects = text.effect[:at, at]
                heads = text.by_head[..., at, :at].flatten(0, 1)  # [L · H, earlier]
                correlations += [_rank_correlation(weights, effects) for weights in heads]
    return mean(correlations)
