"""Modifications of attention: quality against cost, and whether they transfer across tasks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from regard import spec
from regard.data.generated.algorithmic_tasks import Dyck
from regard.lab.measure.instruments import count_flops
from regard.lab.study.evidence import (
    above,
    every,
    failures,
    judge_sentences,
    negated,
    reductions,
    share,
    some,
    without_failed,
)
from regard.lab.study.figure import Shown, Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Truth, Verdict, judge
from regard.lab.study.training_run import (
    Task,
    TaskBatches,
    build_seeded,
    builtin_pairs,
    builtin_task,
    character_text,
    language_model,
    translator,
)
from regard.look.drawing import Axis, Chart, HeatMap, Series

LENGTH = 128
LONG = 2048  # the length at which costs are compared
EFFICIENT = ("softmax", "window:16", "strided:16", "topk:16", "linear", "performer")
# All models here are small: dozens of them are trained.
SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 128}


class EfficientAttention(Study):
    """Efficient attentions reach the quality of softmax attention at a fraction of its cost.

    Causal language models of characters on texts of {LENGTH}, equal but for their attention,
    trained for the same number of steps: held-out loss; and the floating-point operations of a
    forward pass over {LONG:,} characters.
    """

    source = "Tay et al. 2022 (survey); Child et al. 2019; Katharopoulos et al. 2020"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(100, 1500)
        text = character_text()
        # Long rows, so that restricted attention has something to miss.
        task = Task(
            len(text.characters),
            partial(text.batches, rows=8, length=LENGTH),
            [text.held_out(40, length=LENGTH)],
        )

        def model(attention: str, length: int) -> spec.Model:
            return language_model(task.vocabulary, length, attention=attention, **SIZES)

        @torch.no_grad()
        def flops(attention: str) -> float:
            # Weights do not matter for the count, the length does.
            core = build_seeded(model(attention, LONG), seed=0).eval()
            return count_flops(lambda: core(torch.zeros(1, LONG, dtype=torch.long)))

        losses = effort.each(
            EFFICIENT, lambda name, seed: task.score(model(name, LENGTH), seed, steps).loss
        )
        return {"losses": losses, "flops": {name: flops(name) for name in EFFICIENT}}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if every efficient attention stays within 3 % of the loss of softmax, and at least
        three of them need less than half of its operations; within limits if at least one stays
        within 3 % at less than half of the operations."""
        losses = {name: mean(values) for name, values in numbers["losses"].items()}
        flops = numbers["flops"]
        softmax = losses.pop("softmax")
        # Both ways: what is cheap but worse, and what is as good but not cheap.
        as_good = [name for name in losses if losses[name] <= 1.03 * softmax]
        cheap = [name for name in losses if flops[name] < flops["softmax"] / 2]
        both = {*as_good} & {*cheap}
        worst = max(losses, key=losses.__getitem__)
        return judge(
            as_good == [*losses] and len(both) >= 3,
            bool(both),
            f"Within 3 % of softmax ({softmax:.3f}): {', '.join(as_good) or 'none'}; "
            f"with less than half of its operations: {', '.join(cheap) or 'none'}; the worst is "
            f"{worst} with {losses[worst]:.3f}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        flops = numbers["flops"]
        series = []
        rows = []
        for name, losses in numbers["losses"].items():
            # One point for each attention.
            gigaflops = flops[name] / 1e9
            series.append(Series.over_seeds(name, [gigaflops], [[loss] for loss in losses]))
            relative = f"{flops[name] / flops['softmax']:.0%}"
            rows.append([name, mean_text(losses), f"{gigaflops:.2f}", relative])
        x = Axis(f"GFLOP over {LONG:,} characters", log=True)
        title = "Equal models with other attentions"
        return [
            Chart(title, x, Axis("nats a character"), series),
            Table(title, ["attention", "held-out loss", "GFLOP", "of softmax"], rows),
        ]


# ------------------------------------------------------------------ across tasks

ATTENTIONS = ("softmax", "window:4", "topk:4", "linear", "additive")
# The loss of a model that knows nothing: the frequencies of words, a guess among two labels (the
# end after the label costs nothing), the frequencies of characters.
CHANCE = {"translation": 5.2, "classification": math.log(2) / 2, "characters": 3.0}
TASKS = tuple(CHANCE)
HELPS = 0.01  # share of the loss by which a modification must be better


class Transfer(Study):
    """Most modifications of the Transformer do not transfer: which one helps depends on the task.

    Small models with other attentions on three tasks of text: translation of the built-in language,
    classification of balanced brackets, and prediction of characters; the held-out loss against
    that of softmax attention on the same task, seed by seed.
    """

    source = "Narang et al. 2021, Abstract"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(40, 1000)
        text = character_text()
        pairs = [next(builtin_pairs("test", 600, seed=0, rows=100))]
        tasks = {
            "translation": builtin_task(builtin_pairs, pairs),
            # The label is the word after the text; its loss is that of a classifier.
            "classification": TaskBatches(Dyck(2, 8)).learned(6),
            "characters": Task(len(text.characters), text.batches, [text.held_out(50)]),
        }

        def loss(name: str, attention: str, seed: int) -> float:
            describe = translator if name == "translation" else language_model
            model = describe(tasks[name].vocabulary, attention=attention, **SIZES)
            return tasks[name].score(model, seed, steps).loss

        return {"losses": effort.each_pair(tasks, ATTENTIONS, loss)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """A modification helps on a task if its loss is 1 % or more below that of softmax, over the
        seeds (Student's t, 95 %), and transfers if it helps on all tasks. Seeds whose loss is 95 %
        or more of what knowing nothing gives have failed to train, and are left out. Holds if more
        than half of the modifications do not transfer, and at least one helps on one task and not
        on another; within limits if only the first; fails if at least half transfer; too small to
        say where the seeds do not tell."""
        helps: dict[str, list[Truth]] = {name: [] for name in ATTENTIONS[1:]}
        failed = ""
        for task, of_task in numbers["losses"].items():
            losses = {
                name: without_failed(values, CHANCE[task]) for name, values in of_task.items()
            }
            failed += failures(losses, f" ({task})")
            for name, truths in helps.items():
                truths.append(above(reductions(losses[name], losses["softmax"]), HELPS))
        transfers = map(every, helps.values())
        sentences = {
            "most do not transfer": negated(share([*transfers], 0.5)),
            "which one helps depends on the task": some(
                every([some(truths), some(map(negated, truths))]) for truths in helps.values()
            ),
        }
        listed = ", ".join(
            f"{name} on {truths.count(True)} of {len(truths)} tasks"
            + (f" ({truths.count(None)} open)" if None in truths else "")
            for name, truths in helps.items()
        )
        return judge_sentences(
            sentences, f"Better than softmax by 1 % or more: {listed}.{failed}", main_first=True
        )

    def show(self, numbers: Numbers) -> Shown:
        losses = numbers["losses"]
        # Rows are tasks, columns attentions; softmax is 0 everywhere.
        percent = [
            [100 * (mean(of_task[name]) / mean(of_task["softmax"]) - 1) for name in ATTENTIONS]
            for of_task in losses.values()
        ]
        rows = [[name, *(mean_text(losses[task][name]) for task in TASKS)] for name in ATTENTIONS]
        title = "Held-out loss against softmax, %, of all seeds"
        return [
            HeatMap(title, percent, TASKS, ATTENTIONS, signed=True),
            Table("Held-out loss", ["attention", *TASKS], rows),
        ]
