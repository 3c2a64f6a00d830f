"""Decoder-only and encoder–decoder models on the same translation."""

from __future__ import annotations

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.lab.study.figure import Shown, Table, deviation, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    NO_TARGET,
    PADDING,
    Batch,
    Score,
    builtin_pairs,
    builtin_vocabulary,
    evaluate,
    language_model,
    pad,
    trained,
    translator,
)
from regard.look.drawing import Axis, BarChart, Bars

WIDTH = 32
MODELS = ("encoder–decoder", "decoder-only")


class DecoderOnly(Study):
    """A decoder-only model translates as well as an encoder–decoder of the same size.

    An encoder–decoder of 2 + 2 layers, and a causal language model with as many parameters that
    reads source and target as one text, with a loss on the target only; the same pairs of the
    built-in language for the same number of steps: loss and right tokens on held-out translations.
    """

    name = "decoder_only"
    source = "Raffel et al. 2020, Table 2, found the encoder–decoder better; Brown et al. 2020"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(150, 2000)
        runs = effort.each(MODELS, lambda name, seed: _score(name, seed, steps))
        scores = {
            name: {"loss": [one.loss for one in each], "accuracy": [one.accuracy for one in each]}
            for name, each in runs.items()
        }
        parameters = {name: parameter_count(_model(name)) for name in MODELS}
        return {"parameters": parameters, "scores": scores}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the loss of the decoder-only model is at most 2 % above that of the
        encoder–decoder, or within the standard deviation over the seeds; within limits up to 10
        %."""
        losses = [numbers["scores"][name]["loss"] for name in MODELS]
        both, alone = map(mean, losses)
        # The larger of the two: either model may be the noisier one.
        noise = max(map(deviation, losses))
        # Perplexities would exaggerate: losses are compared.
        ratio = alone / both
        reason = (
            f"Held-out loss of the target: {alone:.3f} decoder-only, {both:.3f} encoder–decoder "
            f"({ratio - 1:+.1%}; the standard deviation over seeds is {noise:.3f})."
        )
        is_as_good = ratio <= 1.02 or alone - both <= noise
        return judge(is_as_good, is_as_good or ratio <= 1.1, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        scores = numbers["scores"]
        rows = [
            [name, f"{numbers['parameters'][name]:,}", *map(mean_text, of_model.values())]
            for name, of_model in scores.items()
        ]
        series = [Bars("loss", [of_model["loss"] for of_model in scores.values()])]
        return [
            BarChart("Held-out loss", Axis("nats a token", low=0.0), list(scores), series),
            Table(
                "The same translation",
                ["model", "parameters", "held-out loss", "right tokens, %"],
                rows,
            ),
        ]


def _model(name: str) -> spec.Model:
    words = len(builtin_vocabulary())
    if name == "encoder–decoder":
        # Pre-norm, as the language model has it: only the wiring differs.
        return translator(words, 64, d_model=WIDTH, d_ff=4 * WIDTH, residual="pre")
    # Two layers with cross-attention have 28·d² more weights than two without: 4 + 2/3 layers in
    # all; d_ff makes up for the rest.
    return language_model(words, 128, d_model=WIDTH, layers=5, d_ff=round(3.6 * WIDTH))


def _score(name: str, seed: int, steps: int) -> Score:
    training = builtin_pairs("train", 20_000, seed)
    held_out = next(builtin_pairs("test", 600, seed=0, rows=150))
    # The same pairs in the same order.
    if name == "decoder-only":
        training = map(one_text, training)
        held_out = one_text(held_out)
    return evaluate(trained(_model(name), seed, training, steps), [held_out])


def one_text(batch: Batch) -> Batch:
    """Source and target of each row one after the other; only the target is predicted."""
    assert batch.source is not None
    tokens = []
    targets = []
    rows = zip(batch.source.tolist(), batch.tokens.tolist(), batch.targets.tolist(), strict=True)
    for source, inputs, outputs in rows:
        # Padding between source and target would separate them by chance.
        source = [token for token in source if token != PADDING]
        outputs = [token for token in outputs if token != NO_TARGET]
        tokens.append([*source, *inputs[: len(outputs)]])
        targets.append([*[NO_TARGET] * len(source), *outputs])
    return Batch(pad(tokens), pad(targets, NO_TARGET))
