"""An encoder of text: what a text means, which class it is of, what its words are, what a question's answer is.

Each method takes one text or a list; a list is batched by tokens, and its answers come in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn, overload

import torch
from tokenizers import Encoding
from torch import Tensor

from regard import spec as kinds
from regard.data.padding import pad_rows
from regard.decode.batch_decoding import batch_by_length
from regard.errors import DataError, ModelError
from regard.model import Encoder
from regard.models.labels import Scores, label_names, scored
from regard.models.sentence_transformers import SentencePooling
from regard.models.with_tokenizer import WithText
from regard.text.tokenizer import Text

Top = Callable[
    [Tensor, Tensor | None, Tensor], Tensor
]  # hidden states, which are real, ids → something for each row
LONGEST_ANSWER = 30  # tokens


@dataclass(frozen=True)
class Tagged:
    """A stretch of a text from character `start` to `end`, and the probability of its label."""

    text: str
    label: str
    probability: float
    start: int
    end: int


@dataclass(frozen=True)
class Filling:
    """A token for the mask, its probability, and the text with it."""

    token: str
    probability: float
    text: str


@dataclass(frozen=True)
class Answer:
    """The stretch of the context that answers best, and its probability; `none` is that of there being no answer, which
    means something only where the model has seen questions without one."""

    text: str
    probability: float
    start: int
    end: int
    none: float


@dataclass(frozen=True)
class Suspect:
    """A token of a text and the probability that it was put there in place of another."""

    text: str
    probability: float
    start: int
    end: int


class TextEncoder(WithText):
    """Reads text; made by `regard.load(folder)`."""

    model: Encoder
    spec: kinds.Encoder
    budget = 8192  # how many positions are read at once

    @cached_property
    def sentence(self) -> SentencePooling:
        """How one vector is made of a text."""
        return SentencePooling.open(self.folder)

    @property
    def labels(self) -> list[str]:
        """The names of its classes or tags, in the order of their scores."""
        if not isinstance(self.spec.labels, kinds.ClassifierHead):
            self._cannot("classes")
        return label_names(self.config, self.spec.labels.count)

    def files(self) -> Mapping[str, str | dict[str, Any]]:
        return {} if self._text is None else self._text.files()

    # -------------------------------------------------------------- one vector

    def embed(self, text: str | Sequence[str], *, cut: bool = False) -> Tensor:
        """[D] for a text, [N, D] for a list: as the folder says if it is one of sentence-transformers, the projected vector
        of a tower, otherwise the mean over the text's tokens. A text that is too long is an error, or `cut` and said."""
        texts = [text] if isinstance(text, str) else list(text)
        rows = self._encode(
            [self.sentence.prepare_text(one) for one in texts], cut, self.sentence.max_seq_length
        )
        pool = self.model.pool
        if pool is not None and self.spec.pool is not None and self.spec.pool.width is not None:
            vectors = self._map(
                rows, lambda hidden, padding_mask, ids: pool(hidden, padding_mask, ids)
            )
        else:
            vectors = self._map(
                rows, lambda hidden, padding_mask, ids: self.sentence(hidden, padding_mask)
            )
        if isinstance(text, str):
            return vectors[0]
        return (
            torch.stack(vectors)
            if vectors
            else torch.empty(0, self.spec.stack.width(self.spec.d_model))
        )

    # -------------------------------------------------------------- classes

    @overload
    def classify(self, text: Text, *, cut: bool = False) -> Scores: ...
    @overload
    def classify(
        self, text: list[str] | list[tuple[str, str]], *, cut: bool = False
    ) -> list[Scores]: ...
    def classify(self, text: Text | Sequence[Text], *, cut: bool = False) -> Scores | list[Scores]:
        """The probability of each label, likeliest first, of a text, a pair (a tuple), or each of a list."""
        self._needs("classify", "classify")
        texts, one = _many(text)
        names, problem = self.labels, self.config.get("problem_type")
        scores = self._map(self._encode(texts, cut), self._classes)
        found = [scored(row, names, problem) for row in scores]
        return found[0] if one else found

    @overload
    def follows(self, first: str, second: str) -> float: ...
    @overload
    def follows(self, first: list[str], second: list[str]) -> list[float]: ...
    def follows(self, first: str | list[str], second: str | list[str]) -> float | list[float]:
        """The probability that the second text comes after the first."""
        self._needs("next", "follows")
        scores = self._map(self._encode(_pairs(first, second)), self._classes)
        found = [float(row.softmax(dim=-1)[0]) for row in scores]
        return found[0] if isinstance(first, str) else found

    # -------------------------------------------------------------- words

    @overload
    def tag(self, text: str) -> list[Tagged]: ...
    @overload
    def tag(self, text: list[str]) -> list[list[Tagged]]: ...
    def tag(self, text: str | list[str]) -> list[Tagged] | list[list[Tagged]]:
        """The label of each word, which is that of its first token."""
        self._needs("tag", "tag")
        texts, one = _many(text)
        names, rows = self.labels, self._encode(texts)
        scores = self._map(rows, self._classes)
        found = [_words(t, row, s, names) for t, row, s in zip(texts, rows, scores, strict=True)]
        return found[0] if one else found

    @overload
    def entities(self, text: str) -> list[Tagged]: ...
    @overload
    def entities(self, text: list[str]) -> list[list[Tagged]]: ...
    def entities(self, text: str | list[str]) -> list[Tagged] | list[list[Tagged]]:
        """What the words tagged B-x, I-x say together: stretches labelled x, each with its least probability."""
        if isinstance(text, str):
            return _joined(text, self.tag(text))
        return [_joined(one, words) for one, words in zip(text, self.tag(text), strict=True)]

    @overload
    def detect(self, text: str) -> list[Suspect]: ...
    @overload
    def detect(self, text: list[str]) -> list[list[Suspect]]: ...
    def detect(self, text: str | list[str]) -> list[Suspect] | list[list[Suspect]]:
        """For each token, the probability that it was replaced."""
        self._needs("detect", "detect")
        texts, one = _many(text)
        rows = self._encode(texts)
        scores = self._map(rows, self._classes)
        found = [
            [
                Suspect(t[a:b], float(score.sigmoid()), a, b)
                for (a, b), score in _places(t, row, s[:, 0])
            ]
            for t, row, s in zip(texts, rows, scores, strict=True)
        ]
        return found[0] if one else found

    # -------------------------------------------------------------- masks

    @overload
    def fill(self, text: str, top: int = 5) -> list[Filling]: ...
    @overload
    def fill(self, text: list[str], top: int = 5) -> list[list[Filling]]: ...
    def fill(self, text: str | list[str], top: int = 5) -> list[Filling] | list[list[Filling]]:
        """The likeliest tokens for the mask in a text, which holds one."""
        head = self.model.head
        if head is None:
            self._cannot("fill")
        mask = self.text.special_token_id("mask")
        if mask is None:
            raise ModelError(
                "the tokenizer of this model has no mask token", "name it in tokenizer_config.json"
            )
        texts, one = _many(text)
        rows = self._encode(texts)
        for number, row in enumerate(rows, 1):
            if row.ids.count(mask) != 1:
                raise DataError(
                    f"text {number} has {row.ids.count(mask)} masks, not one",
                    f"write {self.text.special_tokens['mask']} where a word is missing; fill several one after the other",
                )
        scores = self._map(rows, lambda hidden, padding_mask, ids: head(hidden[ids == mask]))
        found = [
            self._fillings(t, row, s, mask, top)
            for t, row, s in zip(texts, rows, scores, strict=True)
        ]
        return found[0] if one else found

    def _fillings(
        self, text: str, row: Encoding, scores: Tensor, mask: int, top: int
    ) -> list[Filling]:
        start, end = row.offsets[row.ids.index(mask)]
        best = scores.softmax(dim=-1).topk(min(top, len(scores)))
        found = []
        for probability, i in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            word, apart = self.text.surface_form(i)
            before = text[:start].rstrip() if apart is not None else text[:start]
            space = " " if apart and before else ""
            found.append(Filling(word, probability, before + space + word + text[end:]))
        return found

    # -------------------------------------------------------------- questions

    @overload
    def answer(self, question: str, context: str) -> Answer: ...
    @overload
    def answer(self, question: list[str], context: list[str]) -> list[Answer]: ...
    def answer(self, question: str | list[str], context: str | list[str]) -> Answer | list[Answer]:
        """Where in the context the answer stands. A context that is too long is read in overlapping parts."""
        self._needs("answer", "answer")
        pairs = _pairs(question, context)
        most = self._most()
        parts = [
            self.text.windows(q, c, most, most // 4)
            if most
            else self.text.encode_with_template([(q, c)])
            for q, c in pairs
        ]
        scores = iter(self._map([row for rows in parts for row in rows], self._classes))
        found = [
            _answer(c, rows, [next(scores) for _ in rows])
            for (_, c), rows in zip(pairs, parts, strict=True)
        ]
        return found[0] if isinstance(question, str) else found

    # -------------------------------------------------------------- underneath

    def _classes(self, hidden: Tensor, padding_mask: Tensor | None, ids: Tensor) -> Tensor:
        return self.model.classes(hidden, padding_mask, ids)

    def _needs(self, task: kinds.HeadTask, verb: str) -> None:
        if not isinstance(self.spec.labels, kinds.ClassifierHead) or self.spec.labels.task != task:
            self._cannot(verb)

    def _cannot(self, verb: str) -> NoReturn:
        labels = self.spec.labels
        can = {
            "classify": "classify",
            "next": "follows",
            "tag": "tag",
            "answer": "answer",
            "detect": "detect",
        }
        able = ["embed", *(["fill"] if self.spec.head else [])]
        able += (
            [can[labels.task]]
            if isinstance(labels, kinds.ClassifierHead) and labels.task in can
            else []
        )
        raise ModelError(
            f"this model has no head for `{verb}`",
            f"it can: {', '.join(able)}; fine-tune it for the rest",
        )

    def _most(self) -> int | None:
        """How many tokens it has positions for."""
        position = self.spec.tokens.position
        return (
            position.length
            if isinstance(
                position, kinds.LearnedPosition | kinds.FixedPosition | kinds.AxialPosition
            )
            else None
        )

    def _encode(
        self, texts: Sequence[Text], cut: bool = False, most: int | None = None
    ) -> list[Encoding]:
        """Framed texts; one with more than `most` tokens, or than the model has positions for, is an error, or is cut."""
        limits = [limit for limit in (most, self._most()) if limit is not None]
        rows = self.text.encode_with_template(texts)
        longer = [i for i, row in enumerate(rows) if limits and len(row) > min(limits)]
        if not longer:
            return rows
        problem = f"{len(longer)} of {len(rows)} texts have more than the {min(limits)} tokens that this model reads"
        if not cut:
            first = f"the first is text {longer[0] + 1}, which has {len(rows[longer[0]])}"
            raise DataError(
                f"{problem}; {first}", "split them, or say cut=True where the method has it"
            )
        self.say(f"{problem}; their ends are cut off")
        shorter = self.text.encode_with_template([texts[i] for i in longer], min(limits))
        for i, row in zip(longer, shorter, strict=True):
            rows[i] = row
        return rows

    @torch.inference_mode()
    def _map(self, rows: Sequence[Encoding], top: Top) -> list[Tensor]:
        """What `top` makes of each row, on the CPU; that of positions begins with the row's own."""
        results: list[Tensor | None] = [None] * len(rows)
        was_training = self.model.training
        self.model.eval()
        for group in batch_by_length([len(row) for row in rows], self.budget):
            made = self._read([rows[i] for i in group], top)
            for i, result in zip(group, made.float().cpu(), strict=True):
                results[i] = result
        self.model.train(was_training)
        return [result for result in results if result is not None]

    def _read(self, rows: Sequence[Encoding], top: Top) -> Tensor:
        pad = self.text.special_token_id("pad") or 0
        ids, mask = pad_rows([row.ids for row in rows], pad)
        ids = ids.to(self.device)
        padding_mask = None if bool(mask.all()) else mask.to(self.device)
        options = {}
        if self.spec.tokens.segments > 1:
            segments, _ = pad_rows([row.type_ids for row in rows], 0)
            options["segments"] = segments.to(self.device)
        hidden, _ = self.model(ids, padding_mask, **options)
        return top(hidden, padding_mask, ids)


def _many(given: Any) -> tuple[list[Any], bool]:
    """A list, and whether it stands for one."""
    return ([given], True) if isinstance(given, (str, tuple)) else (list(given), False)


def _pairs(first: str | list[str], second: str | list[str]) -> list[tuple[str, str]]:
    if isinstance(first, str) and isinstance(second, str):
        return [(first, second)]
    if isinstance(first, str) or isinstance(second, str) or len(first) != len(second):
        raise DataError(
            "one list is not as long as the other",
            "give two texts, or two lists of the same length",
        )
    return list(zip(first, second, strict=True))


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Without the white space that some tokenizers count to a word."""
    stretch = text[start:end]
    return start + len(stretch) - len(stretch.lstrip()), end - len(stretch) + len(stretch.rstrip())


def _places(text: str, row: Encoding, scores: Tensor) -> list[tuple[tuple[int, int], Tensor]]:
    """The tokens that are of the text, where they stand, and their scores."""
    return [
        (_trimmed(text, *row.offsets[i]), scores[i])
        for i, sequence in enumerate(row.sequence_ids)
        if sequence is not None
    ]


def _words(text: str, row: Encoding, scores: Tensor, names: list[str]) -> list[Tagged]:
    best = scores.softmax(dim=-1).max(dim=-1)
    words: dict[int, Tagged] = {}
    for i, word in enumerate(row.word_ids):
        if word is None:
            continue
        start, end = row.offsets[i]
        if word in words:
            start = words[word].start
            words[word] = replace(words[word], end=end, text=text[start:end])
        else:
            start, end = _trimmed(text, start, end)
            words[word] = Tagged(
                text[start:end], names[int(best.indices[i])], float(best.values[i]), start, end
            )
    return [word for word in words.values() if word.text]


def _joined(text: str, words: list[Tagged]) -> list[Tagged]:
    found: list[Tagged] = []
    last = ""  # the label of the word before
    for word in words:
        kind, name = word.label[:2], word.label[2:]
        if kind not in ("B-", "I-"):
            kind, name = ("", "") if word.label == "O" else ("I-", word.label)
        if name and kind == "I-" and found and last == name:
            before = found.pop()
            least = min(before.probability, word.probability)
            found.append(Tagged(text[before.start : word.end], name, least, before.start, word.end))
        elif name:
            found.append(replace(word, label=name))
        last = name
    return found


def _answer(context: str, rows: list[Encoding], scores: list[Tensor]) -> Answer:
    """Over all parts of a context together; where the first token is chosen, the model says that there is no answer."""
    places = [torch.tensor([s == 1 for s in row.sequence_ids]) for row in rows]
    allowed = [here.clone() for here in places]
    for here in allowed:
        here[0] = True
    cut = [
        s[: len(here)].masked_fill(~here[:, None], float("-inf"))
        for s, here in zip(scores, allowed, strict=True)
    ]
    both = torch.cat(cut).log_softmax(dim=0).split([len(here) for here in places])
    none = sum(float(part[0].sum().exp()) for part in both)
    best = Answer("", 0.0, 0, 0, none)
    for row, here, part in zip(rows, places, both, strict=True):
        near = torch.ones(len(row), len(row), dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
        spans = (part[:, 0, None] + part[None, :, 1]).masked_fill(
            ~(here[:, None] & here & near), float("-inf")
        )
        first, last = divmod(int(spans.argmax()), len(row))
        probability = float(spans[first, last].exp())
        if probability > best.probability:
            start, end = _trimmed(context, row.offsets[first][0], row.offsets[last][1])
            best = Answer(context[start:end], probability, start, end, none)
    return best
