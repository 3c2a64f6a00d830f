"""Story question answering with a memory network: the word that answers a question.

Without a file, stories are generated (as in bAbI). A file has, on each line, a story that ends with
its question, a tab, and the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import disk, spec
from regard.baselines.memory_network import MemoryNetwork
from regard.data import babi_stories, labelled
from regard.data.batching import Batch, BatchSampler, Rows, batch_indices
from regard.data.labelled import LabelledText
from regard.data.training_coverage import InputStatistics, row_statistics
from regard.families import folder as folders
from regard.metrics.classification import ClassificationScore, classification_score
from regard.metrics.perplexity import corpus_nll
from regard.metrics.scores import AnyScore
from regard.models.memory_network import MemoryNetworkModel, pad_stories, split_sentences
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import open_encoder_tokenizer
from regard.text.tokenizer_training import word_level_json
from regard.training import model_spec
from regard.training.data.labelled_text import Sets, labelled_splits
from regard.training.objectives.classification import against_majority
from regard.training.objectives.head_objective import EVALUATION_BATCH_FACTOR
from regard.training.objectives.label_smoothed_cross_entropy import cross_entropy
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup


@dataclass(frozen=True)
class StoryRow:
    """Token ids of a story's sentences, the question last, and of its answer."""

    sentences: list[list[int]]
    answer: int


@dataclass(frozen=True)
class StoryData:
    """Stories by split, and the tokenizer of their words."""

    sets: Sets
    tokenizer: Tokenizer


class StoryQuestions(Objective):
    """Batches of stories of similar lengths."""

    name = "stories"
    unit = "stories"
    model_classes = (MemoryNetworkModel,)
    spec_classes = (spec.MemoryNetwork,)
    input_names = ("story",)
    trained_model: MemoryNetworkModel
    data: StoryData

    def __init__(self, model: MemoryNetworkModel, data: StoryData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.network = model
        self.train_examples = data.sets["train"]
        self.train_rows = self.rows(self.train_examples)
        self.validation_rows = self.rows(data.sets.get("valid", []))
        setup.say(
            f"data: {len(self.train_rows):,} stories to train on, "
            f"{len(self.validation_rows):,} to validate"
        )

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> StoryData:
        sets = labelled_splits(setup, labelled.labelled_texts, babi_stories.stories).lists()
        if base is not None:
            return StoryData(sets, base.tokenizer)
        path = setup.run_folder.folder / "tokenizer.json"
        if not path.exists():
            texts = (
                " ".join([*split_sentences(example.text), example.label])
                for example in sets["train"]
            )
            # Words, since answers are single words; no [CLS], since a sentence is a bag of words.
            disk.write_file(path, word_level_json(texts, cls_token=False))
        return StoryData(sets, open_encoder_tokenizer(setup.run_folder.folder))

    @classmethod
    def describe(cls, setup: Setup, data: StoryData) -> spec.Model:
        return model_spec.describe(setup.recipe, len(data.tokenizer))

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: StoryData, setup: Setup
    ) -> MemoryNetworkModel:
        config = folders.describe(description)
        return MemoryNetworkModel(model, description, data.tokenizer, config)

    # --- training ---------------------------------------------------------------------------------

    def input_statistics(self) -> InputStatistics:
        stories = ([id for ids in row.sentences for id in ids] for row in self.train_rows)
        return row_statistics(stories, len(self.data.tokenizer))

    @property
    def model(self) -> MemoryNetwork:
        return self.network.model

    def rows(self, examples: Sequence[LabelledText]) -> list[StoryRow]:
        # An answer is one word, which is one token.
        answers = self.network.tokenizer.encode_with_template(
            [example.label for example in examples]
        )
        return [
            StoryRow(self.network.sentence_ids(example.text), answer.ids[0])
            for example, answer in zip(examples, answers, strict=True)
        ]

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, indices in self._order().iterate(epoch, index):
            yield (now, i + 1), self.collate(self.train_rows, indices)

    def batches_per_epoch(self) -> int:
        return len(self._order().batches(0))

    def _order(self) -> BatchSampler:
        return BatchSampler(
            _lengths(self.train_rows),
            self.settings.batch_tokens,
            seed=self.settings.seed,
            multiple=self.pad_to_multiple_of,
        )

    def collate(self, rows: Sequence[StoryRow], indices: Rows) -> Batch:
        """`text` [B, N + 1, S], the question last, and `labels` [B]."""
        selected = [rows[i] for i in indices]
        # Sentences and stories are padded with −1.
        text = pad_stories([row.sentences for row in selected], self.pad_to_multiple_of)
        labels = torch.tensor([row.answer for row in selected])
        return Batch({"text": text, "labels": labels}, len(selected), np.asarray(indices))

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits, auxiliary = self.logits(tensors)
        loss, nll = cross_entropy(logits, tensors["labels"], self.settings.label_smoothing)
        return self.with_auxiliary(loss, auxiliary, len(tensors["labels"])), nll

    def logits(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Of the answer, [B, V], and the auxiliary losses."""
        hidden, auxiliary = self.model(*MemoryNetwork.split_inputs(tensors["text"]))
        return self.model.head(hidden), auxiliary

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        examples = []
        for row in rows:
            example = self.train_examples[row]
            examples.append({"row": row, "text": example.text, "answer": example.label})
        return examples

    # --- validation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if not self.validation_rows:
            return None
        nll, count = corpus_nll(self._batch_nlls(autocast))
        return {"loss": nll / count, **vars(self.score(self.validation_rows, autocast))}

    def _batch_nlls(self, autocast: AbstractContextManager[Any]) -> Iterator[tuple[Tensor, int]]:
        for batch in self.evaluation_batches(self.validation_rows):
            with torch.inference_mode(), autocast:
                _, nll = self.loss(batch.tensors)
            yield nll, batch.tokens

    def scores(self) -> dict[str, AnyScore]:
        """Scores next to those of always answering the most frequent word."""
        results: dict[str, AnyScore] = {}
        for name, examples in self.data.sets.items():
            if name == "train":
                continue
            score = self.score(self.rows(examples), torch.no_grad())
            result = against_majority(score, self.train_examples, examples)
            results[name] = result
            self.setup.say(
                f"{name}: accuracy {result.accuracy:.2f}  "
                f"(majority {result.majority:.2f}, {result.examples:,} stories)"
            )
        return results

    def score(
        self, rows: Sequence[StoryRow], autocast: AbstractContextManager[Any]
    ) -> ClassificationScore:
        predictions = [0] * len(rows)
        for batch in self.evaluation_batches(rows):
            with torch.inference_mode(), autocast:
                logits, _ = self.logits(batch.tensors)
            # Over the whole vocabulary (Sukhbaatar et al. 2015, Section 2.1).
            best = logits.argmax(dim=-1).tolist()
            # Batches are sorted by length: each prediction goes back to its row.
            for row, token in zip(batch.rows, best, strict=True):
                predictions[row] = token
        return classification_score(predictions, [row.answer for row in rows])

    def evaluation_batches(self, rows: Sequence[StoryRow]) -> Iterator[Batch]:
        """Once over the rows, on the device, with the model in eval mode."""
        self.model.eval()
        budget = EVALUATION_BATCH_FACTOR * self.settings.batch_tokens
        for indices in batch_indices(_lengths(rows), budget, seed=0, epoch=0, shuffle=False):
            yield self.collate(rows, indices).to(self.network.device)


def _lengths(rows: Sequence[StoryRow]) -> Any:
    """[rows, 1]: tokens of each story when all its sentences are padded to the longest."""
    # Sentences of a story are rows of one tensor, so that its area is what it costs.
    return np.array([[len(row.sentences) * max(map(len, row.sentences))] for row in rows])
