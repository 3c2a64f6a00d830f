"""Limits of decoding: the memory of a beam search, and warnings of its time and of long outputs.

A process that runs out of memory is killed without a message, so that the check has to come first.
"""

from __future__ import annotations

from collections.abc import Sequence

from regard import spec
from regard.decode.strategy import BeamSearch, Hypothesis, Strategy
from regard.system import memory
from regard.system.errors import CutOffOutputWarning, LongOutputWarning, WideBeamWarning, warn

_BYTES = 4  # of a float32
# Logits, log-probabilities, candidates and their order, of all hypotheses at once.
_ROWS_OF_LOGITS = 12  # 10 were measured of an LSTM, which has nothing else
# The KV cache, and its copy while hypotheses change places.
_CACHES = 2
_WIDE = 500  # hypotheses: some ten are usual, and studies of the beam search end here
_LONG = 10_000  # tokens of one output
_BETTER = "above about 10, translation quality usually drops"


def require_memory(strategy: Strategy, model: spec.ModelSpec, positions: int) -> None:
    """Raises `ModelError` if the hypotheses of one sentence do not fit into memory.

    Warns of a very wide beam, which takes long and prints nothing until the first sentence is done.
    """
    if not isinstance(strategy, BeamSearch):
        return
    vocabulary = max((tokens.vocabulary for tokens in model.embeddings.values()), default=0)
    cache = (model.kv_cache_size or 0) * positions
    needed = strategy.width * _BYTES * (_ROWS_OF_LOGITS * vocabulary + _CACHES * cache)
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
        warn(WideBeamWarning(message))


def warn_of_cut_off(hypotheses: Sequence[Hypothesis], repair: str) -> None:
    """Warns once of outputs that have no end token before the length limit."""
    cut_off = sum(not hypothesis.finished for hypothesis in hypotheses)
    if cut_off:
        message = (
            f"{cut_off:,} of {len(hypotheses):,} outputs reached the length limit and are cut off\n"
            f"  → {repair}"
        )
        warn(CutOffOutputWarning(message))


def warn_of_long_output(max_new_tokens: int) -> None:
    """Warns of a limit that a model without an end token runs into, one token after the other."""
    if max_new_tokens > _LONG:
        message = (
            f"up to {max_new_tokens:,} tokens are generated for each prompt, which may take hours\n"
            "  → use a smaller --max-new-tokens"
        )
        warn(LongOutputWarning(message))
