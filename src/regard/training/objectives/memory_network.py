"""The objective of a memory network: the word that answers a question about a story.

Without a file, stories are generated. A file has a story that ends with its question, a tab, and the answer, a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import disk
from regard.baselines.memory_network import MemoryNetwork
from regard.build import build
from regard.data import babi_stories, labelled
from regard.data.batching import Batch, Order, Rows, plan
from regard.data.labelled import Classed
from regard.families import folder as folders
from regard.families import memory_network
from regard.metrics.classification import (
    ClassificationAgainstMajority,
    ClassificationScore,
    classification_score,
)
from regard.metrics.scores import AnyScore
from regard.models import choose_device
from regard.models.memory_network import MemoryNetworkModel, laid_out, sentences
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import open_encoder_tokenizer
from regard.text.tokenizer_training import word_level_json
from regard.training.engine.logging import ProgressLog
from regard.training.job import Job, multiple
from regard.training.objectives.loss import beside, cross_entropy
from regard.training.objectives.text_classification import files, majority
from regard.training.recipe.schema import Recipe, Train
from regard.training.run_folder import RunFolder


def asked(place: RunFolder, recipe: Recipe, talk: ProgressLog, changes: dict[str, object]) -> Job:
    given = files(place, recipe, "stories", lambda split: babi_stories.stories(split), talk.say)
    sets = {name: labelled.classed(path) for name, path in given.items()}
    text = _tokenizer(place, sets["train"])
    description = memory_network.preset(recipe.preset, len(text), **changes)
    config = folders.describe(description)
    disk.write_json(place.folder / "config.json", config)
    torch.manual_seed(recipe.train.seed)
    device = choose_device(recipe.train.device)
    recaller = MemoryNetworkModel(build(description), description, text, config).to(device)
    task = StoryQuestions(
        recaller, sets["train"], sets.get("valid", []), recipe.train, multiple(recipe, device)
    )
    talk.say(
        f"data: {len(sets['train']):,} stories to train on, {len(task.held_out):,} to validate"
    )

    def scores() -> dict[str, AnyScore]:
        found: dict[str, AnyScore] = {}
        for name in (name for name in ("valid", "test") if name in sets):
            score, most = (
                task.score(task.rows(sets[name]), torch.no_grad()),
                majority(sets["train"], sets[name]),
            )
            found[name] = ClassificationAgainstMajority(**vars(score), majority=most)
            talk.say(
                f"{name}: accuracy {score.accuracy:.2f}  (majority {most:.2f}, {score.examples:,} stories)"
            )
        return found

    return Job(
        task,
        description.d_model,
        lambda: folders.write_weights(place.weights, recaller.model, description),
        scores,
    )


class StoryQuestions:
    """Batches of stories of like lengths."""

    unit = "stories"

    def __init__(
        self,
        recaller: MemoryNetworkModel,
        train: Sequence[Classed],
        valid: Sequence[Classed],
        settings: Train,
        multiple: int,
    ) -> None:
        self.recaller, self.settings, self.multiple = recaller, settings, multiple
        self.told, self.train, self.held_out = train, self.rows(train), self.rows(valid)

    @property
    def model(self) -> MemoryNetwork:
        return self.recaller.model

    def rows(self, examples: Sequence[Classed]) -> list[tuple[list[list[int]], int]]:
        """The words of stories, and of their answers."""
        answers = self.recaller.text.encode_with_template([example.label for example in examples])
        return [
            (self.recaller.words(e.text), a.ids[0]) for e, a in zip(examples, answers, strict=True)
        ]

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        order = Order(
            _lengths(self.train),
            self.settings.batch_tokens,
            seed=self.settings.seed,
            multiple=self.multiple,
        )
        for now, i, chosen in order.iterate(epoch, index):
            yield (now, i + 1), self.collate(self.train, chosen)

    def collate(self, rows: Sequence[tuple[list[list[int]], int]], chosen: Rows) -> Batch:
        """`text` [B, N + 1, S], the question last, and `labels` [B]."""
        taken = [rows[i] for i in chosen]
        text = laid_out([story for story, _ in taken], self.multiple)
        labels = torch.tensor([answer for _, answer in taken])
        return Batch({"text": text, "labels": labels}, len(taken), np.asarray(chosen))

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        scores, others = self.scores(tensors)
        loss, nll = cross_entropy(scores, tensors["labels"], self.settings.label_smoothing)
        return beside(loss, others, len(tensors["labels"])), nll

    def scores(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hidden, others = self.model(*MemoryNetwork.split_inputs(tensors["text"]))
        return self.model.head(hidden), others

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [
            {"row": row, "text": self.told[row].text, "answer": self.told[row].label}
            for row in rows
        ]

    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if not self.held_out:
            return None
        total = 0.0
        for batch in self.in_order(self.held_out):
            with torch.inference_mode(), precision:
                total += self.loss(batch.tensors)[1].item()
        return {"loss": total / len(self.held_out), **vars(self.score(self.held_out, precision))}

    def score(
        self, rows: Sequence[tuple[list[list[int]], int]], precision: AbstractContextManager[Any]
    ) -> ClassificationScore:
        found = [0] * len(rows)
        for batch in self.in_order(rows):
            with torch.inference_mode(), precision:
                best = self.scores(batch.tensors)[0].argmax(dim=-1).tolist()
            for row, word in zip(batch.rows, best, strict=True):
                found[row] = word
        return classification_score(found, [answer for _, answer in rows])

    def in_order(self, rows: Sequence[tuple[list[list[int]], int]]) -> Iterator[Batch]:
        """Once over rows, on the device."""
        self.model.eval()
        for chosen in plan(
            _lengths(rows), 4 * self.settings.batch_tokens, seed=0, epoch=0, shuffle=False
        ):
            yield self.collate(rows, chosen).to(self.recaller.device)


def _lengths(rows: Sequence[tuple[list[list[int]], int]]) -> Any:
    """[rows, 1]: words of each story, as if all its sentences were as long as the longest."""
    return np.array([[len(story) * max(map(len, story))] for story, _ in rows])


def _tokenizer(place: RunFolder, train: Sequence[Classed]) -> Tokenizer:
    path = place.folder / "tokenizer.json"
    if not path.exists():
        told = (" ".join([*sentences(example.text), example.label]) for example in train)
        disk.write_file(path, word_level_json(told, cls_token=False))
    return open_encoder_tokenizer(place.folder)
