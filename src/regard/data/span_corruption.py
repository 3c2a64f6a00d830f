"""Span corruption (T5): spans of tokens become sentinels, and a target that spells them out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.data.text_corruption import Ids, RandomStream
from regard.system.errors import DataError


def corrupt_spans(
    ids: Ids, chance: RandomStream, *, share: float, mean: float, sentinels: Sequence[int]
) -> tuple[Ids, Ids]:
    """Span corruption: spans are replaced by one sentinel each (Raffel et al., 2020, figure 2).

    The spans have `mean` length and `share` of all tokens. The target is every sentinel followed by
    its span, and one more sentinel at the end.
    """
    # At least one token is hidden, and at least one stays.
    hidden = min(max(1, round(share * len(ids))), len(ids) - 1)
    visible = len(ids) - hidden
    count = min(max(1, round(hidden / mean)), hidden, visible)
    if count >= len(sentinels):
        raise DataError(
            f"{count} spans need {count + 1} sentinels, but the tokenizer has {len(sentinels)}",
            "use a shorter context, or longer spans",
        )
    # Visible and hidden stretches alternate, and a visible one comes first.
    visible_lengths = _random_partition(visible, count, chance)
    hidden_lengths = _random_partition(hidden, count, chance)
    corrupted: list[int] = []
    target: list[int] = []
    position = 0
    for i in range(count):
        start = position + visible_lengths[i]
        end = start + hidden_lengths[i]
        corrupted += [*ids[position:start], sentinels[i]]
        target += [sentinels[i], *ids[start:end]]
        position = end
    target.append(sentinels[count])
    return np.array(corrupted, dtype=np.int64), np.array(target, dtype=np.int64)


def _random_partition(total: int, count: int, chance: RandomStream) -> Ids:
    """`count` lengths of at least 1 that add up to `total`."""
    # Random borders inside, as in T5's random_segmentation, and the total as the last one.
    ends = np.append(chance.some(total - 1, count - 1) + 1, total)
    return np.diff(ends, prepend=0)
