"""What models with one tokenizer have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard import spec as kinds
from regard.build import CoreModel
from regard.errors import DataError
from regard.models.base import Model
from regard.text.framed import Framed


class WithText(Model):
    """Its tokenizer is opened when text first comes: without one, the model can still be called with tensors."""

    def __init__(
        self,
        model: CoreModel,
        description: kinds.Model,
        text: Framed | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, description, config)
        self._text = text

    @property
    def text(self) -> Framed:
        if self._text is None:
            if self.folder is None:
                raise DataError(
                    "this model has no tokenizer",
                    "give one when it is made, or open it from a folder",
                )
            self._text = Framed.open(self.folder)
        return self._text

    # ------------------------------------------------------------------ for `regard.look`

    @property
    def accepts_text(self) -> bool:
        try:
            return self.text is not None
        except DataError:  # no tokenizer in its folder
            return False

    def input_ids(self, text: str) -> list[int]:
        return self.text.encode([text])[0].ids

    def input_offsets(self, text: str) -> Sequence[tuple[int, int]]:
        return self.text.encode([text])[0].offsets

    def input_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.text.token(i) for i in ids]

    def target_text(self, ids: Sequence[int]) -> str:
        return self.text.decode(ids)
