"""What seeds say; and where losses follow from a law that is known, rules find it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from regard.lab.study import convolutions_and_patches, listing, modifications, pretraining
from regard.lab.study.evidence import (
    above,
    changes,
    failures,
    seeds_to_tell,
    share,
    without_failed,
)
from regard.lab.study.language_models import SENTENCES
from regard.lab.study.positions import TRANSLATED
from regard.lab.study.study import Effort, Numbers, Outcome
from regard.lab.study.translators import ROWS

HOLDS, LIMITED, FAILS, UNDECIDED = Outcome
Draw = Callable[[float, float], list[float]]  # a mean and a deviation, of four seeds


# ------------------------------------------------------------------ what several seeds say


def test_a_mean_is_above_a_limit_or_not_or_open() -> None:
    rng = random.Random(0)

    def truths(centre: float, seeds: int = 4) -> list[bool | None]:
        draws = [[rng.gauss(centre, 1.0) for _ in range(seeds)] for _ in range(1000)]
        return [above(values, 0.0) for values in draws]

    # On the limit, either answer is given in 5 of 100 draws; far from it, the right one.
    at_limit = truths(0.0)
    assert 20 <= at_limit.count(True) <= 90
    assert 20 <= at_limit.count(False) <= 90
    assert truths(3.0).count(True) > 900
    assert truths(-3.0).count(False) > 900
    assert truths(5.0, seeds=1).count(None) == 1000


def test_seeds_that_failed_to_train_are_left_out_and_named() -> None:
    base = without_failed([1.0, 4.0, 2.0], chance=4.0)
    losses = without_failed([1.1, 1.0, 2.2], chance=4.0)
    assert changes(losses, base) == pytest.approx([0.1, 0.1])
    assert "softmax seed 2" in failures({"softmax": base, "linear": losses})
    assert failures({"linear": losses}) == ""


def test_a_share_is_known_before_all_of_it_is() -> None:
    assert share([True, True, None], 0.5) is True
    assert share([False, False, None], 0.5) is False
    assert share([True, False, None], 0.5) is None


def test_the_seeds_that_would_tell_do() -> None:
    rng = random.Random(0)

    def draw(seeds: int) -> list[float]:
        return [rng.gauss(0.5, 1.0) for _ in range(seeds)]

    # Of a spread that is known well; so many seeds then tell four times of five.
    seeds = round(seeds_to_tell(draw(4000), 0.0))
    told = [above(draw(seeds), 0.0) for _ in range(1000)]
    assert 700 < told.count(True) < 950
    assert seeds_to_tell([1.0, 1.0, 1.0], 0.0) == 2
    assert seeds_to_tell([1.0], 0.0) == seeds_to_tell([-1.0, 1.0], 0.0) == math.inf


def test_several_processes_measure_the_same() -> None:
    def measure(name: str, seed: int) -> str:
        return name * seed

    one = Effort(True, (1, 2)).each("ab", measure)
    assert one == {"a": ["a", "aa"], "b": ["b", "bb"]}
    assert Effort(True, (1, 2), processes=2).each("ab", measure) == one


# ------------------------------------------------------------------ planted losses


def hunger(draw: Draw, *, hungry: bool, saturates: bool) -> Numbers:
    """Power laws of the width; that of the LSTM is at its floor early if it saturates."""
    widths = [16, 32, 64, 128, 256]
    exponents = {"LSTM": 2.0 if saturates else 0.8, "Transformer": 0.8}
    by_width = {
        name: {str(w): draw(1.0 + 8 * w**-exponent, 0.002) for w in widths}
        for name, exponent in exponents.items()
    }
    least = {"LSTM": 2.5, "Transformer": 2.8 if hungry else 2.4}
    return {
        "parameters": {name: [100 * w * w for w in widths] for name in exponents},
        "by_data": {name: {"2000": draw(loss, 0.02)} for name, loss in least.items()},
        "by_width": by_width,
    }


def transferred(draw: Draw, gains: dict[str, tuple[float, float, float]], noise: float) -> Numbers:
    """Gains over softmax on three tasks, by default losses; the first seed fails on labels."""
    losses: dict[str, dict[str, list[float]]] = {}
    for index, task in enumerate(modifications.TASKS):
        base = modifications.CHANCE[task] / 2
        losses[task] = {"softmax": draw(base, noise * base)}
        for name in modifications.ATTENTIONS[1:]:
            losses[task][name] = draw(
                base * (1 - gains.get(name, (-0.1, -0.1, -0.1))[index]), noise * base
            )
    losses["classification"]["softmax"][0] = 0.7
    return {"losses": losses}


def ablation(draw: Draw, *, strength: float, noise: float, agreeing: int = 100) -> Numbers:
    """Perplexities that move as printed, to the power of the strength; after so many rows, the
    other way."""
    scores = {}
    for number, (name, row) in enumerate(ROWS.items()):
        ratio = row.perplexity / ROWS["base"].perplexity
        if number > agreeing:
            # Opposite, and different where nothing was printed to change.
            ratio = 1 / ratio if abs(ratio - 1) > 0.02 else 1.2
        # Well inside or well outside of the 2 % that count.
        moved = 1.0 if abs(ratio - 1) <= 0.02 else ratio ** (3 * strength)
        scores[name] = {"perplexity": draw(5 * moved, 5 * noise), "bleu": draw(20, 1)}
    return {"data": "a text", "scores": scores, "parameters": dict.fromkeys(ROWS, 1000)}


def norms(draw: Draw, *, suffers: bool, layer_loss: float = 2.0, leaks: float = 1e-16) -> Numbers:
    def runs(loss: float) -> list[dict[str, float]]:
        return [{"loss": one, "training_mode": one} for one in draw(loss, 0.02)]

    moves = {"LayerNorm": leaks, "RMSNorm": 1e-16, "BatchNorm": 0.3}
    return {
        "moves": {name: [{"replaced": x, "shortened": x}] for name, x in moves.items()},
        "runs": {
            "LayerNorm": {"small": runs(layer_loss), "large": runs(1.0)},
            "RMSNorm": {"small": runs(layer_loss), "large": runs(1.0)},
            "BatchNorm": {
                "small": runs(layer_loss * (1.3 if suffers else 0.9)),
                "large": runs(1.0),
            },
        },
        "batches": {"small": 2, "large": 16},
        "steps": 10,
    }


def batches(draw: Draw, *, by_updates: float, by_examples: float, noise: float = 0.01) -> Numbers:
    """Losses 1 + a / √updates + b / √examples; the largest batches have 16 times as many examples
    in an update."""

    def losses(rows: int, updates: int) -> Numbers:
        loss = 1 + by_updates / updates**0.5 + by_examples / (rows * updates) ** 0.5
        return {"steps": updates, "rate": 0.003, "losses": draw(loss, noise)}

    return {
        "examples": {str(rows): losses(rows, 12_800 // rows) for rows in SENTENCES},
        "updates": {str(rows): losses(rows, 800) for rows in SENTENCES},
    }


def relative(draw: Draw, gains: tuple[float, float], noise: float = 0.01) -> Numbers:
    """By how much both relative kinds lower the loss, and raise BLEU a hundred times as much."""
    return {
        "runs": {
            kind: [
                {"loss": loss, "bleu": bleu}
                for loss, bleu in zip(
                    draw(2 * (1 - gain), 2 * noise), draw(30 + 100 * gain, 100 * noise), strict=True
                )
            ]
            for kind, gain in zip(TRANSLATED, (0.0, *gains), strict=True)
        },
        "steps": 10,
    }


def over_images(draw: Draw, *, biased: bool, overtakes: bool) -> Numbers:
    """Accuracies that grow with the logarithm of the images: convolutions begin higher if their
    bias helps, and stop at 85 % where a ViT overtakes them."""
    amounts = {"200": 0, "4000": 1, "80000": 2}
    resnet = (45 if biased else 20, 80, 85.2 if not overtakes else 80.3)
    vit = (25, 60, 88 if overtakes else 75)
    return {
        "accuracies": {
            name: {count: draw(curve[place], 0.2) for count, place in amounts.items()}
            for name, curve in {"ViT": vit, "ResNet": resnet}.items()
        }
    }


def over_labels(draw: Draw, *, worth: float, fades: bool = True) -> Numbers:
    """Pre-training that is worth so many times the labels, at 10 points for ten times as many."""
    gain = 10 * math.log10(worth)
    curves = {
        "from scratch": (55, 65, 75),
        "pre-trained": (55 + gain, 65 + gain, 75 + (gain / 3 if fades else gain)),
    }
    return {
        "accuracies": {
            start: {str(10**k): draw(curve[k - 2], 0.3) for k in (2, 3, 4)}
            for start, curve in curves.items()
        }
    }


HELPED = {"window:4": (0.1, -0.1, 0.1), "linear": (-0.1, 0.1, -0.1)}
EVERYWHERE = dict.fromkeys(modifications.ATTENTIONS[1:4], (0.1, 0.1, 0.1))
PLANTED: dict[str, list[tuple[Callable[[Draw], Numbers], Outcome]]] = {
    "data_hunger": [
        (lambda draw: hunger(draw, hungry=True, saturates=True), HOLDS),
        (lambda draw: hunger(draw, hungry=True, saturates=False), LIMITED),
        (lambda draw: hunger(draw, hungry=False, saturates=False), FAILS),
        (lambda draw: hunger(lambda x, _: draw(x, 0.5), hungry=True, saturates=True), UNDECIDED),
    ],
    "vit_and_cnn": [
        (lambda draw: over_images(draw, biased=True, overtakes=True), HOLDS),
        (lambda draw: over_images(draw, biased=True, overtakes=False), LIMITED),
        (lambda draw: over_images(draw, biased=False, overtakes=False), FAILS),
        (
            lambda draw: over_images(lambda x, _: draw(x, 30), biased=True, overtakes=True),
            UNDECIDED,
        ),
    ],
    "pretraining": [
        (lambda draw: over_labels(draw, worth=30), HOLDS),
        (lambda draw: over_labels(draw, worth=30, fades=False), LIMITED),
        (lambda draw: over_labels(draw, worth=4), LIMITED),
        (lambda draw: over_labels(draw, worth=1), FAILS),
        (lambda draw: over_labels(lambda x, _: draw(x, 30), worth=30), UNDECIDED),
    ],
    "transfer": [
        (lambda draw: transferred(draw, HELPED, 0.01), HOLDS),
        (lambda draw: transferred(draw, {}, 0.001), LIMITED),
        (lambda draw: transferred(draw, EVERYWHERE, 0.01), FAILS),
        (lambda draw: transferred(draw, EVERYWHERE, 0.3), UNDECIDED),
    ],
    "ablation": [
        (lambda draw: ablation(draw, strength=1.0, noise=0.004), HOLDS),
        (lambda draw: ablation(draw, strength=1.0, noise=0.004, agreeing=10), LIMITED),
        (lambda draw: ablation(draw, strength=-1.0, noise=0.004), FAILS),
        (lambda draw: ablation(draw, strength=1.0, noise=0.3), UNDECIDED),
    ],
    "norms": [
        (lambda draw: norms(draw, suffers=True), HOLDS),
        (lambda draw: norms(draw, suffers=False), LIMITED),
        (lambda draw: norms(draw, suffers=True, leaks=0.3), FAILS),
        (lambda draw: norms(draw, suffers=True, layer_loss=4.5), UNDECIDED),
    ],
    "batch_size": [
        (lambda draw: batches(draw, by_updates=0.0, by_examples=0.0, noise=0.0), FAILS),
        (lambda draw: batches(draw, by_updates=1.0, by_examples=10.0), LIMITED),
        # Many examples in few updates, as where gradients are mostly noise.
        (lambda draw: batches(draw, by_updates=-3.0, by_examples=20.0), HOLDS),
        (lambda draw: batches(draw, by_updates=1.0, by_examples=10.0, noise=1.0), UNDECIDED),
    ],
    "relative_positions": [
        (lambda draw: relative(draw, (0.1, 0.1)), HOLDS),
        (lambda draw: relative(draw, (0.1, -0.1)), LIMITED),
        (lambda draw: relative(draw, (-0.1, -0.1)), FAILS),
        (lambda draw: relative(draw, (0.05, 0.05), noise=0.3), UNDECIDED),
    ],
}


def test_two_neighbours_of_a_sentence_are_exchanged() -> None:
    words = ["the", "old", "man", "saw", "the", "dog", "."]
    seen = set()
    for seed in range(50):
        other = pretraining.exchanged(words, random.Random(seed))
        changed = [i for i, (one, two) in enumerate(zip(words, other, strict=True)) if one != two]
        assert len(changed) == 2
        assert changed[1] == changed[0] + 1
        assert sorted(other) == sorted(words)
        assert other[-1] == "."
        seen.add(changed[0])
    assert len(seen) > 2


def test_a_figure_is_brighter_or_darker_where_its_outline_says() -> None:
    images = convolutions_and_patches.figures(400, seed=1)
    assert images.tokens.shape == (400, 1, 16, 16)
    assert images.tokens.equal(convolutions_and_patches.figures(400, seed=1).tokens)
    assert set(images.targets[:, 0].tolist()) == set(range(len(convolutions_and_patches.FIGURES)))
    # A disk has more of a lit middle than a ring, against the noise and the slope of light.
    contrast = images.tokens.flatten(1).std(dim=1)
    names = [*convolutions_and_patches.FIGURES]
    disk, bar = (
        contrast[images.targets[:, 0] == names.index(name)].mean() for name in ("disk", "bar")
    )
    assert disk > bar


@pytest.mark.parametrize(
    ("name", "index"), [(name, i) for name, cases in PLANTED.items() for i in range(len(cases))]
)
def test_a_rule_finds_what_was_planted(name: str, index: int) -> None:
    plant, outcome = PLANTED[name][index]
    rng = random.Random(f"{name} {index}")

    def draw(centre: float, deviation: float) -> list[float]:
        return [max(1e-3, rng.gauss(centre, deviation)) for _ in range(4)]

    study = listing.load(name)
    found = [study.verdict(plant(draw)).outcome for _ in range(20)]
    # Each sentence errs in one of twenty draws at most, where a mean stands on its limit.
    assert found.count(outcome) >= 16, found
