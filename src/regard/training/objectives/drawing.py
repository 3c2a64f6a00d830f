"""Images drawn of texts: a language model over words and image tokens (Ramesh et al. 2021)."""

from __future__ import annotations

from regard import spec
from regard.data.labelled import LabelledImage
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.task import Outputs, Settings
from regard.evaluation.tasks import TASKS
from regard.training import model_spec
from regard.training.data.drawn_images import DrawnImages
from regard.training.data.stored_items import ItemData
from regard.training.objectives.causal_lm import next_token_loss
from regard.training.objectives.losses import LossSums, Tensors
from regard.training.objectives.objective import ScoredObjective
from regard.training.setup import Setup


class Drawing(ScoredObjective):
    """Each next token of an image behind the words that name it, as any language model learns it.

    DALL-E learns the words too, with an eighth of the weight.
    """

    name = "draw"
    unit = "tokens"
    source_class = DrawnImages
    source: DrawnImages
    base_tasks = ("draw",)
    base_advice = "give a model that draws"
    spec_classes = (spec.Decoder,)

    @classmethod
    def describe(cls, setup: Setup, data: ItemData) -> spec.Model:
        tokenizer, codebook = data.vocabulary
        return model_spec.describe(setup.recipe, len(tokenizer) + len(codebook))

    def loss(self, tensors: Tensors) -> LossSums:
        row = self.source.row_tensors(tensors)
        return self.total(next_token_loss(self.model, row, token_loss=self.token_loss(row)))

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        self.model.eval()
        texts = self.source.splits[split].texts
        examples = [LabelledImage(self.source.shown(split, i), one) for i, one in enumerate(texts)]
        [(kind, predict)] = TASKS[self.name].predict.items()
        with self.autocast:
            return kind, predict(self.trained_model, examples, Settings())
