"""Stories: their answers are what a reader would say, their splits do not meet."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from regard.data.generated.babi_stories import LENGTHS, PLACES, stories


def answered(text: str) -> str | None:
    """From the text alone: where people go, things that are held go with them; what is
    left stays.
    """
    *told, question = text.replace("?", ".").split(". ")
    where: dict[str, str] = {}
    held: dict[str, str] = {}
    for sentence in told:
        person, verb, *_, last = sentence.rstrip(".").split()
        if verb in ("went", "moved"):
            where[person] = last
        elif verb == "took":
            held[last] = person
        else:
            assert verb == "left"
            assert held.pop(last) == person
        where |= {thing: where[holder] for thing, holder in held.items()}
    return where.get(question.rstrip(".").split()[-1])


def test_answers_are_true_and_even() -> None:
    found = list(islice(stories("train"), 3000))
    assert all(answered(text) == answer for text, answer in found)
    assert all(LENGTHS[0] <= text.count(".") <= LENGTHS[1] for text, _ in found)
    counts = Counter(answer for _, answer in found)
    assert set(counts) == set(PLACES)
    assert max(counts.values()) < 2 * min(counts.values())
    things = sum("Where is the" in text for text, _ in found)
    assert 0.3 < things / len(found) < 0.6


def test_splits_do_not_meet() -> None:
    one, other = ({text for text, _ in islice(stories(split), 2000)} for split in ("train", "test"))
    assert len(one) == len(other) == 2000
    assert not one & other
    assert list(islice(stories("test", 1), 5)) == list(islice(stories("test", 1), 5))
