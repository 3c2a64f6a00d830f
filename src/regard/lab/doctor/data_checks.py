"""Checks of the data: overlap of splits, copies, unknown tokens, a tokenizer of other text."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import train_tokenizer
from regard.lab.doctor import stored_data
from regard.lab.doctor.run_evidence import RunEvidence
from regard.lab.doctor.stored_data import Example
from regard.training.data.parallel_text import ParallelCorpora
from regard.training.data.plain_text import TextCorpora
from regard.training.diagnostics.finding import Finding

LEAST_OVERLAP = 0.05  # of a split: below it lies what chance brings about
WINDOW = 50  # characters of plain text that do not recur by chance
WINDOWS = 300  # of them that are searched for: a share is then known to within 3 %
# Words outside a vocabulary that covers a text are a few per cent, by Zipf's law; from a tenth on
# every other sentence has a hole.
UNKNOWN_SHARE = 0.1
FRAGMENTATION = 2.0  # as many tokens as a tokenizer needs that was learnt from this text
SAMPLE = 200_000  # characters to measure a tokenizer on


def check_data(run: RunEvidence) -> Iterator[Finding]:
    if run.objective is None:
        return
    yield from tokenizer_checks(run)
    if not run.has_generated_data:
        yield from example_overlap(run)
        yield from text_overlap(run)


# --- overlap --------------------------------------------------------------------------------------


def example_overlap(run: RunEvidence) -> Iterator[Finding]:
    """Examples of the validation or test data that stand in the training data too.

    As many as copies within the training data are to be expected, since such an example is likely
    to be drawn again (Good and Turing's estimate).
    """
    assert run.objective is not None
    splits = stored_data.examples(run.objective)
    counts = Counter(splits.pop("train", []))
    total = sum(counts.values())
    if not total:
        return
    expected = 1 - sum(1 for count in counts.values() if count == 1) / total
    for name, examples in splits.items():
        inside = sum(1 for example in examples if example in counts)
        share = inside / max(1, len(examples))
        deviation = math.sqrt(max(expected * (1 - expected), 0.01) / max(1, len(examples)))
        if share > max(LEAST_OVERLAP, expected + LEAST_OVERLAP + 3 * deviation):
            yield _overlap(name, share, f"{inside:,} of its {len(examples):,} examples", expected)
        elif share > 0.5 and _is_replicated(counts):
            yield _copies(counts, total, f"{100 * share:.0f} % of {name} are among them")
    # One sentence over and over, a fifth of all: short ones, such as "Yes.", recur in every corpus.
    dominant, count = counts.most_common(1)[0]
    if count > 0.2 * total and total >= 50 and len(" ".join(dominant).split()) >= 4:
        yield _copies(counts, total, f"one example makes up {100 * count / total:.0f} % of it")


def _is_replicated(counts: Counter[Example]) -> bool:
    """Whether examples were copied: chance does not repeat all of them equally often."""
    mean = sum(counts.values()) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts.values()) / len(counts)
    # Counts of independent draws have a variance of about their mean (Poisson).
    # Copies of a whole file have a variance of zero; those of a part of it, of a quarter at most.
    return mean > 1.5 and len(counts) >= 20 and variance < 0.3 * mean


def _copies(counts: Counter[Example], total: int, detail: str) -> Finding:
    return Finding(
        "duplicate_examples",
        f"the training data has {total:,} examples, of which {len(counts):,} are different; "
        f"{detail}",
        "the training data contains duplicates",
        "remove duplicates before splitting the data",
        0.85,
    )


def text_overlap(run: RunEvidence) -> Iterator[Finding]:
    """Passages of the validation text that stand in the training text too.

    Compared with how often passages of the training text recur in it.
    """
    assert run.objective is not None
    splits = stored_data.texts(run.objective)
    if not splits:
        return
    train = splits["train"]
    inside = _windows_inside(splits["valid"], train, least=1)
    expected = _windows_inside(train, train, least=2)
    if inside is None or expected is None:
        return
    # Of a share of so many draws; never 0, since the expectation is an estimate itself.
    deviation = math.sqrt(max(expected * (1 - expected), 0.01) / WINDOWS)
    if inside > max(LEAST_OVERLAP, expected + LEAST_OVERLAP + 3 * deviation):
        yield _overlap("valid", inside, f"random passages of {WINDOW} characters", expected)


def _windows_inside(text: str, other: str, least: int) -> float | None:
    """The share of random passages of a text that another has at least so many times."""
    if len(text) < 4 * WINDOW:  # passages would overlap each other
        return None
    draw = random.Random(0)  # the same passages each time
    starts = [draw.randrange(len(text) - WINDOW) for _ in range(WINDOWS)]
    return sum(_occurs(text[i : i + WINDOW], other, least) for i in starts) / WINDOWS


def _occurs(passage: str, text: str, least: int) -> bool:
    start = -1
    for _ in range(least):
        # One place further on: occurrences may overlap.
        start = text.find(passage, start + 1)
        if start < 0:
            return False
    return True


def _overlap(split: str, share: float, what: str, expected: float) -> Finding:
    return Finding(
        "test_in_train",
        f"{100 * share:.0f} % of {split} ({what}) are in the training data; "
        f"{100 * expected:.0f} % are expected by chance",
        f"{split} data is contained in the training data, so its scores are not meaningful",
        "remove these examples from the training data and train again",
        0.95,
    )


# --- tokenizers -----------------------------------------------------------------------------------


def tokenizer_checks(run: RunEvidence) -> Iterator[Finding]:
    """Unknown tokens; a tokenizer that was learnt from other text, or has been exchanged."""
    assert run.objective is not None
    sample = _text_samples(run)
    is_learnt = not run.recipe.tokens.tokenizer.endswith(".json") and not run.recipe.is_finetuning
    for side, tokenizer in stored_data.tokenizers(run.objective).items():
        text = sample.get(side)
        if not text:
            continue
        unknown = _unknown_share(run, side, tokenizer)
        if unknown > UNKNOWN_SHARE:
            yield _unknown(side, unknown, is_learnt)
        elif not is_learnt:
            yield from _fragmentation(side, tokenizer, text)
    yield from _exchanged(run)


def _unknown(side: str, share: float, is_learnt: bool) -> Finding:
    evidence = f"{100 * share:.0f} % of the {side} tokens are unknown"
    if is_learnt:
        return Finding(
            "unknown_tokens",
            evidence,
            "the vocabulary is too small for this text",
            "raise vocabulary, or use tokenizer = bpe",
            0.9,
        )
    return Finding(
        "tokenizer_mismatch",
        evidence,
        "the tokenizer was trained on different text",
        "use a tokenizer for this language and model, or train one: tokenizer = bpe",
        0.92,
    )


def _text_samples(run: RunEvidence) -> dict[str, list[str]]:
    """Some training text by side."""
    assert run.objective is not None
    texts = stored_data.texts(run.objective)
    if texts:
        return {"text": [texts["train"][:SAMPLE]]}
    examples = stored_data.examples(run.objective).get("train", [])[:5000]
    if isinstance(run.objective.data, ParallelCorpora):
        return {"source": [pair[0] for pair in examples], "target": [pair[1] for pair in examples]}
    return {"text": [example[0] for example in examples]}


def _unknown_share(run: RunEvidence, side: str, tokenizer: Tokenizer) -> float:
    """Of the ids: what a tokenizer does not know is lost in the decoded text."""
    unknown = tokenizer.special_token_id("unk")
    if unknown is None:
        return 0.0
    assert run.objective is not None
    data = run.objective.data
    if isinstance(data, ParallelCorpora | TextCorpora):
        ids = data.train.columns[side].tokens[: stored_data.MAX_TOKENS]
        return float((ids == unknown).mean()) if len(ids) else 0.0
    # As the objective has encoded them: it may cut texts into sentences first.
    pad = tokenizer.special_token_id("pad")
    flat = [ids for batch in run.batches for ids in _token_ids(batch)]
    tokens = torch.cat(flat) if flat else torch.empty(0)
    tokens = tokens if pad is None else tokens[tokens != pad]
    return float((tokens == unknown).float().mean()) if len(tokens) else 0.0


def _token_ids(batch: Batch) -> list[Tensor]:
    """The tokens of a batch, flat: integers in rows, but for labels and segments."""
    return [
        tensor.flatten()
        for name, tensor in batch.tensors.items()
        if tensor.dtype == torch.int64 and tensor.ndim >= 2 and name not in ("labels", "segments")
    ]


def _fragmentation(side: str, tokenizer: Tokenizer, text: list[str]) -> Iterator[Finding]:
    """A tokenizer that cuts this text into far smaller pieces than one learnt from it."""
    pieces = [token.strip("▁Ġ#") for token in tokenizer.vocabulary]
    long_share = sum(len(piece) > 1 for piece in pieces) / max(1, len(pieces))
    if long_share < 0.3:
        return  # characters and bytes cut every text alike
    sample = [line for block in text for line in block.splitlines()][:3000]
    if sum(len(line) for line in sample) < 2000:
        return
    # The counterfactual: a tokenizer of the same size for this very text.
    fitting = train_tokenizer(iter(sample), "bpe", max(300, len(tokenizer)))
    used = sum(len(row) for row in tokenizer.encode_batch(sample))
    needed = sum(len(row) for row in fitting.encode_batch(sample))
    if used > FRAGMENTATION * needed:
        yield Finding(
            "tokenizer_mismatch",
            f"the {side} text takes {used / needed:.1f} times as many tokens as with a tokenizer "
            "of the same size trained on it",
            "the tokenizer was trained on different text",
            "use a tokenizer for this language and model, or train one: tokenizer = bpe",
            0.85,
        )


def _exchanged(run: RunEvidence) -> Iterator[Finding]:
    """Stored token ids that the tokenizer in the folder does not give for the same text."""
    assert run.objective is not None
    data = run.objective.data
    if isinstance(data, ParallelCorpora) and data.valid is not None and data.valid_pairs:
        stored = [data.valid.source(i).tolist() for i in range(min(50, len(data.valid)))]
        texts = [source for source, _ in data.valid_pairs]
        expected = {tuple(row) for row in data.source_tokenizer.encode_batch(texts)}
        # Stored rows have an end token more, where the tokenizer does not add one.
        differs = not any(tuple(row) in expected or tuple(row[:-1]) in expected for row in stored)
    elif isinstance(data, TextCorpora):
        differs = _text_differs(run, data)
    else:
        return
    if differs:
        yield Finding(
            "tokenizer_mismatch",
            "the tokenizer in the folder encodes the text to other ids than those in the data",
            "tokenizer.json was replaced after the data was prepared",
            "restore the tokenizer.json that the run started with",
            0.95,
        )


def _text_differs(run: RunEvidence, data: TextCorpora) -> bool:
    path = run.recipe.data.text
    # Rows of other objectives are framed and packed; those of a base model may be so too.
    if path is None or run.recipe.objective != "causal" or not Path(path).is_file():
        return False
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        head = file.read(2000)
    ids = data.tokenizer.encode(head)[:-20]  # the last tokens may be cut otherwise
    stored: Sequence[int] = data.train.columns["text"].tokens[: len(ids)].tolist()
    # Normalization may change a few tokens; another vocabulary changes almost all.
    same = sum(a == b for a, b in zip(ids, stored, strict=False))
    return len(ids) > 20 and same < 0.5 * len(stored)
