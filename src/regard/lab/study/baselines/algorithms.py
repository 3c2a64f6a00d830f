"""Algorithms on lengths that were not in training: copying, parity and balanced brackets."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice, product
from typing import ClassVar

from regard import spec
from regard.data.generated.algorithmic_tasks import Copying, Dyck, Parity
from regard.data.generated.generated_task import GeneratedTask
from regard.families.presets import preset
from regard.lab.study.evidence import above, every, failures, judge_sentences, negated
from regard.lab.study.figure import Shown, Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Truth, Verdict, judge
from regard.lab.study.training_run import TaskBatches, evaluate, language_model, trained
from regard.look.drawing import Axis, BarChart, Bars

SPLITS = {"test": "seen lengths", "longer": "up to twice as long"}
WIDTH = 64
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

        def exact(job: tuple[str, str], seed: int) -> list[float]:
            task, name = job
            data = task_batches(self.tasks[task])
            description = self.model(name, len(data.vocabulary))
            # An endless stream: nothing can be memorized.
            model = trained(description, seed, data.stream("train", seed), steps)
            # 192 texts, the same for all models and seeds; exact rows are right answers.
            held_out = [list(islice(data.stream(split, seed=0), 6)) for split in SPLITS]
            return [evaluate(model, batches).exact for batches in held_out]

        runs = effort.each(product(self.tasks, self.models), exact)
        scores: dict[str, dict[str, dict[str, list[float]]]] = {task: {} for task in self.tasks}
        for (task, name), of_model in runs.items():
            by_split = map(list, zip(*of_model, strict=True))
            scores[task][name] = dict(zip(SPLITS, by_split, strict=True))
        return {self.key: scores}

    def show(self, numbers: Numbers) -> list[Shown]:
        tasks = numbers[self.key].items()
        y = Axis(f"{self.scores}, %", low=0.0, high=100.0)
        rows = [
            [task, name, *map(mean_text, splits.values())]
            for task, models in tasks
            for name, splits in models.items()
        ]
        return [
            *(
                BarChart(
                    task.capitalize(),
                    y,
                    list(SPLITS.values()),
                    [Bars(name, list(splits.values())) for name, splits in models.items()],
                )
                for task, models in tasks
            ),
            Table(f"{self.scores.capitalize()}, %", ["task", "model", *SPLITS.values()], rows),
        ]


def task_batches(task: GeneratedTask) -> TaskBatches:
    """Batches with a vocabulary of all words that occur in the task."""
    # Longer texts have all words, and more of them.
    examples = islice(task.examples("longer"), 300)
    words = {word for pair in examples for text in pair for word in text.split()}
    return TaskBatches(task, sorted(words))


class Algorithms(OnAlgorithms):
    """On simple algorithms such as copying a text, recurrent networks do better than the
    Transformer on lengths beyond those of training.

    Language models of about equal size (an LSTM; 2 Transformer layers with sinusoids) on “input =
    output” texts: copying 1 to 6 letters, parity of 1 to 10 bits. Outputs without a mistake, on new
    inputs of these lengths and of up to twice the length.
    """

    name = "algorithms"
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
        reason = f"On longer inputs the LSTM is right more often by {listed}."
        # Below 5 points the held-out rows do not tell models apart.
        better = sum(gap >= 5 for gap in gaps.values())
        return judge(better == len(gaps), better > 0, reason)


class UniversalDepth(OnAlgorithms):
    """A Transformer of fixed depth cannot decide parity or balanced brackets of any length; a
    Universal Transformer, which applies one block as often as it needs, can.

    Models that read a text and then say whether the number of ones is even, or whether its brackets
    are balanced: a Transformer of 1 layer, the same block applied up to {STEPS_OF_DEPTH} times with
    halting and timing signals, and an LSTM. Right answers on new inputs of the lengths of training
    and of up to twice the length; 50 % is chance.
    """

    name = "universal"
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
        attention = spec.Attention(4, WIDTH // 4, WIDTH // 4)
        feedforward = spec.FeedForward(4 * WIDTH)
        block = spec.Block(attention, feedforward, residual=spec.PreNorm(), dropout=0.0)
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
            universal = models["Universal"]
            longer[task] = [
                beyond if inside >= LEARNED else math.nan
                for inside, beyond in zip(universal["test"], universal["longer"], strict=True)
            ]
            # To have learned the rule is to know it for longer inputs too.
            decides.append(above([x for x in longer[task] if math.isfinite(x)], DECIDES))
            cannot.append(negated(above(models["1 layer"]["longer"], LEARNED)))
            parts.append(
                f"{task} {mean(universal['longer']):.0f} % (seen lengths "
                f"{mean(universal['test']):.0f} %), one layer "
                f"{mean(models['1 layer']['longer']):.0f} % "
                f"({mean(models['1 layer']['test']):.0f} %)"
            )
        reason = (
            f"On longer inputs the Universal Transformer is right in {'; '.join(parts)}."
            f"{failures(longer)}"
        )
        main = "the Universal Transformer decides both"
        sentences = {main: every(decides), "one layer cannot": every(cannot)}
        return judge_sentences(sentences, reason, main=main)
