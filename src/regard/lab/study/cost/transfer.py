"""Do modifications of attention transfer across tasks?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice, product
from typing import Any

from regard.data.generated.algorithmic_tasks import Dyck
from regard.lab.study.baselines.algorithms import task_batches
from regard.lab.study.character_text import LENGTH, character_text
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    Batch,
    builtin_pairs,
    builtin_vocabulary,
    evaluate,
    language_model,
    trained,
    translator,
)
from regard.look.drawing import Figure, HeatMap

ATTENTIONS = ("softmax", "window:4", "topk:4", "linear", "additive")
TASKS = ("translation", "classification", "characters")
# Small: fifteen models are trained for each seed.
SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 128}


class Transfer(Study):
    name = "transfer"
    claim = (
        "Most modifications of the Transformer do not transfer: which one helps depends on the "
        "task."
    )
    source = "Narang et al. 2021, Abstract"
    measurement = (
        "Small models with other attentions on three tasks: translation of the built-in language, "
        "classification of balanced brackets, and prediction of characters; the held-out loss "
        "against that of softmax attention on the same task, and the rank correlation (Spearman) "
        "of the attentions between tasks."
    )
    rule = (
        "Holds if no attention is better than softmax by 1 % or more in all three tasks, and the "
        "mean rank correlation between tasks is below 0.7. Within limits if none is better "
        "everywhere, but the tasks agree on the order."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(40, 1000)
        runs = effort.each(
            progress, product(TASKS, ATTENTIONS), lambda job, seed: _loss(*job, seed, steps)
        )
        return {"losses": {task: {name: runs[task, name] for name in ATTENTIONS} for task in TASKS}}

    def verdict(self, numbers: Numbers) -> Verdict:
        changes = _changes(numbers)
        others = [name for name in changes[TASKS[0]] if name != "softmax"]
        # Negative changes are better: losses.
        # At least one per cent: a tie is no improvement.
        everywhere = [n for n in others if all(changes[task][n] <= -0.01 for task in changes)]
        # Over the three pairs of tasks; 1 would be one order of attentions for all.
        correlation = mean(
            [rank_correlation(changes[a], changes[b]) for a, b in combinations(changes, 2)]
        )
        reason = (
            f"Better than softmax by 1 % in all tasks: {', '.join(everywhere) or 'none'} of "
            f"{len(others)}; the mean rank correlation between tasks is {correlation:.2f}."
        )
        return judge(correlation < 0.7, not everywhere, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        changes = _changes(numbers)
        # Rows are tasks, columns attentions; softmax is 0 everywhere.
        values = [[100 * changes[task][name] for name in ATTENTIONS] for task in TASKS]
        title = "Held-out loss against softmax, %"
        return [HeatMap(title, values, TASKS, ATTENTIONS, signed=True)]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = [
            [name, *(mean_text(numbers["losses"][task][name]) for task in TASKS)]
            for name in ATTENTIONS
        ]
        return [Table("Held-out loss", ["attention", *TASKS], rows)]


def _changes(numbers: Numbers) -> dict[str, dict[str, float]]:
    """The change of the loss against softmax, by task and attention."""
    changes = {}
    for task, losses in numbers["losses"].items():
        means = {name: mean(values) for name, values in losses.items()}
        changes[task] = {name: value / means["softmax"] - 1 for name, value in means.items()}
    return changes


def rank_correlation(first: dict[str, float], second: dict[str, float]) -> float:
    """Spearman's rank correlation of two scores with the same names."""
    n = len(first)
    rank, other = (
        {name: number for number, name in enumerate(sorted(scores, key=scores.__getitem__))}
        for scores in (first, second)
    )
    # Without ties, which measured losses do not have: 1 − 6 Σd² / n(n² − 1).
    squares = sum((rank[name] - other[name]) ** 2 for name in first)
    return 1 - 6 * squares / (n * (n * n - 1))


def _loss(task: str, attention: str, seed: int, steps: int) -> float:
    batches: Iterator[Batch]
    changes: dict[str, Any] = {"attention": attention, **SIZES}
    if task == "translation":
        model = translator(len(builtin_vocabulary()), 64, **changes)
        batches = builtin_pairs("train", 20_000, seed)
        held_out = [next(builtin_pairs("test", 600, seed=0, rows=100))]
    elif task == "classification":
        # The label is the word after the text; its loss is that of a classifier.
        data = task_batches(Dyck(2, 8))
        model = language_model(len(data.vocabulary), 64, **changes)
        batches = data.stream("train", seed)
        held_out = list(islice(data.stream("test", seed=0), 6))
    else:
        text = character_text()
        model = language_model(len(text.characters), LENGTH, **changes)
        batches = text.batches(seed)
        held_out = [text.held_out(50)]
    return evaluate(trained(model, seed, batches, steps), held_out).loss
