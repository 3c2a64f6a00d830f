"""The memory of a beam search, estimated before it begins, and a warning of its time.

A process that runs out of memory is killed without a message, so that the check has to come first.
"""

from __future__ import annotations

import warnings

from regard import spec
from regard.decode.strategy import BeamSearch, Strategy
from regard.system import memory
from regard.system.errors import WideBeamWarning

_BYTES = 4  # of a float32
# Logits, log-probabilities, candidates and their order, of all hypotheses at once.
_ROWS_OF_LOGITS = 12  # 10 were measured of an LSTM, which has nothing else
# The KV cache, and its copy while hypotheses change places.
_CACHES = 2
_WIDE = 500  # hypotheses: some ten are usual, and studies of the beam search end here
_BETTER = "above about 10, translation quality usually drops"


def require_memory(strategy: Strategy, model: spec.ModelSpec, positions: int) -> None:
    """Raises `ModelError` if the hypotheses of one sentence do not fit into memory.

    Warns of a very wide beam, which takes long and prints nothing until the first sentence is done.
    """
    if not isinstance(strategy, BeamSearch):
        return
    needed = strategy.width * bytes_per_hypothesis(model, positions)
    widest = max(1, int(strategy.width * (memory.available() or needed) / max(1, needed)))
    memory.require_bytes(
        needed,
        f"{strategy.width:,} hypotheses of up to {positions:,} tokens",
        f"use a beam of {widest:,} at most: {_BETTER}",
    )
    if strategy.width > _WIDE:
        message = (
            f"a beam search of width {strategy.width:,} over up to {positions:,} steps may take "
            f"hours\n  → use a smaller --beam: {_BETTER}"
        )
        warnings.warn(WideBeamWarning(message), stacklevel=2)


def bytes_per_hypothesis(model: spec.ModelSpec, positions: int) -> int:
    """Estimated memory of one hypothesis: the logits of a step, and its KV cache."""
    vocabulary = max((tokens.vocabulary for tokens in model.embeddings.values()), default=0)
    cache = (model.kv_cache_size or 0) * positions
    return _BYTES * (_ROWS_OF_LOGITS * vocabulary + _CACHES * cache)
