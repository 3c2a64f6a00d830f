"""The requests of the page: schemas that refuse unknown fields and bound every value."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_TEXT = 8192  # characters

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(max_length=100)]  # of a probe or a stack
FolderName = Annotated[str, Field(max_length=300)]
FileName = Annotated[str, Field(max_length=64)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
Index = Annotated[int, Field(ge=0, le=10_000)]  # of a layer or a head
Position = Annotated[int, Field(ge=0, le=MAX_TEXT)]
Temperature = Annotated[float, Field(gt=0, le=100)]
Candidates = Annotated[int, Field(ge=1, le=50)]
NewTokens = Annotated[int, Field(ge=1, le=400)]


class ViewRequest(BaseModel):
    """The base class; by itself a request that asks nothing in particular."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelRequest(ViewRequest):
    model: FolderName


class InputRequest(ModelRequest):
    """A model on one input: a text, or a file that was uploaded before.

    A file is called by the name that it got then; `example` always exists.
    """

    text: Text = ""
    file: FileName | None = None
    # What a decoder is to read instead of the model's own translation
    target: Text | None = None
    off: list[tuple[str, int]] = Field(default_factory=list, max_length=512)  # ablated heads


class FileRequest(ViewRequest):
    """A file that was uploaded before, or `example`."""

    file: FileName


class AnswerRequest(InputRequest):
    """What the model says; a dual encoder chooses among captions."""

    captions: list[str] = Field(default_factory=list, max_length=16)


class NextRequest(InputRequest):
    """The likeliest tokens at one position, at a temperature."""

    position: int = Field(-1, ge=-1, le=MAX_TEXT)  # −1: the last one
    temperature: Temperature = 1.0
    top: Candidates = 10


class StackRequest(InputRequest):
    stack: Name | None = None


class PathRequest(StackRequest):
    """The path of tokens through one layer of a stack."""

    layer: Index = 0
    head: Index = 0
    row: Position | None = None  # a token that must be among those shown


class OpenRequest(ViewRequest):
    """A folder on this machine, or a name on the hub."""

    path: Path


class FoldersRequest(ViewRequest):
    """The folders in a folder; by default in that of the user."""

    path: Path = "~"


class GridRequest(InputRequest):
    """All heads of one attention."""

    name: Name
    relative: bool | None = None  # shaded against uniform attention; null: if the input is long


class AttentionRequest(GridRequest):
    """Some heads and queries of one attention."""

    heads: list[int] | None = Field(None, max_length=256)  # by default all
    # Queries, by default all
    rows: list[int] | None = Field(None, max_length=MAX_TEXT)


class HeadRequest(GridRequest):
    """One head of one attention."""

    head: Index = 0


class NeuronsRequest(StackRequest):
    """Neurons of one layer, over the text and others; by default the most selective ones."""

    layer: Index | None = None  # by default the last one
    neurons: list[int] = Field(default_factory=list, max_length=64)
    texts: list[Text] = Field(default_factory=list, max_length=64)


class AlignmentRequest(InputRequest):
    layer: int | None = None  # of the decoder; by default the sharpest one


class TensorRequest(HeadRequest):
    """The tensor of one probe, of one head where it has heads."""


class ScoresRequest(TensorRequest):
    """Some queries of one head: how their attention weights come about."""

    rows: list[Position] = Field([0], min_length=1, max_length=256)


class PatchingRequest(ModelRequest):
    """A clean and a corrupted text, and the output position whose logit is measured."""

    text: Text
    other: Text
    at: Position | None = None
    stack: Name | None = None


class PositionsRequest(ModelRequest):
    stack: Name | None = None
    length: int = Field(32, ge=2, le=128)


class StepsRequest(InputRequest):
    """Greedy decoding, or sampling with its options."""

    sample: bool = False
    temperature: Temperature = 1.0
    top_k: int = Field(0, ge=0, le=1_000_000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31)
    top: Candidates = 8  # of each step
    most: NewTokens = 60


class BeamRequest(InputRequest):
    width: int = Field(4, ge=1, le=16)
    alpha: float = Field(0.6, ge=0, le=5)  # of the length penalty
    most: NewTokens = 60


class RunRequest(ViewRequest):
    run: FolderName


class MetricsRequest(RunRequest):
    """The metrics of a run from a byte offset on."""

    offset: int = Field(0, ge=0)
