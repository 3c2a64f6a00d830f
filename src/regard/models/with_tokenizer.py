"""What models with one tokenizer have in common."""

from __future__ import annotations

from typing import Any

from regard import spec as kinds
from regard.build import CoreModel
from regard.errors import DataError
from regard.models.base import Model
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_files import open_encoder_tokenizer


class WithText(Model):
    """Its tokenizer is opened when text first comes: without one, the model can still be called with tensors."""

    def __init__(
        self,
        model: CoreModel,
        description: kinds.Model,
        text: Tokenizer | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, description, config)
        self._text = text

    @property
    def text(self) -> Tokenizer:
        if self._text is None:
            if self.folder is None:
                raise DataError(
                    "this model has no tokenizer",
                    "give one when it is made, or open it from a folder",
                )
            self._text = open_encoder_tokenizer(self.folder)
        return self._text

    # ------------------------------------------------------------------ for `regard.look`

    @property
    def accepts_text(self) -> bool:
        try:
            return self.text is not None
        except DataError:  # no tokenizer in its folder
            return False

    @property
    def input_tokenizer(self) -> Tokenizer:
        return self.text
