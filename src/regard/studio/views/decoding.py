"""Views of decoding: step by step, the beam, the growth of the cache."""

from __future__ import annotations

from regard import look as analyses
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.length_penalty import GNMTPenalty
from regard.decode.strategy import (
    BeamSearch,
    Greedy,
    Limit,
    Sampling,
    Strategy,
)
from regard.studio.model_store import ModelStore
from regard.studio.requests import (
    BeamRequest,
    InputRequest,
    StepsRequest,
)
from regard.studio.views.inputs import open_input
from regard.studio.views.packed import Answer, with_note


def steps(store: ModelStore, request: StepsRequest) -> Answer:
    opened, text = open_input(store, request)
    strategy: Strategy = Greedy()
    if request.sample:
        strategy = Sampling(request.temperature, request.top_k, request.top_p, seed=request.seed)
    settings = DecodingSettings(strategy, Limit.fixed(request.most))
    with opened.lock:
        result = analyses.steps(opened.model, text, settings, top=request.top, off=request.off)
    return result.to_dict()


def beam(store: ModelStore, request: BeamRequest) -> Answer:
    opened, text = open_input(store, request)
    strategy = BeamSearch(request.width, GNMTPenalty(request.alpha))
    settings = DecodingSettings(strategy, Limit.fixed(request.most))
    with opened.lock:
        return with_note(analyses.beam(opened.model, text, settings, off=request.off))


def cache(store: ModelStore, request: InputRequest) -> Answer:
    """The KV cache after each of the first tokens."""
    opened, text = open_input(store, request)
    with opened.lock:
        return with_note(analyses.cache(opened.model, text, length=32))
