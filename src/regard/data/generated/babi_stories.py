"""Stories with questions in the style of bAbI's first two tasks (Weston et al., 2015), generated.

People go from place to place, take things along and leave them there. A question asks where someone
is (one supporting fact) or where a thing is (two: who had it last, and where that was). Splits have
seeds of their own, and no story comes twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from regard.data.generated.algorithmic_tasks import digest

PEOPLE = ("Mary", "John", "Sandra", "Daniel")
PLACES = ("kitchen", "garden", "hallway", "office", "bedroom", "bathroom")
THINGS = ("ball", "milk", "apple")
SPLITS = ("train", "valid", "test")
LENGTHS = (4, 12)  # sentences of a story, both included
MOVES = 0.5  # the probability that a sentence is a move, where a thing could be taken or left


@dataclass
class _World:
    """The state of a story's world."""

    person_place: dict[str, str] = field(default_factory=dict)  # of people mentioned so far
    carrier: dict[str, str] = field(default_factory=dict)  # thing → who carries it
    thing_place: dict[str, str] = field(default_factory=dict)  # thing → where it was left

    def next_event(self, rng: random.Random) -> str:
        """The sentence of a random event, which changes the world."""
        person = rng.choice(PEOPLE)
        if person not in self.person_place or rng.random() < MOVES:
            others = [place for place in PLACES if place != self.person_place.get(person)]
            self.person_place[person] = rng.choice(others)
            verb = rng.choice(("went", "moved"))
            return f"{person} {verb} to the {self.person_place[person]}."
        here = self.person_place[person]
        # A thing that nobody has touched yet may be anywhere.
        free = [
            thing
            for thing in THINGS
            if thing not in self.carrier and self.thing_place.get(thing, here) == here
        ]
        carried = [thing for thing, carrier in self.carrier.items() if carrier == person]
        if not free and not carried:
            return self.next_event(rng)  # another person, or a move
        thing = rng.choice([*free, *carried])
        if thing in carried:
            del self.carrier[thing]
            self.thing_place[thing] = here
            return f"{person} left the {thing}."
        self.carrier[thing] = person
        return f"{person} took the {thing}."

    def question(self, rng: random.Random) -> tuple[str, str]:
        """A question that the story answers, and its answer."""
        # What somebody carries is where that person is.
        places = dict(self.thing_place)
        for thing, person in self.carrier.items():
            places[thing] = self.person_place[person]
        answers = self.person_place
        if places and rng.random() < 0.5:
            answers = {f"the {thing}": place for thing, place in places.items()}
        subject = rng.choice(list(answers))
        return f"Where is {subject}?", answers[subject]


def stories(split: str, seed: int = 0) -> Iterator[tuple[str, str]]:
    """An endless stream of stories that end with a question, and its answer."""
    # A string as the seed: Python hashes it with SHA-512, the same in every process.
    rng = random.Random(f"stories {seed} {SPLITS.index(split)}")
    digests: set[int] = set()  # of earlier stories: shorter than the texts
    while True:
        world = _World()
        events = [world.next_event(rng) for _ in range(rng.randint(*LENGTHS))]
        question, answer = world.question(rng)
        text = " ".join([*events, question])
        key = digest(text)
        if key not in digests:
            digests.add(key)
            yield text, answer
