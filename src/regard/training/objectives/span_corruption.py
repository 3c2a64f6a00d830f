"""Span corruption (T5, Raffel et al. 2020): spans become sentinels, which the target spells out."""

from __future__ import annotations

from regard.data.span_corruption import corrupt_spans
from regard.data.text.tokenizer import Tokenizer
from regard.data.text_corruption import Ids, RandomStream
from regard.families import folder as folders
from regard.models import Translator
from regard.system.errors import DataError
from regard.training.data.plain_text import TextCorpora
from regard.training.objectives.denoising import SENTINELS, Denoising
from regard.training.setup import Setup


class SpanCorruption(Denoising):
    """The objective of T5: spans are replaced by sentinels, and the target is the spans."""

    name = "span"
    default_share = 0.15
    widens_targets = False  # they are short

    @classmethod
    def special_token_ids(cls, tokenizer: Tokenizer) -> folders.SpecialTokenIds:
        """T5's decoder starts from padding, and no token stands before a text."""
        pad = tokenizer.required_token_id("pad")
        return folders.SpecialTokenIds(
            pad, pad, tokenizer.required_token_id("eos"), tokenizer.special_token_id("unk")
        )

    def __init__(self, model: Translator, data: TextCorpora, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.sentinels = _sentinels(data.tokenizer)

    def _corrupted_row(self, split: str, row: int, random_numbers: RandomStream) -> tuple[Ids, Ids]:
        return corrupt_spans(
            self.source.row(split, row),
            random_numbers,
            share=self.corrupted_share,
            mean=self.setup.recipe.span_length,
            sentinels=self.sentinels,
        )


def _sentinels(tokenizer: Tokenizer) -> list[int]:
    # Raffel et al. 2020, Section 3.1.4; T5's vocabulary has 100 of them.
    candidates = [tokenizer.token_to_id(f"<extra_id_{i}>") for i in range(SENTINELS)]
    sentinels = [token for token in candidates if token is not None]
    if not sentinels:
        raise DataError("the tokenizer has no sentinels (<extra_id_0> …)", "use T5's, or learn one")
    return sentinels
