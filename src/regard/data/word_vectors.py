"""Word vectors in the text format of word2vec and GloVe, as a start for embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from regard.data import text_files
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer


def read_vectors(
    path: Path, tokenizer: Tokenizer, table: Tensor, say: Callable[[str], None]
) -> int:
    """Fills the rows of `table` [V, D] whose word the file has; the others stay as they are. Returns how many it had.

    A token stands for the word it spells: the space mark `▁` is left off, and a word that the file has only in lower
    case is taken in lower case. Vectors are scaled to the table's own spread, so that found and other rows are alike.
    """
    rows: dict[str, list[int]] = {}
    for token, index in tokenizer.vocabulary.items():
        word = token.removeprefix("▁")
        for spelling in {word, word.lower()}:
            rows.setdefault(spelling, []).append(index)
    exact: set[int] = set()
    found: dict[int, Tensor] = {}
    for number, line in enumerate(text_files.lines(path), start=1):
        word, _, rest = line.rstrip().partition(" ")
        if word not in rows or (number == 1 and rest.strip().isdigit()):
            continue  # a word we do not have, or word2vec's first line "words dimensions"
        vector = _vector(rest, table.shape[1], path, number)
        for index in rows[word]:
            spelled = tokenizer.tokens([index])[0].removeprefix("▁") == word
            if spelled or index not in exact:
                found[index] = vector
            if spelled:
                exact.add(index)
    if not found:
        raise DataError(
            f"{path} has no vector for any token of the vocabulary",
            'use `tokenizer = "words"`, or other vectors',
        )
    filled = sorted(found)
    vectors = torch.stack([found[row] for row in filled])
    table[filled] = vectors * (table.std() / vectors.std().clamp_min(1e-12))
    say(f"word vectors: {len(found):,} of {len(tokenizer):,} tokens start from {path.name}")
    return len(found)


def _vector(text: str, width: int, path: Path, number: int) -> Tensor:
    try:
        values = [float(value) for value in text.split()]
    except ValueError:
        raise DataError(
            f"{path}: line {number} is not a word and numbers", "give word2vec or GloVe text format"
        ) from None
    if len(values) != width:
        raise DataError(
            f"{path}: line {number} has {len(values)} numbers, the model is {width} wide",
            f"set d_model = {len(values)}",
        )
    return torch.tensor(values)
