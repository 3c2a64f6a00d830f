"""A sequence-to-sequence model over text: translation, and whatever else maps text to text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.padding import IGNORED, pad_rows
from regard.data.text.tokenizer import Between, Text, Tokenizer
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, batch_by_length, decode
from regard.decode.limits import require_memory, warn_of_cut_off
from regard.decode.strategy import (
    BeamSearch,
    DecodingOptions,
    Hypothesis,
    Limit,
    Strategy,
    choose_strategy,
    returning,
)
from regard.evaluation.metrics.perplexity import corpus_nll, corpus_perplexity
from regard.families import folder as folders
from regard.models.base import Files, Model
from regard.models.generation_config import GenerationDefaults
from regard.models.inputs.input_warnings import warn_of_inputs
from regard.models.inputs.token_batches import (
    SPLIT,
    framed_rows,
    smaller_limit,
    text_list,
    text_pairs,
    texts_to_truncate,
)
from regard.models.tasks import one_or_many
from regard.system.arguments import whole_number
from regard.system.errors import DataError, ModelError, SettingError
from regard.wirings.encoder_decoder import EncoderDecoder


class Translator(Model):
    """An encoder–decoder that translates text; made by `regard.load(folder)`."""

    evaluations = ("translate", "summarize", "pronounce", "span", "denoise")
    writes_targets = True
    model: EncoderDecoder
    spec: kinds.EncoderDecoder | kinds.SequenceToSequence
    special_tokens: SpecialTokens
    defaults: GenerationDefaults

    def __init__(
        self,
        model: EncoderDecoder,
        spec: kinds.EncoderDecoder | kinds.SequenceToSequence,
        source: Tokenizer,
        target: Tokenizer,
        start: int,
        config: dict[str, Any] | None = None,
        *,
        forced_bos: int | None = None,
        forced_eos: bool = False,
    ) -> None:
        """`start` is the first token that the decoder reads.

        `forced_bos` and `forced_eos` force the first and the last token, as in `SpecialTokens`.
        """
        super().__init__(model, spec, config)
        share_tokenizer = target is source
        if isinstance(spec.source, kinds.Tokens):
            source = source.for_model(spec.source.vocabulary)
        vocabulary = spec.target_tokens.vocabulary
        target = source if share_tokenizer else target.for_model(vocabulary)
        self.source_tokenizer = source
        self.target_tokenizer = target
        for key, token in (("decoder_start_token_id", start), ("forced_bos_token_id", forced_bos)):
            if token is not None and token >= vocabulary:
                raise ModelError(
                    f"{key} = {token:,} is outside the vocabulary of {vocabulary:,} tokens",
                    f"set {key} to a token id of the model",
                )
        self.start = start  # Marian: the padding token; BART: the end token
        pad = source.required_token_id("pad")
        eos = target.required_token_id("eos")
        # Special tokens that frame texts are never generated, all but the end token.
        banned = tuple(sorted((target.framing_ids | {start}) - {eos}))
        self.special_tokens = SpecialTokens(pad, start, eos, banned, forced_bos, forced_eos)
        self.defaults = GenerationDefaults()  # of generation_config.json

    def files(self) -> Files:
        source = self.source_tokenizer
        target = self.target_tokenizer
        special = self.special_tokens
        ids = folders.SpecialTokenIds(
            target.required_token_id("pad"),
            self.start,
            special.end,
            target.special_token_id("unk"),
            special.forced_bos,
            special.forced_eos,
        )
        # The layout of Marian's two vocabularies: one file if both sides share theirs.
        files: dict[str, str | dict[str, Any]] = {"tokenizer.json": source.to_json()}
        if target is not source:
            files["target_tokenizer.json"] = target.to_json()
        if not self.config:
            files["config.json"] = folders.describe(self.spec, ids)
        return files

    def tokens(
        self,
        texts: Text | Sequence[Text],
        max_length: int | None = None,
        *,
        truncation: bool = False,
        targets: str | Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        batch = super().tokens(texts, max_length, truncation=truncation)
        if targets is None:
            return batch
        limit = smaller_limit(max_length, self.spec.target_tokens.max_length)
        target_texts = text_list(targets)
        sources = len(batch["input_ids"])
        if len(target_texts) != sources:
            raise DataError(
                f"{len(target_texts)} targets for {sources} sources", "pass one target per source"
            )
        labels = framed_rows(self.output_tokenizer, target_texts, limit, truncation, self.say)
        # Teacher forcing: the decoder reads the labels shifted right, behind the start token.
        shifted = [[self.start, *row[:-1]] for row in labels]
        batch["decoder_input_ids"], _ = pad_rows(shifted, self.special_tokens.pad)
        batch["labels"], _ = pad_rows(labels, IGNORED)
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    @property
    def positions(self) -> int | None:
        return self.spec.tokens.max_length

    # ------------------------------------------------------------------ for `regard.look`

    @property
    def accepts_text(self) -> bool:
        return True

    @property
    def input_tokenizer(self) -> Tokenizer:
        return self.source_tokenizer

    @property
    def output_tokenizer(self) -> Tokenizer:
        # Labels end with the end token and do not begin with the start token.
        return self.target_tokenizer.with_framing(Between(after=(self.special_tokens.end,)))

    @one_or_many
    def translate(
        self,
        texts: list[str],
        strategy: Strategy | None = None,
        *,
        language: str | None = None,
        max_new_tokens: int | None = None,
        num_return_sequences: int = 1,
        **options: Unpack[DecodingOptions],
    ) -> list[Any]:
        """The translation of one text or of a list; an empty line gives an empty line.

        Without a `strategy`, or keywords that stand for one (`beam=8`, `length_penalty="gnmt:1"`,
        `temperature=0.7`), the search is that of generation_config.json, or a beam of 4.
        `language` is the target language of a multilingual model: mBART's de_DE, the fra of
        opus-mt's >>fra<<. `max_new_tokens` limits the length of each translation; by default it
        follows from that of the source. With `num_return_sequences` above 1, there is a list of
        that many for each text: the best, or as many samples; `hypotheses` has their scores.
        """
        lines = text_list(texts)
        limit = None
        if max_new_tokens is not None:
            limit = Limit.fixed(whole_number("max_new_tokens", max_new_tokens, 1))
        keywords = ("language", "max_new_tokens", "num_return_sequences")
        settings = self.settings(choose_strategy(strategy, options, keywords), limit)
        if num_return_sequences != 1:
            several = returning(settings.strategy, num_return_sequences)
            settings = replace(settings, strategy=several)
        results = self.hypotheses(lines, settings, language=language)
        best = [hypotheses[0] for hypotheses in results if hypotheses]
        warn_of_cut_off(best, "raise max_new_tokens (regard translate: --max-length)")
        if num_return_sequences == 1:
            return [self.text(n_best[0]) if n_best else "" for n_best in results]
        return [[*map(self.text, n_best)] or [""] * num_return_sequences for n_best in results]

    def settings(
        self, strategy: Strategy | None = None, limit: Limit | None = None, tokens: int = 4096
    ) -> DecodingSettings:
        """Decoding settings; what is None is as generation_config.json says, or by default.

        `tokens` is the number of positions decoded at once.
        """
        self.warn_of_unsupported()
        defaults = self.defaults
        # max_length and min_length of transformers count the start token of the decoder as well.
        max_new_tokens = defaults.new_tokens(1)
        if limit is None:
            limit = Limit() if max_new_tokens is None else Limit.fixed(max_new_tokens)
        return DecodingSettings(
            strategy or defaults.strategy or BeamSearch(),
            limit,
            tokens,
            # min_new_tokens wins over min_length, as in transformers.
            defaults.min_new_tokens or max(0, defaults.min_length - 1),
            defaults.no_repeat_ngram_size,
            defaults.repetition_penalty,
        )

    def hypotheses(
        self,
        lines: Sequence[str],
        settings: DecodingSettings | None = None,
        *,
        first_index: int = 0,
        language: str | None = None,
    ) -> list[list[Hypothesis]]:
        """The n-best hypotheses of each line, best first; none for an empty line.

        `settings(BeamSearch(8, n_best=3))` has three, each with its `score`, and `text` gives the
        text of one.
        `first_index` is the index of the first line in the whole job; it seeds sampling and counts
        the lines in errors, so that neither depends on how a job is split into chunks.
        """
        settings = settings or self.settings()
        # Empty lines are not translated: a model would invent something.
        rows = [i for i, line in enumerate(lines) if line.strip()]
        prefix, special_tokens = self.target_language(language)
        texts = [lines[i] for i in rows]
        sources = [prefix + ids for ids in self.encode(texts)]
        line_numbers = [first_index + i for i in rows]
        texts_to_truncate(
            list(map(len, sources)), self.positions, False, self.say, SPLIT, line_numbers
        )
        warn_of_inputs(
            self.source_tokenizer, texts, sources, self.coverage, line_numbers, unit="line"
        )
        # The decoder has no positions beyond those of its table.
        if self.spec.target_tokens.max_length is not None:
            limit = replace(settings.limit, maximum=self.spec.target_tokens.max_length)
            settings = replace(settings, limit=limit)
        longest = max((settings.limit(len(ids)) for ids in sources), default=0)
        require_memory(settings.strategy, self.spec, longest)
        decoded = decode(self.model, sources, special_tokens, settings, keys=line_numbers)
        results = dict(zip(rows, decoded, strict=True))
        return [results.get(i, []) for i in range(len(lines))]

    def target_language(self, language: str | None) -> tuple[list[int], SpecialTokens]:
        """The prefix of a source and the special tokens of a target that select a language."""
        if language is None:
            return [], self.special_tokens
        # opus-mt: a token before the source. mBART: the first token of the target.
        source_token = self.source_tokenizer.token_to_id(f">>{language}<<")
        if source_token is not None:
            return [source_token], self.special_tokens
        target_token = self.target_tokenizer.token_to_id(language)
        if target_token is None:
            raise SettingError(
                f"this model has no language token for {language!r}",
                "use a language code of the vocabulary, or remove it if the model has one language",
            )
        return [], replace(self.special_tokens, forced_bos=target_token)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Source token ids with their special tokens."""
        tokenizer = self.source_tokenizer
        return [tokenizer.frame(ids) for ids in tokenizer.encode_batch(lines)]

    def text(self, hypothesis: Hypothesis) -> str:
        """The text of a hypothesis."""
        return self.target_tokenizer.decode(hypothesis.tokens)

    def nll(
        self, sources: str | Sequence[str], targets: str | Sequence[str], batch_tokens: int = 4096
    ) -> tuple[float, int]:
        """Negative log-likelihood of the targets given their sources, by teacher forcing.

        One text each, or lists of the same length. Its sum in nats, and the number of target
        tokens, end tokens included.
        """
        eos = self.special_tokens.end
        pairs = text_pairs(sources, targets)
        source_ids = self.encode([source for source, _ in pairs])
        contents = self.target_tokenizer.encode_batch([target for _, target in pairs])
        target_ids = [[*ids, eos] for ids in contents]
        return corpus_nll(self.row_nlls(source_ids, target_ids, batch_tokens))

    @torch.inference_mode()
    def row_nlls(
        self,
        source_ids: Sequence[Sequence[int]],
        target_ids: Sequence[Sequence[int]],
        batch_tokens: int = 4096,
    ) -> list[tuple[float, int]]:
        """Negative log-likelihood in nats, and number of tokens, of each target given its source.

        Both are token ids with their special tokens, the start token of the decoder left out.
        """
        batch_tokens = whole_number("batch_tokens", batch_tokens, least=1)
        self.model.eval()
        lengths = [*map(max, map(len, source_ids), map(len, target_ids))]
        results = [(0.0, 0)] * len(lengths)
        for rows in batch_by_length(lengths, batch_tokens):
            # Any id may stand in the padding of the source: the mask hides it.
            source, padding_mask = pad_rows([source_ids[i] for i in rows], 0)  # [B, S]
            labels, _ = pad_rows([target_ids[i] for i in rows], IGNORED)  # [B, T]
            # The decoder reads the labels shifted to the right, behind the start token.
            decoder_input = functional.pad(labels.clamp_min(0)[:, :-1], (1, 0), value=self.start)
            hidden, _ = self.model(
                source.to(self.device), decoder_input.to(self.device), padding_mask.to(self.device)
            )
            logits = self.model.head(hidden).float()  # [B, T, V]
            # Over dimension 1, the vocabulary; 0 where nothing is to be predicted.
            token_nlls = functional.cross_entropy(
                logits.mT, labels.to(self.device), ignore_index=IGNORED, reduction="none"
            )  # [B, T]
            require_finite(token_nlls, self.model)
            # Summed in float64: long targets add up thousands of small numbers.
            for i, nll in zip(rows, token_nlls.double().sum(dim=1).tolist(), strict=True):
                results[i] = (nll, len(target_ids[i]))
        return results

    def perplexity(self, sources: str | Sequence[str], targets: str | Sequence[str]) -> float:
        """exp(negative log-likelihood per target token), unsmoothed."""
        return corpus_perplexity(*self.nll(sources, targets))
