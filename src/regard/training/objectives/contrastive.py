"""Contrastive learning of sentence vectors: pairs of texts, and the other pairs of a batch.

The loss is InfoNCE (van den Oord et al. 2018) over cosines, with in-batch negatives, as in
sentence-transformers' multiple-negatives ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.data import labelled
from regard.data.batching import Batch, Rows
from regard.data.labelled import TextPair
from regard.data.padding import pad_rows
from regard.data.training_coverage import InputStatistics, row_statistics
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.outputs import rank_by_similarity
from regard.evaluation.task import Outputs
from regard.models import Model, TextEncoder
from regard.models.sentence_transformers import SentencePooling
from regard.training import model_spec
from regard.training.data.image_sources import CaptionedImages
from regard.training.data.source import Position
from regard.training.data.stored_items import ItemData
from regard.training.data.text_sources import LabelledData, LabelledSource
from regard.training.objectives.head_objective import with_end_token
from regard.training.objectives.losses import LossSums, Tensors
from regard.training.objectives.objective import ScoredObjective
from regard.training.parallel.ranks import ONE_RANK, Ranks
from regard.training.setup import Setup

TEMPERATURE = 0.05  # cosines are divided by it (SimCSE, Gao et al. 2021)


class TextPairs(LabelledSource):
    """Pairs of texts, in batches of similar lengths."""

    unit = "pairs"
    evaluation_factor = 1
    read = staticmethod(labelled.text_pairs)
    tokenizer_kind = "bpe"
    model: TextEncoder

    def rows(self, examples: Sequence[TextPair]) -> list[tuple[list[int], list[int]]]:
        encode = self.model.tokenizer.encode_with_template
        first = encode([pair.text for pair in examples], self.max_length)
        second = encode([pair.text2 for pair in examples], self.max_length)
        return [(a.ids, b.ids) for a, b in zip(first, second, strict=True)]

    def lengths(self, split: str) -> NDArray[Any]:
        # Both are padded to the longer text.
        return np.array([[2 * max(len(a), len(b))] for a, b in self.splits[split]])

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        """`tokens`, `padding_mask` [B, 2, T]: the two texts of each pair."""
        texts = [text for i in rows for text in self.splits[split][i]]
        pad_id = self.model.tokenizer.special_token_id("pad") or 0
        multiple = self.setup.pad_to_multiple_of
        tokens, padding_mask = pad_rows(texts, pad_id, pad_to_multiple_of=multiple)
        tensors = {
            "tokens": tokens.unflatten(0, (-1, 2)),
            "padding_mask": padding_mask.unflatten(0, (-1, 2)),
        }
        return Batch(tensors, len(rows), np.asarray(rows))

    def statistics(self) -> InputStatistics:
        texts = (text for pair in self.splits["train"] for text in pair)
        return row_statistics(texts, self.data.tokenizer)


def pair_vectors(
    model: Any,
    pool: SentencePooling,
    tensors: Tensors,
    side_tokens: Callable[[Tensor], dict[str, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Sentence vectors of length 1 of the first and the second texts, [B, D] each."""
    # All first texts, then all second ones: [2 B, T]
    tokens = tensors["tokens"].transpose(0, 1).flatten(0, 1)
    padding_mask = tensors["padding_mask"].transpose(0, 1).flatten(0, 1)
    hidden, _ = model(tokens, padding_mask=padding_mask, **side_tokens(tokens))  # [2 B, T, D]
    pooled = pool(hidden.float(), padding_mask)  # [2 B, D]
    # Of length 1, so that a dot product is a cosine.
    first, second = functional.normalize(pooled, dim=-1).chunk(2)
    return first, second


def pair_loss(first: Tensor, second: Tensor, ranks: Ranks = ONE_RANK) -> Tensor:
    """The mean of both directions: which second text belongs to a first one, and back."""
    return info_nce(lambda one, other: one @ other.T / TEMPERATURE, first, second, ranks)


class ContrastivePairs(ScoredObjective):
    """The vectors of a pair are to be nearer than those of any other pair of the batch.

    The score is harder: how often the nearest of all second texts of a split is that of the pair.
    """

    name = "contrastive"
    unit = "pairs"
    source_class = TextPairs
    base_tasks = ("embed", "generate", "translate")
    base_advice = "give a model of text, such as BERT"
    spec_classes = model_spec.TEXT_READERS
    trained_model: TextEncoder

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def describe(cls, setup: Setup, data: LabelledData) -> spec.Model:
        return super().describe(setup, data).with_heads()

    @classmethod
    def adapt(cls, base: Model, data: LabelledData, setup: Setup) -> Model:
        """The encoder without its heads, which the loss does not reach."""
        bare = base.spec.with_heads()
        if bare == base.spec:
            return base
        return cls.rebuilt(base, bare, data, setup)

    # --- training ---------------------------------------------------------------------------------

    def loss(self, tensors: Tensors) -> LossSums:
        trained = self.trained_model
        vectors = pair_vectors(self.model, trained.sentence, tensors, trained.side_tokens)
        loss = pair_loss(*vectors, self.setup.ranks)
        return loss, loss.detach()


# Section 2.5 of the paper: cosines are multiplied by at most 100. The scale is a logarithm.
MAX_SCALE = math.log(100)


class ImageTextContrastive(ScoredObjective):
    """The caption of an image is to be nearer than any other caption of the batch."""

    name = "image_text"
    unit = "images"
    source_class = CaptionedImages
    source: CaptionedImages
    base_tasks = ("embed_image",)
    base_advice = "give a dual encoder, such as CLIP"
    spec_classes = (spec.DualEncoder,)

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        description: Any = model_spec.describe(setup.recipe, len(data.vocabulary))
        text = with_end_token(description.text, data.vocabulary)
        tokens = replace(text.tokens, vocabulary=len(data.vocabulary))
        return replace(description, text=replace(text, input=tokens))

    # --- training ---------------------------------------------------------------------------------

    def loss(self, tensors: Tensors) -> LossSums:
        loss = image_text_loss(
            self.model, tensors, self.source.pixel_values(tensors), self.setup.ranks
        )
        return loss, loss.detach()

    # --- evaluation -------------------------------------------------------------------------------

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        """Retrieval of captions: the different ones of the split, ranked for each image."""

        def vectors(tensors: Tensors) -> list[tuple[Tensor, Tensor]]:
            texts = self.model.texts(tensors["tokens"], tensors["padding_mask"])
            images = self.model.images(self.source.pixel_values(tensors))
            return list(zip(texts.float(), images.float(), strict=True))

        expected: list[str] = self.source.splits[split].texts
        captions = sorted(set(expected))
        rows = self.predictions(split, vectors)
        candidates = torch.stack([rows[expected.index(text)][0] for text in captions])  # [C, D]
        queries = torch.stack([image for _, image in rows])  # [images, D]
        return "ranking", Outputs(rank_by_similarity(queries, candidates, captions), expected)


def image_text_loss(
    model: Any, tensors: Tensors, pixels: Tensor, ranks: Ranks = ONE_RANK
) -> Tensor:
    """The mean of both directions; with a bias, the sum over all pairs."""
    # The batch is the set of negatives: its size changes the task, not only the noise.
    texts = model.texts(tensors["tokens"], tensors["padding_mask"]).float()  # [B, D], unit vectors
    images = model.images(pixels).float()  # [B, D]
    if model.bias is not None:
        logits = model.logits(texts, ranks.gather(images))  # [B, images of all ranks]
        return sigmoid_loss(logits, ranks.first_row)
    if model.training:
        # The parameter itself, as in the paper: a clamp in the loss would stop its gradient.
        with torch.no_grad():
            model.scale.clamp_(max=MAX_SCALE)
    return info_nce(model.logits, texts, images, ranks)


# --- losses: InfoNCE (van den Oord et al. 2018), SigLIP's sigmoid loss ----------------------------


def info_nce(
    similarity: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor, ranks: Ranks
) -> Tensor:
    """Symmetric InfoNCE, summed over pairs: the mean of both directions.

    `first` and `second` [b, D] are the vectors of the rank's pairs; the negatives of each are those
    of all pairs [B, D], of other ranks too.
    """
    # Row i, column j: first of pair i, second of pair j. Off the diagonal: negatives.
    logits = similarity(first, ranks.gather(second))  # [b, B]
    transposed = logits.mT
    if ranks.shares_batch:
        transposed = similarity(ranks.gather(first), second).mT
    pairs = ranks.first_row + torch.arange(len(logits), device=logits.device)
    to_second = functional.cross_entropy(logits, pairs, reduction="sum")
    to_first = functional.cross_entropy(transposed, pairs, reduction="sum")
    return (to_second + to_first) / 2


def sigmoid_loss(logits: Tensor, first_row: int = 0) -> Tensor:
    """The pairwise sigmoid loss of logits [b, B] (Zhai et al. 2023, equation 1), not divided by B.

    Row i belongs to column `first_row` + i: with all rows of a batch, the diagonal.
    """
    rows, columns = logits.shape
    matches = torch.eye(columns, device=logits.device)[first_row : first_row + rows]
    signs = 2 * matches - 1  # 1 for pairs, -1 for others
    return -functional.logsigmoid(signs * logits).sum()
