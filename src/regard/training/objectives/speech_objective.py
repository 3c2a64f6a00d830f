"""Base of the objectives that learn to transcribe recordings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.audio import Samples
from regard.data.batching import Batch, BatchSampler, Rows, batch_indices
from regard.decode.strategy import BeamSearch, Greedy, Strategy
from regard.metrics.perplexity import corpus_nll, perplexity
from regard.metrics.scores import AnyScore
from regard.metrics.word_error_rate import WordErrorRate, transcription_score
from regard.models import Model
from regard.training.data.sound_files import RecordedSpeech
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup

Vocabulary = TypeVar("Vocabulary")

_TRANSCRIBED_AT_ONCE = 64  # recordings whose samples are in memory


@dataclass(frozen=True)
class SpeechData(Generic[Vocabulary]):
    """Recordings by split, and what turns their transcripts into labels."""

    sets: dict[str, RecordedSpeech]
    vocabulary: Vocabulary


@dataclass(frozen=True)
class LabelledSpeech:
    """A split with the labels of its transcripts.

    `lengths` [recordings, columns] are the positions that a recording takes in a batch.
    """

    speech: RecordedSpeech
    labels: list[list[int]]
    lengths: NDArray[Any]


class SpeechObjective(Objective, Generic[Vocabulary]):
    """Batches of recordings of similar lengths; a subclass says what their labels and loss are."""

    # Whether each validation transcribes all recordings, or only if the metric asks for it.
    always_transcribes: ClassVar[bool]
    data: SpeechData[Vocabulary]

    def __init__(self, model: Model, data: SpeechData[Vocabulary], setup: Setup) -> None:
        super().__init__(model, data, setup)
        WordErrorRate()  # a missing package is reported before hours of training
        self.splits = {name: self.label(name, speech) for name, speech in data.sets.items()}
        self.train_split = self.splits["train"]

    # --- what a subclass defines ------------------------------------------------------------------

    @abstractmethod
    def label(self, name: str, speech: RecordedSpeech) -> LabelledSpeech:
        """A split with its labels; what the model cannot learn from is refused."""

    @abstractmethod
    def collate(self, split: LabelledSpeech, rows: Rows) -> Batch:
        """The tensors of some recordings."""

    @abstractmethod
    def transcribe(self, recordings: list[Samples], strategy: Strategy) -> list[str]:
        """The transcripts that the model writes, where it decodes by that strategy."""

    @property
    def max_evaluation_rows(self) -> int | None:
        """How many recordings a validation batch may have; None for any number."""
        return None

    # --- training ---------------------------------------------------------------------------------

    def _order(self) -> BatchSampler:
        return BatchSampler(
            self.train_split.lengths, self.settings.batch_tokens, seed=self.settings.seed
        )

    def batches_per_epoch(self) -> int:
        return len(self._order().batches(0))

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, rows in self._order().iterate(epoch, index):
            # The position of the next batch comes with each: a checkpoint stores that.
            yield (now, i + 1), self.collate(self.train_split, rows)

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        transcripts = self.train_split.speech.transcripts
        return [{"row": row, "transcript": transcripts[row]} for row in rows]

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """Loss and perplexity for each label, word and character error rate, and some samples."""
        split = self.splits.get("valid")
        if split is None:
            return None
        nll, count = corpus_nll(self._batch_nlls(split, autocast))
        metrics: dict[str, Any] = {"loss": nll / count, "perplexity": perplexity(nll, count)}
        return metrics | self._transcript_metrics(split.speech)

    def _batch_nlls(
        self, split: LabelledSpeech, autocast: AbstractContextManager[Any]
    ) -> Iterator[tuple[Tensor, int]]:
        self.model.eval()
        # Not shuffled: the same batches at every validation.
        batches = batch_indices(
            split.lengths,
            self.settings.batch_tokens,
            seed=0,
            epoch=0,
            shuffle=False,
            max_rows=self.max_evaluation_rows,
        )
        for rows in batches:
            batch = self.collate(split, rows).to(self.trained_model.device)
            with torch.inference_mode(), autocast:
                _, nll = self.loss(batch.tensors)
            yield nll, batch.tokens

    def _transcript_metrics(self, speech: RecordedSpeech) -> dict[str, Any]:
        samples = self.settings.samples
        scored = self.always_transcribes or self.settings.metric != "loss"
        count = len(speech) if scored else min(samples, len(speech))
        # Greedy: fast, and good enough to compare checkpoints; the final score uses the beam.
        texts = self._transcripts(speech, count, Greedy())
        references = speech.transcripts
        metrics: dict[str, Any] = {}
        if scored:
            score = transcription_score(texts, references)
            metrics |= {"wer": score.wer, "cer": score.cer}
        metrics["samples"] = [
            {"transcript": text, "reference": reference}
            for text, reference in zip(texts[:samples], references, strict=False)
        ]
        return metrics

    def _transcripts(self, speech: RecordedSpeech, count: int, strategy: Strategy) -> list[str]:
        """What the model writes for the first recordings of a split."""
        self.model.eval()
        texts: list[str] = []
        for start in range(0, count, _TRANSCRIBED_AT_ONCE):
            end = min(start + _TRANSCRIBED_AT_ONCE, count)
            texts += self.transcribe([speech[row] for row in range(start, end)], strategy)
        return texts

    def scores(self) -> dict[str, AnyScore]:
        """Scores on all sets but that of training, by the recipe's beam search."""
        recipe = self.setup.recipe
        strategy = BeamSearch(recipe.decode.beam, recipe.length_penalty)
        results: dict[str, AnyScore] = {}
        for name, split in self.splits.items():
            if name == "train":
                continue
            speech = split.speech
            texts = self._transcripts(speech, len(speech), strategy)
            score = transcription_score(texts, speech.transcripts)
            results[name] = score
            self.setup.say(
                f"{name}: WER {score.wer:.2f}  CER {score.cer:.2f}  "
                f"exact match {score.exact_match:.1f} %  ({score.examples:,} recordings)"
            )
        return results
