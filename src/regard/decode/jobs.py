"""Jobs of a continuous batch: one text to decode each, and the reading of what it begins with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from regard.core.caches.kv_cache import DecoderState
from regard.core.context import Context
from regard.core.masks.mask import CausalMask
from regard.core.stack import Stack
from regard.data.padding import pad_rows, round_up
from regard.decode.batch_decoding import DecodingSettings, Source, SpecialTokens, collate
from regard.decode.strategy import BeamSearch, Hypothesis, Sampling, Strategy
from regard.wirings.generative import Generative

# Prompts are padded to this many tokens, and read at most so many of each at once: the attention
# kernel of a CPU then rounds a text alike, whatever it is read with (see the log of serving).
PIECE_MULTIPLE = 16
MOST_IN_PIECE = 128


@dataclass(eq=False)
class Job:
    """One text to decode: its rows in the batch, and what has come of it so far.

    `settings.stops` and `settings.stream` are not used; `stops(tokens)` ends a hypothesis of a beam
    as it is, and `wants_logits` keeps the logits of each new token. `is_watched`: somebody looks at
    each token before the next one is taken.
    """

    source: Source
    special_tokens: SpecialTokens
    settings: DecodingSettings
    key: int = 0  # the random stream that is drawn from
    stops: Callable[[list[int]], bool] | None = None
    wants_logits: bool = False
    is_watched: bool = False
    # --- in the batch ---
    searches: list[Search] = field(default_factory=list)
    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """The job is in error; the first one counts."""
        self.error = self.error or error

    def is_stopped(self, tokens: list[int]) -> bool:
        """Whether these tokens of a beam end a hypothesis."""
        if self.stops is None or self.error is not None:
            return False
        try:
            return self.stops(tokens)
        except Exception as error:  # whatever it is, it is this job's alone
            self.fail(error)
            return True

    @property
    def strategy(self) -> Strategy:
        return self.settings.strategy

    @property
    def source_length(self) -> int:
        """In tokens, or in frames."""
        return self.source.shape[-1] if isinstance(self.source, Tensor) else len(self.source)

    @property
    def padded_length(self) -> int:
        """Jobs with the same one are read together without much padding."""
        return round_up(max(1, self.source_length - 1), PIECE_MULTIPLE)

    @property
    def read(self) -> list[int]:
        """What its decoder reads before the first new token."""
        if self.special_tokens.start is None:
            return [*map(int, self.source)]
        return [*self.start]

    @property
    def start(self) -> tuple[int, ...]:
        """What its decoder begins with, the newest token last."""
        start = self.special_tokens.start
        if start is None:  # a language model goes on from the last token of its prompt
            start = int(self.source[-1])
        return (start,) if isinstance(start, int) else start

    @property
    def kind(self) -> Hashable:
        """Jobs of one kind are decoded alike."""
        strategy = self.strategy
        if isinstance(strategy, Sampling):  # what else draws alike may have another seed
            strategy = replace(strategy, seed=0, draws=1)
        rules = self.settings
        return (
            strategy,
            replace(self.special_tokens, start=None),
            rules.min_new_tokens,
            rules.no_repeat_ngram_size,
            rules.repetition_penalty,
            self.stops is None,
        )

    @property
    def width(self) -> int:
        """How many rows each of its searches takes."""
        if isinstance(self.strategy, BeamSearch):
            return self.strategy.width
        return 1

    @property
    def count(self) -> int:
        """How many searches it is."""
        if isinstance(self.strategy, Sampling):
            return self.strategy.draws
        return 1

    @property
    def rows(self) -> int:
        """How many rows it takes."""
        return self.width * self.count


@dataclass(eq=False)
class Search:
    """One search of a job: a sample, the greedy continuation, or a beam."""

    job: Job
    index: int
    slots: list[int]  # its rows: one, or one for each beam
    tokens: list[int] = field(default_factory=list)  # that will not change any more
    logits: Tensor | None = None  # [V] of the newest of them, where they are wanted
    total: float = 0.0  # log-probability
    hypotheses: list[Hypothesis] | None = None  # once it is done


class Prefill:
    """Reads the sources or the prompts of jobs, in pieces: all that comes before the first step.

    Prompts that `can_share` are read together, shorter ones padded behind their end, where nothing
    of theirs looks.
    """

    def __init__(self, model: Generative, jobs: Sequence[Job], most_tokens: int) -> None:
        self.model = model
        self.jobs = jobs
        self.device = next(model.parameters()).device
        self.state: DecoderState | None = None
        self.in_pieces = jobs[0].special_tokens.start is None and model.keeps_cache
        # What the decoder reads: the last token is that of the first step.
        reads = [job.read if self.in_pieces else [*job.start] for job in jobs]
        self.lengths = [len(one) - 1 for one in reads]
        multiple = 1
        piece = most_tokens
        if self.can_share(model, jobs[0]):
            multiple = PIECE_MULTIPLE
            piece = max(multiple, min(most_tokens, MOST_IN_PIECE) // multiple * multiple)
        before, _ = pad_rows([one[:-1] for one in reads], 0, pad_to_multiple_of=multiple)
        if multiple > 1 and (most := model.positions_left(0)) is not None:
            before = before[:, : max(most, *self.lengths)]
        self.capacity = before.shape[1] + 1
        pieces = before.to(self.device).split(piece, dim=1)
        self.pieces = [one for one in pieces if one.shape[1]]

    @staticmethod
    def can_share(model: Generative, job: Job) -> bool:
        """Whether what it reads may be read with others without a difference: causal attention of
        several positions has one kernel on a CPU, and so have products of four rows and more; an
        encoder's attention has not. A recurrent model reads position by position; a window would
        be filled by padding."""
        stack = model.stacks()["decoder"]
        is_read_alike = job.special_tokens.start is None or next(model.parameters()).is_cuda
        if not (model.keeps_cache and is_read_alike) or job.settings.probe.active:
            return False
        if not isinstance(stack, Stack) or stack.segment_length is not None:
            return False
        return all(kind.pattern == CausalMask() for kind in stack.layer_types)

    def __call__(self) -> int:
        """Reads one piece; the number of its tokens. `done` says whether it was the last."""
        if self.state is None:
            sources = [job.source for job in self.jobs]
            if self.in_pieces:  # the first token alone, which leaves caches empty
                sources = [one[:1] for one in sources]
            pad = self.jobs[0].special_tokens.pad
            source: Any
            source, mask = collate(sources, pad, self.model.padding_side, self.device)
            context = Context(probe=self.jobs[0].settings.probe)
            encoded = self.model.encode(source, mask, context)
            self.state = self.model.start(encoded, capacity=self.capacity)
            if not self.in_pieces:
                return source.shape[-1]
        if not self.pieces:
            return 0
        piece = self.pieces.pop(0)
        self.model.advance(piece, self.state)
        return piece.numel()

    @property
    def done(self) -> bool:
        return self.state is not None and not self.pieces
