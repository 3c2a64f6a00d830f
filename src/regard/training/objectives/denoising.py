"""The tasks of T5 and BART: an encoder–decoder reads a damaged text and writes what was lost, or the whole text."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.batching import IGNORED, Batch, Rows
from regard.data.corpus import Corpus
from regard.data.text_corruption import denoise, spans
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.errors import DataError
from regard.model import EncoderDecoder
from regard.training.data.plain_text import Texts
from regard.training.engine.optimizer import perplexity
from regard.training.objectives.loss import beside, over_vocabulary
from regard.training.objectives.text_rows import TextRows
from regard.training.recipe.schema import Recipe

SENTINELS = 100


class Denoising(TextRows):
    """`span`: sentinels for spans, the spans for the target. `denoise`: masks and mixed sentences, the text for the target."""

    def __init__(
        self,
        model: EncoderDecoder,
        data: Texts,
        recipe: Recipe,
        device: torch.device,
        multiple: int,
    ) -> None:
        super().__init__(data, recipe, device, multiple)
        self.model = model
        self.pad = self.words.required_token_id("pad")
        self.end = self.words.required_token_id("eos")
        self.spans = recipe.train.objective == "span"
        found = [self.words.token_to_id(f"<extra_id_{i}>") for i in range(SENTINELS)]
        self.sentinels = [token for token in found if token is not None]
        if self.spans and not self.sentinels:
            raise DataError(
                "the tokenizer has no sentinels (<extra_id_0> …)", "use T5's, or learn one"
            )
        self.opening = None if self.spans else self.words.required_token_id("bos")
        self.mask = -1 if self.spans else self.words.required_token_id("mask")
        # T5 begins its targets with padding, BART with the end token.
        self.start = self.pad if self.spans else self.end

    def collate(self, corpus: Corpus, rows: Rows, epoch: int) -> Batch:
        """`source`, `real` [B, S]; `target`, `labels` [B, T]."""
        made = [self._damaged(corpus, int(row), epoch) for row in rows]
        least = self.context if self.multiple > 1 else 0
        source = self.padded([seen for seen, _ in made], self.pad, least=least)
        labels = self.padded(
            [target for _, target in made], IGNORED, least=0 if self.spans else least
        )
        lengths = torch.tensor([len(seen) for seen, _ in made])
        shifted = functional.pad(
            torch.where(labels < 0, self.pad, labels)[:, :-1], (1, 0), value=self.start
        )
        padding_mask = torch.arange(source.shape[1]) < lengths[:, None]
        tensors = {
            "source": source,
            "padding_mask": padding_mask,
            "target": shifted,
            "labels": labels,
        }
        return Batch(tensors, int((labels >= 0).sum()), np.asarray(rows))

    def _damaged(self, corpus: Corpus, row: int, epoch: int) -> tuple[list[int], list[int]]:
        ids, chance = self.row(corpus, row), self.chance(epoch, row)
        mean = self.settings.span_length
        if self.spans:
            seen, target = spans(ids, chance, share=self.share, mean=mean, sentinels=self.sentinels)
        else:
            breaks = self.breaks(corpus, row)
            seen, target, _ = denoise(
                ids, breaks, chance, share=self.share, mean=mean, token=self.mask
            )
        first = [] if self.opening is None else [self.opening]
        return [*first, *seen.tolist(), self.end], [*first, *target.tolist(), self.end]

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, others = self.model(tensors["source"], tensors["target"], tensors["padding_mask"])
        loss, nll = over_vocabulary(self.model.head, hidden, tensors["labels"])
        return beside(loss, others, (tensors["labels"] >= 0).sum()), nll

    @torch.inference_mode()
    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any]:
        """loss (per target token) over the held-out rows, perplexity, and some restored texts."""
        self.model.eval()
        total, count = 0.0, 0
        for batch in self.held_out_batches():
            with precision:
                total += self.loss(batch.tensors)[1].item()
            count += batch.tokens
        rows = range(min(self.settings.samples, len(self.held_out)))
        return {
            "loss": total / count,
            "perplexity": perplexity(total, count),
            "tokens": count,
            "samples": [self._sample(row) for row in rows],
        }

    def _sample(self, row: int) -> dict[str, Any]:
        source, _ = self._damaged(self.held_out, row, 0)
        ends = SpecialTokens(self.pad, self.start, self.end, forced_bos=self.opening)
        best = decode(
            self.model, [source], ends, DecodingSettings(Greedy(), Limit(0.0, self.context))
        )[0][0]
        return {"text": self.shown(source), "restored": self.shown(best.tokens)}
