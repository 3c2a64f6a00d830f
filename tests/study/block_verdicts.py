"""Numbers of the studies of the block, and the outcomes that follow from them."""

from __future__ import annotations

from attention_verdicts import Case, losses

from regard.lab.study.convolutions import PREDICTIONS
from regard.lab.study.study import Numbers, Outcome


def pointwise(difference: float, width_3: float) -> Numbers:
    """The difference of the two forms, and the loss of kernels of width 3 where 1 has 3.0."""
    equality = {"difference": difference, "shifted": 0.0, "linear": 1.0, "convolution": 2.0}
    runs = {
        "width 1": losses(3.0, 3.01),
        "width 3": losses(width_3, width_3 + 0.01),
        "width 9": losses(3.2, 3.2),
    }
    parameters = dict.fromkeys(runs, 1000)
    return {"equality": [equality], "runs": runs, "parameters": parameters, "steps": 10}


def receptive_field(**other: int) -> Numbers:
    """The predicted fields through two layers, but for some kinds."""
    fields = {kind: [[min(65, rule(1)), min(65, rule(2))]] for kind, rule in PREDICTIONS.items()}
    for kind, field in other.items():
        fields[kind.replace("_", " ")] = [[field, field]]
    return {"depths": [1, 2], "fields": fields, "length": 65}


def sentences(*accuracies: tuple[float, ...]) -> Numbers:
    """Accuracies by seed within sentences, flat and hierarchical, and between them."""
    inside, across = accuracies[:2], accuracies[2:]
    return {
        "accuracies": {
            kind: {"flat": [*flat], "hierarchical": [*hierarchical]}
            for kind, (flat, hierarchical) in {"within": inside, "between": across}.items()
        },
        "steps": 10,
    }


def residuals(pre_norm: float, none: float, loss: float) -> Numbers:
    """Gradient ratios at 100 layers, and the loss without residuals where with them it is 1.0."""
    ratios = {
        "pre-norm": [[1.0, pre_norm]],
        "post-norm": [[1.0, 1.0]],
        "none, norm before": [[1.0, none]],
        "none, norm after": [[1.0, none]],
    }
    runs = {
        "pre-norm, 6 layers": losses(1.0, 1.0),
        "none, norm before, 6 layers": losses(loss, loss),
    }
    return {"depths": [2, 100], "ratios": ratios, "runs": runs, "trained": [2, 6], "steps": 10}


def norms(
    layer_moves: float = 0.0,
    batch_moves: float = 0.3,
    batch_losses: tuple[float, float] = (3.5, 2.0),
    layer_loss: float = 3.0,
    shortened: float | None = None,
) -> Numbers:
    """How far outputs move, and the losses of BatchNorm with small and large batches.

    LayerNorm has 3.0 with small ones, and 2.0 with large ones.
    """
    moves = {"LayerNorm": layer_moves, "RMSNorm": layer_moves, "BatchNorm": batch_moves}
    by_norm = dict.fromkeys(moves, (layer_loss, 2.0)) | {"BatchNorm": batch_losses}
    return {
        "moves": {
            name: [{"replaced": value, "shortened": value if shortened is None else shortened}]
            for name, value in moves.items()
        },
        "runs": {
            name: {
                size: [{"loss": loss, "training_mode": loss}] * 2
                for size, loss in zip(("small", "large"), of_norm, strict=True)
            }
            for name, of_norm in by_norm.items()
        },
        "batches": {"small": 2, "large": 16},
        "steps": 10,
    }


def norm_placement(pre_gradient: float, post_gradient: float, post_loss: float) -> Numbers:
    """The last gradient of four layers where that of two is 1.0; pre-norm learns to 0.1."""
    gradients = {
        "pre-norm": [[[1.0, 1.0], [1.0, 1.0, 1.0, pre_gradient]]],
        "post-norm": [[[1.0, 1.0], [1.0, 1.0, 1.0, post_gradient]]],
    }
    values = {
        "post-norm, warm-up": [[0.1, 0.1]],
        "post-norm, none": [[0.1, post_loss]],
        "pre-norm, warm-up": [[0.1, 0.1]],
        "pre-norm, none": [[0.1, 0.1]],
    }
    return {
        "depths": [2, 4],
        "gradients": gradients,
        "rates": [0.001, 0.01],
        "losses": values,
        "layers": 3,
        "steps": 10,
    }


VERDICTS: dict[str, list[Case]] = {
    "pointwise": [
        (pointwise(1e-7, 3.0), Outcome.HOLDS),
        (pointwise(1e-7, 2.5), Outcome.LIMITED),
        (pointwise(0.1, 3.0), Outcome.FAILS),
    ],
    "receptive_field": [
        (receptive_field(), Outcome.HOLDS),
        (receptive_field(convolution=4), Outcome.LIMITED),
        (receptive_field(attention=4), Outcome.FAILS),
    ],
    "hierarchical": [
        (sentences((50, 52, 51), (99, 100, 99), (90, 91, 91), (91, 90, 91)), Outcome.HOLDS),
        (sentences((50, 52, 51), (99, 100, 99), (90, 91, 91), (80, 81, 80)), Outcome.LIMITED),
        (sentences((99, 99, 99), (99, 100, 99), (90, 91, 91), (91, 90, 91)), Outcome.FAILS),
        # One seed of flat attention has found it, too.
        (sentences((50, 99, 51), (99, 99, 99), (90, 91, 91), (91, 90, 91)), Outcome.UNDECIDED),
        (sentences((50,), (99,), (90,), (91,)), Outcome.UNDECIDED),
    ],
    "residuals": [
        (residuals(2.0, 1e-6, 3.0), Outcome.HOLDS),
        (residuals(2.0, 1e6, 3.0), Outcome.HOLDS),
        (residuals(2.0, 0.5, 3.0), Outcome.LIMITED),
        (residuals(1e-6, 1e-6, 0.5), Outcome.FAILS),
    ],
    "norms": [
        (norms(), Outcome.HOLDS),
        (norms(batch_losses=(2.9, 2.0)), Outcome.LIMITED),
        # As much worse with large batches.
        (norms(batch_losses=(3.5, 2.5)), Outcome.LIMITED),
        (norms(layer_moves=0.3), Outcome.FAILS),
        (norms(batch_moves=1e-12), Outcome.FAILS),
        # It sees what is replaced, but not what is shortened.
        (norms(batch_moves=0.3, shortened=1e-12), Outcome.FAILS),
        # Nothing is learned with small batches.
        (norms(batch_losses=(5.0, 2.0), layer_loss=4.5), Outcome.UNDECIDED),
    ],
    "norm_placement": [
        (norm_placement(0.5, 1.0, 3.0), Outcome.HOLDS),
        (norm_placement(0.5, 1.0, 0.1), Outcome.LIMITED),
        (norm_placement(1.0, 1.0, 3.0), Outcome.LIMITED),
        (norm_placement(1.0, 0.5, 0.1), Outcome.FAILS),
    ],
}
