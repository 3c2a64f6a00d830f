"""A memory network: a story is told, a question is asked, and a word answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from regard import spec as kinds
from regard.baselines.memory_network import MemoryNetwork
from regard.errors import DataError, SettingError
from regard.models.labels import Scores, scored
from regard.models.with_tokenizer import WithText
from regard.text.tokenizer import Tokenizer

_SENTENCE = re.compile(r"[^.?!]*[^.?!\s][^.?!]*")


def sentences(text: str) -> list[str]:
    """A text at its full stops, question and exclamation marks, which are left out."""
    return [found.strip() for found in _SENTENCE.findall(text)]


class MemoryNetworkModel(WithText):
    """Answers questions about stories; made by `regard.load(folder)`."""

    model: MemoryNetwork
    spec: kinds.MemoryNetwork

    def words(self, text: str) -> list[list[int]]:
        """The ids of each sentence of a story; the last one is the question."""
        found = [row.ids for row in self.text.encode_with_template(sentences(text))]
        if len(found) < 2:
            raise DataError(
                "a story needs a sentence before its question",
                'write it like "Mary sleeps. Who sleeps?"',
            )
        return found

    def answer(self, question: str, story: str) -> Scores:
        """The probability of each word, likeliest first."""
        whole = laid_out([self.words(f"{story.strip()} . {question}")]).to(self.device)
        with torch.inference_mode():
            scores = self.model.head(self.model(*MemoryNetwork.split_inputs(whole))[0])[0]
        return scored(scores.float(), [self.text.id_to_token(i) for i in range(len(scores))])

    # ------------------------------------------------------------------ for `regard.look`
    # Positions are sentences: only analyses that need no token ids apply.

    @property
    def accepts_text(self) -> bool:
        return False

    @property
    def input_tokenizer(self) -> Tokenizer:
        raise SettingError(
            "this view goes token by token, and the model reads sentences", "look at its attention"
        )

    def labelled_input(self, text: str) -> tuple[Tensor, tuple[str, ...]]:
        return laid_out([self.words(text)]), tuple(sentences(text))


def laid_out(stories: Sequence[Sequence[Sequence[int]]], multiple: int = 1) -> Tensor:
    """[B, N + 1, S]: as `MemoryNetwork.apart` takes them; N and S are rounded up to the multiple."""
    most = -(-max(len(story) - 1 for story in stories) // multiple) * multiple
    widest = (
        -(-max(len(sentence) for story in stories for sentence in story) // multiple) * multiple
    )
    whole = torch.full((len(stories), most + 1, widest), -1)
    for row, (*told, question) in zip(whole, stories, strict=True):
        for place, sentence in [*enumerate(told), (most, question)]:
            row[place, : len(sentence)] = torch.tensor(sentence)
    return whole
