"""Beyond the training length: which positions extrapolate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch

from regard.study.figure import Axis, Chart, Figure, Series, Table, mean, mean_text
from regard.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.study.training_run import (
    END,
    NO_TARGET,
    START,
    Batch,
    build_seeded,
    builtin_sentences,
    builtin_vocabulary,
    evaluate,
    language_model,
    train,
)

# Words of `families/preset_changes.parse_position`.
KINDS = {
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "relative": "relative:16",
    "T5 bias": "buckets:32:128",
    "ALiBi": "alibi",
    "rotary": "rope",
}
TRAINED = 32  # tokens in training
LENGTHS = (32, 48, 64, 128)
EXTRAPOLATES = 0.1  # relative rise of the loss at twice the length


class Extrapolation(Study):
    name = "extrapolation"
    claim = (
        "Sinusoids may allow a model to extrapolate to sequences longer than those of training; "
        "learned positions do not, and positions relative to the query (ALiBi most of all) do."
    )
    source = (
        "Vaswani et al. 2017, Section 3.5 (sinusoids “may allow”); Press et al. 2022, Figure 1 "
        "(ALiBi, rotary, T5 bias)"
    )
    measurement = (
        f"Language models of two layers on {TRAINED} tokens of running text in the built-in "
        "English, with six kinds of position; then their loss on texts of up to "
        f"{max(LENGTHS)} tokens, over the positions beyond the training length (over all of them "
        f"at {TRAINED}). The learned table has rows for all positions, of which training reaches "
        f"the first {TRAINED}; in use such a model refuses longer inputs."
    )
    rule = (
        f"A kind extrapolates if its loss at {2 * TRAINED} tokens is at most "
        f"{100 * EXTRAPOLATES:.0f} % above that at {TRAINED}. Holds if sinusoids and ALiBi do and "
        "learned positions do not; within limits if ALiBi does and learned ones do not, but "
        "sinusoids do not either; else it does not hold."
    )
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(80, 500)
        rows = effort.choose(8, 16)
        count = effort.choose(2, 6)
        # The same texts for all kinds and seeds.
        tests = {n: list(islice(_texts("test", n, 0, 16), count)) for n in LENGTHS}
        losses: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
        jobs = [(kind, seed) for seed in effort.seeds for kind in KINDS]
        for kind, seed in progress.over(jobs, lambda job: f"{job[0]}, seed {job[1]}"):
            vocabulary = len(builtin_vocabulary())
            # Learned positions have rows for the longest test.
            spec = language_model(vocabulary, max(LENGTHS), d_model=48, position=KINDS[kind])
            model = build_seeded(spec, seed)
            train(model, _texts("train", TRAINED, seed, rows), steps)
            losses[kind].append([evaluate(model, tests[length]).loss for length in LENGTHS])
        return {"lengths": list(LENGTHS), "losses": losses, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        rises = {kind: rise(numbers, kind) for kind in numbers["losses"]}
        extrapolates = {kind: value <= EXTRAPOLATES for kind, value in rises.items()}
        listed = ", ".join(f"{kind} {100 * value:+.0f} %" for kind, value in rises.items())
        reason = f"Loss at {2 * TRAINED} tokens after training on {TRAINED}: {listed}."
        # Both must differ, or there is nothing to explain.
        if extrapolates["learned"] or not extrapolates["ALiBi"]:
            return Verdict(Outcome.FAILS, reason)
        return Verdict(Outcome.HOLDS if extrapolates["sinusoidal"] else Outcome.LIMITED, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        lengths = numbers["lengths"]
        series = [
            Series.over_seeds(kind, lengths, runs) for kind, runs in numbers["losses"].items()
        ]
        return [
            Chart(
                "Loss beyond the training length",
                Axis("tokens", log=True, ticks=tuple(lengths)),
                Axis("loss, nats a token"),
                series,
                note=f"Trained on {TRAINED} tokens; beyond it, only the positions beyond count.",
            )
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for kind, runs in numbers["losses"].items():
            cells = [mean_text(values) for values in zip(*runs, strict=True)]
            rows.append([kind, *cells, f"{100 * rise(numbers, kind):+.0f} %"])
        columns = ["positions", *(f"{n} tokens" for n in numbers["lengths"]), "rise"]
        return [Table(f"Loss after {numbers['steps']} steps", columns, rows)]


def rise(numbers: Numbers, kind: str) -> float:
    """The relative rise of the loss at twice the training length."""
    at_twice = numbers["lengths"].index(2 * TRAINED)
    runs = numbers["losses"][kind]
    return mean([run[at_twice] for run in runs]) / mean([run[0] for run in runs]) - 1


def _texts(split: str, length: int, seed: int, rows: int) -> Iterator[Batch]:
    """Batches of running text: sentences one after the other, cut into rows of equal length.

    Beyond the training length only the positions beyond it have targets.
    """
    vocabulary = builtin_vocabulary()
    ids: list[int] = []
    for english, _ in builtin_sentences(split, 5000 if split == "train" else 1500):
        ids += [*vocabulary.encode(english), END]
    text = torch.tensor([START, *ids])
    generator = torch.Generator().manual_seed(seed)
    # Within the training length all positions count.
    first_target = 0 if length <= TRAINED else TRAINED
    while True:
        starts = torch.randint(len(text) - length - 1, (rows,), generator=generator)
        places = starts[:, None] + torch.arange(length)  # [rows, length]
        targets = text[places + 1]
        targets[:, :first_target] = NO_TARGET
        yield Batch(text[places], targets)
