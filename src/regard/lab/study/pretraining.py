"""Pre-training on text without labels, against training from scratch, over amounts of labels."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.families.presets import preset
from regard.lab.study.evidence import above, differences, judge_sentences
from regard.lab.study.figure import Shown, chart_and_table, mean, transposed
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.lab.study.training_run import (
    END,
    NO_TARGET,
    RESERVED,
    START,
    Batch,
    build_seeded,
    builtin_sentences,
    builtin_vocabulary,
    evaluate,
    pad,
    train,
)
from regard.training.engine.optimizer import ConstantRate

STARTS = ("pre-trained", "from scratch")
MATTERS = 2.0  # points of accuracy by which two models must differ
MASKED = 0.15  # share of the words (Devlin et al. 2019)
CHECKS = 10  # of the validation loss while labels are learnt
UNLABELLED = 20_000  # sentences of pre-training
FEW = 10  # times fewer labels, with which a pre-trained model should be as good


class PreTraining(Study):
    """Pre-training on text without labels pays: fine-tuned, a model is better than the same one
    trained from scratch, above all where there are few labels; it needs ten times fewer of them.

    An encoder learns to tell sentences of the built-in language from the same with two neighbouring
    words exchanged (acceptability), from several numbers of labelled sentences: with the weights of
    masked pre-training on sentences without labels, or from scratch; the accuracy on new sentences
    where the validation loss is lowest (early stopping).
    """

    source = "Devlin et al. 2019; Howard and Ruder 2018, Section 5 and Figure 3"
    seeds = (1, 3)

    def measure(self, effort: Effort) -> Numbers:
        before, steps = effort.choose((100, 60), (2000, 600))
        amounts = effort.choose([100, 1000], [100, 1000, 10_000])

        def accuracies(start: str, seed: int) -> list[float]:
            weights = _pretrained(seed, before) if start == STARTS[0] else {}
            return [_accuracy(weights, count, seed, steps) for count in amounts]

        measured = effort.each(STARTS, accuracies)
        return {
            "parameters": parameter_count(_encoder(spec.Pool("mean", None))),
            "steps": {"pre-training": before, "labels": steps},
            "accuracies": {
                start: dict(zip(map(str, amounts), transposed(runs), strict=True))
                for start, runs in measured.items()
            },
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Over the seeds (Student's t, 95 %), by {MATTERS:g} points of accuracy or more: with the
        fewest labels the pre-trained model is better; it gains more there than with the most
        labels; and with some number of labels it is not worse than from scratch with {FEW} times
        as many, where those have learnt something. Fails if the first is not so, holds if all are,
        else within limits; too small to say where the seeds do not tell."""
        accuracies = numbers["accuracies"]
        gains = {
            count: differences(values, accuracies["from scratch"][count])
            for count, values in accuracies["pre-trained"].items()
        }
        fewest, *_, most = gains
        sentences = {
            "with few labels pre-training pays": above(gains[fewest], MATTERS),
            "it pays more there than with many": above(
                differences(gains[fewest], gains[most]), MATTERS
            ),
            f"{FEW} times fewer labels are enough": _enough(accuracies),
        }
        listed = "; ".join(
            f"{int(count):,} labels {mean(accuracies['pre-trained'][count]):.1f} % "
            f"({mean(gain):+.1f} points)"
            for count, gain in gains.items()
        )
        reason = f"Accuracy after pre-training, and its gain over training from scratch: {listed}."
        return judge_sentences(sentences, reason, main_first=True)

    def show(self, numbers: Numbers) -> Shown:
        accuracies = numbers["accuracies"]
        amounts = [*map(int, accuracies["pre-trained"])]
        curves = {start: transposed(values.values()) for start, values in accuracies.items()}
        return chart_and_table(
            "Accuracy over labels", "labelled sentences", "% right", amounts, curves, log_x=True
        )


def _enough(accuracies: dict[str, dict[str, list[float]]]) -> bool | None:
    """Whether some number of labels gives as much as many more of them from scratch."""
    fine, scratch = (accuracies[start] for start in STARTS)
    answers = []
    for count, values in fine.items():
        more = scratch.get(str(FEW * int(count)))
        # A guess among two has 50 %: nothing is as good as nothing.
        if more is not None and above(more, 50.0 + MATTERS):
            answers.append(above(differences(values, more), -MATTERS))
    if True in answers:
        return True
    return None if None in answers or not answers else False


# ------------------------------------------------------------------ models


def _encoder(*heads: spec.Head) -> spec.Model:
    vocabulary = RESERVED + len(builtin_vocabulary().words) + 1  # and the mask
    sizes = {"d_model": 64, "d_ff": 128, "heads": 4, "layers": 2, "dropout": 0.0}
    model: Any = preset("bert", vocabulary, 32, **sizes, attention_dropout=0.0)
    return model.with_heads(*heads)


@cache
def _pretrained(seed: int, steps: int) -> dict[str, Tensor]:
    """The weights of an encoder after so many steps of masked language modelling."""
    model = build_seeded(_encoder(spec.LMHead()), seed)
    train(model, _masked(seed), steps, schedule=ConstantRate(0.001, steps // 10))
    return {name: value.detach() for name, value in model.named_parameters() if "head." not in name}


def _accuracy(weights: dict[str, Tensor], count: int, seed: int, steps: int) -> float:
    model: Any = build_seeded(_encoder(spec.Pool("mean", None), spec.ClassifierHead(2)), seed)
    model.load_state_dict(weights, strict=False)
    validation, test = ([next(_labelled(split, 500, 0, 500))] for split in ("valid", "test"))
    checked: list[tuple[float, float]] = []

    def check(step: int) -> None:
        if step % max(1, steps // CHECKS) == 0:
            scores = [evaluate(model, part) for part in (validation, test)]
            checked.append((scores[0].loss, scores[1].accuracy))

    batches = _labelled("train", count, seed)
    train(model, batches, steps, schedule=ConstantRate(0.001, steps // 10), on_step=check)
    return min(checked)[1]


# ------------------------------------------------------------------ data


def _framed(words: list[str]) -> list[int]:
    return [START, *builtin_vocabulary().encode(words), END]


def _masked(seed: int, rows: int = 32) -> Iterator[Batch]:
    """Endless batches of sentences with some words masked, which are to be predicted."""
    sentences = builtin_sentences("train", UNLABELLED)
    mask = RESERVED + len(builtin_vocabulary().words)
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = pad([_framed(english) for english, _ in chance.sample(sentences, rows)])
        hidden = (torch.rand(tokens.shape, generator=generator) < MASKED) & (tokens >= RESERVED)
        yield Batch(tokens.masked_fill(hidden, mask), tokens.masked_fill(~hidden, NO_TARGET))


def exchanged(words: list[str], chance: random.Random) -> list[str]:
    """A sentence with two neighbouring words exchanged; the punctuation at its end stays."""
    places = [i for i in range(len(words) - 2) if words[i] != words[i + 1]]
    at = chance.choice(places)
    return [*words[:at], words[at + 1], words[at], *words[at + 2 :]]


def _labelled(split: str, count: int, seed: int, rows: int = 32) -> Iterator[Batch]:
    """Endless batches of so many sentences; of about half of them words are exchanged: label 1."""
    chance = random.Random(seed)
    examples = []
    for english, _ in builtin_sentences(split, count):
        label = chance.randrange(2)
        examples.append((_framed(exchanged(english, chance) if label else english), label))
    while True:
        chosen = chance.sample(examples, min(rows, count))
        yield Batch(
            pad([text for text, _ in chosen]), torch.tensor([[label] for _, label in chosen])
        )
