"""One call for every model that opens: inputs as texts or files, answers as plain data.

`predict` chooses the task of the model's head and asks the model for it; what comes back can be
printed on one line or written as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from regard.evaluation.task import PredictionOptions, Task
from regard.evaluation.tasks import TASKS
from regard.models import Model, load
from regard.system.errors import ModelError, SettingError, did_you_mean

__all__ = ["Prediction", "PredictionOptions", "chosen_task", "predict", "reads_files"]


@dataclass(frozen=True)
class Prediction:
    """The answer of a model to one input.

    `answer` is plain data: a text, label → probability, a number, a list of spans, a vector, or a
    forecast. `text` is the same on one line; of a forecast, a CSV table.
    """

    input: str
    task: str
    answer: Any
    text: str


def predict(
    model: Model | str | Path,
    inputs: str | Sequence[str],
    task: str | None = None,
    **settings: Any,
) -> list[Prediction]:
    """The answers of a model to texts or files, by its own task or that named.

    Example:
        `regard.predict("runs/mine", ["A fine film."])[0].answer`.

    `model` is a loaded model or a folder; `settings` are those of `PredictionOptions`. A folder of
    graphs has an answer for each of its nodes or graphs, FOLDER:NUMBER for that one.
    """
    if not isinstance(model, Model):
        model = load(model)
    inputs = [inputs] if isinstance(inputs, str) else list(inputs)
    options = PredictionOptions(**settings)
    name = chosen_task(model, task, options)
    asked = task_with(model, name)
    check_options(model, name, options)
    assert asked.answer is not None
    # All inputs at once: each method batches them by length itself.
    answers = list(zip(inputs, asked.answer(model, inputs, options), strict=True))
    if asked.names_parts:
        answers = [(part, one) for _, parts in answers for part, one in parts.items()]
    elif name == "classify" and model.config.get("problem_type") == "regression":
        # The head of a classifier, in the words of transformers; what it gives is a number.
        name = "regress"
        # A single number without the name of its class; several keep their names.
        answers = [
            (one, next(iter(answer.values())) if len(answer) == 1 else answer)
            for one, answer in answers
        ]
    return [Prediction(one, name, answer, _as_text(answer)) for one, answer in answers]


def chosen_task(model: Model, name: str | None, options: PredictionOptions) -> str:
    """The task that is named, if the model has it; otherwise the model's own."""
    able = [task for task in model.tasks if TASKS.get(task, Task()).answer]
    if name is None:
        # The first that it has; classifying by labels only where these are given.
        named = options.labels or model.labels is not None
        possible = [task for task in TASKS if task in able and (task != "classify" or named)]
        if not possible:
            raise ModelError(
                f"this model ({model!r}) takes and returns tensors only", "call it in Python"
            )
        return possible[0]
    if not TASKS.get(name, Task()).answer:
        raise SettingError(f"unknown task {name!r}", did_you_mean(name, able))
    if name not in able:
        raise ModelError(f"this model ({model!r}) cannot `{name}`", f"it can: {', '.join(able)}")
    return name


def reads_files(model: Model, task: str) -> bool:
    """Whether the inputs of a task are files for this model, and not texts."""
    return model.reads_files or (model.medium is not None and TASKS[task].reads_media)


def task_with(model: Model, method: str) -> Task:
    """The task by which a model answers: one of its own, or what all models with it do."""
    candidates = [TASKS[name] for name in model.evaluations]
    return next((one for one in candidates if one.method == method and one.answer), TASKS[method])


def check_options(model: Model, name: str, options: PredictionOptions) -> None:
    """Refuses what this task of this model would ignore."""
    read = set(task_with(model, name).options)
    if name not in model.truncates:
        read.discard("truncation")
    for option in fields(options):
        is_given = getattr(options, option.name) not in (option.default, [])
        fits = option.name in read and (option.name != "labels" or model.labels is None)
        if is_given and not fits:
            flag = "--label" if option.name == "labels" else f"--{option.name}"
            raise SettingError(
                f"{flag} has no effect on `{name}` of this model ({model!r})", f"remove {flag}"
            )


# --- an answer on one line ------------------------------------------------------------------------


def _as_text(answer: Any) -> str:
    """An answer on one line."""
    if isinstance(answer, str):
        return answer.replace("\n", " ")
    if isinstance(answer, float):
        return f"{answer:.4f}"
    if isinstance(answer, dict):
        if "forecast" in answer and "columns" in answer:
            # CSV with the number of each step, from 1 on. Six of about seven digits of a float32.
            lines = [",".join(["step", *answer["columns"]])]
            for step, row in enumerate(answer["forecast"], 1):
                lines.append(",".join([str(step), *(f"{value:.6g}" for value in row)]))
            return "\n".join(lines)
        if "frames" in answer and "tokens" in answer:
            each = zip(answer["tokens"], answer["frames"], strict=True)
            lasting = " ".join(f"{token}:{frames}" for token, frames in each)
            return f"{answer['seconds']:.2f} s  {lasting}"
        # A span has a text; of classes, one may be called so, and has a number.
        if isinstance(answer.get("text"), str):
            return f"{answer['text']} {answer['probability']:.4f}"
        # Beside a mask stand the shares of its classes.
        answer = answer.get("shares", answer)
        # A filling may be a line end.
        names = {label: label.replace("\n", "\\n") for label in answer}
        return "  ".join(f"{names[label]} {share:.4f}" for label, share in answer.items())
    if answer and isinstance(answer[0], list):  # actions of several numbers
        return "  ".join(map(_as_text, answer))
    if answer and isinstance(answer[0], float | int):
        # Five of the about seven digits that a float32 has.
        return " ".join(f"{value:.5g}" for value in answer)
    if answer and "box" in answer[0]:
        # Its corners are left, top, right and bottom.
        return "  ".join(
            f"{one['label']} {one['score']:.2f} ({', '.join(f'{side:.0f}' for side in one['box'])})"
            for one in answer
        )
    return "  ".join(
        f"{span['text']}/{span['label']}"
        if span.get("label") is not None
        else f"{span['text']} {span['probability']:.2f}"
        for span in answer
    )
