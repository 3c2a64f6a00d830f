"""A language model: text generation, perplexity, and classification by prompt."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch

from regard import spec as kinds
from regard.core.finite_outputs import require_finite
from regard.data.padding import pad_rows
from regard.data.text.chat_template import FILE, ChatTemplate, Message, read_chat_template
from regard.data.text.streaming import StreamingDecoder
from regard.data.text.tokenizer import Tokenizer
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, batch_by_length, decode
from regard.decode.limits import require_memory, warn_of_long_output
from regard.decode.speculative_decoding import DraftModel
from regard.decode.strategy import (
    BeamSearch,
    DecodingOptions,
    Greedy,
    Limit,
    Strategy,
    choose_strategy,
    returning,
)
from regard.evaluation.metrics.perplexity import corpus_nll, corpus_perplexity
from regard.models.base import TokenizerModel
from regard.models.generation_config import MAX_REPETITION_PENALTY, GenerationDefaults
from regard.models.inputs.input_warnings import warn_of_inputs
from regard.models.inputs.token_batches import (
    SHORTEN_OR_TRUNCATE,
    different_texts,
    text_list,
    texts_to_truncate,
)
from regard.models.labels import Scores, label_scores
from regard.models.tasks import one_or_many
from regard.system.arguments import real_number, whole_number
from regard.system.errors import DataError, ModelError, SettingError
from regard.wirings.decoder import Decoder

TEMPLATE = "Text: {text}\nLabel: {label}\n\n"
_DEFAULT_NEW_TOKENS = 100
# Sampling draws by a key for each text. A text that is decoded in several segments has a key for
# each, which must not be that of another text.
_SEGMENT_KEYS = 1 << 32
_NO_END_TOKEN = -1
_GENERATE_KEYWORDS = (
    "max_new_tokens",
    "max_length",
    "stream",
    "draft",
    "first_index",
    "truncation",
    "stop",
    "num_return_sequences",
    "repetition_penalty",
    "add_special_tokens",
)

# Receives the number of an output and its next tokens; whether the output ends there.
OnTokens = Callable[[int, Sequence[int]], bool]


class GenerationOptions(DecodingOptions, total=False):
    """The keywords of `generate` that set how a text is decoded."""

    stop: str | Sequence[str]
    num_return_sequences: int
    repetition_penalty: float | None
    add_special_tokens: bool


class LanguageModel(TokenizerModel):
    """A decoder that continues text; made by `regard.load(folder)`.

    Without a tokenizer it can only be called with token ids. `eos_token_id` of `config` are the
    tokens that end a text: one, several or none.
    """

    evaluations = ("causal", "classify", "molecules")
    truncates = frozenset({"generate"})
    model: Decoder
    spec: kinds.Decoder | kinds.RecurrentDecoder
    special_tokens: SpecialTokens
    defaults: GenerationDefaults

    def __init__(
        self,
        model: Decoder,
        spec: kinds.Decoder | kinds.RecurrentDecoder,
        tokenizer: Tokenizer | None,
        config: dict[str, Any] | None = None,
    ) -> None:
        if tokenizer is not None:
            tokenizer = tokenizer.for_prompts()
        super().__init__(model, spec, tokenizer, config)
        eos_token_id: Any = self.config.get("eos_token_id")
        # Llama 3 has several end tokens; decoding stops at any of them.
        ends = eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]
        # A token that the model lacks never comes: it ends nothing.
        possible = [token for token in ends if token is not None and token < spec.vocab_size]
        end, *others = possible or [_NO_END_TOKEN]
        self.special_tokens = SpecialTokens(0, None, end, extra_ends=tuple(others))
        self.defaults = GenerationDefaults()  # of generation_config.json

    # ------------------------------------------------------------------ generation

    @one_or_many
    def generate(
        self,
        inputs: list[str],
        strategy: Strategy | None = None,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        stream: Callable[[str], None] | None = None,
        draft: LanguageModel | None = None,
        first_index: int = 0,
        truncation: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> list[Any]:
        """The continuation of each text, up to an end token, a `stop` or `max_new_tokens`.

        `max_length` is the limit of text and continuation together. `stop` is a text, or several,
        before the first of which a continuation ends. With `num_return_sequences` above 1, there is
        a list of that many for each text: the best of a beam search, or as many samples.
        `repetition_penalty` is that of transformers (1.2, say): it makes tokens less likely that
        have been read.

        Decoding is set by `strategy` or keywords (`temperature=0.8, top_p=0.9, seed=7`, or
        `beam=4`); by default by generation_config.json, or greedy search and 100 tokens.

        With one text, `stream` receives the pieces as they are decoded, complete characters only
        (after a beam search, all at once). When the context is full, the model goes on from its
        last half. A prompt that is longer than the context is an error, or is truncated to that
        half, with a message, if `truncation`. A `draft` is a smaller model with the same tokenizer,
        for speculative decoding: faster where it guesses well, and the distribution of the text
        stays the same. `first_index` is the index of the first text in the whole job; it seeds
        sampling, so that results do not depend on how a job is split into chunks.
        """
        stops = _stops(options.pop("stop", ()))
        num_return_sequences = options.pop("num_return_sequences", 1)
        repetition_penalty = _repetition_penalty(options.pop("repetition_penalty", None))
        add_special_tokens = options.pop("add_special_tokens", True)
        if stream is not None and (len(inputs) != 1 or num_return_sequences != 1):
            raise SettingError(
                "`stream` supports one text and one continuation only",
                "pass one text without num_return_sequences, or remove `stream`",
            )
        if max_new_tokens is not None:
            max_new_tokens = whole_number("max_new_tokens", max_new_tokens, least=1)
            warn_of_long_output(max_new_tokens)
        first_index = whole_number("first_index", first_index, least=0)
        strategy = choose_strategy(strategy, options, _GENERATE_KEYWORDS)
        strategy = strategy or self.defaults.strategy or Greedy()
        if num_return_sequences != 1:
            strategy = returning(strategy, num_return_sequences)
        inputs = text_list(inputs)
        prompts = [self._prompt_ids(one, add_special_tokens) for one in inputs]
        texts_to_truncate(
            [*map(len, prompts)],
            self.positions,
            truncation,
            self.say,
            SHORTEN_OR_TRUNCATE,
            prompt_tokens=self._tokens_of_full_context,
        )
        contexts = [self._context(prompt) for prompt in prompts]
        warn_of_inputs(self.tokenizer, inputs, contexts, self.coverage)
        self.warn_of_unsupported()
        prompts = [prompt for prompt in prompts for _ in range(num_return_sequences)]
        decoders = [StreamingDecoder(self.tokenizer, prompt, stops) for prompt in prompts]
        texts = [""] * len(prompts)

        def append(row: int, piece: str) -> None:
            texts[row] += piece
            if stream is not None and piece:
                stream(piece)

        def on_tokens(row: int, tokens: Sequence[int]) -> bool:
            append(row, decoders[row].put(*(t for t in tokens if t != self.special_tokens.end)))
            return decoders[row].stopped

        settings = DecodingSettings(
            strategy,
            no_repeat_ngram_size=self.defaults.no_repeat_ngram_size,
            repetition_penalty=repetition_penalty or self.defaults.repetition_penalty,
        )
        if stops:
            settings = replace(settings, stops=functools.partial(_holds_one, self.tokenizer, stops))
        self._decode(
            prompts,
            num_return_sequences,
            settings,
            [max_new_tokens or self._new_tokens(prompt, max_length) for prompt in prompts],
            on_tokens,
            None if draft is None else self._draft_model(draft),
            first_index * num_return_sequences,
            stream is not None or bool(stops),
        )
        # An incomplete character at the end becomes a replacement character.
        for row, decoder in enumerate(decoders):
            append(row, decoder.end())
        if num_return_sequences == 1:
            return texts
        count = num_return_sequences
        return [texts[i : i + count] for i in range(0, len(texts), count)]

    def _new_tokens(self, prompt: Sequence[int], max_length: int | None) -> int:
        """How many new tokens `max_length` leaves room for, or the default number."""
        if max_length is not None:
            if whole_number("max_length", max_length) <= len(prompt):
                raise SettingError(
                    f"a text has {len(prompt):,} tokens, and max_length is {max_length:,}",
                    "raise it, or use max_new_tokens",
                )
            return max_length - len(prompt)
        return self.defaults.new_tokens(len(prompt)) or _DEFAULT_NEW_TOKENS

    def _decode(
        self,
        prompts: list[list[int]],
        copies: int,
        settings: DecodingSettings,
        max_new_tokens: list[int],
        on_tokens: OnTokens,
        draft: DraftModel | None,
        first_index: int,
        streaming: bool,
    ) -> None:
        """Decodes up to `max_new_tokens` for each prompt and passes every token to `on_tokens`.

        Each prompt comes `copies` times, and its outputs are the hypotheses of one search. Tokens
        are passed at the end of a batch or, if `streaming`, after each step. Where the context is
        full, decoding stops and starts again with a shorter one: a segment.
        """
        sequences = [list(prompt) for prompt in prompts]  # prompts with what has been decoded
        remaining = dict(enumerate(max_new_tokens))  # of the prompts that are not done
        strategy = settings.strategy
        segment = 0
        while remaining:
            # Prompts with the same limits are decoded in one batch.
            batches: dict[tuple[int, int], list[int]] = {}
            for row, count in remaining.items():
                limit = self._segment_length(len(sequences[row]), count)
                minimum = self._min_new_tokens(len(prompts[row]), len(sequences[row]))
                batches.setdefault((limit, minimum), []).append(row)
            for (limit, minimum), rows in sorted(batches.items()):
                stream = None
                # A beam has no final tokens before its end.
                if streaming and not isinstance(strategy, BeamSearch):
                    stream = functools.partial(_pass_token, on_tokens, rows)
                contexts = [self._context(sequences[row]) for row in rows[::copies]]
                require_memory(strategy, self.spec, max(map(len, contexts)) + limit)
                results = decode(
                    self.model,
                    contexts,
                    self.special_tokens,
                    replace(
                        settings,
                        strategy=strategy,
                        limit=Limit.fixed(limit),
                        min_new_tokens=minimum,
                        stream=stream,
                    ),
                    keys=[
                        (first_index + row) // copies + segment * _SEGMENT_KEYS
                        for row in rows[::copies]
                    ],
                    draft=draft,
                )
                # A beam may end with fewer hypotheses, where there are hardly any tokens.
                outputs = [one for n_best in results for one in (n_best * copies)[:copies]]
                for row, best in zip(rows, outputs, strict=True):
                    stopped = False
                    if stream is None:
                        stopped = on_tokens(row, best.tokens)
                    sequences[row] += best.tokens
                    remaining[row] -= len(best.tokens)
                    if best.finished or stopped or remaining[row] <= 0:
                        del remaining[row]
            # From here on, each output goes on by itself.
            segment, strategy, copies = segment + 1, returning(strategy, 1), 1

    def _min_new_tokens(self, prompt_length: int, length: int) -> int:
        """How many tokens must still come before an end token."""
        defaults = self.defaults
        new_tokens = length - prompt_length
        # The stricter of both; min_length counts the prompt too.
        return max(0, defaults.min_new_tokens - new_tokens, defaults.min_length - length)

    def _context(self, ids: list[int]) -> list[int]:
        """The tokens that the model reads: all, or the last ones where the context is full."""
        if self.positions is None or len(ids) <= self.positions:
            return ids
        return ids[-self._tokens_of_full_context :]

    @property
    def _tokens_of_full_context(self) -> int:
        """How many tokens the model goes on from where more have been read: half a context."""
        return max(1, (self.positions or 0) // 2)

    def _segment_length(self, length: int, wanted: int) -> int:
        """How many of the wanted tokens can be decoded before the context is full."""
        if self.positions is None:
            return wanted
        context = length if length <= self.positions else self._tokens_of_full_context
        # One more than there are positions left: the last token is not read any more.
        return min(wanted, self.positions - context + 1)

    def _draft_model(self, other: LanguageModel) -> DraftModel:
        """The draft of speculative decoding, which must read what this model reads."""
        if not isinstance(other, type(self)):
            raise ModelError("`draft` is not a language model", "load one: draft=regard.load(…)")
        if not self.tokenizer.same_vocabulary(other.tokenizer):
            raise ModelError(
                "the draft and the model have different vocabularies",
                "use a smaller model with the same tokenizer",
            )
        # The draft reads the same context.
        if (other.positions or math.inf) < (self.positions or math.inf):
            raise ModelError(
                "the draft has fewer positions than the model",
                "use a draft with at least as many positions",
            )
        return DraftModel(other.model.eval())

    def _prompt_ids(self, text: str, add_special_tokens: bool) -> list[int]:
        """The token ids of a prompt; an empty one becomes a start or end token."""
        ids = self.tokenizer.encode(text)
        if add_special_tokens:
            ids = self.tokenizer.frame(ids)
        if ids:
            return ids
        # GPT-2 has no start token: the end of one text is the start of the next.
        bos_token_id = self.config.get("bos_token_id")
        if isinstance(bos_token_id, int) and bos_token_id < self.spec.vocab_size:
            return [bos_token_id]
        if self.special_tokens.end == _NO_END_TOKEN:
            raise DataError("the prompt is empty", "pass a prompt of at least one character")
        return [self.special_tokens.end]

    # ------------------------------------------------------------------ chat

    @functools.cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template of the model's folder, if it has one."""
        if self.folder is None:
            return None
        return read_chat_template(self.folder)

    @property
    def tasks(self) -> list[str]:
        return [task for task in super().tasks if task != "chat" or self.chat_template is not None]

    def chat(
        self,
        messages: Sequence[Message],
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """The model's answer to a conversation: `[{"role": "user", "content": "…"}, …]`.

        The messages are written as the model's chat template says, with what else it reads in
        `chat_template_kwargs` (such as `tools`). `options` are those of `generate`.
        """
        prompt = self.render_chat(messages, **(chat_template_kwargs or {}))
        return self.generate(prompt, add_special_tokens=False, **options)

    def render_chat(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt of a conversation, by the model's chat template, special tokens included."""
        if self.chat_template is None:
            raise ModelError(
                f"this model ({self!r}) has no chat template",
                f"use one that was trained on chats (its folder has {FILE}), or `generate`",
            )
        return self.chat_template.render(messages, **variables)

    # ------------------------------------------------------------------ perplexity

    def nll(self, texts: str | Sequence[str], batch_tokens: int = 2048) -> tuple[float, int]:
        """Negative log-likelihood of the texts: its sum in nats, and the number of tokens.

        A first token that nothing precedes is not counted. Texts that are longer than the context,
        or than `batch_tokens`, are read in parts.
        """
        batch_tokens = whole_number("batch_tokens", batch_tokens, least=1)
        rows = [self.tokenizer.input_ids(text) for text in text_list(texts)]
        # Tokens that a part reads; it predicts as many.
        size = min(self.positions or batch_tokens, batch_tokens)
        # Parts overlap by one token, which the next part reads and the last one has predicted.
        parts = [
            row[i : i + size + 1] for row in rows for i in range(0, max(1, len(row) - 1), size)
        ]
        log_probabilities = self._log_probabilities(
            [part for part in parts if len(part) > 1], 1, batch_tokens
        )
        return corpus_nll((-sum(row), len(row)) for row in log_probabilities)

    def perplexity(self, texts: str | Sequence[str]) -> float:
        """exp(negative log-likelihood per token)."""
        return corpus_perplexity(*self.nll(texts))

    @torch.inference_mode()
    def _log_probabilities(
        self, rows: Sequence[Sequence[int]], first: int, batch_tokens: int = 2048
    ) -> list[list[float]]:
        """log p of each row's tokens from position `first` on, given those before."""
        self.model.eval()
        results: list[list[float]] = [[] for _ in rows]
        for batch in batch_by_length([*map(len, rows)], batch_tokens):
            ids, padding_mask = pad_rows([rows[i] for i in batch], 0)  # [B, T]
            ids = ids.to(self.device)
            padding_mask = padding_mask.to(self.device)
            input_mask = None if bool(padding_mask.all()) else padding_mask[:, :-1]
            # Teacher forcing: each position predicts the next token.
            hidden, _ = self.model(ids[:, :-1], input_mask)  # [B, T - 1, D]
            logits = self.model.head(hidden[:, first - 1 :]).float()  # [B, T - first, V]
            labels = ids[:, first:, None]  # [B, T - first, 1]
            log_probabilities = require_finite(logits, self.model).log_softmax(dim=-1)
            of_labels = log_probabilities.gather(-1, labels).squeeze(-1)  # [B, T - first]
            for i, values, mask in zip(batch, of_labels, padding_mask[:, first:], strict=True):
                results[i] = values[mask].tolist()
        return results

    # ------------------------------------------------------------------ classification by prompt

    @one_or_many
    def classify(
        self,
        texts: list[str],
        labels: Sequence[str],
        examples: Sequence[tuple[str, str]] = (),
        template: str = TEMPLATE,
    ) -> list[Scores]:
        """Label → probability as the continuation of a prompt, likeliest first.

        The prompt is the `examples` (texts with their labels) and then the text, all written by the
        `template`; nothing is trained (in-context learning). Probabilities are normalized over the
        labels.
        """
        labels = different_texts("labels", labels, least=2)
        if "{text}" not in template or "{label}" not in template:
            raise SettingError(
                f"the template {template!r} lacks {{text}} or {{label}}",
                "add {text} and {label} to it",
            )
        prompt = "".join(_fill_template(template, *example) for example in examples)
        # The first character after the label is scored with it, so that "new" does not match the
        # beginning of "news".
        before, _, after = template.partition("{label}")
        query = before + "{label}" + after[:1].replace("{", "")
        texts = text_list(texts)
        results = []
        for one in texts:
            queries = [_fill_template(query, one, label) for label in labels]
            results.append(self._label_probabilities(prompt, queries, labels))
        # After the scores, so that a text that is too long gives an error and no warning besides.
        rows = [*map(self.tokenizer.input_ids, texts)]
        warn_of_inputs(self.tokenizer, texts, rows, self.coverage)
        return results

    def _label_probabilities(
        self, prompt: str, queries: list[str], labels: Sequence[str]
    ) -> Scores:
        """The probabilities of queries that differ in their label, after the same prompt."""
        rows = [self.tokenizer.input_ids(prompt + query) for query in queries]
        lengths = [*map(len, rows)]
        if self.positions is not None and max(lengths) > self.positions + 1:
            raise DataError(
                f"the prompt with this text has {max(lengths):,} tokens, and this model reads "
                f"{self.positions:,}: {queries[0][:40]!r}",
                "pass fewer or shorter examples" if prompt else "shorten the text",
            )
        # A token may reach over the end of the prompt: scores begin where the rows differ.
        first = 0
        while first < min(lengths) - 1 and len({row[first] for row in rows}) == 1:
            first += 1
        if first == 0:
            raise DataError(
                "the template begins with the label",
                "put {text} or other text before {label} in the template",
            )
        # The part that all rows share cancels out in the softmax.
        log_probabilities = [*map(sum, self._log_probabilities(rows, first))]
        return label_scores(torch.tensor(log_probabilities, dtype=torch.float64), labels)


def _fill_template(template: str, text: str, label: str) -> str:
    """The template with a text and its label."""
    # Not str.format: the text may hold braces, and even "{label}".
    before, _, after = template.partition("{label}")
    return before.replace("{text}", text) + label + after.replace("{text}", text)


def _stops(stop: str | Sequence[str]) -> list[str]:
    """The texts before which a continuation ends."""
    stops = [stop] if isinstance(stop, str) else [*stop]
    if not all(isinstance(one, str) and one for one in stops):
        raise SettingError(f"stop = {stop!r} is no text", "pass a text, or a list of them")
    return stops


def _holds_one(tokenizer: Tokenizer, stops: list[str], _: int, tokens: list[int]) -> bool:
    """Whether a beam has come to one of the stops."""
    text = tokenizer.decode(tokens)
    return any(stop in text for stop in stops)


def _repetition_penalty(value: float | None) -> float | None:
    if value is None or 0 < real_number("repetition_penalty", value) <= MAX_REPETITION_PENALTY:
        return value
    raise SettingError(
        f"repetition_penalty = {value} is out of range",
        f"use a number above 0, at most {MAX_REPETITION_PENALTY:g}; 1 is off",
    )


def _pass_token(on_tokens: OnTokens, rows: list[int], source: int, token: int) -> bool:
    """Passes a token to the output that it continues."""
    return on_tokens(rows[source], [token])
