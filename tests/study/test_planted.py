"""Where the truth is known, because it was planted, measurements and rules find it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import spec
from regard.data.generated import builtin
from regard.data.generated.builtin import Sentence
from regard.lab.study import heads, layer_types, listing, modifications, scores
from regard.lab.study.baselines import DISTANCES, UniversalDepth, gradient_norms
from regard.lab.study.evidence import above, changes, failures, share, without_failed
from regard.lab.study.norms import _moves
from regard.lab.study.study import Effort, Numbers, Outcome
from regard.lab.study.training_run import packaged_translator
from regard.lab.study.translators import ROWS
from regard.look.model_inputs import batch

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


def test_several_processes_measure_the_same() -> None:
    def measure(name: str, seed: int) -> str:
        return name * seed

    one = Effort(True, (1, 2)).each("ab", measure)
    assert one == {"a": ["a", "aa"], "b": ["b", "bb"]}
    assert Effort(True, (1, 2), processes=2).each("ab", measure) == one


# ------------------------------------------------------------------ planted models


class Recurrence(nn.Module):
    """h_t = a·h_{t−1} + x_t, whose gradient over d steps is a^d."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1], dtype=x.dtype)
        powers = (self.factor ** (steps[:, None] - steps)).tril()
        return powers @ x


@pytest.mark.parametrize("factor", [1e-4, 0.5, 1.0, 2.0])
def test_gradients_of_a_recurrence_are_its_powers(factor: float) -> None:
    norms = gradient_norms(Recurrence(factor), seed=1, samples=1)
    # 1e-252 at the largest distance: float32 would have none.
    assert norms == pytest.approx([factor ** (d - 1) for d in DISTANCES], rel=1e-6)


def test_paths_of_planted_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    study = listing.load("path_length")
    effort = study.effort(quick=True)
    assert study.verdict(study.measure(effort)).outcome == HOLDS
    layer = layer_types.layer

    def undilated(name: str, width: int, **options: Any) -> Any:
        return layer(name, width, **(options | {"dilation": 1}))

    monkeypatch.setattr(layer_types, "layer", undilated)
    assert study.verdict(study.measure(effort)).outcome == FAILS


def test_only_the_norm_over_the_batch_sees_it() -> None:
    assert max(_moves(spec.LayerNorm(), 1, seed=1).values()) < 1e-12
    assert min(_moves(spec.BatchNorm(), 1, seed=1).values()) > 0.01


def test_translators_that_look_up_or_need_nothing() -> None:
    model = packaged_translator()
    sentences = list(islice(builtin.sentences("test"), 20))
    texts = batch(model, [one.source for one in sentences], [one.target for one in sentences])
    core: Any = model.model
    assert scores.predictions(core, texts)["same"][-1] < 50
    for block in core.decoder.blocks:
        block.cross.mixer.scale *= 1e6  # as hard as a dictionary
    assert scores.predictions(core, texts)["same"][0] == 100
    for block in core.decoder.blocks:
        nn.init.zeros_(block.cross.output.weight)
    needless = scores.predictions(core, texts)
    assert set(needless["same"]) == {100}


def test_a_head_for_a_distance_is_none_for_a_relation() -> None:
    sentences = [one for one in islice(builtin.sentences("test", pronouns=False), 50) if one.links]

    def attention(of: list[Sentence], *, by_place: bool) -> float:
        """Of a head that attends to the next word, or along the links, to the linked words."""
        weights = []
        for sentence, truth in zip(of, sentences, strict=True):
            related = {(link.start, link.end) for link in truth.links}
            for link in sentence.links:
                target = (
                    link.end - link.start == 1 if by_place else (link.start, link.end) in related
                )
                weights.append(float(target))
        return sum(weights) / len(weights)

    controls = [heads.at_same_distance(one) for one in sentences]
    for sentence, control in zip(sentences, controls, strict=True):
        distances = {(link.kind, link.end - link.start) for link in sentence.links}
        assert {(link.kind, link.end - link.start) for link in control.links} <= distances
        assert not {*control.links} & {*sentence.links}

    def has_head(*, by_place: bool) -> bool | None:
        row = {
            "role": "verb→object",
            "attention": attention(sentences, by_place=by_place),
            "control": attention(controls, by_place=by_place),
            "chance": 0.1,
            "pairs": 100,
        }
        return heads._has_head(row)

    assert has_head(by_place=False) is True
    assert has_head(by_place=True) is False


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


def ablation(draw: Draw, *, strength: float, noise: float) -> Numbers:
    """Perplexities that move as printed, to the power of the strength."""
    scores = {}
    for name, row in ROWS.items():
        ratio = row.perplexity / ROWS["base"].perplexity
        # Well inside or well outside of the 2 % that count.
        moved = 1.0 if abs(ratio - 1) <= 0.02 else ratio ** (3 * strength)
        scores[name] = {"perplexity": draw(5 * moved, 5 * noise), "bleu": draw(20, 1)}
    return {"data": "a text", "scores": scores, "parameters": dict.fromkeys(ROWS, 1000)}


def depth(draw: Draw, universal: float, one_layer: float, seen: float = 97.0) -> Numbers:
    accuracy = {
        task: {
            "1 layer": {"test": draw(90, 2), "longer": draw(one_layer, 2)},
            "Universal": {"test": draw(seen, 1), "longer": draw(universal, 2)},
            "LSTM": {"test": draw(99, 0.1), "longer": draw(99, 0.1)},
        }
        for task in UniversalDepth.tasks
    }
    return {"accuracy": accuracy}


def positions(draw: Draw, sinusoidal: float, learned: float, alibi: float) -> Numbers:
    shares = {"sinusoidal": sinusoidal, "learned": learned, "ALiBi": alibi}
    accuracies = {
        kind: [[98.0, beyond] for beyond in draw(left, 1)] for kind, left in shares.items()
    }
    return {"lengths": [6, 9], "accuracies": accuracies, "steps": 10}


def norms(draw: Draw, *, suffers: bool, layer_loss: float = 2.0) -> Numbers:
    def runs(loss: float) -> list[dict[str, float]]:
        return [{"loss": one, "training_mode": one} for one in draw(loss, 0.02)]

    moves = {"LayerNorm": 1e-16, "RMSNorm": 1e-16, "BatchNorm": 0.3}
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


HELPED = {"window:4": (0.1, -0.1, 0.1), "linear": (-0.1, 0.1, -0.1)}
EVERYWHERE = dict.fromkeys(modifications.ATTENTIONS[1:4], (0.1, 0.1, 0.1))
PLANTED: dict[str, list[tuple[Callable[[Draw], Numbers], Outcome]]] = {
    "data_hunger": [
        (lambda draw: hunger(draw, hungry=True, saturates=True), HOLDS),
        (lambda draw: hunger(draw, hungry=True, saturates=False), LIMITED),
        (lambda draw: hunger(draw, hungry=False, saturates=False), FAILS),
        (lambda draw: hunger(lambda x, _: draw(x, 0.5), hungry=True, saturates=True), UNDECIDED),
    ],
    "transfer": [
        (lambda draw: transferred(draw, HELPED, 0.01), HOLDS),
        (lambda draw: transferred(draw, {}, 0.001), LIMITED),
        (lambda draw: transferred(draw, EVERYWHERE, 0.01), FAILS),
        (lambda draw: transferred(draw, EVERYWHERE, 0.3), UNDECIDED),
    ],
    "ablation": [
        (lambda draw: ablation(draw, strength=1.0, noise=0.004), HOLDS),
        (lambda draw: ablation(draw, strength=-1.0, noise=0.004), FAILS),
        (lambda draw: ablation(draw, strength=1.0, noise=0.3), UNDECIDED),
    ],
    "universal": [
        (lambda draw: depth(draw, universal=97, one_layer=50), HOLDS),
        (lambda draw: depth(draw, universal=97, one_layer=97), LIMITED),
        (lambda draw: depth(draw, universal=55, one_layer=50), FAILS),
        (lambda draw: depth(draw, universal=55, one_layer=50, seen=60), UNDECIDED),
    ],
    "extrapolation": [
        (lambda draw: positions(draw, 95, 40, 98.5), HOLDS),
        (lambda draw: positions(draw, 97, 40, 60), LIMITED),
        (lambda draw: positions(draw, 20, 40, 70), FAILS),
        (lambda draw: positions(lambda x, _: draw(x, 30), 85, 40, 95), UNDECIDED),
    ],
    "norms": [
        (lambda draw: norms(draw, suffers=True), HOLDS),
        (lambda draw: norms(draw, suffers=False), LIMITED),
        (lambda draw: norms(draw, suffers=True, layer_loss=4.5), UNDECIDED),
    ],
}


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
