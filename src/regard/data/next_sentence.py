"""Next sentence prediction (BERT, Devlin et al. 2019): does the second text follow the first?"""

from __future__ import annotations

from regard.data.text_corruption import Ids, RandomStream


def sentence_pair(
    ids: Ids, breaks: Ids, other: Ids, other_breaks: Ids, chance: RandomStream, *, room: int
) -> tuple[Ids, Ids, int]:
    """A pair for next sentence prediction, of at most `room` tokens.

    A row is split in two where a sentence begins; half of the time the second part is taken from an
    `other` row instead. `breaks` are the positions where sentences begin. Returns both parts, and 1
    if the second is from elsewhere, else 0.
    """
    first = ids[: _sentence_break(ids, breaks, chance)]
    from_elsewhere = int(chance.numbers(1)[0] < 0.5)
    # Drawn in either case: the numbers of a row do not depend on each other.
    other_break = _sentence_break(other, other_breaks, chance)
    second = ids[len(first) :]
    if from_elsewhere:
        second = other[other_break:]
    return first, second[: room - len(first)], from_elsewhere


def _sentence_break(ids: Ids, breaks: Ids, chance: RandomStream) -> int:
    """Where a random sentence but the first begins; the middle, if there is only one."""
    number = chance.below(max(1, len(breaks) - 1), 1)[0]
    if len(breaks) > 1:
        return int(breaks[1 + number])
    return len(ids) // 2
