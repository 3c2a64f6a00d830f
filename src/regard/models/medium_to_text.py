"""What writes texts about images or recordings: an encoder–decoder, or a language model behind what
it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from regard.data.text.tokenizer import Tokenizer
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.limits import require_memory, warn_of_cut_off
from regard.decode.strategy import Greedy, Limit, Strategy
from regard.families import folder as folders
from regard.models.base import Files, TokenizerModel, no_tokenizer
from regard.wirings.generative import Generative


class MediumToText(TokenizerModel):
    """Reads a medium and writes a text; the tokenizer is of that text alone."""

    writes_targets = True
    default_max_tokens = 448  # where positions are not learned
    repair_of_length: str  # what to do about texts that are cut off
    model: Generative
    spec: Any

    def __init__(
        self,
        model: Generative,
        spec: Any,
        ids: folders.SpecialTokenIds,
        tokenizer: Tokenizer | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, spec, tokenizer, config)
        self.ids = ids

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json, or config.json where it is missing."""
        return self.read_json("generation_config.json") or self.config

    def files(self) -> Files:
        files = dict(super().files())
        if not self.config:
            files["config.json"] = folders.describe(self.spec, self.ids)
        return files

    def _written(
        self,
        inputs: Sequence[Tensor],
        prompt: tuple[int, ...],
        strategy: Strategy | None,
        batch_tokens: int,
        max_new_tokens: int | None = None,
    ) -> list[str]:
        """The texts of inputs of one shape, after a prompt; greedy without a strategy."""
        # Of learned positions, the prompt takes some.
        positions = self.spec.max_length
        most = self.default_max_tokens if positions is None else positions - len(prompt)
        limit = Limit.fixed(min(most, max_new_tokens or most))
        settings = DecodingSettings(strategy or Greedy(), limit, batch_tokens=batch_tokens)
        require_memory(settings.strategy, self.spec, most)
        shown = [one.to(self.dtype) for one in inputs]
        results = decode(self.model, shown, self._special_tokens(prompt), settings)
        best = [hypotheses[0] for hypotheses in results]
        if max_new_tokens is None:
            warn_of_cut_off(best, self.repair_of_length)
        return [self.text(hypothesis.tokens) for hypothesis in best]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of a hypothesis."""
        return self.tokenizer.decode(tokens).strip()

    def _special_tokens(self, prompt: tuple[int, ...]) -> SpecialTokens:
        """The decoder prompt, the end token, and the tokens that generation_config.json bans."""
        # -1 stands for "none" in some files.
        suppressed, begin_suppressed = (
            tuple(i for i in self.generation_config.get(key) or () if i >= 0)
            for key in ("suppress_tokens", "begin_suppress_tokens")
        )
        ids = (self.ids.pad, prompt, self.ids.end, suppressed)
        return SpecialTokens(*ids, begin_suppressed=begin_suppressed)

    # ------------------------------------------------------------------ for `regard.look`

    @cached_property
    def special_tokens(self) -> SpecialTokens:  # type: ignore[override]
        return self._special_tokens((self.ids.start,))

    @property
    def accepts_text(self) -> bool:
        return False

    @property
    def input_tokenizer(self) -> Tokenizer:
        raise no_tokenizer()

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def short_answer(self, logits: Tensor) -> str:
        """The text that the decoder has read by teacher forcing."""
        ids = [i for i in logits[0].argmax(dim=-1).tolist() if i != self.ids.end]
        return f"“{self.text(ids)}”"
