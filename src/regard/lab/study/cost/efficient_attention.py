"""Efficient attention: quality against cost."""

from __future__ import annotations

import torch

from regard import spec
from regard.lab.measure.instruments import count_flops
from regard.lab.study.character_text import character_text
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import build_seeded, evaluate, language_model, trained
from regard.look.drawing import Axis, Chart, Figure, Series

LENGTH = 128
LONG = 2048  # the length at which costs are compared
ATTENTIONS = ("softmax", "window:16", "strided:16", "topk:16", "linear", "performer")


class EfficientAttention(Study):
    name = "efficient_attention"
    claim = "Efficient attentions reach the quality of softmax attention at a fraction of its cost."
    source = "Tay et al. 2022 (survey); Child et al. 2019; Katharopoulos et al. 2020"
    measurement = (
        f"Causal language models of characters on texts of {LENGTH}, equal but for their "
        "attention, trained for the same number of steps: held-out loss; and the floating-point "
        f"operations of a forward pass over {LONG:,} characters."
    )
    rule = (
        "Holds if every efficient attention stays within 3 % of the loss of softmax, and at least "
        "three of them need less than half of its operations; within limits if at least one stays "
        "within 3 % at less than half of the operations."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(100, 1500)
        losses = effort.each(progress, ATTENTIONS, lambda name, seed: _loss(name, seed, steps))
        return {"losses": losses, "flops": {name: _flops(name) for name in ATTENTIONS}}

    def verdict(self, numbers: Numbers) -> Verdict:
        losses = {name: mean(values) for name, values in numbers["losses"].items()}
        flops = numbers["flops"]
        others = [name for name in losses if name != "softmax"]
        # Both ways: what is cheap but worse, and what is as good but not cheap.
        as_good = [name for name in others if losses[name] <= 1.03 * losses["softmax"]]
        cheap = [name for name in others if flops[name] < flops["softmax"] / 2]
        both = [name for name in as_good if name in cheap]
        worst = max(others, key=lambda name: losses[name])
        reason = (
            f"Within 3 % of softmax ({losses['softmax']:.3f}): {', '.join(as_good) or 'none'}; "
            f"with less than half of its operations: {', '.join(cheap) or 'none'}; the worst is "
            f"{worst} with {losses[worst]:.3f}."
        )
        holds = len(as_good) == len(others) and len(both) >= 3
        return judge(holds, bool(both), reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        series = []
        for name, losses in numbers["losses"].items():
            # One point for each attention.
            x = [numbers["flops"][name] / 1e9]
            series.append(Series(name, x, [mean(losses)], [(min(losses), max(losses))], "points"))
        axis = Axis(f"GFLOP over {LONG:,} characters", log=True)
        return [Chart("Quality against cost", axis, Axis("nats a character"), series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for name, losses in numbers["losses"].items():
            share = numbers["flops"][name] / numbers["flops"]["softmax"]
            gigaflops = f"{numbers['flops'][name] / 1e9:.2f}"
            rows.append([name, mean_text(losses), gigaflops, f"{share:.0%}"])
        columns = ["attention", "held-out loss", "GFLOP", "of softmax"]
        return [Table("Equal models with other attentions", columns, rows)]


def _model(attention: str, length: int) -> spec.Model:
    return language_model(
        len(character_text().characters), length, d_model=32, d_ff=128, attention=attention
    )


def _loss(attention: str, seed: int, steps: int) -> float:
    text = character_text()
    # Long rows, so that restricted attention has something to miss.
    batches = text.batches(seed, 8, length=LENGTH)
    model = trained(_model(attention, LENGTH), seed, batches, steps)
    return evaluate(model, [text.held_out(40, length=LENGTH)]).loss


@torch.no_grad()
def _flops(attention: str) -> float:
    # Weights do not matter for the count, the length does.
    model = build_seeded(_model(attention, LONG), seed=0).eval()
    return count_flops(lambda: model(torch.zeros(1, LONG, dtype=torch.long)))
