"""Numbers of the studies of cost and scale, and the outcomes that follow from them."""

from __future__ import annotations

from regard.lab.plan.compute_optimal import Law
from regard.lab.study import language_models, modifications
from regard.lab.study.study import Numbers, Outcome

Case = tuple[Numbers, Outcome]
Curve = tuple[float, float, float]


def memory(explicit: float, fused: float) -> Numbers:
    """Bytes with these exponents of n."""
    lengths = [128, 256, 512, 1024]
    return {
        "lengths": lengths,
        "weights": [32 * n * n for n in lengths],
        "explicit": [100 * n**explicit for n in lengths],
        "fused": [100 * n**fused for n in lengths],
    }


def cache(cached: float, again: float, same: bool = True) -> Numbers:
    """Seconds of the last token; the first takes 0.001."""
    run = {"cached": [0.001, cached], "again": [0.001, again], "same": same}
    return {"lengths": [32, 256], "bytes_per_token": 1024, "runs": [run]}


def attentions(losses: list[float], flops: list[float]) -> Numbers:
    names = modifications.EFFICIENT
    return {
        "losses": {name: [loss] for name, loss in zip(names, losses, strict=True)},
        "flops": dict(zip(names, flops, strict=True)),
    }


def scaling(exponent: float = 0.2, measured: float = 1.0, growing: bool = False) -> Numbers:
    """Losses of a law with this α; the larger model's is `measured` times the prediction."""
    law = Law(0.5, 3.0, exponent, 50.0, 0.3)
    points = []
    for size in (1e3, 4e3, 1.6e4):
        for tokens in (1e5, 2e5):
            loss = law.loss(size, tokens)
            points.append([size, tokens, 1 / loss if growing else loss])
    larger = [6.4e4, 2e5, measured * law.loss(6.4e4, 2e5)]
    near = [list(law._replace(size_exponent=exponent + shift)) for shift in (-0.02, 0.0, 0.02)]
    return {"text": "text", "points": points, "measured": [larger], "law": list(law),
            "bootstrap": near}  # fmt: skip


def hunger(
    lstm: float, falls: tuple[float, float], seeds: int = 2, failed: bool = False
) -> Numbers:
    """The LSTM's loss with the least data (the Transformer's is 2), and how far the loss of both
    falls at the last width."""
    by_width = {
        name: {"16": [2.0] * seeds, "32": [2.0 * (1 - fall)] * seeds}
        for name, fall in zip(language_models.MODELS, falls, strict=True)
    }
    least = [2.0] * seeds
    if failed:
        # Worse than a uniform guess in all seeds but one.
        least = [2.0, *[8.0] * (seeds - 1)]
    return {
        "parameters": {name: [1_000, 10_000] for name in language_models.MODELS},
        "by_data": {"LSTM": {"2000": [lstm] * seeds}, "Transformer": {"2000": least}},
        "by_width": by_width,
    }


def transferred(*helped: tuple[int, ...], spread: float = 0.0, failed: bool = False) -> Numbers:
    """Losses of 1 (0.1 of labels) on three tasks; on each some modifications are better by 10 %.

    Three seeds, which are `spread` apart; in one softmax has failed to learn the labels.
    """
    losses: dict[str, dict[str, list[float]]] = {}
    for task, better in zip(modifications.TASKS, helped, strict=True):
        loss = 0.1 if task == "classification" else 1.0
        losses[task] = {
            name: [
                loss * (0.9 if number in better else 1.1) * (1 + shift * spread * (number > 0))
                for shift in (-1, 0, 1)
            ]
            for number, name in enumerate(modifications.ATTENTIONS)
        }
        losses[task]["softmax"] = [loss] * 3
    if failed:
        losses["classification"]["softmax"][1] = 0.7
    return {"losses": losses}


def translation(alone: float) -> Numbers:
    """The loss of the decoder-only model; the encoder–decoder's is 2."""
    scores = {
        "encoder–decoder": {"loss": [2.0, 2.01], "accuracy": [50.0, 50.0]},
        "decoder-only": {"loss": [alone, alone], "accuracy": [50.0, 50.0]},
    }
    return {"parameters": {"encoder–decoder": 1, "decoder-only": 1}, "scores": scores}


def amounts(vit: Curve, resnet: Curve, *, noise: float = 0.2) -> Numbers:
    """Accuracies of three seeds on 200, 4,000 and 80,000 images."""
    accuracies = {
        name: {
            str(count): [value - noise, value, value + noise]
            for count, value in zip((200, 4000, 80_000), curve, strict=True)
        }
        for name, curve in {"ViT": vit, "ResNet": resnet}.items()
    }
    # The noise of one model is not that of the other.
    for values in accuracies["ResNet"].values():
        values[:2] = reversed(values[:2])
    return {"accuracies": accuracies}


def labels(gains: Curve, scratch: Curve, *, noise: float = 0.2) -> Numbers:
    """Accuracies of three seeds with 100, 1,000 and 10,000 labels."""
    accuracies: dict[str, dict[str, list[float]]] = {"pre-trained": {}, "from scratch": {}}
    for count, gain, value in zip((100, 1000, 10_000), gains, scratch, strict=True):
        accuracies["from scratch"][str(count)] = [value, value + noise, value - noise]
        accuracies["pre-trained"][str(count)] = [value + gain + d for d in (noise, 0, -noise)]
    return {"accuracies": accuracies}


VERDICTS: dict[str, list[Case]] = {
    "attention_memory": [
        (memory(2.0, 1.0), Outcome.HOLDS),
        (memory(2.0, 1.5), Outcome.LIMITED),
        (memory(1.0, 1.0), Outcome.FAILS),
    ],
    "kv_cache": [
        (cache(0.001, 0.01), Outcome.HOLDS),
        (cache(0.005, 0.01), Outcome.LIMITED),
        (cache(0.001, 0.01, same=False), Outcome.FAILS),
        (cache(0.02, 0.01), Outcome.FAILS),
    ],
    "efficient_attention": [
        (attentions([2.0] * 6, [10, 1, 1, 1, 1, 1]), Outcome.HOLDS),
        (attentions([2.0, 2.0, 3.0, 3.0, 3.0, 3.0], [10, 1, 1, 1, 1, 1]), Outcome.LIMITED),
        (attentions([2.0] * 6, [10] * 6), Outcome.FAILS),
        (attentions([2.0, 3.0, 3.0, 3.0, 3.0, 3.0], [10, 1, 1, 1, 1, 1]), Outcome.FAILS),
    ],
    "scaling_law": [
        (scaling(), Outcome.HOLDS),
        (scaling(measured=1.2), Outcome.LIMITED),
        (scaling(exponent=0.01), Outcome.FAILS),
        (scaling(growing=True), Outcome.FAILS),
    ],
    "data_hunger": [
        (hunger(1.8, (0.0, 0.1)), Outcome.HOLDS),
        # The LSTM goes on too, or neither does.
        (hunger(1.8, (0.1, 0.1)), Outcome.LIMITED),
        (hunger(1.8, (0.0, 0.0)), Outcome.LIMITED),
        (hunger(2.1, (0.1, 0.1)), Outcome.FAILS),
        (hunger(1.8, (0.0, 0.1), seeds=1), Outcome.UNDECIDED),
        (hunger(1.8, (0.1, 0.1), failed=True), Outcome.UNDECIDED),
    ],
    "vit_and_cnn": [
        (amounts((20, 60, 90), (40, 80, 80.2)), Outcome.HOLDS),
        (amounts((20, 60, 70), (40, 80, 85)), Outcome.LIMITED),
        (amounts((40, 60, 70), (40, 80, 85)), Outcome.FAILS),
        # A ViT that failed to train with all the data says nothing of what it would do there.
        (amounts((12, 12, 13), (12, 12, 13)), Outcome.UNDECIDED),
        (amounts((20, 60, 70), (22, 61, 71), noise=9), Outcome.UNDECIDED),
    ],
    "pretraining": [
        (labels((15, 12, 4), (50, 60, 75)), Outcome.HOLDS),
        # As much with many labels as with few; or not as good as ten times more.
        (labels((15, 15, 15), (50, 60, 70)), Outcome.LIMITED),
        (labels((5, 4, 1), (50, 60, 75)), Outcome.LIMITED),
        (labels((0, 12, 4), (50, 60, 75)), Outcome.FAILS),
        # From scratch, nothing has learnt anything.
        (labels((15, 12, 4), (50, 50, 50)), Outcome.UNDECIDED),
        (labels((3, 3, 3), (50, 60, 75), noise=9), Outcome.UNDECIDED),
    ],
    "transfer": [
        (transferred((1,), (2,), (3, 4)), Outcome.HOLDS),
        # One of four transfers, which is not most.
        (transferred((1, 2), (1,), (1, 3)), Outcome.HOLDS),
        # A seed that failed does not decide.
        (transferred((1,), (2,), (1, 4), failed=True), Outcome.HOLDS),
        (transferred((), (), ()), Outcome.LIMITED),
        (transferred((1, 2), (1, 2), (1, 2)), Outcome.FAILS),
        (transferred((1,), (2,), (3, 4), spread=0.5), Outcome.UNDECIDED),
    ],
    "decoder_only": [
        (translation(1.95), Outcome.HOLDS),
        (translation(2.1), Outcome.LIMITED),
        (translation(3.0), Outcome.FAILS),
    ],
}
