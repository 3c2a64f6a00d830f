"""The requests of the page: schemas that refuse unknown fields and bound every value."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MAX_TEXT = 8192  # characters
MAX_NAME = 100  # characters of a probe's or a stack's name
MAX_MODEL_NAME = 300  # characters of a folder's name
MAX_PATH = 4096  # characters
MAX_CAPTIONS = 16


class ViewRequest(BaseModel):
    """The base class; by itself a request that asks nothing in particular."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelRequest(ViewRequest):
    model: str = Field(max_length=MAX_MODEL_NAME)


class InputRequest(ModelRequest):
    """A model on one input: a text, or a file that was uploaded before.

    A file is called by the name that it got then; `example` always exists.
    """

    text: str = Field("", max_length=MAX_TEXT)
    file: str | None = Field(None, max_length=64)
    # What a decoder is to read instead of the model's own translation
    target: str | None = Field(None, max_length=MAX_TEXT)
    off: list[tuple[str, int]] = Field(default_factory=list, max_length=512)  # ablated heads


class FileRequest(ViewRequest):
    """A file that was uploaded before, or `example`."""

    file: str = Field(max_length=64)


class AnswerRequest(InputRequest):
    """What the model says; a dual encoder chooses among captions."""

    captions: list[str] = Field(default_factory=list, max_length=MAX_CAPTIONS)


class NextRequest(InputRequest):
    """The likeliest tokens at one position, at a temperature."""

    position: int = Field(-1, ge=-1, le=MAX_TEXT)  # −1: the last one
    temperature: float = Field(1.0, gt=0, le=100)
    top: int = Field(10, ge=1, le=50)


class PathRequest(InputRequest):
    """The path of tokens through one layer of a stack."""

    stack: str | None = Field(None, max_length=MAX_NAME)
    layer: int = Field(0, ge=0, le=10_000)
    head: int = Field(0, ge=0, le=10_000)
    row: int | None = Field(None, ge=0, le=MAX_TEXT)  # a token that must be among those shown


class OpenRequest(ViewRequest):
    """A folder on this machine, or a name on the hub."""

    path: str = Field(min_length=1, max_length=MAX_PATH)


class FoldersRequest(ViewRequest):
    """The folders in a folder; by default in that of the user."""

    path: str = Field("~", min_length=1, max_length=MAX_PATH)


class AttentionRequest(InputRequest):
    """Some heads and queries of one attention."""

    name: str = Field(max_length=MAX_NAME)
    heads: list[int] | None = Field(None, max_length=256)  # by default all
    # Queries, by default all
    rows: list[int] | None = Field(None, max_length=MAX_TEXT)


class GridRequest(InputRequest):
    """All heads of one attention."""

    name: str = Field(max_length=MAX_NAME)


class AlignmentRequest(InputRequest):
    layer: int | None = None  # of the decoder; by default the sharpest one


class TensorRequest(InputRequest):
    """The tensor of one probe, of one head where it has heads."""

    name: str = Field(max_length=MAX_NAME)
    head: int = Field(0, ge=0)


class ScoresRequest(InputRequest):
    """One query of one head: how its attention weights come about."""

    name: str = Field(max_length=MAX_NAME)
    head: int = Field(0, ge=0, le=10_000)
    row: int = Field(0, ge=0, le=MAX_TEXT)


class StackRequest(InputRequest):
    stack: str | None = Field(None, max_length=MAX_NAME)


class PatchingRequest(ModelRequest):
    """A clean and a corrupted text, and the output position whose logit is measured."""

    text: str = Field(max_length=MAX_TEXT)
    other: str = Field(max_length=MAX_TEXT)
    at: int | None = Field(None, ge=0, le=MAX_TEXT)
    stack: str | None = Field(None, max_length=MAX_NAME)


class PositionsRequest(ModelRequest):
    stack: str | None = Field(None, max_length=MAX_NAME)
    length: int = Field(32, ge=2, le=128)


class StepsRequest(InputRequest):
    """Greedy decoding, or sampling with its options."""

    sample: bool = False
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int = Field(0, ge=0, le=1_000_000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31)
    top: int = Field(8, ge=1, le=50)  # candidates of each step
    most: int = Field(60, ge=1, le=400)  # new tokens


class BeamRequest(InputRequest):
    width: int = Field(4, ge=1, le=16)
    alpha: float = Field(0.6, ge=0, le=5)  # of the length penalty
    most: int = Field(60, ge=1, le=400)  # new tokens


class RunRequest(ViewRequest):
    run: str = Field(max_length=MAX_MODEL_NAME)


class MetricsRequest(ViewRequest):
    """The metrics of a run from a byte offset on."""

    run: str = Field(max_length=MAX_MODEL_NAME)
    offset: int = Field(0, ge=0)
