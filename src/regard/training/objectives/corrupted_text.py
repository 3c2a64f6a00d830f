"""Objectives that corrupt every row of a text: masked LM (BERT), denoising (BART), spans (T5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.probe import NO_PROBE, NullProbe
from regard.data.batching import Batch, Rows
from regard.data.corruption import MaskingRates, RandomStream
from regard.data.padding import IGNORED, pad_rows
from regard.data.text.tokenizer import Tokenizer
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.evaluation.corrupted_text import (
    MASKED_SHARE,
    VALIDATION_EPOCH,
    Infilling,
    Restoration,
    RowMasking,
    Spans,
    with_special_tokens,
)
from regard.evaluation.metrics.perplexity import perplexity
from regard.families import folder as folders
from regard.models import Model, TextEncoder, Translator
from regard.system.errors import SettingError
from regard.training import model_spec
from regard.training.data.plain_text import PackedText, TextCorpora, max_row_tokens
from regard.training.data.source import Position, decoder_token_ids, new_translator
from regard.training.engine.attention_entropy import ROWS, attention_entropy
from regard.training.objectives.losses import (
    LossSums,
    LossTerms,
    Tensors,
    TokenLoss,
    cross_entropy,
    linear_cross_entropy,
)
from regard.training.objectives.objective import Objective
from regard.training.objectives.sequence_to_sequence import teacher_forced_loss
from regard.training.setup import Setup


class CorruptedText(Objective):
    """Batches of rows, which `collate` corrupts anew in every epoch."""

    # The unit: those tokens that are to be predicted.
    fills_context = True
    default_share = MASKED_SHARE  # of the tokens, that is corrupted
    source_class = PackedText
    source: PackedText
    evaluation_epoch = VALIDATION_EPOCH

    def __init__(self, model: Model, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.tokenizer = data.tokenizer
        self.context = setup.recipe.data.context
        self.corrupted_share = self.settings.mask_ratio or self.default_share

    def random_numbers(self, epoch: int, row: int) -> RandomStream:
        """A random stream of the row's own: a resumed run corrupts the same tokens."""
        return RandomStream(self.settings.seed, epoch, row)

    # --- for subclasses ---------------------------------------------------------------------------

    def pad(
        self, rows: Sequence[Sequence[int]], pad_id: int, *, widens: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The rows [B, T] and their padding mask [B, T], rounded up to the multiple.

        Where few shapes are wanted, they are as wide as the context, if it `widens` them.
        """
        multiple = self.pad_to_multiple_of
        width = self.context if widens and multiple > 1 else 0
        return pad_rows(rows, pad_id, min_width=width, pad_to_multiple_of=multiple)

    def decode_visibly(self, ids: Sequence[int]) -> str:
        """A text with its special tokens visible, except padding and those that frame it."""
        tokenizer = self.tokenizer
        invisible = {tokenizer.special_token_id(role) for role in ("pad", "bos", "eos")}
        pieces: list[str] = []
        for is_special, run in groupby(ids, tokenizer.special_ids.__contains__):
            if is_special:
                pieces += [tokenizer.id_to_token(one) for one in run if one not in invisible]
            else:
                pieces.append(tokenizer.decode(list(run)))
        return "".join(pieces)


class MaskedText(CorruptedText):
    """Rows framed by the start and the end token, with some of their tokens masked."""

    rates = MaskingRates()  # BERT: 80 % masked, 10 % replaced, 10 % kept

    spec_classes = (spec.Encoder,)

    def __init__(self, model: Model, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.pad_id = self.tokenizer.required_token_id("pad")
        self.masking = RowMasking(
            self.tokenizer,
            max_row_tokens(setup.recipe),
            self.corrupted_share,
            self.rates,
            self.settings.next_sentence,
        )

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        """`tokens`, `labels`, `padding_mask` [B, T].

        With next-sentence prediction, also `segments` [B, T] and `next_sentence_labels` [B], 1 for
        a second sentence that is not the next one.
        """
        count = len(self.source.splits[split])
        numbers = [int(row) for row in rows]
        read = partial(self.source.row, split)
        masked = [
            self.masking(read, count, row, self.random_numbers(position[0], row)) for row in numbers
        ]
        tokens, padding_mask = self.pad([row.tokens for row in masked], self.pad_id)
        labels, _ = self.pad([row.labels for row in masked], IGNORED)
        tensors = {"tokens": tokens, "labels": labels, "padding_mask": padding_mask}
        if self.settings.next_sentence:
            segments, _ = self.pad([row.segments for row in masked], 0)
            tensors["segments"] = segments
            tensors["next_sentence_labels"] = torch.tensor([row.is_random for row in masked])
        return Batch(tensors, int((labels >= 0).sum()), np.asarray(rows))


class MaskedLM(MaskedText):
    """The objective of BERT."""

    name = "masked"
    base_tasks = ("fill",)
    base_advice = "give an encoder with a head for masked tokens, such as BertForMaskedLM"
    head = "head"
    head_fields = "heads=(LMHead(),)"
    trained_model: TextEncoder

    @classmethod
    def describe(cls, setup: Setup, data: TextCorpora) -> spec.Model:
        changes = {"next_sentence": True} if setup.recipe.train.next_sentence else {}
        return model_spec.describe(setup.recipe, len(data.tokenizer), **changes)

    @classmethod
    def with_tokenizer(cls, model: Any, description: Any, data: TextCorpora, setup: Setup) -> Model:
        if description.head is None:
            raise SettingError(
                f"{setup.recipe.model_name} has no head for masked tokens",
                "choose another --model or --objective",
            )
        if setup.recipe.train.next_sentence and description.task != "next":
            raise SettingError(
                "the model has no head for the next sentence",
                "give its spec the heads Pool() and ClassifierHead(2, 'next'), "
                "or leave --next-sentence out",
            )
        return super().with_tokenizer(model, description, data, setup)

    def loss(self, tensors: Tensors) -> LossSums:
        return self.total(masked_loss(self.model, tensors))

    def likelihood(self, split: str) -> dict[str, Any]:
        """Loss, perplexity and accuracy of masked tokens, accuracy of pairs."""
        nll, tokens, correct, pairs, right = self.totals(split, self._predictions)
        metrics = {
            "loss": nll / tokens,
            "perplexity": perplexity(nll, int(tokens)),
            "accuracy": 100.0 * correct / tokens,
            "tokens": int(tokens),
        }
        if pairs:
            metrics["next_accuracy"] = 100.0 * right / pairs
        return metrics

    def _predictions(self, batch: Batch) -> tuple[Tensor | float, ...]:
        labels = batch.tensors["labels"]
        hidden, next_sentence, _ = _forward(self.model, batch.tensors)
        logits = self.model.head(hidden)  # [B, T, V]
        _, nll = cross_entropy(logits, labels)
        correct = logits.argmax(dim=-1) == labels  # IGNORED equals no token
        if next_sentence is None:
            return nll, batch.tokens, correct.sum(), 0, 0
        right = next_sentence.argmax(dim=-1) == batch.tensors["next_sentence_labels"]
        return nll, batch.tokens, correct.sum(), len(right), right.sum()

    def measures(self) -> dict[str, Any]:
        """Attention entropy, and the first rows of some batches."""
        batches = islice(self.evaluation_batches("valid"), self.settings.samples)
        return self._attention_entropy() | {"samples": [self._sample(one) for one in batches]}

    @torch.inference_mode()
    def _sample(self, batch: Batch) -> dict[str, Any]:
        """The first row of a batch, masked and filled in."""
        tensors = {name: tensor[:1] for name, tensor in batch.tensors.items()}
        hidden, _, _ = _forward(self.model, tensors)
        tokens = tensors["tokens"]  # [1, T]
        predicted = self.model.head(hidden).argmax(dim=-1)
        filled = torch.where(tensors["labels"] >= 0, predicted, tokens)
        is_token = tensors["padding_mask"]
        return {
            "text": self.decode_visibly(tokens[is_token].tolist()),
            "guess": self.decode_visibly(filled[is_token].tolist()),
        }

    def _attention_entropy(self) -> dict[str, Any]:
        """Attention entropy on the first validation rows."""
        # One batch: it is to show how attention develops, which needs no precision.
        batch = next(self.evaluation_batches("valid"))
        tensors = {name: tensor[:ROWS] for name, tensor in batch.tensors.items()}
        return attention_entropy(
            lambda probe: _forward(self.model, tensors, probe),
            padding_masks={"encoder": tensors["padding_mask"]},
        )


def masked_loss(
    model: Any, tensors: Tensors, token_loss: TokenLoss = linear_cross_entropy
) -> LossTerms:
    """The mean over masked tokens plus the mean over pairs, times the number of tokens."""
    hidden, next_sentence, auxiliary = _forward(model, tensors)
    # Labels are IGNORED but at masked tokens: the mean is over these (BERT, Appendix A.2).
    loss, nll = token_loss(model.head, hidden, tensors["labels"])
    if next_sentence is not None:
        pairs = functional.cross_entropy(next_sentence.float(), tensors["next_sentence_labels"])
        # A mean over pairs, which `add_auxiliary_losses` scales up to the sum over tokens.
        auxiliary = {**auxiliary, "pairs": pairs}
    return LossTerms(loss, nll, auxiliary, (tensors["labels"] >= 0).sum())


def _forward(
    model: Any, tensors: Tensors, probe: NullProbe = NO_PROBE
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Hidden states [B, T, D], logits of the next sentence [B, 2] or None, auxiliary losses."""
    segments = {"segments": tensors["segments"]} if "segments" in tensors else {}
    padding_mask = tensors["padding_mask"]
    hidden, auxiliary = model(tensors["tokens"], padding_mask, Context(probe=probe), **segments)
    next_sentence = None
    if "next_sentence_labels" in tensors:
        next_sentence = model.classes(hidden, padding_mask)
    return hidden, next_sentence, auxiliary


# --- denoising (BART) and spans (T5) --------------------------------------------------------------


class RestoredText(PackedText):
    """Rows that an encoder–decoder restores."""

    @classmethod
    def frame(cls, tokenizer: Tokenizer) -> folders.SpecialTokenIds:
        """BART's decoder starts from the end token, and then writes the start token."""
        return decoder_token_ids(tokenizer, "eos", tokenizer.required_token_id("bos"))

    @classmethod
    def special_token_ids(cls, data: TextCorpora) -> folders.SpecialTokenIds:
        return cls.frame(data.tokenizer)

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: TextCorpora) -> Model:
        tokenizers = (data.tokenizer, data.tokenizer)
        return new_translator(model, description, config, tokenizers, cls.special_token_ids(data))

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        # A decoder needs its start token too.
        generation = folders.generation_config(cls.frame(model.target_tokenizer))
        return super().files(model, setup) | {"generation_config.json": generation}


class SpanText(RestoredText):
    """Rows for T5, whose decoder starts from padding; no token stands before a text."""

    @classmethod
    def frame(cls, tokenizer: Tokenizer) -> folders.SpecialTokenIds:
        return decoder_token_ids(tokenizer, "pad")


class Denoising(CorruptedText):
    """The objective of BART: text infilling and sentence permutation.

    Spans are masked and sentences permuted; the target is the whole text.
    """

    name = "denoise"
    restoration: ClassVar[type[Restoration]] = Infilling
    default_share = Infilling.default_share
    source_class: ClassVar[type[RestoredText]] = RestoredText
    base_tasks = ("translate",)
    base_advice = "give an encoder–decoder over text, such as BART or T5"
    spec_classes = (spec.EncoderDecoder, spec.SequenceToSequence)
    widens_targets = True  # to the context, where few shapes are wanted

    def __init__(self, model: Translator, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.frame = self.source_class.frame(data.tokenizer)
        span_length = setup.recipe.span_length
        self.corrupt = self.restoration(data.tokenizer, self.corrupted_share, span_length)

    def collate(self, split: str, rows: Rows, position: Position = (0, 0)) -> Batch:
        """`source`, `padding_mask` [B, S]; `target`, `labels` [B, T]."""
        pairs = [self._corrupt(split, int(row), position[0]) for row in rows]
        sources = [source for source, _ in pairs]
        targets = [target for _, target in pairs]
        # [B, S] and [B, T]: the target is the whole text (BART), or the spans alone (T5).
        source, padding_mask = self.pad(sources, self.frame.pad)
        labels, _ = self.pad(targets, IGNORED, widens=self.widens_targets)
        # Teacher forcing: the decoder reads the labels shifted right, after the start token.
        target = torch.where(labels < 0, self.frame.pad, labels)[:, :-1]
        tensors = {
            "source": source,
            "padding_mask": padding_mask,
            "target": functional.pad(target, (1, 0), value=self.frame.start),
            "labels": labels,
        }
        return Batch(tensors, int((labels >= 0).sum()), np.asarray(rows))

    def _corrupt(self, split: str, row: int, epoch: int) -> tuple[list[int], list[int]]:
        """Source and target of a row, with their special tokens."""
        stream = self.random_numbers(epoch, row)
        return with_special_tokens(self.corrupt(*self.source.row(split, row), stream), self.frame)

    def loss(self, tensors: Tensors) -> LossSums:
        return self.total(teacher_forced_loss(self.model, tensors["source"], tensors))

    def measures(self) -> dict[str, Any]:
        """Some restored texts."""
        samples = range(min(self.settings.samples, len(self.source.splits["valid"])))
        return {"samples": [self._sample(row) for row in samples]}

    def _sample(self, row: int) -> dict[str, Any]:
        """A validation row and what greedy decoding restores of it."""
        # Always epoch 0: samples of different validations show the same holes.
        source, _ = self._corrupt("valid", row, 0)
        frame = self.frame
        special = SpecialTokens(frame.pad, frame.start, frame.end, forced_bos=frame.forced_bos)
        # At most the context: BART restores the whole text, T5 the spans alone.
        settings = DecodingSettings(Greedy(), Limit.fixed(self.context))
        hypotheses = decode(self.model, [source], special, settings)
        best = hypotheses[0][0]
        return {
            "text": self.decode_visibly(source),
            "restored": self.decode_visibly(best.tokens),
        }


class SpanCorruption(Denoising):
    """The objective of T5: spans are replaced by sentinels, and the target is the spans."""

    name = "span"
    restoration = Spans
    default_share = Spans.default_share
    source_class = SpanText
    widens_targets = False  # they are short
