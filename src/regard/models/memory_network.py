"""An end-to-end memory network: a story and a question in, one word as the answer out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.padding import pad_rows, round_up
from regard.data.text.tokenizer import Text, Tokenizer
from regard.look.inspectable import Reading
from regard.models.base import TokenizerModel
from regard.models.inputs.input_warnings import warn_of_inputs
from regard.models.inputs.token_batches import smaller_limit, text_list, texts_to_truncate
from regard.models.labels import Scores, label_scores
from regard.system.errors import DataError, SettingError
from regard.wirings.baselines.memory_network import MemoryNetwork

_SENTENCE = re.compile(r"[^.?!]*[^.?!\s][^.?!]*")
_PADDING = -1


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, without their full stops, question and exclamation marks."""
    return [sentence.strip() for sentence in _SENTENCE.findall(text)]


class MemoryNetworkModel(TokenizerModel):
    """Answers questions about stories (Sukhbaatar et al. 2015); made by `regard.load(folder)`."""

    evaluations = ("stories",)
    model: MemoryNetwork
    spec: kinds.MemoryNetwork

    def sentence_ids(self, text: str) -> list[list[int]]:
        """The token ids of each sentence of a story; the last sentence is the question."""
        encodings = self.tokenizer.encode_with_template(split_sentences(text))
        if len(encodings) < 2:
            raise DataError(
                "a story needs a sentence before its question",
                'write it like "Mary sleeps. Who sleeps?"',
            )
        return [encoding.ids for encoding in encodings]

    def text_tensors(
        self, texts: Text | Sequence[Text], max_length: int | None, truncation: bool
    ) -> dict[str, Tensor]:
        """The tensors of stories whose last sentence is the question."""
        max_length = smaller_limit(max_length)
        stories = [self.sentence_ids(text) for text in text_list(texts)]
        if not stories:
            raise DataError("the list of stories is empty", "pass a story, or a list of stories")
        for story in stories:
            # Tokens of a sentence: its end may be cut off, its words are a set.
            for i in texts_to_truncate([len(s) for s in story], max_length, truncation, self.say):
                story[i] = story[i][:max_length]
        names = ("story", "question", "story_mask", "question_mask")
        return dict(zip(names, MemoryNetwork.split_inputs(pad_stories(stories)), strict=True))

    def answer(self, question: str, story: str) -> Scores:
        """Word → probability of being the answer, likeliest first."""
        # The full stop ends the story's last sentence, should it have none.
        text = f"{story.strip()} . {question}"
        sentences = self.sentence_ids(text)
        self.warn_of_input(text)
        rows = pad_stories([sentences]).to(self.device)
        with torch.inference_mode():
            hidden, _ = self.model(*MemoryNetwork.split_inputs(rows))
            logits = require_finite(self.model.head(hidden)[0].float(), self.model)  # [V]
        # An answer is one word: a softmax over the vocabulary, without padding and the like.
        words = [self.tokenizer.id_to_token(i) for i in range(len(logits))]
        special = set(self.tokenizer.special_tokens.values())
        scores = label_scores(logits, words)
        return {word: score for word, score in scores.items() if word not in special}

    def warn_of_input(self, text: str) -> None:
        story = [id for ids in self.sentence_ids(text) for id in ids]
        warn_of_inputs(self.tokenizer, [text], [story], self.coverage, unit="story")

    # ------------------------------------------------------------------ for `regard.look`
    # Positions are sentences: only analyses that need no token ids apply.

    @property
    def accepts_text(self) -> bool:
        return False

    @property
    def input_tokenizer(self) -> Tokenizer:
        raise SettingError(
            "this view needs tokens, but the model reads whole sentences", "use the view attention"
        )

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def read_text(self, text: str) -> Reading:
        return Reading(pad_stories([self.sentence_ids(text)]), tuple(split_sentences(text)))


def pad_stories(stories: Sequence[Sequence[Sequence[int]]], multiple: int = 1) -> Tensor:
    """Stories as one tensor [B, N + 1, S], padded with -1, the question in the last row.

    N sentences of S tokens, both rounded up to a multiple; `MemoryNetwork.split_inputs` takes it.
    """
    count = round_up(max(len(story) - 1 for story in stories), multiple)
    rows: list[Sequence[int]] = []
    for *story, question in stories:
        empty: list[Sequence[int]] = [[]] * (count - len(story))
        rows += [*story, *empty, question]
    padded, _ = pad_rows(rows, _PADDING, pad_to_multiple_of=multiple)
    return padded.view(len(stories), count + 1, -1)
