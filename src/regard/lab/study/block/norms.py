"""LayerNorm, RMSNorm and BatchNorm under varying length and batch."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

import torch

from regard import spec
from regard.lab.study.figure import Table, bars, cells, column, exceeds, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    PADDING,
    Batch,
    build_seeded,
    builtin_pairs,
    builtin_vocabulary,
    evaluate,
    logits,
    mean_loss,
    trained,
    translator,
    with_block,
)
from regard.look.drawing import Axis, BarChart, Figure

NORMS: dict[str, spec.Norm] = {
    "LayerNorm": spec.LayerNorm(),
    "RMSNorm": spec.RMSNorm(),
    "BatchNorm": spec.BatchNorm(),
}
INDEPENDENT = 1e-4  # relative change of an output that is rounding
# BatchNorm's statistics are over all tokens of these: some twenty, or over a hundred.
BATCHES = {"small": 2, "large": 16}  # sentences in a batch of training


class Norms(Study):
    name = "norms"
    claim = (
        "LayerNorm (and RMSNorm) normalizes each token by itself, so that neither the other "
        "sentences of a batch nor their lengths matter; BatchNorm depends on both, and suffers "
        "with small batches of sentences of varying length."
    )
    source = (
        "Ba et al. 2016, Sections 3 and 6.6; Shen et al. 2020 (PowerNorm), Section 3; Zhang and "
        "Sennrich 2019"
    )
    measurement = (
        "Translators of two layers (one in a quick study) for the built-in language with each "
        "norm. How far the output for a sentence moves, in training mode, if the rest of the batch "
        "is replaced or only made shorter; then, trained on batches of 2 and of 16 sentences with "
        "as many updates, the test loss, in evaluation and in training mode."
    )
    rule = (
        f"Holds if LayerNorm and RMSNorm move by less than {INDEPENDENT:g} and BatchNorm by more "
        "than 0.01, and with small batches BatchNorm has a higher loss than LayerNorm by more than "
        "the standard deviations of both; within limits if the loss is not higher; else it does "
        "not hold."
    )
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(80, 250)
        layers = effort.choose(1, 2)
        test = list(islice(builtin_pairs("test", 500, 0, rows=32), effort.choose(2, 6)))
        moves = {
            name: [_moves(norm, layers, seed) for seed in effort.seeds]
            for name, norm in NORMS.items()
        }

        def score(job: tuple[str, str], seed: int) -> dict[str, float]:
            name, size = job
            stream = builtin_pairs("train", 5000, seed, rows=BATCHES[size])
            model = trained(_model(NORMS[name], layers), seed, stream, steps)
            loss = evaluate(model, test).loss
            return {"loss": loss, "training_mode": _training_loss(model, test)}

        scores = effort.each(progress, product(NORMS, BATCHES), score)
        runs = {name: {size: scores[name, size] for size in BATCHES} for name in NORMS}
        return {"moves": moves, "runs": runs, "batches": BATCHES, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        moves = {
            name: mean([max(run.values()) for run in runs])
            for name, runs in numbers["moves"].items()
        }
        # Small batches are where BatchNorm should suffer.
        layer = column(numbers["runs"]["LayerNorm"]["small"], "loss")
        batch = column(numbers["runs"]["BatchNorm"]["small"], "loss")
        reason = (
            f"Other sentences in the batch move an output by {moves['LayerNorm']:.0e} with "
            f"LayerNorm, {moves['RMSNorm']:.0e} with RMSNorm and {moves['BatchNorm']:.2g} with "
            f"BatchNorm. With {numbers['batches']['small']} sentences a batch the test loss is "
            f"{mean_text(layer)} with LayerNorm and {mean_text(batch)} with BatchNorm."
        )
        # Rounding of float32 is allowed: other batches are summed in another order.
        independent = max(moves["LayerNorm"], moves["RMSNorm"]) < INDEPENDENT
        depends = independent and moves["BatchNorm"] >= 0.01
        return judge(exceeds(batch, layer), depends, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        runs = numbers["runs"]
        moves = numbers["moves"]
        losses = [
            bars({name: runs[name][size] for name in runs}, "loss", f"{rows} sentences")
            for size, rows in numbers["batches"].items()
        ]
        return [
            BarChart(
                "How far an output moves with the rest of the batch",
                Axis("relative change", log=True),
                list(runs),
                [
                    bars(moves, "replaced", "other sentences replaced"),
                    bars(moves, "shortened", "others shortened"),
                ],
            ),
            BarChart(
                "Test loss by the size of training batches",
                Axis("loss, nats a token"),
                list(runs),
                losses,
            ),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for name, sizes in numbers["runs"].items():
            for size, runs in sizes.items():
                texts = cells(runs, ["loss", "training_mode"])
                rows.append([name, str(numbers["batches"][size]), *texts])
        columns = ["norm", "sentences a batch", "test loss", "… with statistics of the batch"]
        return [Table("Mean ± standard deviation over the seeds", columns, rows)]


def _model(norm: spec.Norm, layers: int) -> spec.Model:
    """The small translator with this norm in all blocks."""
    return with_block(translator(len(builtin_vocabulary()), 32, layers=layers), norm=norm)


@torch.no_grad()
def _moves(norm: spec.Norm, layers: int, seed: int) -> dict[str, float]:
    """The relative change of the first row's output as the other rows change, in training mode."""
    model: Any = build_seeded(_model(norm, layers), seed).train()
    stream = builtin_pairs("train", 5000, seed, rows=8)
    batch = next(stream)
    # Its sentences replace all but the first.
    other = next(stream)
    assert batch.source is not None
    assert other.source is not None
    length = batch.source.shape[1]
    first = batch.source[:1]
    replaced = torch.full_like(batch.source, PADDING)
    replaced[0] = first
    width = min(length, other.source.shape[1])
    replaced[1:, :width] = other.source[1:, :width]
    shortened = batch.source.clone()
    # Four tokens of each other sentence are left.
    shortened[1:, 4:] = PADDING
    # As it is, with other sentences, with shorter ones.
    sources = [batch.source, replaced, shortened]
    outputs = [model.encode(source, source != PADDING).hidden for source in sources]
    real = first[0] != PADDING
    # Padding of the first row does not count.
    base, *changed = [output[0, real] for output in outputs]
    return {
        # At least 1e-9: the figure has a logarithmic axis.
        name: max(float((output - base).norm() / base.norm()), 1e-9)
        for name, output in zip(("replaced", "shortened"), changed, strict=True)
    }


@torch.no_grad()
def _training_loss(model: Any, test: list[Batch]) -> float:
    """The loss with the statistics of the test batches themselves, as in training."""
    # `evaluate` would use the running statistics of BatchNorm.
    model.train()
    return mean([float(mean_loss(logits(model, batch), batch.targets)) for batch in test])
