"""This server's own routes: `/v1/NAME` for each task that models are asked for.

They are made from the table of tasks: one that is added there has its route.
"""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model
from starlette.requests import Request as HttpRequest

from regard.evaluation.prediction import chosen_task, reads_files
from regard.evaluation.task import DEFAULT_TOP, PredictionOptions
from regard.evaluation.tasks import TASKS
from regard.models import Model
from regard.serve.api import ApiError, ApiModel, Request
from regard.serve.openai_schema import Answer, Count, Name, Text, Usage
from regard.serve.service import Endpoint, Service, answer_id, ask
from regard.system.errors import RegardError

Files = Annotated[dict[Name, Text], Field(min_length=1, max_length=16)]
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
    """Texts, images and recordings as base64, a series as the text of its file, a graph as its
    files by name; two texts of one input stand with a tab between them."""

    input: Text | Files | Annotated[list[Text | Files], Field(max_length=1 << 16)]


async def predict(method: str, service: Service, request: Any, http: HttpRequest) -> TaskAnswers:
    """Asks a model for one of its tasks."""
    one_input = not isinstance(request.input, list)
    inputs = [request.input] if one_input else request.input
    service.limits.require("inputs", len(inputs), "input")
    engine = await service.engine(request.model)
    model = engine.model
    settings = {name: getattr(request, name) for name in request.model_fields_set & _OPTIONS.keys()}
    options = PredictionOptions(
        **{name: value for name, value in settings.items() if value is not None}
    )
    chosen_task(model, method, options)  # refuses what this model cannot do
    if one_input and request.input == "":
        raise ApiError("input: the text is empty", "input")
    answers: list[Any] = []
    with readable(model, method, inputs) as prepared:
        try:
            if prepared:
                answers = await ask(http, engine.ask(method, prepared, options))
        except RegardError as error:
            message = f"input: {error.problem}: {error.repair}"
            for one in prepared:
                message = message.replace(f"{one}", "the input")
            raise ApiError(message, "input") from None
        # Of a folder there are several answers, by the path and the name of a part.
        answers = [_by_part(one, str(path)) for one, path in zip(answers, prepared, strict=True)]
    tokens = 0
    if model.accepts_text and not reads_files(model, method):
        tokens = sum(len(model.input_tokenizer.input_ids(one)) for one in inputs)
    data = [_answer(i, one, model) for i, one in enumerate(answers)]
    usage = Usage(prompt_tokens=tokens, completion_tokens=0, total_tokens=tokens)
    return TaskAnswers(
        id=answer_id(method),
        created=int(time.time()),
        model=request.model,
        task=method,
        data=data,
        usage=usage,
    )


def _by_part(answer: Any, path: str) -> Any:
    if not isinstance(answer, dict):
        return answer
    return {name.removeprefix(f"{path}:"): value for name, value in answer.items()}


def _answer(index: int, answer: Any, model: Model) -> TaskAnswer:
    names = model.labels or ()
    is_shares = (
        isinstance(answer, dict)
        and answer
        and all(isinstance(one, float) for one in answer.values())
    )
    if not is_shares:
        return TaskAnswer(index=index, answer=answer)
    probs = [answer[name] for name in names] if set(names) == set(answer) else [*answer.values()]
    return TaskAnswer(
        index=index,
        answer=answer,
        label=max(answer, key=answer.__getitem__),
        probs=probs,
        num_classes=len(probs),
    )


@contextmanager
def readable(model: Model, method: str, inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """The inputs as a model reads them: no text of a client is ever taken for a path."""
    if not reads_files(model, method):
        if not all(isinstance(one, str) for one in inputs):
            raise ApiError("input: this model reads texts", "input")
        yield list(inputs)
    elif model.medium is not None:
        yield [decoded(one) for one in inputs]
    else:
        with tempfile.TemporaryDirectory(prefix="regard-serve-") as folder:
            yield [str(_written(Path(folder) / str(i), one)) for i, one in enumerate(inputs)]


def decoded(data: Any) -> bytes:
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


def _written(folder: Path, content: Any) -> Path:
    """The path of a file with this content, or of a folder with files of these names."""
    folder.mkdir()
    files = {"input.csv": content} if isinstance(content, str) else content
    for name, text in files.items():
        if not _FILE.fullmatch(name):
            raise ApiError(f"input: {name!r} is no name of a .tsv, .csv or .txt file", "input")
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "input.csv" if isinstance(content, str) else folder


def _endpoints() -> Iterator[Endpoint]:
    methods: dict[str, list[str]] = {}
    for task in TASKS.values():
        if task.answer is not None:
            # Tasks of the same method differ in what they read.
            methods.setdefault(task.method, []).extend(task.options)
    for method, options in methods.items():
        fields: dict[str, Any] = {name: _OPTIONS[name] for name in _OPTIONS if name in options}
        name = f"{method.title().replace('_', '')}Request"
        yield Endpoint(
            f"/v1/{method}",
            partial(predict, method),
            f"Ask a model to `{method}`",
            TaskAnswers,
            create_model(name, __base__=TaskRequest, **fields),
            dialect="regard",
            reads_files=any(task.reads_media for task in TASKS.values() if task.method == method),
        )


ENDPOINTS = tuple(_endpoints())
