"""An encoder–decoder over text: sentences in, sentences out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch
from torch.nn import functional

from regard import spec as kinds
from regard.data.padding import IGNORED, pad_rows
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, batch_by_length, decode
from regard.decode.strategy import BeamSearch, Hypothesis, Limit, Strategy
from regard.errors import DataError, SettingError
from regard.families import folder as folders
from regard.model import EncoderDecoder
from regard.models.base import Model
from regard.models.generation_config import GenerationDefaults, warn_of_unsupported
from regard.text.tokenizer import Between, Tokenizer


class Translator(Model):
    """Translates text; made by `regard.load(folder)`."""

    model: EncoderDecoder
    spec: kinds.EncoderDecoder | kinds.SequenceToSequence
    special_tokens: SpecialTokens

    def __init__(
        self,
        model: EncoderDecoder,
        description: kinds.EncoderDecoder | kinds.SequenceToSequence,
        source: Tokenizer,
        target: Tokenizer,
        start: int,
        config: dict[str, Any] | None = None,
        *,
        opening: int | None = None,
        closing: bool = False,
    ) -> None:
        """`start` is the first token that the decoder reads; `opening` and `closing` are forced as in `SpecialTokens`."""
        super().__init__(model, description, config)
        self.source_tokenizer = source
        self.target_tokenizer = target
        self.start = start
        pad, eos = source.required_token_id("pad"), target.required_token_id("eos")
        banned = tuple(sorted((target.framing_ids | {start}) - {eos}))
        self.special_tokens = SpecialTokens(pad, start, eos, banned, opening, closing)
        self.defaults = GenerationDefaults()  # what the folder says of generating

    def files(self) -> Mapping[str, str | dict[str, Any]]:
        source, target = self.source_tokenizer, self.target_tokenizer
        special = self.special_tokens
        ids = folders.SpecialTokenIds(
            target.required_token_id("pad"),
            self.start,
            special.end,
            target.special_token_id("unk"),
            special.forced_bos,
            special.forced_eos,
        )
        return {
            "config.json": {} if self.config else folders.describe(self.spec, ids),
            "tokenizer.json": source.to_json(),
            **({} if target is source else {"target_tokenizer.json": target.to_json()}),
        }

    # ------------------------------------------------------------------ for `regard.look`

    @property
    def accepts_text(self) -> bool:
        return True

    @property
    def input_tokenizer(self) -> Tokenizer:
        return self.source_tokenizer

    @property
    def output_tokenizer(self) -> Tokenizer:
        framing = Between(after=(self.special_tokens.end,))
        return self.target_tokenizer.with_framing(framing)

    @overload
    def translate(
        self, text: str, strategy: Strategy | None = None, *, language: str | None = None
    ) -> str: ...
    @overload
    def translate(
        self, text: list[str], strategy: Strategy | None = None, *, language: str | None = None
    ) -> list[str]: ...
    def translate(
        self,
        text: str | list[str],
        strategy: Strategy | None = None,
        *,
        language: str | None = None,
    ) -> str | list[str]:
        """One text or a list of them; an empty line gives an empty line. The search is as told, or as
        generation_config.json says, or beam 4. `language`: what to translate into, where a model writes several: mBART's
        de_DE, the fra of opus-mt's >>fra<<."""
        lines = [text] if isinstance(text, str) else list(text)
        found = self.hypotheses(lines, self.settings(strategy), language=language)
        best = [self.text(each[0]) if each else "" for each in found]
        return best[0] if isinstance(text, str) else best

    def settings(
        self, strategy: Strategy | None = None, limit: Limit | None = None, tokens: int = 4096
    ) -> DecodingSettings:
        """What is not given is as the folder says it, in generation_config.json, or as usual here."""
        said = self.defaults
        warn_of_unsupported(self)
        # There, what the decoder starts with counts as a token.
        most = said.max_new_tokens or (
            None if said.max_length is None else max(1, said.max_length - 1)
        )
        usual = Limit() if most is None else Limit(0.0, most)
        least = said.min_new_tokens or max(0, said.min_length - 1)
        return DecodingSettings(
            strategy or said.strategy or BeamSearch(),
            limit or usual,
            tokens,
            least,
            said.no_repeat_ngram_size,
        )

    def hypotheses(
        self,
        lines: Sequence[str],
        settings: DecodingSettings,
        progress: Callable[[int], None] | None = None,
        *,
        before: int = 0,
        language: str | None = None,
    ) -> list[list[Hypothesis]]:
        """All that the search found for each line, best first; nothing for an empty line. `before`: how many lines of the
        same text came before these, so that numbers in errors and the chance of sampling are the line's own."""
        asked = [i for i, line in enumerate(lines) if line.strip()]
        before_each, ends = self._into(language)
        sources = [before_each + ids for ids in self.encode([lines[i] for i in asked])]
        numbers = [before + i for i in asked]
        self._check_lengths(sources, numbers)
        if isinstance(self.spec.target.position, kinds.LearnedPosition):
            settings = replace(
                settings, limit=replace(settings.limit, maximum=self.spec.target.position.length)
            )
        found = decode(self.model, sources, ends, settings, progress, keys=numbers)
        results: list[list[Hypothesis]] = [[] for _ in lines]
        for i, hypotheses in zip(asked, found, strict=True):
            results[i] = hypotheses
        return results

    def _into(self, language: str | None) -> tuple[list[int], SpecialTokens]:
        """What to put before a source, and the frame of a target, to have it in this language."""
        if language is None:
            return [], self.special_tokens
        mark, opening = (
            self.source_tokenizer.token_to_id(f">>{language}<<"),
            self.target_tokenizer.token_to_id(language),
        )
        if mark is not None:
            return [mark], self.special_tokens
        if opening is None:
            raise SettingError(
                f"this model has no token {language!r}", "give one of its vocabulary, such as de_DE"
            )
        return [], replace(self.special_tokens, forced_bos=opening)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Source token ids with what stands around them."""
        return [
            self.source_tokenizer.frame(ids) for ids in self.source_tokenizer.encode_batch(lines)
        ]

    def _check_lengths(self, sources: list[list[int]], lines: list[int]) -> None:
        """Learned positions end somewhere: a longer line is named before anything is computed."""
        position = self.spec.source.position
        if not isinstance(position, kinds.LearnedPosition):
            return
        longer = [
            line + 1 for line, ids in zip(lines, sources, strict=True) if len(ids) > position.length
        ]
        if longer:
            raise DataError(
                f"{len(longer)} lines have more than the {position.length} tokens this model has positions for, "
                f"the first is line {longer[0]}",
                "split these lines into sentences",
            )

    def text(self, hypothesis: Hypothesis) -> str:
        return self.target_tokenizer.decode(hypothesis.tokens)

    @torch.inference_mode()
    def nll(
        self, sources: Sequence[str], targets: Sequence[str], tokens: int = 4096
    ) -> tuple[float, int]:
        """−log p of the targets given their sources, in nats, summed, and how many tokens that was (end tokens included)."""
        self.model.eval()
        device = next(self.model.parameters()).device
        left = self.encode(sources)
        right = [
            [*ids, self.special_tokens.end] for ids in self.target_tokenizer.encode_batch(targets)
        ]
        total, count = 0.0, 0
        sizes = [max(len(a), len(b)) for a, b in zip(left, right, strict=True)]
        for rows in batch_by_length(sizes, tokens):
            source, padding_mask = pad_rows([left[i] for i in rows], 0)
            labels, _ = pad_rows([right[i] for i in rows], IGNORED)
            shifted = functional.pad(labels.clamp_min(0)[:, :-1], (1, 0), value=self.start)
            labels = labels.to(device)
            hidden, _ = self.model(source.to(device), shifted.to(device), padding_mask.to(device))
            logits = self.model.head(hidden).float()
            total += functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="sum"
            ).item()
            count += int((labels >= 0).sum())
        return total, count

    def perplexity(self, sources: Sequence[str], targets: Sequence[str]) -> float:
        """exp(−log p per target token), unsmoothed."""
        total, count = self.nll(sources, targets)
        return math.exp(min(total / max(1, count), 700.0))
