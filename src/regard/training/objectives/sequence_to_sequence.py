"""The task of the paper: pairs of sentences, cross-entropy of the target given the source."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core.context import Context
from regard.data.batching import Batch, Order, collate, plan
from regard.data.corpus import Corpus
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch, Greedy
from regard.metrics.scores import AnyScore
from regard.metrics.translation import translation_score
from regard.model import EncoderDecoder
from regard.models import Translator
from regard.text.tokenizer import Tokenizer
from regard.training.data.parallel_text import Prepared
from regard.training.engine.attention_entropy import ROWS, gaze
from regard.training.engine.logging import ProgressLog
from regard.training.engine.optimizer import perplexity
from regard.training.objectives.distillation import Teacher
from regard.training.objectives.loss import beside, cross_entropy, over_vocabulary
from regard.training.recipe.schema import Recipe, Train


class SequenceToSequence:
    """Trains a translator on prepared pairs. `multiple`: what lengths are rounded up to; above 1, batches are filled up
    so that few shapes occur. A `teacher` says besides how likely it finds each token."""

    unit = "tokens"

    def __init__(
        self,
        translator: Translator,
        data: Prepared,
        settings: Train,
        multiple: int = 1,
        teacher: Teacher | None = None,
    ) -> None:
        self.translator, self.corpus, self.settings, self.multiple = (
            translator,
            data.corpus,
            settings,
            multiple,
        )
        self.teacher = teacher
        self.held_out, self.pairs = data.valid, data.valid_pairs
        self.device = next(translator.model.parameters()).device

    @property
    def model(self) -> EncoderDecoder:
        return self.translator.model

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        tokens = self.settings.batch_tokens
        order = Order(self.corpus.lengths, tokens, seed=self.settings.seed, multiple=self.multiple)
        for now, i, rows in order.iterate(epoch, index):
            yield (now, i + 1), self.collate(self.corpus, rows, tokens if self.multiple > 1 else 0)

    def collate(self, corpus: Corpus, rows: Any, budget: int = 0) -> Batch:
        translator = self.translator
        padding_side = {
            "source_pad": translator.special_tokens.pad,
            "target_pad": translator.target_tokenizer.required_token_id("pad"),
        }
        return collate(
            corpus,
            rows,
            **padding_side,
            start=translator.start,
            multiple=self.multiple,
            budget=budget,
        )

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        agreement = self.settings.agreement
        if agreement:
            tensors = {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}
        hidden, others = self.model(
            tensors["source"], tensors["target"], tensors.get("padding_mask")
        )
        labels, smoothing = tensors["labels"], self.settings.label_smoothing
        if self.teacher is None:
            loss, nll = over_vocabulary(self.model.head, hidden, labels, smoothing, agreement)
        else:
            loss, nll = self.teacher.loss(self.model.head(hidden), labels, tensors, smoothing)
        return beside(loss, others, (labels >= 0).sum() / (2 if agreement else 1)), nll

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        source, target = self.translator.source_tokenizer, self.translator.target_tokenizer
        return [
            {
                "row": row,
                "source": _spelled(source, self.corpus.source(row).tolist()),
                "target": _spelled(target, self.corpus.target(row).tolist()),
            }
            for row in rows
        ]

    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """loss (unsmoothed, per token), perplexity, attention entropy; the metric if it needs translations; some samples."""
        if self.held_out is None:
            return None
        nll, tokens = self._surprise(self.held_out, precision)
        found: dict[str, Any] = {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, tokens),
        }
        found |= self._gaze(self.held_out)
        metric, samples = self.settings.metric, self.settings.samples
        asked = self.pairs if metric != "loss" else self.pairs[:samples]
        if asked:
            best = self.translator.hypotheses(
                [source for source, _ in asked], DecodingSettings(Greedy())
            )
            texts = [self.translator.text(h[0]) if h else "" for h in best]
            if metric != "loss":
                result = translation_score(texts, [target for _, target in asked])
                found |= {
                    "bleu": result.bleu,
                    "chrf": result.chrf,
                    "exact_match": result.exact_match,
                }
            found["samples"] = [
                {"source": source, "translation": text, "reference": target}
                for (source, target), text in zip(asked[:samples], texts, strict=False)
            ]
        return found

    @torch.inference_mode()
    def _surprise(
        self, corpus: Corpus, precision: AbstractContextManager[Any]
    ) -> tuple[float, int]:
        self.model.eval()
        total, tokens = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for rows in plan(
            corpus.lengths, self.settings.batch_tokens, seed=0, epoch=0, shuffle=False
        ):
            batch = self.collate(corpus, rows).to(self.device)
            with precision:
                hidden, _ = self.model(
                    batch.tensors["source"],
                    batch.tensors["target"],
                    batch.tensors.get("padding_mask"),
                )
                logits = self.model.head(hidden)
            total += cross_entropy(logits, batch.tensors["labels"])[1].double()
            tokens += batch.tokens
        return total.item(), tokens

    def _gaze(self, corpus: Corpus) -> dict[str, Any]:
        """Attention entropy on the first few held-out pairs."""
        few = self.collate(corpus, np.arange(min(ROWS, len(corpus)))).to(self.device).tensors
        padding_mask = {"encoder": few.get("padding_mask"), "decoder": few["labels"] >= 0}
        return gaze(
            lambda probe: self.model(
                few["source"], few["target"], few.get("padding_mask"), Context(probe=probe)
            ),
            padding_mask,
        )


def _spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of a row with its unknown tokens visible, without its end token."""
    return "".join(tokenizer.tokens(ids[:-1])).replace("▁", " ").strip()


def final_scores(
    sets: Mapping[str, Sequence[tuple[str, str]]],
    translator: Translator,
    recipe: Recipe,
    talk: ProgressLog,
) -> dict[str, AnyScore]:
    """Scores on test sets, with the recipe's beam."""
    scores: dict[str, AnyScore] = {}
    settings = DecodingSettings(BeamSearch(recipe.decode.beam, recipe.penalty))
    for name, pairs in sets.items():
        began = time.perf_counter()
        found = translator.hypotheses([source for source, _ in pairs], settings)
        texts = [translator.text(h[0]) if h else "" for h in found]
        result = translation_score(texts, [target for _, target in pairs], recipe.decode.tokenize)
        scores[name] = result
        talk.say(
            f"{name}: BLEU {result.bleu:.2f}  chrF {result.chrf:.2f}  exact match {result.exact_match:.1f} %  "
            f"({len(pairs):,} sentences in {time.perf_counter() - began:.1f} s)  {result.signature}"
        )
    return scores
