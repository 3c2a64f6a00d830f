"""A language model: it goes on from a text, says how surprising a text is, and classifies by prompt."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch.nn import functional

from regard import spec as kinds
from regard.data.padding import pad_rows
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, batch_by_length, decode
from regard.decode.events import BeamStep, TokenStep
from regard.decode.speculative_decoding import DraftModel
from regard.decode.strategy import BeamSearch, Greedy, Limit, Strategy
from regard.errors import DataError, ModelError, SettingError
from regard.model import Decoder
from regard.models.base import Model
from regard.models.generation_config import GenerationDefaults, warn_of_unsupported
from regard.text.streaming import StreamingDecoder
from regard.text.tokenizer import Tokenizer

TEMPLATE = "Text: {text}\nLabel: {label}\n\n"
USUAL = 100  # tokens that are generated if nobody says how many
PIECES = 1 << 32  # the chance of one text's second piece is not that of another text's first


class LanguageModel(Model):
    """Goes on from text; made by `regard.load(folder)`. Without a tokenizer it can only be called with token ids.

    `config` says which tokens end a text (`eos_token_id`: one, several or none).
    """

    model: Decoder
    spec: kinds.Decoder | kinds.RecurrentDecoder
    special_tokens: SpecialTokens

    def __init__(
        self,
        model: Decoder,
        description: kinds.Decoder | kinds.RecurrentDecoder,
        tokenizer: Tokenizer | None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, description, config)
        self.tokenizer = tokenizer
        end = self.config.get("eos_token_id")
        stops = tuple(end if isinstance(end, list) else [] if end is None else [end])
        self.special_tokens = SpecialTokens(
            0, None, stops[0] if stops else -1, extra_ends=stops[1:]
        )
        self.defaults = GenerationDefaults()  # what the folder says of generating

    @property
    def words(self) -> Tokenizer:
        """The tokenizer, which all that deals with text needs."""
        if self.tokenizer is None:
            raise ModelError(
                "this model's folder has no tokenizer.json",
                "put it there, or call the model with ids",
            )
        return self.tokenizer

    @property
    def positions(self) -> int | None:
        """How many tokens it can see at once, if its positions end somewhere."""
        place = self.spec.tokens.position
        return (
            place.length
            if isinstance(place, kinds.LearnedPosition | kinds.FixedPosition | kinds.AxialPosition)
            else None
        )

    # ------------------------------------------------------------------ for `regard.look`

    @property
    def accepts_text(self) -> bool:
        return self.tokenizer is not None

    @property
    def input_tokenizer(self) -> Tokenizer:
        return self.words

    # ------------------------------------------------------------------ generation

    @overload
    def generate(
        self,
        text: str,
        strategy: Strategy | None = None,
        *,
        max_new_tokens: int | None = None,
        stream: Callable[[str], None] | None = None,
        draft: LanguageModel | None = None,
    ) -> str: ...
    @overload
    def generate(
        self,
        text: list[str],
        strategy: Strategy | None = None,
        *,
        max_new_tokens: int | None = None,
        stream: Callable[[str], None] | None = None,
        draft: LanguageModel | None = None,
    ) -> list[str]: ...
    def generate(
        self,
        text: str | list[str],
        strategy: Strategy | None = None,
        *,
        max_new_tokens: int | None = None,
        stream: Callable[[str], None] | None = None,
        draft: LanguageModel | None = None,
    ) -> str | list[str]:
        """What follows each text, up to an end token or `max_new_tokens`. What is not given is as generation_config.json says
        it, or greedy and 100 tokens.

        With one text, `stream` is given the pieces as they are found, whole characters only (after a beam, all at once).
        Beyond the positions a model has learnt, it goes on from the last half of them. A `draft` is a smaller model with the
        same tokenizer that writes ahead: faster where it guesses well, and the distribution of the text stays the same.
        """
        if stream is not None and not isinstance(text, str):
            raise SettingError(
                "only one text can be streamed", "give one text, or leave `stream` out"
            )
        if max_new_tokens is not None and max_new_tokens < 1:
            raise SettingError(f"max_new_tokens is {max_new_tokens}", "ask for 1 or more")
        prompts = [self._prompt(each) for each in ([text] if isinstance(text, str) else text)]
        growing = [StreamingDecoder(self.words, prompt) for prompt in prompts]
        texts = [""] * len(prompts)

        def heard(row: int, token: int) -> None:
            piece = "" if token == self.special_tokens.end else growing[row].put(token)
            texts[row] += piece
            if stream is not None and piece:
                stream(piece)

        warn_of_unsupported(self)
        counts = [max_new_tokens or self._most_new(len(prompt)) for prompt in prompts]
        self._go_on(
            prompts,
            strategy or self.defaults.strategy or Greedy(),
            counts,
            heard,
            None if draft is None else self._draft(draft),
        )
        for row, each in enumerate(growing):
            rest = each.end()
            texts[row] += rest
            if stream is not None and rest:
                stream(rest)
        return texts[0] if isinstance(text, str) else texts

    def _most_new(self, length: int) -> int:
        """How many tokens follow a prompt of this length at most, if nobody says."""
        said = self.defaults
        return said.max_new_tokens or (
            USUAL if said.max_length is None else max(1, said.max_length - length)
        )

    def _go_on(
        self,
        prompts: list[list[int]],
        strategy: Strategy,
        counts: list[int],
        heard: Callable[[int, int], None],
        draft: DraftModel | None = None,
    ) -> None:
        """Decodes so many tokens for each prompt, in pieces where the positions end; `heard` is told every token."""
        so_far = [list(prompt) for prompt in prompts]
        left = dict(enumerate(counts))
        piece = 0
        while left:
            limits = {row: self._room(len(so_far[row]), most) for row, most in left.items()}
            # How many tokens must come before an end: all that the decoder has read counts, or what is new.
            said, new = self.defaults, {row: len(so_far[row]) - len(prompts[row]) for row in left}
            least = {
                row: max(0, said.min_new_tokens - new[row], said.min_length - len(so_far[row]))
                for row in left
            }
            for room, fewest in sorted({(limits[row], least[row]) for row in left}):
                rows = [row for row in left if (limits[row], least[row]) == (room, fewest)]
                sources = [self._seen(so_far[row]) for row in rows]
                keys = [row + piece * PIECES for row in rows]
                watch = (
                    None
                    if isinstance(strategy, BeamSearch)
                    else functools.partial(_told, heard, rows)
                )
                settings = DecodingSettings(
                    strategy,
                    Limit(0.0, room),
                    min_new_tokens=fewest,
                    no_repeat_ngram_size=said.no_repeat_ngram_size,
                )
                found = decode(
                    self.model,
                    sources,
                    self.special_tokens,
                    settings,
                    keys=keys,
                    on_step=watch,
                    draft=draft,
                )
                for row, hypotheses in zip(rows, found, strict=True):
                    best = hypotheses[0]
                    for token in best.tokens if watch is None else ():
                        heard(row, token)
                    so_far[row] += best.tokens
                    left[row] -= len(best.tokens)
                    if best.finished or left[row] <= 0:
                        del left[row]
            piece += 1

    def _draft(self, other: LanguageModel) -> DraftModel:
        if not self.words.same_vocabulary(other.words):
            raise ModelError(
                "the draft has another vocabulary", "use a smaller model with the same tokenizer"
            )
        if (other.positions or math.inf) < (self.positions or math.inf):
            raise ModelError(
                "the draft can see less than the model", "use a draft with as many positions"
            )
        return DraftModel(other.model.eval())

    def _seen(self, ids: list[int]) -> list[int]:
        """What of a text is still seen: all of it, or where the positions are full, as much as leaves half of them free."""
        most = self.positions
        return ids if most is None or len(ids) < most else ids[-max(1, most // 2) :]

    def _room(self, length: int, wanted: int) -> int:
        """How many tokens can follow before the positions are full. The last token needs none: it is not read."""
        most = self.positions
        if most is None:
            return wanted
        seen = length if length < most else max(1, most // 2)
        return min(wanted, most - seen + 1)

    def _prompt(self, text: str) -> list[int]:
        ids = self.words.input_ids(text)
        if ids:
            return ids
        # Nothing to go on from: the token that starts texts, or the one that ends the text before.
        first = self.config.get("bos_token_id")
        first = (
            first
            if isinstance(first, int)
            else None
            if self.special_tokens.end < 0
            else self.special_tokens.end
        )
        if first is None:
            raise DataError(
                "there is nothing to go on from", "give a prompt of at least one character"
            )
        return [first]

    # ------------------------------------------------------------------ scores

    def nll(self, texts: str | Sequence[str], tokens: int = 2048) -> tuple[float, int]:
        """−log p of the texts in nats, summed, and how many tokens that was. A first token that nothing comes before is not
        counted. Texts that are longer than the model can see, or than `tokens`, are read in parts."""
        rows = [
            self.words.input_ids(text) for text in ([texts] if isinstance(texts, str) else texts)
        ]
        most = min(self.positions or tokens, tokens)
        parts = [
            row[i : i + most + 1] for row in rows for i in range(0, max(1, len(row) - 1), most)
        ]
        scored = self._scores([part for part in parts if len(part) > 1], 1, tokens)
        return -sum(sum(row) for row in scored), sum(len(row) for row in scored)

    def perplexity(self, texts: str | Sequence[str]) -> float:
        """exp(−log p per token)."""
        total, count = self.nll(texts)
        return math.exp(min(total / max(1, count), 700.0))

    @torch.inference_mode()
    def _scores(
        self, rows: Sequence[Sequence[int]], first: int, tokens: int = 2048
    ) -> list[list[float]]:
        """log p of each row's tokens from number `first` on, given those before."""
        self.model.eval()
        results: list[list[float]] = [[] for _ in rows]
        for numbers in batch_by_length([len(row) for row in rows], tokens):
            ids, padding_mask = pad_rows([rows[i] for i in numbers], 0)
            ids, padding_mask = ids.to(self.device), padding_mask.to(self.device)
            seen = None if bool(padding_mask.all()) else padding_mask[:, :-1]
            hidden, _ = self.model(ids[:, :-1], seen)
            logits = self.model.head(hidden[:, first - 1 :]).float()
            log_probabilities = functional.log_softmax(logits, dim=-1)
            chosen = log_probabilities.gather(-1, ids[:, first:, None])[..., 0]
            for i, row, kept in zip(
                numbers, chosen.tolist(), padding_mask[:, first:].tolist(), strict=True
            ):
                results[i] = [value for value, counts in zip(row, kept, strict=True) if counts]
        return results

    # ------------------------------------------------------------------ classes by prompt

    @overload
    def classify(
        self,
        text: str,
        labels: Sequence[str],
        examples: Sequence[tuple[str, str]] = (),
        template: str = TEMPLATE,
    ) -> dict[str, float]: ...
    @overload
    def classify(
        self,
        text: list[str],
        labels: Sequence[str],
        examples: Sequence[tuple[str, str]] = (),
        template: str = TEMPLATE,
    ) -> list[dict[str, float]]: ...
    def classify(
        self,
        text: str | list[str],
        labels: Sequence[str],
        examples: Sequence[tuple[str, str]] = (),
        template: str = TEMPLATE,
    ) -> dict[str, float] | list[dict[str, float]]:
        """How probable each label is as what follows, likeliest first; nothing is trained.

        The model reads the `examples` (texts with their labels) and then the text, all written by the `template`, and the
        probabilities of the labels as continuations are divided by their sum.
        """
        if len(set(labels)) < 2 or "" in labels:
            raise SettingError(
                "there is nothing to choose between", "give two different labels or more"
            )
        if "{text}" not in template or "{label}" not in template:
            raise SettingError(
                f"the template {template!r} has no place for both", "write {text} and {label} in it"
            )
        shown = "".join(_written(template, one, label) for one, label in examples)
        # What follows the label is read too, as far as its first character, so that "new" does not begin "news".
        before, _, after = template.partition("{label}")
        cut = before + "{label}" + after[:1].replace("{", "")
        asked = [text] if isinstance(text, str) else text
        results = [
            self._labels(shown, [_written(cut, one, label) for label in labels], labels)
            for one in asked
        ]
        return results[0] if isinstance(text, str) else results

    def _labels(self, shown: str, wholes: list[str], labels: Sequence[str]) -> dict[str, float]:
        rows = [self.words.input_ids(shown + whole) for whole in wholes]
        # Pieces may reach over the end of the prompt, so what is scored begins where the rows begin to differ.
        shortest = min(len(row) for row in rows) - 1
        same = next((i for i in range(shortest) if len({row[i] for row in rows}) > 1), shortest)
        most = self.positions
        if most is not None and max(len(row) for row in rows) > most + 1:
            raise DataError(
                f"the text and its {len(shown):,} characters of examples are longer than the {most} tokens "
                "this model can see",
                "give fewer or shorter examples",
            )
        if same == 0:
            raise DataError(
                "nothing comes before the labels", "write something before {label} in the template"
            )
        scores = torch.tensor([sum(row) for row in self._scores(rows, same)], dtype=torch.float64)
        chances = scores.softmax(0).tolist()
        return dict(sorted(zip(labels, chances, strict=True), key=lambda pair: -pair[1]))


def _written(template: str, text: str, label: str) -> str:
    """Plain replacement: a text may hold braces of its own."""
    before, _, after = template.partition("{label}")
    return before.replace("{text}", text) + label + after.replace("{text}", text)


def _told(heard: Callable[[int, int], None], rows: list[int], event: BeamStep | TokenStep) -> None:
    """Each token of a step, to the prompt it continues."""
    if isinstance(event, TokenStep):
        for sentence, token in zip(event.sentences.tolist(), event.tokens.tolist(), strict=True):
            heard(rows[sentence], token)
