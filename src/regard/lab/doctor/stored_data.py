"""The data of a run as texts again, whatever its objective stored it as."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.corpus import Corpus
from regard.data.labelled import LabelledText, Question, RatedText, TaggedWords, TextPair
from regard.data.text.tokenizer import Tokenizer
from regard.training.data.parallel_text import ParallelCorpora
from regard.training.data.plain_text import TextCorpora
from regard.training.data.series_source import StoredSeries
from regard.training.data.stored_items import StoredItems
from regard.training.data.text_sources import LabelledData
from regard.training.objectives.objective import Objective

Example = tuple[str, ...]  # what belongs together: both sides of a pair, a text and its label

MAX_EXAMPLES = 50_000  # of a split that are read
MAX_TOKENS = 5_000_000  # of a text that are read


def examples(objective: Objective) -> dict[str, list[Example]]:
    """The examples of each split, in the order of the file; empty for plain text."""
    data = objective.data
    if isinstance(data, ParallelCorpora):
        return _pairs(data)
    if isinstance(data, TextCorpora):
        return {}
    sets = getattr(data, "sets", None)
    if not isinstance(sets, Mapping):
        return {}
    splits = dict(sets)
    if isinstance(data, LabelledData):
        splits["train"] = data.train  # a stream, which may be larger than memory
    return {name: _labelled(split) for name, split in splits.items()}


def is_text(objective: Objective) -> bool:
    """Whether the inputs are texts; images are digests here."""
    sets = getattr(objective.data, "sets", {})
    return not any(isinstance(split, StoredItems) for split in sets.values())


def texts(objective: Objective) -> dict[str, str]:
    """The plain text of each split; empty for other data."""
    data = objective.data
    if not isinstance(data, TextCorpora):
        return {}
    return {
        name: _decoded(corpus, data.tokenizer)
        for name, corpus in (("train", data.train), ("valid", data.valid))
    }


def numbers(objective: Objective) -> dict[str, NDArray[Any]]:
    """All values of each split of a series; empty for other data."""
    data = objective.data
    if not isinstance(data, StoredSeries):
        return {}
    return {name: data.series.values[begin:end] for name, (begin, end) in data.borders.items()}


def tokenizers(objective: Objective) -> dict[str, Tokenizer]:
    """The tokenizers of the data by the side they are for."""
    data = objective.data
    if isinstance(data, ParallelCorpora):
        return {"source": data.source_tokenizer, "target": data.target_tokenizer}
    tokenizer = getattr(data, "tokenizer", None)
    return {"text": tokenizer} if isinstance(tokenizer, Tokenizer) else {}


def _pairs(data: ParallelCorpora) -> dict[str, list[Example]]:
    splits = {"train": _decoded_pairs(data.train, data)}
    if data.valid is not None:
        splits["valid"] = _decoded_pairs(data.valid, data)
    for name, pairs in data.test_sets.items():
        # There and back again, so that texts are as they are in training.
        sources = [source for source, _ in pairs[:MAX_EXAMPLES]]
        targets = [target for _, target in pairs[:MAX_EXAMPLES]]
        source_ids = data.source_tokenizer.encode_batch(sources)
        target_ids = data.target_tokenizer.encode_batch(targets)
        splits[name] = list(
            zip(
                data.source_tokenizer.decode_batch(source_ids),
                data.target_tokenizer.decode_batch(target_ids),
                strict=True,
            )
        )
    return splits


def _decoded_pairs(corpus: Corpus, data: ParallelCorpora) -> list[Example]:
    rows = range(min(len(corpus), MAX_EXAMPLES))
    sources = data.source_tokenizer.decode_batch([corpus.source(i).tolist() for i in rows])
    targets = data.target_tokenizer.decode_batch([corpus.target(i).tolist() for i in rows])
    return list(zip(sources, targets, strict=True))


def _decoded(corpus: Corpus, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(corpus.columns["text"].tokens[:MAX_TOKENS].tolist())


def _labelled(split: Any) -> list[Example]:
    if isinstance(split, StoredItems):
        count = min(len(split), MAX_EXAMPLES)
        return [(_digest(split[i]), split.texts[i]) for i in range(count)]
    if not isinstance(split, Iterable):
        return []
    return [_fields(example) for example in islice(split, MAX_EXAMPLES)]


def _fields(example: Any) -> Example:
    match example:
        case LabelledText(text, second, label):
            return (text if second is None else f"{text}\t{second}", label)
        case RatedText():
            return (example.text, str(example.score))
        case TextPair():
            return tuple(str(value) for value in vars(example).values())
        case TaggedWords(tokens, tags):
            return (" ".join(tokens), " ".join(tags))
        case Question():
            return (f"{example.question}\t{example.context}", example.text)
        case _:
            return (str(example),)


def _digest(pixels: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()
