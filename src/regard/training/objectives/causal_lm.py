"""The task of a language model: the next token, at every place of a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core.context import Context
from regard.data.batching import Batch
from regard.data.corpus import Corpus
from regard.decode.strategy import Sampling
from regard.model import Decoder
from regard.models.language_model import LanguageModel
from regard.training.data.plain_text import Texts
from regard.training.engine.attention_entropy import ROWS, gaze
from regard.training.engine.optimizer import perplexity
from regard.training.objectives.distillation import Teacher
from regard.training.objectives.loss import beside, over_vocabulary
from regard.training.recipe.schema import Recipe, Train

SAMPLE = 200  # tokens written at a validation
POSITIONS, LOGITS = 1 << 14, 1 << 24  # at once, when nothing has to be remembered for gradients


class CausalLM:
    """Windows of `context` tokens at places of the text that chance chooses, as nanoGPT does it: there are no epochs. Which
    ones make up batch i follows from the seed and i alone. A `teacher` says besides how likely it finds each token."""

    unit = "tokens"

    def __init__(
        self, writer: LanguageModel, data: Texts, recipe: Recipe, teacher: Teacher | None = None
    ) -> None:
        self.teacher = teacher
        self.writer, self.settings, self.context = writer, recipe.train, recipe.data.context
        self.tokens, self.held_out = stream(data.train), stream(data.valid)
        self.rows = max(1, recipe.train.batch_tokens // self.context)

    @property
    def model(self) -> Decoder:
        return self.writer.model

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        seed = self.settings.seed
        while True:
            chance = np.random.Philox(key=np.array([seed, index], dtype=np.uint64))
            places = (
                chance.random_raw(self.rows) % np.uint64(len(self.tokens) - self.context)
            ).astype(np.int64)
            index += 1
            yield (epoch, index), windows(self.tokens, places, self.context)

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, others = self.model(tensors["tokens"])
        labels = tensors["labels"]
        if self.teacher is None or not self.model.training:  # a validation is of the labels alone
            loss, nll = over_vocabulary(self.model.head, hidden, labels)
        else:
            loss, nll = self.teacher.loss(self.model.head(hidden), labels, tensors)
        return beside(loss, others, labels.numel()), nll

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        decode = self.writer.words.decode
        return [
            {"row": row, "text": decode(self.tokens[row : row + self.context].tolist())}
            for row in rows
        ]

    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any]:
        """loss (per token) over the whole held-out text, perplexity, and some text."""
        return (
            told(self.writer, self.settings, self.held_out[:1].tolist(), *self.nll(precision))
            | self._gaze()
        )

    @torch.inference_mode()
    def nll(self, precision: AbstractContextManager[Any]) -> tuple[float, int]:
        """−log p of every held-out token but the first, read in windows that do not overlap."""
        self.model.eval()
        device, length = self.writer.device, self.context
        total = torch.zeros((), dtype=torch.float64, device=device)
        count = len(self.held_out) - 1
        whole = np.arange(0, count - length + 1, length)
        rows = max(self.rows, min(POSITIONS, LOGITS // len(self.writer.words)) // length)
        parts = [(whole[i : i + rows], length) for i in range(0, len(whole), rows)]
        rest = count % length
        parts += [(np.array([count - rest]), rest)] if rest else []
        for places, width in parts:
            batch = windows(self.held_out, places, width).to(device)
            with precision:
                total += self.loss(batch.tensors)[1].double()
        return total.item(), count

    def _gaze(self) -> dict[str, Any]:
        """Attention entropy on the first windows of the held-out text."""
        width = min(self.context, len(self.held_out) - 1)
        places = np.arange(0, len(self.held_out) - width, width)[:ROWS]
        few = windows(self.held_out, places, width).to(self.writer.device).tensors
        return gaze(
            lambda probe: self.model(few["tokens"], None, Context(probe=probe)), {"decoder": None}
        )


def told(
    writer: LanguageModel, settings: Train, first: list[int], nll: float, tokens: int
) -> dict[str, Any]:
    """What a validation says: loss a token, perplexity, and some text that begins with these tokens."""
    found: dict[str, Any] = {
        "loss": nll / tokens,
        "perplexity": perplexity(nll, tokens),
        "tokens": tokens,
    }
    if settings.samples:
        start = writer.words.decode(first)
        written = writer.generate(
            [start] * settings.samples, Sampling(seed=settings.seed), max_new_tokens=SAMPLE
        )
        found["samples"] = [{"text": start + text} for text in written]
    return found


def windows(tokens: Any, places: Any, length: int) -> Batch:
    """`tokens` and `labels` [B, T]: what is seen, and what comes next."""
    cells = tokens[places[:, None] + np.arange(length + 1)].astype(np.int64)
    tensors = {
        "tokens": torch.from_numpy(cells[:, :-1].copy()),
        "labels": torch.from_numpy(cells[:, 1:].copy()),
    }
    return Batch(tensors, len(places) * length, places)


def stream(corpus: Corpus) -> Any:
    return corpus.columns["text"].tokens
