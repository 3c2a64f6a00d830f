"""Sources of images with texts: captions that a decoder writes, questions with their answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard import spec
from regard.data.batching import Rows
from regard.data.generated.scenes import Scene
from regard.data.image_questions import ImageQuestion, read_image_questions
from regard.data.labelled import LabelledImage, read_captions
from regard.data.padding import pad_rows
from regard.data.text.tokenizer import Tokenizer
from regard.models import ImageCaptioner, Model, VisualQuestionModel
from regard.training import model_spec
from regard.training.data.image_sources import SceneImages
from regard.training.data.labelled_text import encoder_tokenizer
from regard.training.data.source import ModelInputs, text_model_files
from regard.training.data.stored_items import ItemData, LabelledItems
from regard.training.data.written_texts import WrittenTexts
from regard.training.setup import Setup


class WrittenCaptions(WrittenTexts, SceneImages):
    """Images with captions that a decoder writes."""

    model_class = ImageCaptioner
    tokenizer_kind = "words"
    default_flip = 0.0  # captions tell left from right
    read = staticmethod(read_captions)
    model: ImageCaptioner

    def __init__(self, model: ImageCaptioner, data: ItemData, setup: Setup) -> None:
        assert data.processor is not None, "prepared with the images"
        model.image_processor = data.processor  # whoever writes about images reads them by itself
        self.prompt = (model.ids.start,)
        super().__init__(model, data, setup)
        self.labels = {name: self.label(name, items) for name, items in data.sets.items()}
        self._counts = {name: self.token_counts(name) for name in data.sets}

    @staticmethod
    def of_scene(one: Scene) -> LabelledImage:
        return LabelledImage(one.image, one.caption)

    def lengths(self, split: str) -> NDArray[Any]:
        return np.column_stack([super().lengths(split), self._counts[split]])

    def units(self, split: str, rows: Rows) -> int:
        return int(self._counts[split][rows].sum())


class Answers(NamedTuple):
    """What questions and answers become: ids of tokens, and of classes."""

    names: list[str]
    tokenizer: Tokenizer


class ImageQuestions(LabelledItems, SceneImages):
    """Images with a question each, whose answer is a class."""

    unit = "questions"
    processor_kind = "vit"
    default_flip = 0.0  # questions tell left from right
    read = staticmethod(read_image_questions)
    model: VisualQuestionModel

    def __init__(self, model: VisualQuestionModel, data: ItemData, setup: Setup) -> None:
        super().__init__(model, data, setup)
        context = setup.recipe.data.context
        limit = min(context, model.spec.max_length or context)
        self.questions = {
            name: [
                encoding.ids
                for encoding in model.tokenizer.encode_with_template(
                    [_question(text) for text in items.texts], limit
                )
            ]
            for name, items in data.sets.items()
        }

    @staticmethod
    def of_scene(one: Scene) -> list[ImageQuestion]:
        return [ImageQuestion(one.image, *pair) for pair in one.questions]

    @classmethod
    def generated(cls, numbers: range, processor: Any) -> Iterable[ImageQuestion]:
        return chain.from_iterable(super().generated(numbers, processor))

    @classmethod
    def item(cls, processor: Any, example: ImageQuestion) -> tuple[NDArray[np.uint8], str]:
        return processor.resized(example.image)[None], f"{example.question}\t{example.answer}"

    @classmethod
    def class_of(cls, text: str) -> str:
        return text.rpartition("\t")[2]

    @classmethod
    def vocabulary(cls, setup: Setup, base: Any, texts: list[str]) -> Any:
        names = super().vocabulary(setup, base, texts)
        if base is not None:
            return Answers(names, base.tokenizer)
        return Answers(names, encoder_tokenizer(setup, lambda: map(_question, texts)))

    @classmethod
    def class_names(cls, data: ItemData) -> Sequence[str]:
        names: list[str] = data.vocabulary.names
        return names

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: ItemData) -> Model:
        tokenizer = data.vocabulary.tokenizer
        model_spec.check_vocabulary("text", description.tokens, len(tokenizer))
        return VisualQuestionModel(model, description, tokenizer, config)

    @classmethod
    def image_front_end(cls, description: spec.Model) -> Any:
        return description.patches  # type: ignore[union-attr]

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        tokenizer = text_model_files(model, setup)["tokenizer_config.json"]
        return {**super().files(model, setup), "tokenizer_config.json": tokenizer}

    def lengths(self, split: str) -> NDArray[Any]:
        tokens = np.array([len(ids) for ids in self.questions[split]])
        return super().lengths(split) + tokens[:, None]

    def targets(self, split: str, rows: Rows) -> dict[str, Tensor]:
        """With `tokens` and `padding_mask` [B, T] of the questions."""
        pad = self.model.tokenizer.special_token_id("pad") or 0
        multiple = self.setup.pad_to_multiple_of
        ids = [self.questions[split][row] for row in rows]
        tokens, padding_mask = pad_rows(ids, pad, pad_to_multiple_of=multiple)
        return {
            **super().targets(split, rows),
            "tokens": tokens,
            "padding_mask": padding_mask,
        }

    def model_inputs(self, tensors: Mapping[str, Tensor]) -> ModelInputs:
        more = {"pixels": self.pixel_values(tensors)}
        return ModelInputs(tensors["tokens"], tensors["padding_mask"], more)


def _question(text: str) -> str:
    return text.rpartition("\t")[0]
