"""The task of BERT: guess hidden tokens from both sides, and perhaps whether the second part follows the first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.context import Context
from regard.core.probe import NO_PROBE, NullProbe
from regard.data.batching import IGNORED, Batch, Rows
from regard.data.corpus import Corpus
from regard.data.text_corruption import Fate, mask, pair
from regard.model import Encoder
from regard.training.data.plain_text import Texts, room
from regard.training.engine.attention_entropy import ROWS, gaze
from regard.training.engine.optimizer import perplexity
from regard.training.objectives.loss import beside, cross_entropy
from regard.training.objectives.text_rows import TextRows
from regard.training.recipe.schema import Recipe


class Hiding(TextRows):
    """Rows framed by the start and the end token, with some of their tokens hidden."""

    fate = Fate()

    def __init__(self, data: Texts, recipe: Recipe, device: torch.device, multiple: int) -> None:
        super().__init__(data, recipe, device, multiple)
        self.pad = self.words.required_token_id("pad")
        self.first = self.words.required_token_id("bos")
        self.last = self.words.required_token_id("eos")
        self.mask = self.words.required_token_id("mask")
        self.ordinary = np.array(
            [i for i in range(len(self.words)) if i not in self.words.special_ids], dtype=np.int64
        )
        self.room = room(recipe)

    def collate(self, corpus: Corpus, rows: Rows, epoch: int) -> Batch:
        """`tokens`, `labels`, `real` [B, T]; with next sentences, `segments` [B, T] and `stranger` [B]."""
        made = [self._hidden(corpus, int(row), epoch) for row in rows]
        least = self.context if self.multiple > 1 else 0
        tokens = self.padded([seen for seen, *_ in made], self.pad, least=least)
        labels = self.padded([labels for _, labels, *_ in made], IGNORED, least=least)
        tensors = {"tokens": tokens, "labels": labels}
        lengths = torch.tensor([len(seen) for seen, *_ in made])
        tensors["padding_mask"] = torch.arange(tokens.shape[1]) < lengths[:, None]
        if self.settings.next_sentence:
            tensors["segments"] = self.padded(
                [segments for _, _, segments, _ in made], 0, least=least
            )
            tensors["stranger"] = torch.tensor([stranger for *_, stranger in made])
        return Batch(tensors, int((labels >= 0).sum()), np.asarray(rows))

    def _hidden(
        self, corpus: Corpus, row: int, epoch: int
    ) -> tuple[list[int], list[int], list[int], int]:
        """A row's tokens, labels and segments, and whether its second part is a stranger."""
        chance, ids, stranger = self.chance(epoch, row), self.row(corpus, row), 0
        cut = 0
        if self.settings.next_sentence:
            other = int(chance.below(len(corpus), 1)[0])
            theirs = self.row(corpus, other), self.breaks(corpus, other)
            first, second, stranger = pair(
                ids, self.breaks(corpus, row), *theirs, chance, room=self.room
            )
            ids, cut = np.concatenate([first, second]), len(first)
        seen, labels = mask(
            ids, chance, share=self.share, token=self.mask, ordinary=self.ordinary, fate=self.fate
        )
        tokens, asked, segments = [self.first], [IGNORED], [0]
        parts = [slice(0, cut), slice(cut, None)] if self.settings.next_sentence else [slice(None)]
        for number, part in enumerate(parts):
            tokens += [*seen[part].tolist(), self.last]
            asked += [*labels[part].tolist(), IGNORED]
            segments += [number] * (len(tokens) - len(segments))
        return tokens, asked, segments, stranger


class MaskedLM(Hiding):
    def __init__(
        self, model: Encoder, data: Texts, recipe: Recipe, device: torch.device, multiple: int
    ) -> None:
        super().__init__(data, recipe, device, multiple)
        self.model = model

    def _forward(
        self, tensors: Mapping[str, Tensor], probe: NullProbe = NO_PROBE
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Scores of tokens [B, T, V], and of whether the second part is a stranger [B, 2]; and the losses beside."""
        segments = {"segments": tensors["segments"]} if "segments" in tensors else {}
        hidden, others = self.model(
            tensors["tokens"], tensors["padding_mask"], Context(probe=probe), **segments
        )
        assert self.model.head is not None
        strangers = (
            self.model.classes(hidden, tensors["padding_mask"]) if "stranger" in tensors else None
        )
        return self.model.head(hidden), strangers, others

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The mean over guessed tokens plus the mean over pairs; as a sum over tokens, for the step divides by them."""
        logits, strangers, others = self._forward(tensors)
        loss, nll = cross_entropy(logits, tensors["labels"])
        if strangers is not None:
            others = {
                **others,
                "pairs": functional.cross_entropy(strangers.float(), tensors["stranger"]),
            }
        return beside(loss, others, (tensors["labels"] >= 0).sum()), nll

    @torch.inference_mode()
    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any]:
        """Of the held-out rows: loss and perplexity of the guesses, how many are right, and how many pairs; and how widely
        the model looks at the first of them."""
        self.model.eval()
        few = {
            name: tensor[:ROWS] for name, tensor in next(self.held_out_batches()).tensors.items()
        }
        total, count, right, pairs, known = 0.0, 0, 0, 0, 0
        samples: list[dict[str, Any]] = []
        for batch in self.held_out_batches():
            with precision:
                logits, strangers, _ = self._forward(batch.tensors)
            labels, best = batch.tensors["labels"], logits.argmax(dim=-1)
            total += cross_entropy(logits, labels)[1].item()
            count, right = count + batch.tokens, right + int((best == labels).sum())
            if strangers is not None:
                pairs += len(strangers)
                known += int((strangers.argmax(dim=-1) == batch.tensors["stranger"]).sum())
            if len(samples) < self.settings.samples:
                tokens, padding_mask = batch.tensors["tokens"][0], batch.tensors["padding_mask"][0]
                filled = torch.where(labels[0] >= 0, best[0], tokens)[padding_mask]
                samples.append(
                    {
                        "text": self.shown(tokens[padding_mask].tolist()),
                        "guess": self.shown(filled.tolist()),
                    }
                )
        found = {
            "loss": total / count,
            "perplexity": perplexity(total, count),
            "accuracy": 100.0 * right / count,
        }
        found |= {"next_accuracy": 100.0 * known / pairs} if pairs else {}
        found |= gaze(lambda probe: self._forward(few, probe), {"encoder": few["padding_mask"]})
        return {**found, "tokens": count, "samples": samples}
