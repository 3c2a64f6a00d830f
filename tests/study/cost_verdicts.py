"""Numbers of the studies of cost and scale, and the outcomes that follow from them."""

from __future__ import annotations

from regard.lab.plan.compute_optimal import Law
from regard.lab.study.cost import data_hunger, efficient_attention, transfer
from regard.lab.study.study import Numbers, Outcome

Case = tuple[Numbers, Outcome]


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
    names = efficient_attention.ATTENTIONS
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


def hunger(least: float, exponents: tuple[float, float]) -> Numbers:
    """The LSTM's loss with the least data (the Transformer's is 2), and both exponents."""
    parameters = [1_000, 10_000]
    by_width = {}
    for name, exponent in zip(data_hunger.MODELS, exponents, strict=True):
        by_width[name] = {str(i): [3 * n**-exponent] for i, n in enumerate(parameters)}
    by_data = {"LSTM": {"2000": [least]}, "Transformer": {"2000": [2.0]}}
    return {
        "parameters": dict.fromkeys(data_hunger.MODELS, parameters),
        "by_data": by_data,
        "by_width": by_width,
    }


def transferred(*tasks: list[float]) -> Numbers:
    """The losses of all attentions on three tasks."""
    losses = {}
    for task, values in zip(transfer.TASKS, tasks, strict=True):
        losses[task] = {n: [v] for n, v in zip(transfer.ATTENTIONS, values, strict=True)}
    return {"losses": losses}


def translation(alone: float) -> Numbers:
    """The loss of the decoder-only model; the encoder–decoder's is 2."""
    scores = {
        "encoder–decoder": {"loss": [2.0, 2.01], "accuracy": [50.0, 50.0]},
        "decoder-only": {"loss": [alone, alone], "accuracy": [50.0, 50.0]},
    }
    return {"parameters": {"encoder–decoder": 1, "decoder-only": 1}, "scores": scores}


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
        (hunger(1.8, (0.05, 0.1)), Outcome.HOLDS),
        (hunger(1.8, (0.1, 0.05)), Outcome.LIMITED),
        (hunger(2.1, (0.1, 0.05)), Outcome.FAILS),
    ],
    "transfer": [
        (
            transferred([2, 1.9, 2.1, 2.2, 2.3], [2, 2.3, 1.9, 2.2, 2.1], [2, 2.1, 2.3, 1.9, 2.2]),
            Outcome.HOLDS,
        ),
        (transferred(*[[2, 2.1, 2.2, 2.3, 2.4]] * 3), Outcome.LIMITED),
        (transferred(*[[2, 1.5, 2.2, 2.3, 2.4]] * 3), Outcome.FAILS),
    ],
    "decoder_only": [
        (translation(1.95), Outcome.HOLDS),
        (translation(2.1), Outcome.LIMITED),
        (translation(3.0), Outcome.FAILS),
    ],
}
