"""Short stories and questions about them, in the style of the first two tasks of bAbI (Weston et al. 2015), generated.

People go from place to place, take things along and leave them there. A question asks where someone is, which one sentence
tells, or where a thing is, which takes two: who had it last, and where that was. Splits are seeded apart, and no story comes
twice.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

PEOPLE = ("Mary", "John", "Sandra", "Daniel")
PLACES = ("kitchen", "garden", "hallway", "office", "bedroom", "bathroom")
THINGS = ("ball", "milk", "apple")
SPLITS = ("train", "valid", "test")
LENGTHS = (4, 12)  # sentences of a story, both included
MOVES = (
    0.5  # the probability that a sentence tells where someone goes, if something else could be told
)


@dataclass
class _World:
    where: dict[str, str] = field(default_factory=dict)  # of people who have been told of
    held: dict[str, str] = field(default_factory=dict)  # by whom each thing is
    lies: dict[str, str] = field(default_factory=dict)  # where things were left

    def tell(self, chance: random.Random) -> str:
        """What happens next."""
        person = chance.choice(PEOPLE)
        if person not in self.where or chance.random() < MOVES:
            self.where[person] = chance.choice(
                [place for place in PLACES if place != self.where.get(person)]
            )
            return f"{person} {chance.choice(('went', 'moved'))} to the {self.where[person]}."
        here = self.where[person]
        free = [t for t in THINGS if t not in self.held and self.lies.get(t, here) == here]
        own = [thing for thing, holder in self.held.items() if holder == person]
        thing = chance.choice([*free, *own]) if free or own else None
        if thing is None:
            return self.tell(chance)
        if thing in own:
            self.lies[thing] = self.where[self.held.pop(thing)]
            return f"{person} left the {thing}."
        self.held[thing] = person
        return f"{person} took the {thing}."

    def ask(self, chance: random.Random) -> tuple[str, str]:
        """A question that has an answer, and the answer."""
        found = {thing: self.where[person] for thing, person in self.held.items()}
        things = {f"the {thing}": place for thing, place in {**self.lies, **found}.items()}
        asked = things if things and chance.random() < 0.5 else self.where
        who = chance.choice(list(asked))
        return f"Where is {who}?", asked[who]


def stories(split: str, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Stories that end with a question, and its answer, without end."""
    chance = random.Random(f"stories {seed} {SPLITS.index(split)}")
    seen: set[bytes] = set()
    while True:
        world = _World()
        told = [world.tell(chance) for _ in range(chance.randint(*LENGTHS))]
        question, answer = world.ask(chance)
        text = " ".join([*told, question])
        mark = hashlib.blake2b(text.encode(), digest_size=8).digest()
        if mark not in seen:
            seen.add(mark)
            yield text, answer


def write_tsv(out: IO[str], split: str, lines: int, *, seed: int = 0) -> None:
    """Story and question, tab, answer: what `data/labelled` reads."""
    for _, (text, answer) in zip(range(lines), stories(split, seed), strict=False):
        out.write(f"{text}\t{answer}\n")
