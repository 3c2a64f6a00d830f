"""Texts about images and recordings, learnt by teacher forcing: captions, transcripts."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from regard import spec
from regard.decode.strategy import BeamSearch, Greedy, Strategy
from regard.evaluation.scores import Score, scored
from regard.evaluation.tasks import TASKS
from regard.training import model_spec
from regard.training.data.image_text_sources import WrittenCaptions
from regard.training.data.stored_items import ItemData
from regard.training.objectives.losses import LossSums, Tensors
from regard.training.objectives.objective import Objective, ScoredObjective
from regard.training.objectives.sequence_to_sequence import teacher_forced_loss
from regard.training.setup import Setup

_WRITTEN_AT_ONCE = 64  # texts, about images or recordings that are in memory


class MediumToText(ScoredObjective):
    """After a prompt each next token of a text about an image or a recording, and its end."""

    task: ClassVar[str]  # by which the texts are written and scored
    # Whether each validation writes about all of them, or only if the metric asks for it.
    always_writes: ClassVar[bool] = False

    def loss(self, tensors: Tensors) -> LossSums:
        token_loss = self.token_loss(tensors, self.settings.label_smoothing)
        shown = self.source.model_inputs(tensors).inputs
        return self.total(teacher_forced_loss(self.model, shown, tensors, token_loss))

    def decoding(self, strategy: Strategy) -> dict[str, Any]:
        """The options of the method that writes."""
        return {"strategy": strategy}

    def likelihood(self, split: str) -> dict[str, Any]:
        return Objective.likelihood(self, split)  # with the perplexity of its labels

    def measures(self) -> dict[str, Any]:
        """The scores of what is written, and some samples."""
        rows = [(text,) for text in self.source.splits["valid"].texts]
        # Greedy: fast, and good enough to compare checkpoints; the final score uses the beam.
        write = partial(self._texts, "valid", Greedy())
        return self.text_measures(self.task, write, rows, ("text", "reference"), self.always_writes)

    def _texts(self, split: str, strategy: Strategy, count: int) -> list[str]:
        """What the model writes about the first examples of a split."""
        self.model.eval()
        write = getattr(self.trained_model, TASKS[self.task].method)
        texts: list[str] = []
        for start in range(0, count, _WRITTEN_AT_ONCE):
            end = min(start + _WRITTEN_AT_ONCE, count)
            shown = [self.source.shown(split, row) for row in range(start, end)]
            texts += write(shown, **self.decoding(strategy))
        return texts

    def score(self, split: str) -> Score:
        """By the recipe's beam search."""
        recipe = self.setup.recipe
        strategy = BeamSearch(recipe.decode.beam, recipe.length_penalty)
        references = self.source.splits[split].texts
        texts = self._texts(split, strategy, len(references))
        return scored(self.task, texts, references)


class Captioning(MediumToText):
    """Captions of images, by an encoder–decoder over patches."""

    name = "caption"
    task = "caption"
    source_class = WrittenCaptions
    base_tasks = ("caption",)
    base_advice = "give a model that writes about images, such as ViT-GPT2"
    spec_classes = (spec.EncoderDecoder,)
    input_names = ("pixel_values", "text_images")
    head = "head"
    head_fields = "target=Tokens(…), heads=(LMHead(),)"

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        return model_spec.describe(setup.recipe, len(data.vocabulary))
