"""Spans of a text with a label and a probability, from the logits of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from tokenizers import Encoding
from torch import Tensor

from regard.data.tag_alignment import first_tokens, word_spans

_MAX_ANSWER_TOKENS = 30
_MINUS_INFINITY = float("-inf")


@dataclass(frozen=True)
class Tagged:
    """A span of a text, from character `start` to `end`, and the probability of its label."""

    text: str
    label: str
    probability: float
    start: int
    end: int


@dataclass(frozen=True)
class Filling:
    """A token for the mask, its probability, the text with it, and its id in the vocabulary."""

    token: str
    probability: float
    text: str
    token_id: int


@dataclass(frozen=True)
class Answer:
    """The span of the context that answers best, and its probability.

    `none` is the probability that there is no answer. It is meaningful only for models that were
    trained with such questions (SQuAD 2).
    """

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


# ------------------------------------------------------------------ from logits to spans


def replaced_tokens(text: str, encoding: Encoding, logits: Tensor) -> list[Suspect]:
    """The probability of being replaced for each token, by logits [T, 1] (ELECTRA)."""
    results = []
    for i, sequence in enumerate(encoding.sequence_ids):
        if sequence is None:  # a special token
            continue
        start, end = _strip(text, *encoding.offsets[i])
        results.append(Suspect(text[start:end], float(logits[i, 0].sigmoid()), start, end))
    return results


def tagged_words(text: str, encoding: Encoding, logits: Tensor, names: list[str]) -> list[Tagged]:
    """The label of each word, which is that of its first token, by logits [T, labels].

    Words are those of the data (`word_spans`), whatever a tokenizer takes for one.
    """
    # Probability and label of each token: [T] each
    best = logits.softmax(dim=-1).max(dim=-1)
    spans = word_spans(text)
    starts = [start for start, _ in spans]
    tokens = {word: i for i, word in enumerate(first_tokens(text, encoding, starts))}
    words: list[Tagged] = []
    for number, (start, end) in enumerate(spans):
        token = tokens.get(number)
        if token is not None:
            label = names[int(best.indices[token])]
            words.append(Tagged(text[start:end], label, float(best.values[token]), start, end))
        elif words and words[-1].end == start:
            # A token of the word before has its punctuation too.
            before = words[-1]
            words[-1] = replace(before, end=end, text=text[before.start : end])
    return words


def merge_entities(text: str, words: list[Tagged]) -> list[Tagged]:
    """Entities of words with IOB labels: B-x begins one, I-x continues it, O is outside.

    The probability of an entity is the least of its words.
    """
    entities: list[Tagged] = []
    previous = ""  # the type of the word before
    for word in words:
        prefix, entity_type = _split_label(word.label)
        if entity_type and prefix == "I-" and entities and previous == entity_type:
            first = entities.pop()
            probability = min(first.probability, word.probability)
            span = text[first.start : word.end]
            entities.append(Tagged(span, entity_type, probability, first.start, word.end))
        elif entity_type:
            entities.append(replace(word, label=entity_type))
        previous = entity_type
    return entities


def _split_label(label: str) -> tuple[str, str]:
    """An IOB label as prefix and type; a label without a prefix counts as inside."""
    if label[:2] in ("B-", "I-"):
        return label[:2], label[2:]
    if label == "O":
        return "", ""
    return "I-", label


def best_answer(context: str, encodings: list[Encoding], logits: list[Tensor]) -> Answer:
    """The likeliest span over all windows of a context, by start and end logits [T, 2].

    Probabilities are normalized over all windows. The first token, [CLS], as start and end means
    that there is no answer (Devlin et al. 2019, section 4.3).
    """
    # Which tokens belong to the context: the second sequence of each encoding.
    context_masks = [
        torch.tensor([s == 1 for s in encoding.sequence_ids]) for encoding in encodings
    ]
    masked = []
    for window, in_context in zip(logits, context_masks, strict=True):
        allowed = in_context.clone()
        allowed[0] = True  # [CLS]
        masked.append(window[: len(allowed)].masked_fill(~allowed[:, None], _MINUS_INFINITY))
    lengths = [len(in_context) for in_context in context_masks]
    windows = torch.cat(masked).log_softmax(dim=0).split(lengths)  # log p, each [T, 2]
    # log p(start) + log p(end) at [CLS] of each window.
    none = sum(float(window[0].sum().exp()) for window in windows)
    best = Answer("", 0.0, 0, 0, none)
    for encoding, in_context, window in zip(encodings, context_masks, windows, strict=True):
        length = len(encoding)
        # [start, end]: the end is not before the start, and not too far behind it.
        near = torch.ones(length, length, dtype=torch.bool).triu().tril(_MAX_ANSWER_TOKENS - 1)
        allowed = in_context[:, None] & in_context & near & _has_words(context, encoding)
        spans = window[:, 0, None] + window[None, :, 1]  # [T, T]
        spans = spans.masked_fill(~allowed, _MINUS_INFINITY)
        # argmax is of the flattened [T · T].
        first, last = divmod(int(spans.argmax()), length)
        probability = float(spans[first, last].exp())
        if probability > best.probability:
            start, end = _strip(context, encoding.offsets[first][0], encoding.offsets[last][1])
            best = Answer(context[start:end], probability, start, end, none)
    return best


def _has_words(context: str, encoding: Encoding) -> Tensor:
    """Which spans [start, end] contain more than white space."""
    is_word = torch.tensor([bool(context[start:end].strip()) for start, end in encoding.offsets])
    count = is_word.cumsum(dim=0)  # of the tokens up to each
    return count - (count - is_word.long())[:, None] > 0


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without the white space that some tokenizers count as part of a word.

    Of white space alone, nothing is left: an empty span at its start.
    """
    words = text[start:end].strip()
    if not words:
        return start, start
    start = text.index(words, start)
    return start, start + len(words)
