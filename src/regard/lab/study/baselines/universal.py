"""The Universal Transformer on what a fixed depth cannot do: parity and balanced brackets."""

from __future__ import annotations

from itertools import islice

from regard import spec
from regard.data.generated.algorithmic_tasks import Dyck, Parity
from regard.data.generated.generated_task import GeneratedTask
from regard.families.presets import preset
from regard.lab.study import training_run
from regard.lab.study.baselines.algorithms import task_batches
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.look.drawing import Axis, BarChart, Bars, Figure

TASKS: dict[str, GeneratedTask] = {"parity": Parity(1, 10), "brackets": Dyck(2, 10)}
WIDTH = 64
# As many as the layers of the Transformer's base model.
STEPS_OF_DEPTH = 6  # how often the Universal Transformer applies its one block
MODELS = ("1 layer", "Universal", "LSTM")
SPLITS = {"test": "seen lengths", "longer": "up to twice as long"}


class UniversalDepth(Study):
    name = "universal"
    claim = (
        "A Transformer of fixed depth cannot decide parity or balanced brackets of any length; a "
        "Universal Transformer, which applies one block as often as it needs, can."
    )
    source = "Dehghani et al. 2019, Sections 1 and 4; Hahn 2020 for the limits of fixed depth"
    measurement = (
        "Models that read a text and then say whether the number of ones is even, or whether its "
        "brackets are balanced: a Transformer of 1 layer, the same block applied up to "
        f"{STEPS_OF_DEPTH} times with halting and timing signals, and an LSTM. Right answers on "
        "new inputs of the lengths of training and of up to twice the length; 50 % is chance."
    )
    rule = (
        "Holds if on seen lengths the Universal Transformer is right in 90 % or more and better "
        "than the fixed depth by 5 points in both tasks, and on longer ones in 75 % or more. "
        "Within limits if it is better by 5 points on seen lengths in at least one task."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(150, 4000)
        accuracy: dict[str, dict[str, dict[str, list[float]]]] = {
            task: {name: {split: [] for split in SPLITS} for name in MODELS} for task in TASKS
        }
        jobs = [(seed, task, name) for seed in effort.seeds for task in TASKS for name in MODELS]
        for seed, task, name in progress.over(jobs, lambda job: f"{job[1]}, {job[2]}"):
            for split, score in _accuracy(TASKS[task], name, seed, steps).items():
                accuracy[task][name][split].append(score)
        return {"accuracy": accuracy}

    def verdict(self, numbers: Numbers) -> Verdict:
        better = []
        solved = []
        parts = []
        for task, models in numbers["accuracy"].items():
            score = {name: mean(models[name]["test"]) for name in models}
            longer = mean(models["Universal"]["longer"])
            is_better = score["Universal"] - score["1 layer"] >= 5
            better.append(is_better)
            # To have learned the rule is to know it for longer inputs too.
            solved.append(is_better and score["Universal"] >= 90 and longer >= 75)
            parts.append(
                f"{task}: {score['Universal']:.0f} % against {score['1 layer']:.0f} % of one "
                f"layer, {longer:.0f} % on longer inputs"
            )
        reason = f"The Universal Transformer is right in {'; '.join(parts)}."
        if all(solved):
            return Verdict(Outcome.HOLDS, reason)
        return Verdict(Outcome.LIMITED if any(better) else Outcome.FAILS, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        figures: list[Figure] = []
        for task, models in numbers["accuracy"].items():
            bars = [Bars(name, [models[name][split] for split in SPLITS]) for name in MODELS]
            y = Axis("right answers, %", low=0.0, high=100.0)
            figures.append(BarChart(task.capitalize(), y, list(SPLITS.values()), bars))
        return figures

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for task, models in numbers["accuracy"].items():
            for name in MODELS:
                cells = [mean_text(models[name][split]) for split in SPLITS]
                rows.append([task, name, *cells])
        return [Table("Right answers, %", ["task", "model", *SPLITS.values()], rows)]


def _model(name: str, vocabulary: int) -> spec.Model:
    if name == "LSTM":
        return preset("lstm-lm:tiny", vocabulary, 64, d_model=WIDTH, layers=1, dropout=0.0)
    # The same block for both, so that only the depth differs.
    # 4 heads with d_k = d_v = 16
    attention = spec.Attention(4, WIDTH // 4, WIDTH // 4)
    block = spec.Block(attention, spec.FeedForward(4 * WIDTH), residual=spec.PreNorm(), dropout=0.0)
    if name == "Universal":
        # No positions at the input: timing signals are added at each step.
        tokens = spec.Tokens(vocabulary, None, dropout=0.0)
        stack = spec.Stack(
            STEPS_OF_DEPTH,
            block,
            spec.CausalMask(),
            final=spec.LayerNorm(),
            shared=True,
            universal=spec.Universal(),
        )
        return spec.Decoder(WIDTH, tokens, stack)
    tokens = spec.Tokens(vocabulary, spec.Sinusoidal(), dropout=0.0)
    return spec.Decoder(
        WIDTH, tokens, spec.Stack(1, block, spec.CausalMask(), final=spec.LayerNorm())
    )


def _accuracy(task: GeneratedTask, name: str, seed: int, steps: int) -> dict[str, float]:
    data = task_batches(task)
    model = training_run.build_seeded(_model(name, len(data.vocabulary)), seed)
    training_run.train(model, data.stream("train", seed), steps)
    scores = {}
    for split in SPLITS:
        # 192 texts, the same for all models and seeds
        held_out = list(islice(data.stream(split, seed=0), 6))
        # The answer is one word and the end: exact rows are right answers.
        scores[split] = training_run.evaluate(model, held_out).exact
    return scores
