"""Checks of what the model reads: unknown tokens, a tokenizer of other text, inputs all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.data.batching import Batch
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import train_tokenizer
from regard.lab.doctor import stored_data
from regard.lab.doctor.run_evidence import RunEvidence
from regard.training.data.parallel_text import ParallelCorpora
from regard.training.data.plain_text import TextCorpora
from regard.training.diagnostics.finding import Finding

LEAST_INPUTS = 20  # examples
ALIKE = 0.5  # of the different inputs that are left
FEW = 0.05  # different inputs, of all examples
# Words outside a vocabulary that covers a text are a few per cent, by Zipf's law, and a tenth of
# a small corpus; from a seventh on most sentences have a hole.
UNKNOWN_SHARE = 0.15
DROPPED = 0.2  # of the pairs, as too long
FRAGMENTATION = 2.0  # as many tokens as a tokenizer needs that was learnt from this text
SAMPLE = 200_000  # characters to measure a tokenizer on


def check_inputs(run: RunEvidence) -> Iterator[Finding]:
    yield from dropped_examples(run)
    findings = list(tokenizer_checks(run))
    # Words that a tokenizer does not know are all alike.
    yield from findings or identical_inputs(run)


# --- inputs ---------------------------------------------------------------------------------------

# The main input of a batch, by the name that the objectives have for it.
MAIN_INPUTS = (
    "source", "tokens", "text", "pixels", "waves", "features", "past", "node_features", "states",
)  # fmt: skip


def identical_inputs(run: RunEvidence) -> Iterator[Finding]:
    """Different examples that are one and the same to the model."""
    inputs: dict[int, bytes] = {}
    lengths: list[int] = []
    for batch in run.batches:
        # A text and an image are one input together.
        tensors = [batch.tensors[name] for name in MAIN_INPUTS if name in batch.tensors]
        if "node_features" in batch.tensors and len(tensors[0]) == 1:
            tensors = [tensors[0][0, torch.from_numpy(batch.rows)]]  # [rows, features] of a graph
        if not tensors or any(len(tensor) != len(batch.rows) for tensor in tensors):
            return
        for row, *parts in zip(batch.rows.tolist(), *tensors, strict=True):
            inputs[row] = b"".join(part.contiguous().numpy().tobytes() for part in parts)
            lengths.append(sum(part.numel() for part in parts))
    if len(inputs) < LEAST_INPUTS:
        return
    share = len(set(inputs.values())) / len(inputs)
    if share > max(FEW, ALIKE * _different_examples(run)):
        return
    yield Finding(
        "identical_inputs",
        f"{len(inputs):,} training examples are {len(set(inputs.values())):,} different inputs of "
        f"the model, of {max(lengths):,} values at most",
        "what tells examples apart does not reach the model: it is cut off, or was never there",
        "remove what all begin with, or raise context; look at the files",
        0.93,
    )


def _different_examples(run: RunEvidence) -> float:
    """The share of inputs that differ before they are encoded."""
    examples = run.examples.get("train", [])
    if not examples or not stored_data.is_text(run.objective):
        return 1.0
    return len({example[0] for example in examples}) / len(examples)


def dropped_examples(run: RunEvidence) -> Iterator[Finding]:
    """Pairs that are left out of training because a side is too long."""
    data = run.objective.data
    if not isinstance(data, ParallelCorpora):
        return
    dropped = int(data.train.about.get("report", {}).get("too_long", 0))
    if dropped > DROPPED * (dropped + len(data.train)):
        share = dropped / (dropped + len(data.train))
        yield Finding(
            "dropped_examples",
            f"{dropped:,} training pairs ({100 * share:.0f} %) were left out: a side is over "
            f"{run.recipe.data.max_length:,} tokens",
            "the limit of length leaves little of the training data",
            "raise max_length",
            0.92,
        )


# --- tokenizers -----------------------------------------------------------------------------------


def tokenizer_checks(run: RunEvidence) -> Iterator[Finding]:
    """Unknown tokens; a tokenizer that was learnt from other text, or has been exchanged."""
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
    return _other_text(evidence, 0.92)


def _other_text(evidence: str, confidence: float) -> Finding:
    return Finding(
        "tokenizer_mismatch",
        evidence,
        "the tokenizer was trained on different text",
        "use a tokenizer for this language and model, or train one: tokenizer = bpe",
        confidence,
    )


def _text_samples(run: RunEvidence) -> dict[str, list[str]]:
    """Some training text by side."""
    texts = run.texts
    if texts:
        return {"text": [texts["train"][:SAMPLE]]}
    examples = run.examples.get("train", [])[:5000]
    if isinstance(run.objective.data, ParallelCorpora):
        return {"source": [pair[0] for pair in examples], "target": [pair[1] for pair in examples]}
    return {"text": [example[0] for example in examples]}


def _unknown_share(run: RunEvidence, side: str, tokenizer: Tokenizer) -> float:
    """Of the ids: what a tokenizer does not know is lost in the decoded text."""
    unknown = tokenizer.special_token_id("unk")
    if unknown is None:
        return 0.0
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
        yield _other_text(
            f"the {side} text takes {used / needed:.1f} times as many tokens as with a tokenizer "
            "of the same size trained on it",
            0.85,
        )


def _exchanged(run: RunEvidence) -> Iterator[Finding]:
    """Stored token ids that the tokenizer in the folder does not give for the same text."""
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
