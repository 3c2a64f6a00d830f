"""What a run looks at to judge itself: loss on held-out pairs, translations of some of them, their scores."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from regard.api import Translator
from regard.data.batch import collate, plan
from regard.data.corpus import Corpus
from regard.decode.search import Settings
from regard.decode.strategy import Greedy
from regard.text.score import score
from regard.training.loss import cross_entropy
from regard.training.optimizer import perplexity


class Validation:
    """Held-out pairs, prepared once."""

    def __init__(
        self,
        translator: Translator,
        corpus: Corpus,
        pairs: list[tuple[str, str]],
        *,
        metric: str,
        samples: int,
        tokens: int,
    ) -> None:
        self.translator, self.corpus, self.pairs = translator, corpus, pairs
        self.metric, self.samples, self.tokens = metric, samples, tokens

    def run(self, precision: AbstractContextManager[Any]) -> dict[str, Any]:
        """loss (unsmoothed, per token), perplexity; the metric if it needs translations; some samples."""
        surprise, tokens = self._surprise(precision)
        found: dict[str, Any] = {"loss": surprise / tokens, "perplexity": perplexity(surprise, tokens)}
        asked = self.pairs if self.metric != "loss" else self.pairs[: self.samples]
        if asked:
            best = self.translator.hypotheses([source for source, _ in asked], Settings(Greedy()))
            texts = [self.translator.text(h[0]) if h else "" for h in best]
            if self.metric != "loss":
                result = score(texts, [target for _, target in asked])
                found |= {"bleu": result.bleu, "chrf": result.chrf, "exact_match": result.exact_match}
            found["samples"] = [
                {"source": source, "translation": text, "reference": target}
                for (source, target), text in zip(asked[: self.samples], texts, strict=False)
            ]
        return found

    @torch.inference_mode()
    def _surprise(self, precision: AbstractContextManager[Any]) -> tuple[float, int]:
        model, ends = self.translator.model, self.translator.ends
        device = next(model.parameters()).device
        model.eval()
        total = torch.zeros((), dtype=torch.float64, device=device)
        tokens = 0
        for rows in plan(self.corpus.lengths, self.tokens, seed=0, epoch=0, shuffle=False):
            pad = self.translator.target_tokenizer.pad
            batch = collate(self.corpus, rows, source_pad=ends.pad, target_pad=pad, start=self.translator.start).to(
                device
            )
            with precision:
                hidden, _ = model(batch.source, batch.target_in, batch.source_padding)
                logits = model.head(hidden)
            total += cross_entropy(logits, batch.target_out)[1].double()
            tokens += batch.target_tokens
        return total.item(), tokens
