"""What a request may say. What is not known is refused, and everything has a bound."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

LONGEST = 8192  # characters of a text


class Ask(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OfModel(Ask):
    model: str = Field(max_length=300)


class OfInput(OfModel):
    """A text, or a file that was handed in before, by the name it got then (`example` is always there)."""

    text: str = Field("", max_length=LONGEST)
    file: str | None = Field(None, max_length=64)
    target: str | None = Field(None, max_length=LONGEST)
    off: list[tuple[str, int]] = Field(default_factory=list, max_length=512)


class OfAttention(OfInput):
    name: str = Field(max_length=100)
    heads: list[int] | None = Field(None, max_length=256)
    rows: list[int] | None = Field(None, max_length=LONGEST)


class OfOne(OfInput):
    """Of one attention, all its heads."""

    name: str = Field(max_length=100)


class OfLayer(OfInput):
    layer: int | None = None


class OfTensor(OfInput):
    name: str = Field(max_length=100)
    head: int = Field(0, ge=0)


class OfStack(OfInput):
    stack: str | None = Field(None, max_length=100)


class OfTwo(OfModel):
    """Two texts, and the place of the output whose score is asked for."""

    text: str = Field(max_length=LONGEST)
    other: str = Field(max_length=LONGEST)
    at: int | None = Field(None, ge=0, le=LONGEST)
    stack: str | None = Field(None, max_length=100)


class OfPlaces(OfModel):
    stack: str | None = Field(None, max_length=100)
    length: int = Field(32, ge=2, le=128)


class OfSteps(OfInput):
    sample: bool = False
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int = Field(0, ge=0, le=1_000_000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31)
    top: int = Field(8, ge=1, le=50)
    most: int = Field(60, ge=1, le=400)


class OfBeam(OfInput):
    width: int = Field(4, ge=1, le=16)
    alpha: float = Field(0.6, ge=0, le=5)
    most: int = Field(60, ge=1, le=400)


class OfRun(Ask):
    run: str = Field(max_length=300)
    offset: int = Field(0, ge=0)
