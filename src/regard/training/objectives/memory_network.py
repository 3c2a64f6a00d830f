"""Story question answering with a memory network: the word that answers a question.

Without a file, stories are generated (as in bAbI). A file has, on each line, a story that ends with
its question, a tab, and the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec
from regard.data import labelled
from regard.data.batching import Batch, Rows
from regard.data.generated import babi_stories
from regard.data.labelled import LabelledText
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.data.text.tokenizer_training import word_level_json
from regard.data.training_coverage import InputStatistics, row_statistics
from regard.models.memory_network import MemoryNetworkModel, pad_stories, split_sentences
from regard.system import disk
from regard.training import model_spec
from regard.training.data.labelled_text import labelled_splits
from regard.training.data.source import Position, Source
from regard.training.data.text_sources import LabelledData
from regard.training.objectives.classification import AgainstMajority
from regard.training.setup import Setup
from regard.wirings.baselines.memory_network import MemoryNetwork


@dataclass(frozen=True)
class StoryRow:
    """Token ids of a story's sentences, the question last, and of its answer."""

    sentences: list[list[int]]
    answer: int


class Stories(Source):
    """Stories with a question and its answer, in batches of similar lengths."""

    unit = "stories"
    rounds_lengths = True
    model: MemoryNetworkModel
    data: LabelledData

    def __init__(self, model: MemoryNetworkModel, data: LabelledData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.train_examples = list(data.train)
        sets = {"train": self.train_examples, **data.sets}
        self.splits = {name: self._rows(examples) for name, examples in sets.items()}

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> LabelledData:
        splits = labelled_splits(setup, labelled.labelled_texts, babi_stories.stories)
        if base is not None:
            return LabelledData(splits.train, splits.others, [], base.tokenizer)
        path = setup.run_folder.folder / "tokenizer.json"
        if not path.exists():
            texts = (
                " ".join([*split_sentences(example.text), example.label])
                for example in splits.train
            )
            # Words, since answers are single words; no [CLS], since a sentence is a bag of words.
            disk.write_file(path, word_level_json(texts, cls_token=False))
        tokenizer = open_encoder_tokenizer(setup.run_folder.folder)
        return LabelledData(splits.train, splits.others, [], tokenizer)

    @classmethod
    def wrap(
        cls, model: Any, description: Any, config: dict[str, Any], data: LabelledData
    ) -> MemoryNetworkModel:
        return MemoryNetworkModel(model, description, data.tokenizer, config)

    def _rows(self, examples: Sequence[LabelledText]) -> list[StoryRow]:
        # An answer is one word, which is one token.
        answers = self.model.tokenizer.encode_with_template([example.label for example in examples])
        return [
            StoryRow(self.model.sentence_ids(example.text), answer.ids[0])
            for example, answer in zip(examples, answers, strict=True)
        ]

    def lengths(self, split: str) -> NDArray[Any]:
        # Sentences of a story are rows of one tensor, all padded to the longest: its area is what
        # it costs.
        stories = [row.sentences for row in self.splits[split]]
        return np.array([[len(story) * max(map(len, story))] for story in stories])

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        """`text` [B, N + 1, S], the question last, and `labels` [B]."""
        selected = [self.splits[split][i] for i in rows]
        # Sentences and stories are padded with −1.
        text = pad_stories([row.sentences for row in selected], self.setup.pad_to_multiple_of)
        labels = torch.tensor([row.answer for row in selected])
        return Batch({"text": text, "labels": labels}, len(selected), np.asarray(rows))

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        examples = [(row, self.train_examples[row]) for row in rows]
        return [{"row": row, "text": one.text, "answer": one.label} for row, one in examples]

    def statistics(self) -> InputStatistics:
        rows = self.splits["train"]
        stories = ([id for ids in row.sentences for id in ids] for row in rows)
        return row_statistics(stories, len(self.data.tokenizer))


class StoryQuestions(AgainstMajority):
    """The answer is a class of the whole vocabulary (Sukhbaatar et al. 2015, Section 2.1)."""

    name = "stories"
    unit = "stories"
    source_class = Stories
    spec_classes = (spec.MemoryNetwork,)
    input_names = ("story",)
    describes_head = False

    @classmethod
    def has_head(cls, description: Any) -> bool:
        return True

    @classmethod
    def head_config(cls, data: LabelledData) -> dict[str, Any]:
        return {}

    @classmethod
    def describe(cls, setup: Setup, data: LabelledData) -> spec.Model:
        return model_spec.describe(setup.recipe, len(data.tokenizer))

    def logits(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Of the answer, [B, V], and the auxiliary losses."""
        return answer_logits(self.trained_model.model, tensors["text"])


def answer_logits(model: Any, text: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of the answers to stories [B, N + 1, S], whose last sentence is the question."""
    hidden, auxiliary = model(*MemoryNetwork.split_inputs(text))
    return model.head(hidden), auxiliary
