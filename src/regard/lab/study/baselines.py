"""Against what came before: gradients over distance, the fixed context, algorithms."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard import spec
from regard.data.generated.algorithmic_tasks import LETTERS, Copying, Dyck, GeneratedTask, Parity
from regard.families.presets import preset
from regard.lab.study.evidence import (
    above,
    differences,
    every,
    failures,
    judge_cases,
    judge_sentences,
    negated,
)
from regard.lab.study.figure import (
    Shown,
    Table,
    bar_chart,
    chart_and_table,
    columns,
    mean,
    mean_text,
)
from regard.lab.study.study import Effort, Numbers, Study, Truth, Verdict, judge
from regard.lab.study.training_run import (
    Batch,
    TaskBatches,
    Vocabulary,
    build_seeded,
    evaluate,
    language_model,
    pair_batch,
    trained,
)

WIDTH = 64
DISTANCES = [1, 2, 4, 8, 16, 32, 64]
# The spectral radius of the recurrent matrix: the factor by which a linear step scales a state.
RADII = {"small": 0.5, "large": 2.5}  # ReLU switches half of the units off
CELLS: dict[str, Any] = {"tanh": "rnn", "ReLU": "rnn_relu", "GRU": "gru", "LSTM": "lstm"}
# 4 heads with d_k = d_v = 16
BLOCK = spec.Block(
    spec.Attention(4, WIDTH // 4, WIDTH // 4), spec.FeedForward(4 * WIDTH), dropout=0.0
)


class GradientDistance(Study):
    """In recurrent networks the gradient is a product over all steps in between: it vanishes for
    small recurrent weights and explodes for large ones, gates soften that, and attention reaches
    every distance in one step.

    ‖∂(last output)/∂(input)‖ at distances up to 64, for untrained layers of width {WIDTH}:
    recurrent cells whose recurrent matrices are scaled to a spectral radius of {RADII[small]} and
    {RADII[large]}, and causal self-attention without positions; relative to that at distance 1; in
    float64, which holds what vanishes.
    """

    source = "Bengio et al. 1994; Pascanu et al. 2013, Section 2; Vaswani et al. 2017, Section 4"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        samples = effort.choose(4, 32)

        def norms(seed: int) -> Numbers:
            layers = {"attention": _attention(seed)} | {
                f"{name}, {size}": _recurrent(cell, radius, seed)
                for (name, cell), (size, radius) in product(CELLS.items(), RADII.items())
            }
            return {name: gradient_norms(layer, seed, samples) for name, layer in layers.items()}

        return {"distances": DISTANCES, "runs": effort.each_seed(norms)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Four sentences on the largest distance, over the seeds (Student's t, 95 %): the gradient
        of the tanh cell with small weights is below 1e-6, that of the ReLU cell with large weights
        above 1e3, those of GRU and LSTM with the same weights are nearer to 1 by an order of
        magnitude or more, and that of attention is within a factor of 10. Holds if all are so,
        within limits if some are, fails if none is; too small to say where the seeds do not tell,
        or a gradient is too small even for float64."""
        ends = {name: _orders(numbers, name) for name in numbers["runs"][0]}
        # Attention divides its gradient among all keys, at every distance alike.
        sentences = {
            "it vanishes for small weights": negated(above(ends["tanh, small"], -6)),
            "it explodes for large ones": above(ends["ReLU, large"], 3),
            "gates soften both": every(
                _softens(ends[f"{gated}, {size}"], ends[f"{plain}, {size}"])
                for gated in ("GRU", "LSTM")
                for plain, size in (("tanh", "small"), ("ReLU", "large"))
            ),
            "attention reaches every distance": negated(
                above([abs(order) for order in ends["attention"]], 1)
            ),
        }
        listed = ", ".join(
            f"{name} {10 ** mean(orders):.0e}" if orders else f"{name} 0"
            for name, orders in ends.items()
        )
        return judge_sentences(
            sentences,
            f"Over {numbers['distances'][-1]} steps the gradient becomes so many times that at "
            f"distance 1 (geometric mean; small and large recurrent weights): {listed}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        distances = numbers["distances"]
        curves = columns(numbers["runs"], numbers["runs"][0])
        return [
            shown
            for size, radius in RADII.items()
            for shown in chart_and_table(
                f"Recurrent weights of spectral radius {radius}",
                "distance",
                "gradient, relative to distance 1",
                distances,
                {name: runs for name, runs in curves.items() if name.endswith((size, "tion"))},
                log_x=True,
                log=True,
            )
        ]


def _orders(numbers: Numbers, name: str) -> list[float]:
    """log₁₀ of the gradient at the largest distance, of each seed; none if one is 0 or infinite."""
    ends = [run[name][-1] for run in numbers["runs"]]
    return [*map(math.log10, ends)] if all(0 < end < math.inf for end in ends) else []


def _softens(gated: list[float], plain: list[float]) -> Truth:
    """Whether gates leave fewer orders of magnitude."""
    if not gated or not plain:
        return None
    return above(differences(map(abs, plain), map(abs, gated)), 1.0)


def _recurrent(cell: Any, radius: float, seed: int) -> nn.Module:
    tokens = spec.Tokens(4, None, dropout=0.0)
    model: Any = build_seeded(spec.RecurrentDecoder(WIDTH, tokens, spec.Recurrent(cell)), seed)
    # Eigenvalues, not singular values: what counts is the product of many steps.
    for matrix in model.stack.cells[0].weight_hh_l0.data.split(WIDTH):  # gates are side by side
        matrix.mul_(radius / torch.linalg.eigvals(matrix).abs().max())
    return model.stack


def _attention(seed: int) -> nn.Module:
    # Without positions, so that distance alone could matter.
    block = replace(BLOCK, residual=spec.PostNorm())
    stack = spec.Stack.of(1, block, spec.CausalMask())
    model: Any = build_seeded(spec.Decoder(WIDTH, spec.Tokens(4), stack), seed)
    return model.stack


def gradient_norms(layer: nn.Module, seed: int, samples: int) -> list[float]:
    """Gradient norms at all distances, relative to that at distance 1, in float64.

    The last output is projected on random directions: the mean square is that of the Jacobian.
    """
    generator = torch.Generator().manual_seed(seed)
    layer.double()
    totals: Any = 0.0  # sums of squares over all samples: [T, WIDTH]
    for _ in range(samples):
        # Inputs of variance 1 drive the cells as embeddings would.
        x = torch.randn(1, DISTANCES[-1] + 1, WIDTH, generator=generator).double().requires_grad_()
        direction = torch.randn(WIDTH, generator=generator).double()
        last: Tensor = layer(x)[0, -1]
        (gradient,) = torch.autograd.grad(last @ direction, x)
        totals += gradient[0].square()
    # From the last position backwards
    norms = totals.sum(-1).sqrt().flip(0)[DISTANCES]
    by_distance: list[float] = (norms / norms[0]).tolist()
    return by_distance


LENGTHS = [2, 4, 6, 8, 10, 12]  # all within the lengths of training
MODELS = {
    "GRU, one vector": "gru:tiny",
    "GRU with attention": "bahdanau:tiny",
    "Transformer": "transformer:tiny",
}
WORDS = Vocabulary(LETTERS[:10])


class FixedContext(Study):
    """An encoder that gives the decoder one vector of fixed size gets worse with the length of the
    source; attention over all its states does not.

    Encoder–decoders of width 64 that learn to copy 10 letters in texts of 1 to 12: a GRU whose
    decoder starts from the last state, the same with additive attention, and a Transformer; right
    tokens on new texts of each length.
    """

    source = "Cho et al. 2014b, Section 4; Bahdanau et al. 2015, Figure 2"

    def measure(self, effort: Effort) -> Numbers:
        # Enough for attention to be right nearly everywhere.
        steps = effort.choose(200, 1500)
        # 100 texts of exactly each length
        tests = [[next(_stream(length, length, "test", seed=0, rows=100))] for length in LENGTHS]

        def accuracies(name: str, seed: int) -> list[float]:
            # One layer each: a deeper GRU would have a state for each layer, not one vector.
            changes: dict[str, Any] = {"d_model": 64, "layers": 1, "dropout": 0.0}
            if name == "Transformer":
                changes |= {"heads": 4, "d_ff": 256}
            description = preset(MODELS[name], len(WORDS), 32, **changes)
            model = trained(description, seed, _stream(1, LENGTHS[-1], "train", seed), steps)
            return [evaluate(model, test).accuracy for test in tests]

        return {"lengths": LENGTHS, "accuracy": effort.each(MODELS, accuracies)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if from the shortest to the longest texts the model without attention loses 20
        points or more, and at least 10 more than the GRU with attention. Within limits if it loses
        20 points, but attention nearly as many."""
        loss = {
            name: mean(run[0] - run[-1] for run in runs)
            for name, runs in numbers["accuracy"].items()
        }
        vector = loss["GRU, one vector"]
        attention = loss["GRU with attention"]
        lengths = numbers["lengths"]
        # What both lose is the difficulty of long texts, not the bottleneck.
        return judge(
            vector - attention >= 10,
            vector >= 20,
            f"From {lengths[0]} to {lengths[-1]} letters, accuracy falls by {vector:.0f} points "
            f"with one vector, by {attention:.0f} with attention and by "
            f"{loss['Transformer']:.0f} in the Transformer.",
        )

    def show(self, numbers: Numbers) -> Shown:
        return chart_and_table(
            "Copying over the length of the text",
            "letters",
            "right tokens, %",
            numbers["lengths"],
            numbers["accuracy"],
            low=0.0,
            high=100.0,
        )


def _stream(shortest: int, longest: int, split: str, seed: int, rows: int = 32) -> Iterator[Batch]:
    """Batches of copying; of lengths with few different texts, all are for training."""
    # The task refuses lengths of which there are too few texts to split.
    task = Copying(shortest, max(longest, 3))
    examples = (text.split() for text, _ in task.examples(split if longest > 3 else "train", seed))
    # Letters are mapped onto the first ten.
    texts = (
        WORDS.encode([LETTERS[LETTERS.index(word) % 10] for word in words])
        for words in examples
        if len(words) <= longest
    )
    while True:
        # The same letters as source and target.
        ids = list(islice(texts, rows))
        yield pair_batch(ids, ids)


SPLITS = {"test": "seen lengths", "longer": "up to twice as long"}
STEPS_OF_DEPTH = 12  # how often the Universal Transformer applies its one block, at most
LEARNED = 75.0  # % of right answers on seen lengths; a model with fewer has not learned
DECIDES = 90.0  # % of right answers on longer inputs


class OnAlgorithms(Study):
    """Models that are compared on algorithms; abstract."""

    tasks: ClassVar[Mapping[str, GeneratedTask]]
    models: ClassVar[tuple[str, ...]]
    scores: ClassVar[str]  # what is counted, in per cent
    key: ClassVar[str]  # of the measurements
    steps: ClassVar[tuple[int, int]]  # of training, in a quick study and in a full one

    @abstractmethod
    def model(self, name: str, vocabulary: int) -> spec.Model:
        """The model of this name."""

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(*self.steps)

        def exact(task: str, name: str, seed: int) -> Numbers:
            data = TaskBatches(self.tasks[task])
            description = self.model(name, len(data.vocabulary))
            # An endless stream: nothing can be memorized.
            model = trained(description, seed, data.stream("train", seed), steps)
            # 192 texts; exact rows are right answers.
            return {split: evaluate(model, data.held_out(6, split)).exact for split in SPLITS}

        runs = effort.each_pair(self.tasks, self.models, exact)
        scores = {
            task: {name: columns(of_model, SPLITS) for name, of_model in models.items()}
            for task, models in runs.items()
        }
        return {self.key: scores}

    def show(self, numbers: Numbers) -> Shown:
        tasks = numbers[self.key].items()
        rows = [
            [task, name, *map(mean_text, splits.values())]
            for task, models in tasks
            for name, splits in models.items()
        ]
        return [
            *(
                bar_chart(
                    task.capitalize(),
                    f"{self.scores}, %",
                    SPLITS.values(),
                    {name: splits.values() for name, splits in models.items()},
                    high=100.0,
                )
                for task, models in tasks
            ),
            Table(f"{self.scores.capitalize()}, %", ["task", "model", *SPLITS.values()], rows),
        ]


class Algorithms(OnAlgorithms):
    """On simple algorithms such as copying a text, recurrent networks do better than the
    Transformer on lengths beyond those of training.

    Language models of about equal size (an LSTM; 2 Transformer layers with sinusoids) on “input =
    output” texts: copying 1 to 6 letters, parity of 1 to 10 bits. Outputs without a mistake, on new
    inputs of these lengths and of up to twice the length.
    """

    source = "Dehghani et al. 2019, Section 1; Graves et al. 2014"
    tasks: ClassVar[Mapping[str, GeneratedTask]] = {
        "copying": Copying(1, 6),
        "parity": Parity(1, 10),
    }
    models = ("LSTM", "Transformer")
    scores = "outputs without a mistake"
    key = "exact"
    steps = (250, 3000)

    def model(self, name: str, vocabulary: int) -> spec.Model:
        if name == "LSTM":
            # One layer of 96 has about as many weights as two Transformer layers of 64.
            return preset("lstm-lm:tiny", vocabulary, 128, d_model=96, layers=1, dropout=0.0)
        return language_model(vocabulary, 128)

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if on longer inputs the LSTM is right more often than the Transformer by 5 points
        or more in both tasks; within limits if only in one."""
        gaps = {}
        for task, models in numbers["exact"].items():
            longer = {name: mean(scores["longer"]) for name, scores in models.items()}
            gaps[task] = longer["LSTM"] - longer["Transformer"]
        listed = ", ".join(f"{gap:+.1f} points in {task}" for task, gap in gaps.items())
        # Below 5 points the held-out rows do not tell models apart.
        return judge_cases(
            [gap >= 5 for gap in gaps.values()],
            f"On longer inputs the LSTM is right more often by {listed}.",
        )


class UniversalDepth(OnAlgorithms):
    """A Transformer of fixed depth cannot decide parity or balanced brackets of any length; a
    Universal Transformer, which applies one block as often as it needs, can.

    Models that read a text and then say whether the number of ones is even, or whether its brackets
    are balanced: a Transformer of 1 layer, the same block applied up to {STEPS_OF_DEPTH} times with
    halting and timing signals, and an LSTM. Right answers on new inputs of the lengths of training
    and of up to twice the length; 50 % is chance.
    """

    source = "Dehghani et al. 2019, Sections 1 and 4; Hahn 2020 for the limits of fixed depth"
    seeds = (1, 5)
    tasks: ClassVar[Mapping[str, GeneratedTask]] = {
        "parity": Parity(1, 10),
        "brackets": Dyck(2, 10),
    }
    models = ("1 layer", "Universal", "LSTM")
    scores = "right answers"
    key = "accuracy"
    steps = (150, 5000)

    def model(self, name: str, vocabulary: int) -> spec.Model:
        if name == "LSTM":
            return preset("lstm-lm:tiny", vocabulary, 64, d_model=WIDTH, layers=1, dropout=0.0)
        # The same block for both, so that only the depth differs: 4 heads with d_k = d_v = 16.
        block = replace(BLOCK, residual=spec.PreNorm())
        position: spec.Sinusoidal | None = spec.Sinusoidal()
        stack = spec.Stack.of(1, block, spec.CausalMask(), final=spec.LayerNorm())
        if name == "Universal":
            # No positions at the input: timing signals are added at each step.
            position = None
            blocks = stack.blocks * STEPS_OF_DEPTH
            stack = replace(stack, blocks=blocks, scheme=spec.Universal())
        return spec.Decoder(WIDTH, spec.Tokens(vocabulary, position, dropout=0.0), stack)

    def verdict(self, numbers: Numbers) -> Verdict:
        """A model decides a task if on longer inputs it is right in {DECIDES:.0f} % or more, over
        the seeds (Student's t, 95 %), and cannot if it is not right in {LEARNED:.0f} %. Seeds in
        which the Universal Transformer is right in fewer than {LEARNED:.0f} % on seen lengths have
        not trained, and are left out. Holds if in both tasks it decides and the fixed depth cannot;
        within limits if both do; fails if the Universal Transformer does not decide a task that it
        has learned on seen lengths; too small to say where fewer than two seeds have trained, or
        the seeds do not tell."""
        decides: list[Truth] = []
        cannot: list[Truth] = []
        parts = []
        longer = {}
        for task, models in numbers["accuracy"].items():
            one_layer, universal = (models[name] for name in ("1 layer", "Universal"))
            longer[task] = [
                beyond if inside >= LEARNED else math.nan
                for inside, beyond in zip(universal["test"], universal["longer"], strict=True)
            ]
            # To have learned the rule is to know it for longer inputs too.
            decides.append(above(longer[task], DECIDES))
            cannot.append(negated(above(one_layer["longer"], LEARNED)))
            parts.append(
                f"{task} {mean(universal['longer']):.0f} % (seen lengths "
                f"{mean(universal['test']):.0f} %), one layer {mean(one_layer['longer']):.0f} % "
                f"({mean(one_layer['test']):.0f} %)"
            )
        sentences = {
            "the Universal Transformer decides both": every(decides),
            "one layer cannot": every(cannot),
        }
        return judge_sentences(
            sentences,
            f"On longer inputs the Universal Transformer is right in {'; '.join(parts)}."
            f"{failures(longer)}",
            main_first=True,
        )
