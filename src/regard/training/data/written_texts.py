"""Texts that a model writes about images or recordings: tokens after a prompt."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import Rows
from regard.data.padding import IGNORED, pad_rows
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import train_tokenizer
from regard.families import folder as folders
from regard.models import Model
from regard.system.errors import DataError
from regard.training import model_spec
from regard.training.data.labelled_text import stored_tokenizer
from regard.training.data.source import decoder_token_ids
from regard.training.data.stored_items import ItemData, ItemSource, StoredItems
from regard.training.setup import Setup


class WrittenTexts(ItemSource):
    """Images or recordings with texts, of which the tokens are learnt after a prompt."""

    prompt: tuple[int, ...]  # what a decoder is given, the start token at least
    labels: dict[str, list[list[int]]]  # by split: the tokens of each text, and the end token
    tokenizer_kind: ClassVar[str] = "characters"  # of new ones

    @classmethod
    def vocabulary(cls, setup: Setup, base: Any, texts: list[str]) -> Tokenizer:
        if base is not None:
            tokenizer: Tokenizer = base.tokenizer
            return tokenizer
        size = setup.recipe.tokens.vocabulary

        def learn(kind: str) -> str:
            return train_tokenizer(texts, kind, size).to_json()

        return stored_tokenizer(setup, cls.tokenizer_kind, learn)

    @classmethod
    def special_token_ids(cls, data: ItemData) -> folders.SpecialTokenIds:
        return decoder_token_ids(data.vocabulary)

    @classmethod
    def wrap(cls, model: Any, description: Any, config: dict[str, Any], data: ItemData) -> Model:
        tokenizer = data.vocabulary
        model_spec.check_vocabulary("target", description.target, len(tokenizer))
        return cls.model_class(model, description, cls.special_token_ids(data), tokenizer, config)

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        tokens = model.tokenizer.special_tokens
        positions = model.spec.target.max_length or setup.recipe.data.context
        return {
            **super().files(model, setup),
            "generation_config.json": folders.generation_config(model.ids, max_length=positions),
            "tokenizer_config.json": folders.tokenizer_config(
                tokens["pad"], tokens["bos"], tokens["eos"], tokens.get("unk"), positions=positions
            ),
        }

    def label(self, name: str, items: StoredItems) -> list[list[int]]:
        """The labels of the texts of a split."""
        end = self.model.ids.end
        return [[*ids, end] for ids in self.data.vocabulary.encode_batch(items.texts)]

    def token_counts(self, split: str) -> NDArray[Any]:
        """[rows]: the tokens that a decoder reads, for which there must be positions."""
        limit = self.model.spec.target_tokens.max_length
        # − 1: the label of the prompt's last token is the first of the text.
        tokens = np.array([len(self.prompt) - 1 + len(row) for row in self.labels[split]])
        if limit is not None and tokens.max() > limit:
            raise DataError(
                f"a text has {tokens.max()} tokens, and the model {limit} positions",
                "cut such texts; a new model has --context positions",
            )
        return tokens

    def targets(self, split: str, rows: Rows) -> dict[str, Tensor]:
        """`target` and `labels` [B, T]."""
        selected = [self.labels[split][i] for i in rows]
        multiple = self.setup.pad_to_multiple_of
        inputs = [[*self.prompt, *row[:-1]] for row in selected]
        target, _ = pad_rows(inputs, self.model.ids.pad, pad_to_multiple_of=multiple)
        # What stands in the prompt is given, not learnt.
        ignored = [IGNORED] * (len(self.prompt) - 1)
        labels, _ = pad_rows(
            [[*ignored, *row] for row in selected], IGNORED, pad_to_multiple_of=multiple
        )
        return {"target": target, "labels": labels}
