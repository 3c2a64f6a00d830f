"""Token masking for masked language modelling (BERT): 80 % masks, 10 % others, 10 % unchanged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regard.data.padding import IGNORED
from regard.data.text_corruption import Ids, RandomStream


@dataclass(frozen=True)
class MaskingRates:
    """Of the tokens to predict, the shares replaced by the mask and by a random token.

    The rest stay as they are (Devlin et al., 2019, section 3.1).
    """

    masked: float = 0.8
    swapped: float = 0.1  # the other 10 % stay as they are


def mask_tokens(
    ids: Ids, chance: RandomStream, *, share: float, token: int, ordinary: Ids, rates: MaskingRates
) -> tuple[Ids, Ids]:
    """Masking: `share` of the tokens are to be predicted.

    Most of these become the mask `token`, some one of the `ordinary` tokens, some stay as they are.
    Returns the corrupted tokens, and the labels, IGNORED where nothing is to be predicted.
    """
    positions = chance.some(len(ids), max(1, round(share * len(ids))))
    # All are drawn, whatever becomes of a token, so that the stream has one length.
    draws = chance.numbers(len(positions))
    random_tokens = ordinary[chance.below(len(ordinary), len(positions))]
    originals = ids[positions]
    labels = np.full_like(ids, IGNORED)
    labels[positions] = originals
    swapped = np.where(draws < rates.masked + rates.swapped, random_tokens, originals)
    corrupted = ids.copy()
    corrupted[positions] = np.where(draws < rates.masked, token, swapped)
    return corrupted, labels
