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

from regard import disk
from regard.baselines.memory_network import MemoryNetwork
from regard.builder import build
from regard.data import babi_stories, labelled
from regard.data.batching import Batch, Order, Rows, plan
from regard.data.labelled import Classed
from regard.families import folder as folders
from regard.families import memory_network
from regard.metrics.classification import ClassificationScore, classification_score
from regard.metrics.perplexity import corpus_nll
from regard.metrics.scores import AnyScore
from regard.models import choose_device
from regard.models.memory_network import MemoryNetworkModel, pad_stories, split_sentences
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import open_encoder_tokenizer
from regard.text.tokenizer_training import word_level_json
from regard.training.engine.progress_bar import ProgressBar
from regard.training.job import Job, pad_to_multiple_of
from regard.training.objectives.classifier_from_scratch import (
    example_files,
    scores_with_majority,
)
from regard.training.objectives.head_objective import EVALUATION_BATCH_FACTOR
from regard.training.objectives.loss import add_auxiliary_losses, cross_entropy
from regard.training.recipe.schema import Recipe
from regard.training.recipe.sections import Train
from regard.training.run_folder import RunFolder


def memory_network_job(
    run_folder: RunFolder, recipe: Recipe, progress_bar: ProgressBar, changes: dict[str, object]
) -> Job:
    say = progress_bar.say
    paths = example_files(run_folder, recipe, "stories", babi_stories.stories, say)
    sets = {name: labelled.classed(path) for name, path in paths.items()}
    tokenizer = _tokenizer(run_folder, sets["train"])
    description = memory_network.preset(recipe.preset, len(tokenizer), **changes)
    config = folders.describe(description)
    disk.write_json(run_folder.folder / "config.json", config)
    # Weights are drawn on the CPU: the same on every device.
    torch.manual_seed(recipe.train.seed)
    device = choose_device(recipe.train.device)
    network = MemoryNetworkModel(build(description), description, tokenizer, config).to(device)
    objective = StoryQuestions(
        network,
        sets["train"],
        sets.get("valid", []),
        recipe.train,
        pad_to_multiple_of(recipe, device),
    )
    say(
        f"data: {len(sets['train']):,} stories to train on, "
        f"{len(objective.validation_rows):,} to validate"
    )

    def final_scores() -> dict[str, AnyScore]:
        return scores_with_majority(
            sets,
            lambda examples: objective.score(objective.rows(examples), torch.no_grad()),
            lambda name, score: say(
                f"{name}: accuracy {score.accuracy:.2f}  "
                f"(majority {score.majority:.2f}, {score.examples:,} stories)"
            ),
        )

    return Job(
        objective,
        description.d_model,
        lambda: folders.write_weights(run_folder.weights, network.model, description),
        final_scores,
    )


@dataclass(frozen=True)
class StoryRow:
    """Token ids of a story's sentences, the question last, and of its answer."""

    sentences: list[list[int]]
    answer: int


class StoryQuestions:
    """Batches of stories of similar lengths."""

    unit = "stories"

    def __init__(
        self,
        network: MemoryNetworkModel,
        train: Sequence[Classed],
        valid: Sequence[Classed],
        settings: Train,
        pad_to_multiple_of: int,
    ) -> None:
        self.network = network
        self.settings = settings
        self.pad_to_multiple_of = pad_to_multiple_of
        self.train_examples = train
        self.train_rows = self.rows(train)
        self.validation_rows = self.rows(valid)

    @property
    def model(self) -> MemoryNetwork:
        return self.network.model

    def rows(self, examples: Sequence[Classed]) -> list[StoryRow]:
        # An answer is one word, which is one token.
        answers = self.network.tokenizer.encode_with_template(
            [example.label for example in examples]
        )
        return [
            StoryRow(self.network.sentence_ids(example.text), answer.ids[0])
            for example, answer in zip(examples, answers, strict=True)
        ]

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        order = Order(
            _lengths(self.train_rows),
            self.settings.batch_tokens,
            seed=self.settings.seed,
            multiple=self.pad_to_multiple_of,
        )
        for now, i, indices in order.iterate(epoch, index):
            yield (now, i + 1), self.collate(self.train_rows, indices)

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
        return add_auxiliary_losses(loss, auxiliary, len(tensors["labels"])), nll

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

    def score(
        self, rows: Sequence[StoryRow], autocast: AbstractContextManager[Any]
    ) -> ClassificationScore:
        predictions = [0] * len(rows)
        for batch in self.evaluation_batches(rows):
            with torch.inference_mode(), autocast:
                logits, _ = self.logits(batch.tensors)
            best = logits.argmax(dim=-1).tolist()
            # Batches are sorted by length: each prediction goes back to its row.
            for row, token in zip(batch.rows, best, strict=True):
                predictions[row] = token
        return classification_score(predictions, [row.answer for row in rows])

    def evaluation_batches(self, rows: Sequence[StoryRow]) -> Iterator[Batch]:
        """Once over the rows, on the device, with the model in eval mode."""
        self.model.eval()
        budget = EVALUATION_BATCH_FACTOR * self.settings.batch_tokens
        for indices in plan(_lengths(rows), budget, seed=0, epoch=0, shuffle=False):
            yield self.collate(rows, indices).to(self.network.device)


def _lengths(rows: Sequence[StoryRow]) -> Any:
    """[rows, 1]: tokens of each story when all its sentences are padded to the longest."""
    return np.array([[len(row.sentences) * max(map(len, row.sentences))] for row in rows])


def _tokenizer(run_folder: RunFolder, train: Sequence[Classed]) -> Tokenizer:
    path = run_folder.folder / "tokenizer.json"
    if not path.exists():
        texts = (" ".join([*split_sentences(example.text), example.label]) for example in train)
        disk.write_file(path, word_level_json(texts, cls_token=False))
    return open_encoder_tokenizer(run_folder.folder)
