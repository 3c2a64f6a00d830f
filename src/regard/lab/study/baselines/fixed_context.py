"""The fixed context vector as a bottleneck: accuracy over the length of the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from regard.data.generated.algorithmic_tasks import LETTERS, Copying
from regard.families.presets import preset
from regard.lab.study.figure import Shown, chart, curve_table, mean
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    END,
    NO_TARGET,
    START,
    Batch,
    Vocabulary,
    evaluate,
    pad,
    trained,
)
from regard.look.drawing import Axis

LENGTHS = [2, 4, 6, 8, 10, 12]  # all within the lengths of training
MODELS = {
    "GRU, one vector": "gru:tiny",
    "GRU with attention": "bahdanau:tiny",
    "Transformer": "transformer:tiny",
}
WORDS = Vocabulary(LETTERS[:10])


class FixedContext(Study):
    """An encoder that gives the decoder one vector of fixed size gets worse with the length of the
    source; attention over all its states does not.

    Encoder–decoders of width 64 that learn to copy 10 letters in texts of 1 to 12: a GRU whose
    decoder starts from the last state, the same with additive attention, and a Transformer; right
    tokens on new texts of each length.
    """

    name = "fixed_context"
    source = "Cho et al. 2014b, Section 4; Bahdanau et al. 2015, Figure 2"

    def measure(self, effort: Effort) -> Numbers:
        # Enough for attention to be right nearly everywhere.
        steps = effort.choose(200, 1500)
        accuracy = effort.each(MODELS, lambda name, seed: _accuracy(MODELS[name], seed, steps))
        return {"lengths": LENGTHS, "accuracy": accuracy}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if from the shortest to the longest texts the model without attention loses 20
        points or more, and at least 10 more than the GRU with attention. Within limits if it loses
        20 points, but attention nearly as many."""
        loss = {
            name: mean(run[0] - run[-1] for run in runs)
            for name, runs in numbers["accuracy"].items()
        }
        vector = loss["GRU, one vector"]
        attention = loss["GRU with attention"]
        lengths = numbers["lengths"]
        reason = (
            f"From {lengths[0]} to {lengths[-1]} letters, accuracy falls by {vector:.0f} points "
            f"with one vector, by {attention:.0f} with attention and by "
            f"{loss['Transformer']:.0f} in the Transformer."
        )
        # What both lose is the difficulty of long texts, not the bottleneck.
        return judge(vector - attention >= 10, vector >= 20, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        lengths = numbers["lengths"]
        accuracy = numbers["accuracy"]
        y = Axis("right tokens, %", low=0.0, high=100.0)
        return [
            chart("Copying over the length of the text", Axis("letters"), y, lengths, accuracy),
            curve_table("Right tokens by length, %", "", map(str, lengths), accuracy),
        ]


def _accuracy(name: str, seed: int, steps: int) -> list[float]:
    # One layer each: a deeper GRU would have a state for each layer, not one vector.
    changes: dict[str, Any] = {"d_model": 64, "layers": 1, "dropout": 0.0}
    if name.startswith("transformer"):
        changes |= {"heads": 4, "d_ff": 256}
    model = preset(name, len(WORDS), 32, **changes)
    module = trained(model, seed, _stream(1, LENGTHS[-1], "train", seed), steps)
    # 100 texts of exactly each length
    batches = [next(_stream(length, length, "test", seed=0, rows=100)) for length in LENGTHS]
    return [evaluate(module, [batch]).accuracy for batch in batches]


def _stream(shortest: int, longest: int, split: str, seed: int, rows: int = 32) -> Iterator[Batch]:
    """Batches of copying; of lengths with few different texts, all are for training."""
    # The task refuses lengths of which there are too few texts to split.
    task = Copying(shortest, max(longest, 3))
    examples = (text.split() for text, _ in task.examples(split if longest > 3 else "train", seed))
    texts = (words for words in examples if len(words) <= longest)
    while True:
        yield copy_batch(list(islice(texts, rows)))


def copy_batch(texts: Sequence[Sequence[str]]) -> Batch:
    """The same letters as source and target; letters are mapped onto the first ten."""
    ids = [WORDS.encode([LETTERS[LETTERS.index(word) % 10] for word in words]) for words in texts]
    ended = [[*row, END] for row in ids]
    # Teacher forcing: the decoder reads the text one place behind.
    return Batch(pad([[START, *row] for row in ids]), pad(ended, NO_TARGET), pad(ended))
