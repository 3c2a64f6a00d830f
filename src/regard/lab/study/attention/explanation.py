"""Attention is not explanation: shuffled weights against ablated tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.probe import AttentionCall, Probe
from regard.data.generated.algorithmic_tasks import LETTERS, Copying
from regard.lab.study.figure import Shown, bar_chart, column, mean, table
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    NO_TARGET,
    PADDING,
    TaskBatches,
    builtin_text,
    builtin_vocabulary,
    language_model,
    trained,
)

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

    name = "explanation"
    source = "Jain and Wallace 2019, Sections 4.1 and 4.2; against it Wiegreffe and Pinter 2019"
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(200, 800)
        rows = effort.choose(12, 40)
        runs = effort.each(
            ("copying", "English"), lambda task, seed: _experiment(task, seed, steps, rows)
        )
        return {"runs": runs, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """On a task the claim is true if the rank correlation is below {WEAK:g} or shuffled weights
        move the median prediction by less than {SMALL:g}. Holds if it is true on both tasks, within
        limits on one; else it does not hold."""
        true_for = []
        parts = []
        for task, runs in numbers["runs"].items():
            correlation = mean(column(runs, "correlation"))
            shuffled = mean(column(runs, "shuffled"))
            if correlation < WEAK or shuffled < SMALL:
                true_for.append(task)
            parts.append(
                f"{task}: rank correlation {correlation:.2f}, shuffled weights move the median "
                f"prediction by {shuffled:.2f}"
            )
        return judge(len(true_for) == 2, bool(true_for), "; ".join(parts) + ".")

    def show(self, numbers: Numbers) -> list[Shown]:
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
            bar_chart(
                "How far the median prediction moves",
                "total variation, 0 to 1",
                runs,
                moved,
                low=0.0,
                high=1.0,
            ),
            bar_chart(
                "Do weights and removal agree?",
                "rank correlation",
                runs,
                {"correlation": ""},
                low=0.0,
                high=1.0,
            ),
            table("task", columns, runs, number_format=".2f"),
        ]


def _experiment(task: str, seed: int, steps: int, rows: int) -> dict[str, float]:
    """Trains a model for the task and asks what its weights say."""
    if task == "copying":
        copying = TaskBatches(Copying(min_length=4, max_length=8), LETTERS)
        model = language_model(len(copying.vocabulary), 32)
        stream = copying.stream("train", seed)
        test = next(copying.stream("test", 0))
    else:
        model = language_model(len(builtin_vocabulary()), 32)
        stream = builtin_text("train", 5000, seed)
        test = next(builtin_text("test", 500, 0))
    module = trained(model, seed, stream, steps)
    results = [
        _row(module, test.tokens[row], test.targets[row], seed)
        for row in range(min(rows, len(test.tokens)))
    ]
    # The correlation is not defined where all effects are equal: nanmean leaves these out.
    columns = torch.tensor([values for row in results for values in row])  # [tokens, 4]
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


def _predict(model: Any, tokens: Tensor, probe: Probe | None = None) -> Tensor:
    """Probabilities of the next token: [B, T, V]."""
    context = Context(probe) if probe is not None else None
    hidden, _ = model(tokens, None, context)
    return model.head(hidden).softmax(-1)


def _shuffling(calls: list[AttentionCall], seed: int) -> Probe:
    """A probe that gives each row of each head its own weights in another order.

    The weights are those of the first pass: the second layer's are not computed anew.
    """
    generator = torch.Generator().manual_seed(seed)
    edits: dict[str, Callable[[Tensor], Tensor]] = {}
    for layer, call in enumerate(calls):
        weights = call.weights()  # [1, H, T, T]
        shuffled = torch.zeros_like(weights)
        for head in range(weights.shape[1]):
            for row in range(weights.shape[2]):
                # A causal row has weights on its first row + 1 keys only.
                order = torch.randperm(row + 1, generator=generator)
                shuffled[0, head, row, : row + 1] = weights[0, head, row, order]
        edits[f"decoder.{layer}.self.mixed"] = _constant(shuffled @ call.v)
    return Probe(edits=edits)


def _constant(mixed: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: mixed


def _variation(a: Tensor, b: Tensor) -> Tensor:
    """Total variation distance of distributions over the last dimension."""
    return 0.5 * (a - b).abs().sum(-1)


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation: that of the ranks."""
    # argsort of argsort gives the rank of each element.
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])
