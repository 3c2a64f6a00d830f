"""`/v1/decisions`: questions about a text, answered by the probabilities of labels.

A classifier decides between its own labels: `choices`, `levels`, or the `name` of a predicate must
be these, and it reads no instructions. A language model reads the instructions before the text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from regard.models import Model
from regard.models.labels import Scores
from regard.serve.api import ApiError, ApiModel, Request, unsupported
from regard.serve.requests import Name, Text
from regard.serve.service import Call, Endpoint


class InputText(ApiModel):
    type: Literal["input_text", "output_text"]
    text: Text


Content = Text | Annotated[list[InputText], Field(min_length=1, max_length=1024)]


def _text(content: str | list[InputText]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class DecisionMessage(ApiModel):
    role: Literal["user", "developer", "system", "assistant"]
    content: Content
    type: Literal["message"] = "message"


# ------------------------------------------------------------------ questions and their answers


class Share(ApiModel):
    value: str | bool
    probability: float


class LevelShare(ApiModel):
    value: int
    label: str
    probability: float


class PredicateAnswer(ApiModel):
    type: Literal["predicate"] = "predicate"
    name: str | None = None
    probability: float


class ChoiceAnswer(ApiModel):
    type: Literal["choice"] = "choice"
    name: str | None = None
    choice: str | bool
    confidence: float
    probabilities: list[Share]


class ScoreAnswer(ApiModel):
    type: Literal["score"] = "score"
    name: str | None = None
    score: float
    confidence: float
    probabilities: list[LevelShare]


class _Question(ApiModel):
    """A question that the probabilities of its labels answer."""

    field: ClassVar[str]  # where its labels stand
    instructions: Content
    name: Name | None = None

    @property
    @abstractmethod
    def meanings(self) -> list[tuple[str, str | None]]:
        """Its labels, and what each means."""

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.meanings]

    def own_labels(self, names: Sequence[str]) -> list[str] | None:
        """Its labels, if they are those of a classifier."""
        return self.labels if set(self.labels) == set(names) else None

    @abstractmethod
    def answer(self, shares: list[float]) -> Any: ...


class Predicate(_Question):
    """How likely the statement in `instructions` is true of the input."""

    field = "name"
    type: Literal["predicate"]

    @property
    def meanings(self) -> list[tuple[str, str | None]]:
        return [("yes", None), ("no", None)]

    def own_labels(self, names: Sequence[str]) -> list[str] | None:
        return [self.name] if self.name is not None and self.name in names else None

    def answer(self, shares: list[float]) -> PredicateAnswer:
        return PredicateAnswer(name=self.name, probability=shares[0])


class Option(ApiModel):
    value: str | bool
    description: Text | None = None


class ChoiceQuestion(_Question):
    """Which of the choices fits the input."""

    field = "choices"
    type: Literal["choice"]
    choices: list[Option] = Field(min_length=2, max_length=255)

    @property
    def meanings(self) -> list[tuple[str, str | None]]:
        def label(value: str | bool) -> str:
            return value if isinstance(value, str) else str(value).lower()

        return [(label(one.value), one.description) for one in self.choices]

    def answer(self, shares: list[float]) -> ChoiceAnswer:
        pairs = [*zip((one.value for one in self.choices), shares, strict=True)]
        choice, confidence = max(pairs, key=lambda pair: pair[1])
        probabilities = [Share(value=value, probability=share) for value, share in pairs]
        return ChoiceAnswer(
            name=self.name, choice=choice, confidence=confidence, probabilities=probabilities
        )


class Level(ApiModel):
    label: Name
    description: Text | None = None


class ScoreQuestion(_Question):
    """Where the input stands on ordered levels, which count from 0."""

    field = "levels"
    type: Literal["score"]
    levels: list[Level] = Field(min_length=2, max_length=255)

    @property
    def meanings(self) -> list[tuple[str, str | None]]:
        return [(one.label, one.description) for one in self.levels]

    def answer(self, shares: list[float]) -> ScoreAnswer:
        probabilities = [
            LevelShare(value=i, label=one.label, probability=share)
            for i, (one, share) in enumerate(zip(self.levels, shares, strict=True))
        ]
        score = sum(i * share for i, share in enumerate(shares))
        return ScoreAnswer(
            name=self.name, score=score, confidence=max(shares), probabilities=probabilities
        )


# ------------------------------------------------------------------ the route


class DecisionRequest(Request):
    """`POST /v1/decisions`."""

    input: Text | Annotated[list[DecisionMessage], Field(min_length=1, max_length=1024)]
    questions: list[
        Annotated[Predicate | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]
    ] = Field(min_length=1, max_length=400)

    @property
    def text(self) -> str:
        if isinstance(self.input, str):
            return self.input
        return "\n".join(_text(message.content) for message in self.input)


class InputDetails(ApiModel):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(ApiModel):
    reasoning_tokens: int = 0


class DecisionUsage(ApiModel):
    input_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int = 0
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class Decision(ApiModel):
    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionUsage


async def decide(call: Call) -> Decision:
    """Answers questions about a text."""
    request: DecisionRequest = call.request
    model = call.model
    call.limits.require("inputs", len(request.questions), "questions")
    names = model.labels
    rates = names is not None and (
        len(names) < 2 or model.config.get("problem_type") == "regression"
    )
    if "classify" not in model.tasks or model.medium is not None or rates:
        raise unsupported("this model does not classify texts")
    if not request.text.strip():
        raise ApiError("input: the text is empty", "input")
    for number, question in enumerate(request.questions):
        where = f"questions.{number}.{question.field}"
        if len({*question.labels}) < len(question.labels):
            raise ApiError(f"{where}: two are alike", where)
        if names is not None and question.own_labels(names) is None:
            raise ApiError(f"{where}: this model decides between {', '.join(names)}", where)
    if names is None:
        shares = [
            await call.run(_by_prompt, field="input", text=request.text, question=one)
            for one in request.questions
        ]
    else:
        # A tab would make two texts of it.
        [scores] = await call.ask("classify", [request.text.replace("\t", " ")], top=len(names))
        owned = [one.own_labels(names) or [] for one in request.questions]
        shares = [[scores[label] for label in labels] for labels in owned]
    tokens = len(model.input_tokenizer.input_ids(request.text))
    return Decision(
        model=call.name,
        answers=[one.answer(p) for one, p in zip(request.questions, shares, strict=True)],
        usage=DecisionUsage(input_tokens=tokens, total_tokens=tokens),
    )


def _by_prompt(model: Model, text: str, question: _Question) -> list[float]:
    """The probabilities of the labels of a question by a language model, as the continuation of
    the instructions, what the labels mean, and the text."""
    labels = question.labels
    meanings = [f"{label}: {text}" for label, text in question.meanings if text]
    # A template has braces of its own.
    head = "\n".join([_text(question.instructions), *meanings]).translate(_NO_BRACES)
    template = f"{head}\nText: {{text}}\nAnswer: {{label}}\n\n"
    scores: Scores = model.classify(text, labels, template=template)  # type: ignore[attr-defined]
    return [scores[label] for label in labels]


_NO_BRACES = str.maketrans("{}", "()")

ENDPOINTS = (Endpoint("/v1/decisions", decide, Decision, DecisionRequest),)
