"""Pretrained word vectors (word2vec's and GloVe's text format) to initialize embeddings with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from regard.data import text_files
from regard.data.text.tokenizer import Tokenizer
from regard.system.errors import DataError


def read_vectors(
    path: Path, tokenizer: Tokenizer, table: Tensor, say: Callable[[str], None]
) -> int:
    """Initialize the rows of an embedding `table` [V, D] whose words the file has; count them.

    A token stands for the word it spells, without the space mark `▁`; a word that the file has only
    in lower case gets that vector. Vectors are scaled to the standard deviation of the table, so
    that they do not differ from the rows that stay as they are.
    """
    rows: dict[str, list[int]] = {}  # spelling → token ids
    for token, index in tokenizer.vocabulary.items():
        word = token.removeprefix("▁")
        for spelling in {word, word.lower()}:
            rows.setdefault(spelling, []).append(index)
    exact: set[int] = set()  # ids whose word the file has in the same case
    vectors: dict[int, Tensor] = {}
    for number, line in enumerate(text_files.lines(path), start=1):
        # One line is: word, space, numbers with spaces between.
        word, _, rest = line.rstrip().partition(" ")
        if word not in rows or (number == 1 and rest.strip().isdigit()):
            continue  # a word we do not have, or word2vec's first line "words dimensions"
        try:
            vector = torch.tensor([float(value) for value in rest.split()])
        except ValueError:
            raise DataError(
                f"{path}: line {number} is not a word and numbers",
                "give word2vec or GloVe text format",
            ) from None
        if len(vector) != table.shape[1]:
            raise DataError(
                f"{path}: line {number} has {len(vector)} numbers, the model is "
                f"{table.shape[1]} wide",
                f"set d_model = {len(vector)}",
            )
        for index in rows[word]:
            same_case = tokenizer.id_to_token(index).removeprefix("▁") == word
            if same_case or index not in exact:
                vectors[index] = vector
            if same_case:
                exact.add(index)
    if not vectors:
        raise DataError(
            f"{path} has no vector for any token of the vocabulary",
            'learn a vocabulary of words (tokenizer = "words", --tokenizer words), or give other '
            "vectors",
        )
    ids = sorted(vectors)
    values = torch.stack([vectors[i] for i in ids])  # [rows, D]
    table[ids] = values * (table.std() / values.std().clamp_min(1e-12))
    say(f"word vectors: {len(ids):,} of {len(tokenizer):,} tokens start from {path.name}")
    return len(ids)
