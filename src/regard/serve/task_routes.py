"""This server's own routes: `/v1/NAME` for each task that models are asked for.

They are made from the table of tasks: one that is added there has its route.
"""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from zipfile import ZipFile, is_zipfile

from pydantic import Field, create_model

from regard.evaluation.prediction import check_options, chosen_task, reads_files
from regard.evaluation.task import DEFAULT_TOP, PredictionOptions, Task
from regard.evaluation.tasks import TASKS
from regard.models import Model
from regard.serve.api import ApiError, ApiModel, Request, blamed
from regard.serve.generation import require_length
from regard.serve.requests import Name, Text
from regard.serve.schema import Answer, Count, Usage
from regard.serve.service import Call, Endpoint

Files = Annotated[dict[Name, Text], Field(min_length=1, max_length=16)]
_UNPACKED = 1 << 24  # bytes of an episode, uncompressed
_FILE = re.compile(r"[A-Za-z0-9_]{1,40}\.(tsv|csv|txt)")
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "labels": (Annotated[list[Name], Field(min_length=1, max_length=255)] | None, None),
    "context": (Text | None, None),
    "top": (Count, DEFAULT_TOP),
    "samples": (Annotated[int, Field(ge=1, le=1000)] | None, None),
    "truncation": (bool, False),
}


class TaskAnswer(ApiModel):
    """The answer to one input; of labels also the likeliest, and all in the order of the model."""

    index: int
    answer: Any
    label: str | None = None
    probs: list[float] | None = None
    num_classes: int | None = None


class TaskAnswers(Answer):
    object: Literal["list"] = "list"
    task: str
    data: list[TaskAnswer]
    usage: Usage


class TaskRequest(Request):
    """Texts, images, recordings and episodes (.npz) as base64, a series as the text of its file, a
    graph as its files by name; two texts of one input stand with a tab between them."""

    input: Text | Files | Annotated[list[Text | Files], Field(max_length=1 << 16)]


async def predict(method: str, call: Call) -> TaskAnswers:
    """Asks a model for one of its tasks."""
    request: TaskRequest = call.request
    inputs = request.input if isinstance(request.input, list) else [request.input]
    call.limits.require("inputs", len(inputs), "input")
    fields = request.model_fields_set & _OPTIONS.keys()
    options = {name: getattr(request, name) for name in fields}
    options = {name: value for name, value in options.items() if value is not None}
    _require_options(call.model, method, options)
    if request.input == "":
        raise ApiError("input: the text is empty", "input")
    lengths: list[int] = []
    if call.model.accepts_text and not reads_files(call.model, method):
        lengths = [len(call.model.input_tokenizer.input_ids(f"{one}")) for one in inputs]
    if not options.get("truncation"):
        require_length(max(lengths, default=0), call.engine.limits.max_tokens, "input")
    answers: list[Any] = []
    with _readable(call.model, method, inputs) as prepared:
        if prepared:
            answers = await call.ask(method, prepared, **options)
        # Of a folder there are several answers, by the path and the name of a part.
        answers = [_by_part(one, str(path)) for one, path in zip(answers, prepared, strict=True)]
    data = [_answer(i, one, call.model) for i, one in enumerate(answers)]
    usage = Usage(prompt_tokens=sum(lengths))
    return TaskAnswers(**call.head(method), task=method, data=data, usage=usage)


def _require_options(model: Model, method: str, options: Mapping[str, Any]) -> None:
    """Refuses a task that this model has not, and what its task would ignore."""
    usual = PredictionOptions()
    chosen_task(model, method, usual)
    for name, value in options.items():
        with blamed(name):
            check_options(model, method, replace(usual, **{name: value}))


def _by_part(answer: Any, path: str) -> Any:
    if not isinstance(answer, dict):
        return answer
    return {name.removeprefix(f"{path}:"): value for name, value in answer.items()}


def _answer(index: int, answer: Any, model: Model) -> TaskAnswer:
    one = TaskAnswer(index=index, answer=answer)
    shares = answer if isinstance(answer, dict) else {}
    if not shares or not all(isinstance(share, float) for share in shares.values()):
        return one
    names = model.labels or ()
    probs = [shares[name] for name in (names if set(names) == set(shares) else shares)]
    label = max(shares, key=shares.__getitem__)
    return one.model_copy(update={"label": label, "probs": probs, "num_classes": len(probs)})


# ------------------------------------------------------------------ inputs


@contextmanager
def _readable(model: Model, method: str, inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """The inputs as a model reads them: no text of a client is ever taken for a path."""
    if not reads_files(model, method):
        if not all(isinstance(one, str) for one in inputs):
            raise ApiError("input: this model reads texts", "input")
        yield list(inputs)
    elif model.medium is not None:
        yield [_decoded(one) for one in inputs]
    else:
        with tempfile.TemporaryDirectory(prefix="regard-serve-") as folder:
            suffix = model.file_suffix
            yield [
                str(_written(Path(folder) / str(i), one, suffix)) for i, one in enumerate(inputs)
            ]


def _decoded(data: Any) -> bytes:
    """The bytes of base64, or of a data URL."""
    text = data if isinstance(data, str) else ""
    if text.startswith("data:"):
        text = text.partition(";base64,")[2]
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not content:
        raise ApiError("input: this model reads files: send their bytes as base64", "input")
    return content


def _written(folder: Path, content: Any, suffix: str) -> Path:
    """The path of a file with this content, or of a folder with files of these names."""
    folder.mkdir()
    if suffix != ".csv":  # a file of bytes
        path = folder / f"input{suffix}"
        path.write_bytes(_decoded(content))
        # What is compressed may be a thousand times as large.
        if is_zipfile(path) and sum(one.file_size for one in ZipFile(path).infolist()) > _UNPACKED:
            raise ApiError("input: the file is too large", "input")
        return path
    files = {"input.csv": content} if isinstance(content, str) else content
    for name, text in files.items():
        if not _FILE.fullmatch(name):
            raise ApiError(f"input: {name!r} is no name of a .tsv, .csv or .txt file", "input")
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "input.csv" if isinstance(content, str) else folder


# ------------------------------------------------------------------ the routes


def task_endpoints() -> tuple[Endpoint, ...]:
    """A route for each method that the tasks of the table have; vLLM's clients call `/classify`."""
    methods: dict[str, list[Task]] = {}
    for task in TASKS.values():
        if task.answer is not None:
            methods.setdefault(task.method, []).append(task)
    endpoints = []
    for method, alike in methods.items():
        # Tasks of the same method differ in what they read.
        options = {option for task in alike for option in task.options}
        fields: dict[str, Any] = {name: _OPTIONS[name] for name in _OPTIONS if name in options}
        name = f"{method.title().replace('_', '')}Request"
        request = create_model(name, __base__=TaskRequest, **fields)
        endpoints.append(
            Endpoint(
                f"/v1/{method}",
                partial(predict, method),
                TaskAnswers,
                request,
                dialect="regard",
                reads_files=any(task.reads_media for task in alike),
                summary=f"Asks a model to `{method}`.",
            )
        )
    aliases = [replace(one, path="/classify") for one in endpoints if one.path == "/v1/classify"]
    return (*endpoints, *aliases)
