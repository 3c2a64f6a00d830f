"""The tasks that a loaded model may perform, declared for all kinds of models.

`regard.load` cannot know before it reads a folder which kind of model is in it. Each task is
declared here, so that a type checker accepts `regard.load(folder).translate(...)`; a model without
the task raises `ModelError`. `evaluation.tasks.TASKS` says what a task reads and how it is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import (
    Any,
    Concatenate,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from torch import Tensor

from regard.system.errors import ModelError

M = TypeVar("M", bound="Tasks")
T = TypeVar("T", contravariant=True)
One = TypeVar("One")
R = TypeVar("R")
P = ParamSpec("P")


class Call(Protocol[T, P, R]):
    """A task method of a model: the result of one input, or a list of them for a list."""

    @overload
    def __call__(self, inputs: T, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, inputs: Sequence[T], /, *args: P.args, **kwargs: P.kwargs) -> list[R]: ...


class TaskMethod(Protocol[T, P, R]):
    """A task method of a class."""

    def __get__(self, model: Any, kind: Any = None) -> Call[T, P, R]: ...


def one_or_many(
    method: Callable[Concatenate[M, list[One], P], list[R]],
) -> TaskMethod[One, P, R]:
    """Makes a method of a list accept a single input too, whose result is then a single one."""

    @wraps(method)
    def call(model: M, inputs: One | Sequence[One], *args: P.args, **kwargs: P.kwargs) -> Any:
        # A tuple of two texts is a pair, and bytes are a file.
        if isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes | tuple):
            return method(model, list(inputs), *args, **kwargs)
        return method(model, [inputs], *args, **kwargs)[0]  # type: ignore[list-item]

    return call  # type: ignore[return-value]


def one_or_stacked(
    method: Callable[Concatenate[M, list[One], P], Tensor],
) -> Callable[Concatenate[M, One | Sequence[One], P], Tensor]:
    """`one_or_many` of a method whose results are the rows of a tensor."""
    return one_or_many(method)  # type: ignore[arg-type, return-value]


class Lacking:
    """A task that a kind of model does not have, with the models that have it."""

    def __init__(self, repair: str) -> None:
        self.repair = repair

    def __set_name__(self, kind: type, name: str) -> None:
        self.name = name

    def __get__(self, model: Tasks, kind: type) -> Callable[..., NoReturn]:
        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            # A model of a kind without tasks can still be called.
            able = ", ".join(model.tasks) or "be called with tensors"
            raise ModelError(
                f"this model ({model!r}) cannot `{self.name}`",
                f"it can: {able}; load {self.repair}",
            )

        return refuse


class Tasks:
    """Base class that declares all task methods; each kind of model overrides its own."""

    # --- text to text ---
    translate: TaskMethod[str, ..., str] = Lacking(  # type: ignore[assignment]
        "an encoder–decoder over text, such as Marian"
    )
    generate: TaskMethod[str, ..., str] = Lacking(  # type: ignore[assignment]
        "a language model, such as GPT-2"
    )
    chat: Any = Lacking("a language model with a chat template")
    perplexity: Any = Lacking("a language model or a translator")
    # --- vectors ---
    embed: Any = Lacking("an encoder, such as BERT or ViT")
    embed_text: Any = Lacking("a dual encoder, such as CLIP")
    embed_image: Any = Lacking("a dual encoder, such as CLIP")
    # --- heads of encoders ---
    classify: Any = Lacking(
        "an encoder with a classification head, a dual encoder or a language model"
    )
    follows: Any = Lacking("an encoder with a next-sentence head, such as BERT")
    tag: Any = Lacking("an encoder with a token-classification head")
    entities: Any = Lacking("an encoder with a token-classification head")
    detect: Any = Lacking(
        "a detector of objects, such as DETR, or of replaced tokens, such as ELECTRA"
    )
    segment: Any = Lacking("a segmenter of images, such as SegFormer")
    fill: Any = Lacking("an encoder with a masked-language-model head, such as BERT")
    answer: Any = Lacking("an encoder with a question-answering head")
    # --- time series, trajectories and speech ---
    forecast: Any = Lacking("a forecaster of time series, such as PatchTST")
    act: Any = Lacking("a policy, such as Decision Transformer")
    speak: Any = Lacking("a model that speaks, such as FastSpeech 2")
    caption: TaskMethod[Any, ..., str] = Lacking(  # type: ignore[assignment]
        "a model that writes about images, such as ViT-GPT2"
    )
    draw: Any = Lacking("a model that draws, made by `regard train emoji`")
    transcribe: Any = Lacking("a speech model, such as Whisper or Wav2Vec2")

    @property
    def tasks(self) -> list[str]:
        """The names of the task methods that this model has."""
        declared = [name for name, one in vars(Tasks).items() if isinstance(one, Lacking)]
        has = {name for kind in type(self).mro() if kind is not Tasks for name in vars(kind)}
        return [name for name in declared if name in has]
