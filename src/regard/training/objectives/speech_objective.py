"""Base of the objectives that learn to transcribe recordings."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from regard.data.audio import Samples
from regard.decode.strategy import BeamSearch, Greedy, Strategy
from regard.metrics.perplexity import corpus_nll, perplexity
from regard.metrics.scores import AnyScore
from regard.metrics.word_error_rate import WordErrorRate, transcription_score
from regard.models import Model
from regard.training.data.sound_files import RecordedSpeech
from regard.training.objectives.sound_objective import SoundData, SoundObjective, Vocabulary
from regard.training.setup import Setup

_TRANSCRIBED_AT_ONCE = 64  # recordings whose samples are in memory


class SpeechObjective(SoundObjective[Vocabulary]):
    """Transcripts and their error rates; a subclass says how a model learns and writes them."""

    # Whether each validation transcribes all recordings, or only if the metric asks for it.
    always_transcribes: ClassVar[bool]

    def __init__(self, model: Model, data: SoundData[Vocabulary], setup: Setup) -> None:
        WordErrorRate()  # a missing package is reported before hours of training
        super().__init__(model, data, setup)

    @abstractmethod
    def transcribe(self, recordings: list[Samples], strategy: Strategy) -> list[str]:
        """The transcripts that the model writes, where it decodes by that strategy."""

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """Loss and perplexity for each label, word and character error rate, and some samples."""
        split = self.splits.get("valid")
        if split is None:
            return None
        nll, count = corpus_nll(self.batch_nlls(split, autocast))
        metrics: dict[str, Any] = {"loss": nll / count, "perplexity": perplexity(nll, count)}
        return metrics | self._transcript_metrics(split.speech)

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
