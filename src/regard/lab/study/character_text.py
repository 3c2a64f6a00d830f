"""Text as characters, for small language models: the built-in language, or a file of the user's."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.generated import builtin
from regard.lab.study.training_run import Batch

TRAINING_SENTENCES = 20_000
TEST_SENTENCES = 1000
LENGTH = 64  # characters of a row


class CharacterText(NamedTuple):
    """A text with its characters as tokens, in a part for training and one held out."""

    name: str
    characters: tuple[str, ...]
    training: Tensor  # [N]
    test: Tensor

    def batches(
        self, seed: int, rows: int = 16, *, characters: int | None = None, length: int = LENGTH
    ) -> Iterator[Batch]:
        """Endless random windows of the training text, or of its first so many characters."""
        text = self.training[:characters]
        generator = torch.Generator().manual_seed(seed)
        while True:
            # Windows overlap and may begin anywhere, as in nanoGPT.
            starts = torch.randint(0, len(text) - length - 1, (rows,), generator=generator)
            yield self._windows(text, starts, length)

    def held_out(self, rows: int = 64, *, length: int = LENGTH) -> Batch:
        """Windows of the held-out text, next to each other."""
        rows = min(rows, (len(self.test) - 1) // length)
        return self._windows(self.test, torch.arange(rows) * length, length)

    def _windows(self, text: Tensor, starts: Tensor, length: int) -> Batch:
        # Each position predicts the character after it.
        windows = text[starts[:, None] + torch.arange(length + 1)]  # [rows, length + 1]
        return Batch(windows[:, :-1], windows[:, 1:])


@cache
def character_text() -> CharacterText:
    """The English of the built-in language; with $REGARD_DATA, Shakespeare from text/."""
    training = _join("train", TRAINING_SENTENCES)
    test = _join("test", TEST_SENTENCES)
    name = "the built-in language"
    root = os.environ.get("REGARD_DATA")
    file = Path(root) / "text" / "tinyshakespeare.txt.gz" if root else None
    if file is not None and file.is_file():
        text = gzip.decompress(file.read_bytes()).decode()
        name = "Shakespeare"
        training = text[: len(text) * 9 // 10]
        test = text[len(training) :]
    # Of both parts: a character that only the test has would have no id.
    characters = tuple(sorted(set(training + test)))
    ids = {character: number for number, character in enumerate(characters)}
    return CharacterText(
        name,
        characters,
        torch.tensor([ids[c] for c in training]),
        torch.tensor([ids[c] for c in test]),
    )


def _join(split: str, count: int) -> str:
    return "\n".join(sentence.source for sentence in islice(builtin.sentences(split), count))
