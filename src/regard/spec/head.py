"""What stands on a stack: a vocabulary, one vector, scores of labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from regard.errors import ModelError
from regard.spec.feedforward import Activation
from regard.spec.residual import LayerNorm, Norm


@dataclass(frozen=True)
class HeadTransform:
    """A dense layer, activation and norm before the vocabulary, as BERT's masked-word head has
    it."""

    width: int
    activation: Activation = "gelu"
    norm: Norm = field(default_factory=LayerNorm)


@dataclass(frozen=True)
class LMHead:
    """Linear map to the vocabulary, of `scale` times the hidden states; the softmax belongs to loss
    and decoding. A bias that is only `kept` is stored, neither added nor trained."""

    bias: bool | Literal["kept"] = False
    scale: float = 1.0
    transform: HeadTransform | None = None


@dataclass(frozen=True)
class EndToken:
    """The first position that holds `token`; without one, that of the highest token id, which some
    vocabularies reserve for the end."""

    token: int | None = None


@dataclass(frozen=True)
class Pool:
    """One vector for a whole input: that of the first or the last real position, of the end token,
    or the mean; then `norm`, `dropout`, a dense layer with `activation`, and a linear map without
    bias to `width`, each if there is one."""

    which: Literal["first", "last", "mean"] | EndToken = "first"
    activation: Activation | None = "tanh"
    dropout: float = 0.0
    norm: Norm | None = None
    width: int | None = None


HeadTask = Literal["classify", "next", "tag", "answer", "detect", "transcribe"]


@dataclass(frozen=True)
class ClassifierHead:
    """A score for each of `count` classes, for a `task`.

    Of the pooled vector: `classify` an input, or say whether its second text comes `next` after the
    first. Of every position: `tag` it, `answer` by where a span starts and ends, `detect` that the
    token was replaced, `transcribe` sound to letters. With a `hidden` activation there is a dense
    layer before; `dropout` acts on what is scored.
    """

    count: int
    task: HeadTask = "classify"
    hidden: Activation | None = None
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        expected = {"next": 2, "answer": 2, "detect": 1}.get(self.task, self.count)
        if self.count != expected:
            raise ModelError(
                f"the task {self.task!r} has {expected} scores, not {self.count}",
                f"say count={expected}",
            )

    @property
    def each(self) -> bool:
        """Whether every position has scores of its own."""
        return self.task not in ("classify", "next")


@dataclass(frozen=True)
class DistilledHead:
    """A score for each of `count` classes: the mean of what the first `voters` positions say, each
    through its own map. A distilled model has two: the class token learnt from labels, the
    distillation token from a teacher (Touvron et al.)."""

    count: int
    voters: int = 2
