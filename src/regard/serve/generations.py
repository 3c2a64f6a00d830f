"""A generation that is running: from a request to a job of the batch, and back to its stream."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.core.finite_outputs import require_finite
from regard.data.text.streaming import StreamingDecoder
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens
from regard.decode.jobs import Job, Prefill, Search
from regard.decode.strategy import BeamSearch, Hypothesis, Limit
from regard.look.inspectable import decoder_start
from regard.models.base import Model
from regard.serve import looking
from regard.serve.requests import Choice, FinishReason, Generation, Limits, Result, Token, Usage
from regard.system.errors import SettingError
from regard.system.pending import Pending


class Running:
    """One generation from its first token that is read to its result."""

    def __init__(
        self,
        model: Model,
        generation: Generation,
        stream: Pending[Result],
        since: float,
        limits: Limits,
    ) -> None:
        self.model = model
        self.generation = generation
        self.stream: Any = stream
        self.since = since
        self.limits = limits
        self.started = time.monotonic()
        self.first_token: float | None = None
        source, special_tokens = _decoder_inputs(generation)
        self.source: Any = source
        settings = DecodingSettings(
            generation.strategy,
            Limit.fixed(generation.max_new_tokens),
            min_new_tokens=generation.min_new_tokens,
            no_repeat_ngram_size=generation.no_repeat_ngram_size,
            repetition_penalty=generation.repetition_penalty,
            probe=looking.probe_of(model, generation.look),
        )
        self.job = Job(source, special_tokens, settings)
        self.job.wants_logits = generation.logprobs is not None
        self.job.is_watched = bool(generation.stops)
        if isinstance(generation.strategy, BeamSearch):
            if self.job.wants_logits:
                raise SettingError(
                    "a beam search has no log-probabilities of single tokens",
                    "use greedy decoding or sampling, or ask for none",
                )
            if generation.stops:
                self.job.stops = self._holds_stop
        self.outputs = [_Output(self, index) for index in range(generation.choices)]

    def _holds_stop(self, tokens: list[int]) -> bool:
        text = self.model.output_tokenizer.decode(tokens)
        return any(stop in text for stop in self.generation.stops)

    @property
    def prompt(self) -> tuple[int, ...]:
        """What the text of an output follows: the prompt of a language model."""
        if self.job.special_tokens.start is not None:
            return ()
        return tuple(self.source)

    # ------------------------------------------------------------------ on the way

    def begin(self, prefill: Prefill) -> None:
        """The prompt has been read: `echo` shows it."""
        if self.generation.echo and self.prompt:
            self._echo(torch.tensor([self.prompt], device=prefill.device))

    def _echo(self, source: Tensor) -> None:
        ids = source[0].tolist()
        count = self.generation.logprobs
        logprobs = [0.0] * len(ids)
        top: list[tuple[tuple[int, float], ...]] = [()] * len(ids)
        if count is not None and len(ids) > 1:
            core: Any = self.model.model
            hidden, _ = core(source[:, :-1])
            logits = require_finite(core.head(hidden)[0].float(), core)  # [T - 1, V]
            scores = logits.log_softmax(dim=-1)
            logprobs[1:] = scores.gather(1, source[0, 1:, None])[:, 0].tolist()
            top[1:] = [_likeliest(row, count) for row in scores]
        pieces = StreamingDecoder(self.model.output_tokenizer)
        texts = [pieces.put(one) for one in ids]
        texts[-1] += pieces.end()
        for index in range(self.generation.choices):
            for one, text, logprob, best in zip(ids, texts, logprobs, top, strict=True):
                token = Token(index, (one,), text, is_prompt=True)
                if count is not None:
                    token = replace(token, logprobs=(logprob,), top=(best,))
                self.stream.put(token)

    def go_on(self) -> list[Search]:
        """After a step: passes new tokens on; the searches that end because of a stop."""
        stopped = []
        for search in self.job.searches:
            # The hypotheses of a beam are told apart when it ends.
            if isinstance(self.generation.strategy, BeamSearch):
                self._go_on_with_beam(search)
            else:
                output = self.outputs[search.index]
                if output.finish_reason is None and output.follow(search):
                    stopped.append(search)
        return stopped

    def _go_on_with_beam(self, search: Search) -> None:
        if search.hypotheses is None:
            if len(self.outputs) == 1:
                self.outputs[0].put(search.tokens)
            return
        for output, hypothesis in zip(self.outputs, search.hypotheses, strict=False):
            output.put(hypothesis.tokens)
            output.finish(hypothesis)
        # Hardly any tokens: there are fewer hypotheses than were asked for.
        self.outputs = self.outputs[: len(search.hypotheses)]

    @property
    def done(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)

    # ------------------------------------------------------------------ the end

    def end(self) -> None:
        """Ends the stream, with the result or with the job's error."""
        if self.job.error is not None:
            self.stream.fail(self.job.error)
        else:
            self.stream.finish(self.result())

    def usage(self, look_values: int = 0) -> Usage:
        """What it has cost up to now."""
        return Usage(
            self.generation.source.shape[-1],
            sum(len(output.ids) for output in self.outputs),
            look_values,
            seconds_waiting=self.started - self.since,
            seconds=time.monotonic() - self.since,
        )

    def result(self) -> Result:
        """Its choices so far."""
        return Result(tuple(output.choice() for output in self.outputs), self.usage())

    def look_at(self, model: Model) -> Result:
        """The result with what `look` asks for: a pass over all that was read and written."""
        best = self.outputs[0]
        ended = best.finish_reason == "stop"
        look = looking.look_at(model, self.generation, tuple(best.ids), ended=ended)
        count = looking.count_numbers(look, self.limits.look_values)
        return replace(self.result(), look=look, usage=self.usage(count))

    def fail(self, error: BaseException) -> None:
        self.job.fail(error)
        self.stream.fail(error)

    @property
    def seconds_to_first_token(self) -> float:
        return (self.first_token or self.since) - self.since


class _Output:
    """One choice as it grows."""

    def __init__(self, running: Running, index: int) -> None:
        self.running = running
        self.index = index
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.total = 0.0
        self.score = 0.0
        tokenizer = running.model.output_tokenizer
        stops = running.generation.stops
        self.decoder = StreamingDecoder(tokenizer, running.prompt, stops)

    def follow(self, search: Search) -> bool:
        """The newest token of a sample or of greedy decoding; whether a stop has come."""
        count = self.running.generation.logprobs
        asked: tuple[Any, ...] = ()
        new = search.tokens[len(self.ids) :]
        if new and count is not None and search.logits is not None:
            scores = search.logits.float().log_softmax(dim=-1)
            asked = ((float(scores[new[-1]]),), (_likeliest(scores, count),))
        self.put(search.tokens, *asked)
        self.total = search.total
        if self.decoder.stopped:
            self.finish_reason = "stop"
            self.score = self.total
            return search.hypotheses is None
        if search.hypotheses is not None:
            self.finish(search.hypotheses[0])
        return False

    def put(self, tokens: Sequence[int], *asked: Any) -> None:
        """Passes on what has come since."""
        new = tuple(tokens[len(self.ids) :])
        if not new or self.decoder.stopped:
            return
        text = self.decoder.put(*new)
        self.ids += new
        self.text += text
        running = self.running
        if running.first_token is None:
            running.first_token = time.monotonic()
        running.stream.put(Token(self.index, new, text, *asked))

    def finish(self, hypothesis: Hypothesis) -> None:
        self.total = hypothesis.log_probability
        self.score = hypothesis.score
        if not self.decoder.stopped and (rest := self.decoder.end()):
            self.text += rest
            self.running.stream.put(Token(self.index, (), rest))
        if hypothesis.finished or self.decoder.stopped:
            self.finish_reason = "stop"
        else:
            self.finish_reason = "length"

    def choice(self) -> Choice:
        reason = self.finish_reason or "cancelled"
        return Choice(self.index, tuple(self.ids), self.text, reason, self.total, self.score)


def _decoder_inputs(generation: Generation) -> tuple[Any, SpecialTokens]:
    """The source of a job, and its special tokens: the prefix follows the start tokens, or the
    prompt of a language model."""
    special = generation.reading.special_tokens
    assert special is not None, "others were refused"
    source: Any = generation.source
    if not source.is_floating_point():
        source = source.tolist()
    if special.start is None:
        return [*source, *generation.prefix], special
    if generation.prefix:
        special = replace(special, start=(*decoder_start(special), *generation.prefix))
    return source, special


def _likeliest(scores: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    best = scores.topk(min(count, len(scores)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple((one, value) for one, value in pairs if value > -math.inf)
