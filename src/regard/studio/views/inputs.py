"""The model and input that a request names, the recording of its pass, and the form of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from regard import look as analyses
from regard.look.inspectable import MediaInput, empty_input
from regard.look.probe_names import attentions
from regard.look.result import Array
from regard.look.views import reads_paths
from regard.studio import answers
from regard.studio.model_store import ModelStore, OpenModel, not_allowed
from regard.studio.requests import InputRequest, ViewRequest


@dataclass(frozen=True)
class Packed:
    """A JSON header, and with it one array of float32 numbers or of bytes.

    Attention weights have their shades beside them, from 0 to 1: the page draws what `regard.look`
    draws.
    """

    header: dict[str, Any]
    values: Array
    shades: Array | None = None


Answer = dict[str, Any] | Packed
Request = TypeVar("Request", bound=ViewRequest)
View = Callable[[ModelStore, Request], Answer]

# The name of an endpoint → (the schema of its requests, which its annotation names; the view)
VIEWS: dict[str, tuple[type[ViewRequest], View[Any]]] = {}


def view(function: View[Request]) -> View[Request]:
    """Decorator: an endpoint of the server, called as its function."""
    VIEWS[function.__name__] = (get_type_hints(function)["request"], function)
    return function


WEIGHTS = ("*.weights",)
EVERYTHING = ("*",)


def open_input(store: ModelStore, request: InputRequest) -> tuple[OpenModel, str | MediaInput]:
    """The model and the input of a request."""
    opened = store.model(request.model)
    # The input of such a model is a path. To others on the network, only that of its run is open.
    is_path = reads_paths(opened.model)
    if is_path and store.opener is None and request.text not in answers.examples(opened.model):
        raise not_allowed()
    text = opened.input(store.files, request.text, request.file)
    if isinstance(text, str) and not text.strip():
        raise empty_input(opened.model)
    return opened, text


def record(
    store: ModelStore, request: InputRequest, probes: Sequence[str] = WEIGHTS
) -> tuple[OpenModel, analyses.Look]:
    """The model of a request, and the recording of its forward pass."""
    opened, text = open_input(store, request)
    if probes == WEIGHTS:
        # What an answer is made of is recorded with the weights, in the same forward pass.
        core = opened.model.model
        probes = (*(WEIGHTS if attentions(core) else ()), *answers.answer_probes(core))
    return opened, opened.look(text, request.target, request.off, probes)
