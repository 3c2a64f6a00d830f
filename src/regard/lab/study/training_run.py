"""Short training runs of small models, for studies that need a model which has learned.

The loop here is the bare one (Adam, a schedule, clipping) without folders and checkpoints: a study
trains dozens of models for seconds each. Models come from `builder.build`, data from `data/`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.builder import build
from regard.data.generated import builtin
from regard.data.generated.generated_task import SEPARATOR, GeneratedTask
from regard.data.padding import pad_rows
from regard.evaluation.metrics.bleu import Bleu
from regard.families.presets import preset
from regard.lab.study.study import Effort
from regard.training.engine.optimizer import ConstantRate, Schedule
from regard.wirings.core_model import CoreModel

PADDING = 0
START = 1
END = 2
# The ids above; words follow them in the order of the vocabulary.
RESERVED = 3  # ids before the first word
NO_TARGET = -100  # positions without a loss, as cross_entropy has them


class Batch(NamedTuple):
    """Rows of token ids, padded on the right, and the token to be predicted at each position."""

    tokens: Tensor  # [B, T]
    targets: Tensor  # [B, T], NO_TARGET where there is none
    source: Tensor | None = None  # [B, S] of encoder–decoders


# ------------------------------------------------------------------ models


def build_seeded(model: spec.Model, seed: int) -> CoreModel:
    """The model with weights that follow from the seed."""
    # The caller's random state stays as it is.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(model)


def language_model(vocabulary: int, length: int, **changes: Any) -> spec.Model:
    """A small causal language model: 2 pre-norm layers of width 64 with 4 heads, no dropout."""
    sizes = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 256, "position": "sinusoidal"}
    off = {"dropout": 0.0, "attention_dropout": 0.0}
    model: Any = preset("gpt2", vocabulary, length, **(sizes | off | changes))
    # Embeddings are multiplied by √d_model (Section 3.4), or sinusoids would drown them.
    return replace(model, tokens=replace(model.tokens, scale=True))


def translator(vocabulary: int, length: int, **changes: Any) -> spec.Model:
    """A small encoder–decoder: 2 post-norm layers of width 64 with 4 heads, no dropout."""
    sizes = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 256}
    return preset("transformer", vocabulary, length, **(sizes | {"dropout": 0.0} | changes))


def with_block(model: Any, **changes: Any) -> Any:
    """The model with these changes in the block of each of its stacks."""
    stacks = {name: stack for name, stack in vars(model).items() if isinstance(stack, spec.Stack)}
    return replace(model, **{n: stack.with_blocks(**changes) for n, stack in stacks.items()})


def logits(model: Any, batch: Batch) -> Tensor:
    """Logits at each position: [B, T, V]."""
    if batch.source is None:
        hidden, _ = model(batch.tokens)
    else:
        hidden, _ = model(batch.source, batch.tokens, batch.source != PADDING)
    return model.head(hidden)


# ------------------------------------------------------------------ the loop


def train(
    model: nn.Module,
    batches: Iterator[Batch],
    steps: int,
    *,
    schedule: Schedule | None = None,
    clip: float | None = 1.0,
    smoothing: float = 0.0,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Trains with Adam (β = 0.9, 0.98) and returns the loss of each step.

    The default schedule warms up for a tenth of the steps and stays at 0.003; `smoothing` is ε of
    label smoothing.
    """
    schedule = schedule or ConstantRate(0.003, steps // 10)
    # β₂ of Section 5.3; the fused form takes half the time of the other on a CPU.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), fused=True)
    model.train()
    losses = []
    for step, batch in enumerate(islice(batches, steps), start=1):
        optimizer.param_groups[0]["lr"] = schedule(step)
        loss = mean_loss(logits(model, batch), batch.targets, smoothing)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
        if on_step is not None:
            on_step(step, losses[-1])
    return losses


def trained(
    model: spec.Model, seed: int, batches: Iterator[Batch], steps: int, **options: Any
) -> Any:
    """The model after training with the weights of a seed, in evaluation mode."""
    module = build_seeded(model, seed)
    train(module, batches, steps, **options)
    return module.eval()


def mean_loss(output: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy, as the mean over the positions with a target."""
    return functional.cross_entropy(
        output.flatten(0, 1),
        targets.flatten(),
        ignore_index=NO_TARGET,
        label_smoothing=smoothing,
    )


class Score(NamedTuple):
    """Quality on held-out batches, with the true tokens before each position."""

    loss: float  # nats, mean over tokens
    accuracy: float  # share of tokens, 0–100
    exact: float  # share of rows without a mistake, 0–100


@torch.no_grad()
def evaluate(model: nn.Module, batches: Sequence[Batch]) -> Score:
    """The score over all rows of the batches."""
    model.eval()
    losses = []
    tokens_right = []
    rows_right = []
    for batch in batches:
        output = logits(model, batch)
        has_target = batch.targets != NO_TARGET
        right = output.argmax(-1) == batch.targets
        # One loss for each token: batches have different numbers of them.
        each = functional.cross_entropy(
            output.flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET, reduction="none"
        )
        losses.append(each[has_target.flatten()])
        # Padding and prompts have no target.
        tokens_right.append(right[has_target])
        rows_right.append((right | ~has_target).all(-1))
    return Score(
        float(torch.cat(losses).mean()),
        100 * float(torch.cat(tokens_right).float().mean()),
        100 * float(torch.cat(rows_right).float().mean()),
    )


# ------------------------------------------------------------------ greedy decoding


@torch.no_grad()
def translate(model: Any, source: Tensor, limit: int) -> list[list[int]]:
    """The greedy translations of an encoder–decoder, without start and end: ids for each row.

    `source` [B, S] is padded on the right.
    """
    model.eval()
    memory = model.encode(source, source != PADDING)
    state = model.start(memory, width=1, capacity=limit + 1)
    # [B, 1], the decoder's first input
    tokens = torch.full((len(source), 1), START)
    columns = []
    # Rows that have ended go on; what follows the end is cut off below.
    for _ in range(limit):
        tokens = model.step(tokens, state)[:, -1:].argmax(-1)  # [B, 1]
        columns.append(tokens)
    rows = torch.cat(columns, dim=1).tolist()
    return [row[: [*row, END].index(END)] for row in rows]


def as_text(words: Vocabulary, row: Sequence[int]) -> str:
    """Words with spaces between them; special tokens are left out."""
    return " ".join(words.words[token - RESERVED] for token in row if token >= RESERVED)


def bleu(model: Any, batch: Batch, words: Vocabulary, limit: int = 40) -> float:
    """BLEU of greedy translations of a batch, whose words are tokens already."""
    assert batch.source is not None
    hypotheses = [as_text(words, row) for row in translate(model, batch.source, limit)]
    references = [as_text(words, row.tolist()) for row in batch.targets]
    return Bleu("none").compute(hypotheses, references)


# ------------------------------------------------------------------ several models


Variants = dict[str, spec.Model]
Runs = dict[str, list[dict[str, float]]]  # for each variant, the score of each seed


def compare(
    variants: Variants,
    stream: Callable[[int], Iterator[Batch]],
    test: Sequence[Batch],
    steps: int,
    effort: Effort,
) -> Runs:
    """Trains each variant with each seed on `stream(seed)` and scores it on the test batches."""

    def measure(name: str, seed: int) -> dict[str, float]:
        return evaluate(trained(variants[name], seed, stream(seed), steps), test)._asdict()

    return effort.each(variants, measure)


def compare_on_english(variants: Variants, steps: int, effort: Effort) -> Runs:
    """The same with language models of the built-in English."""
    return compare(
        variants,
        lambda seed: builtin_text("train", 5000, seed),
        english_test(effort),
        steps,
        effort,
    )


def english_test(effort: Effort) -> list[Batch]:
    """Held-out English sentences, the same for all models."""
    return list(islice(builtin_text("test", 500, 0, rows=64), effort.choose(2, 6)))


# ------------------------------------------------------------------ data


def pad(rows: Sequence[Sequence[int]], value: int = PADDING) -> Tensor:
    """Rows of ids as a tensor, filled up on the right."""
    return pad_rows(rows, value)[0]


class Vocabulary:
    """Words and their ids, in the order of the alphabet."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = sorted(set(words))
        self.ids = {word: index for index, word in enumerate(self.words, start=RESERVED)}

    def __len__(self) -> int:
        return RESERVED + len(self.words)

    def encode(self, words: Sequence[str]) -> list[int]:
        return [self.ids[word] for word in words]


Pairs = Sequence[tuple[list[str], list[str]]]


class TaskBatches:
    """Batches of a generated task of pairs, each as one text: input, separator, target.

    The loss is that of the target and of the end.
    """

    def __init__(self, task: GeneratedTask, words: Sequence[str], rows: int = 32) -> None:
        self.task = task
        self.vocabulary = Vocabulary([*words, SEPARATOR])
        self.rows = rows

    def stream(self, split: str, seed: int) -> Iterator[Batch]:
        examples = self.task.examples(split, seed)
        while True:
            yield self.batch(list(islice(examples, self.rows)))

    def batch(self, examples: Sequence[tuple[str, str]]) -> Batch:
        tokens = []
        targets = []
        for source, target in examples:
            prompt = [START, *self.vocabulary.encode([*source.split(), SEPARATOR])]
            answer = [*self.vocabulary.encode(target.split()), END]
            # Shifted by one: the target of a position is the token after it.
            tokens.append([*prompt, *answer[:-1]])
            targets.append([*[NO_TARGET] * (len(prompt) - 1), *answer])
        return Batch(pad(tokens), pad(targets, NO_TARGET))


def words_of(sentence: str) -> list[str]:
    """The words and punctuation marks of a sentence, in lower case."""
    return re.findall(r"[\w-]+|[^\w\s]", sentence.lower())


@cache
def builtin_sentences(split: str, count: int) -> Pairs:
    """English and German words of so many sentences of the built-in language."""
    sentences = islice(builtin.sentences(split), count)
    return [(words_of(one.source), words_of(one.target)) for one in sentences]


@cache
def builtin_vocabulary() -> Vocabulary:
    """The words of both languages that occur in the first 20,000 training sentences."""
    pairs = builtin_sentences("train", 20_000)
    return Vocabulary([word for pair in pairs for words in pair for word in words])


def builtin_text(split: str, count: int, seed: int, rows: int = 16) -> Iterator[Batch]:
    """Endless batches of English sentences for a language model, in an order of the seed."""
    # One vocabulary for both languages and all splits.
    vocabulary = builtin_vocabulary()
    for chosen in _shuffled(builtin_sentences(split, count), seed, rows):
        texts = [[START, *vocabulary.encode(english), END] for english, _ in chosen]
        yield Batch(pad([t[:-1] for t in texts]), pad([t[1:] for t in texts], NO_TARGET))


def builtin_pairs(split: str, count: int, seed: int, rows: int = 16) -> Iterator[Batch]:
    """Endless batches of English and German sentences for an encoder–decoder."""
    yield from pair_batches(builtin_sentences(split, count), builtin_vocabulary(), seed, rows)


def pair_batches(
    pairs: Pairs, vocabulary: Vocabulary, seed: int, rows: int = 16
) -> Iterator[Batch]:
    """Endless batches of pairs of sentences, in an order of the seed."""
    for chosen in _shuffled(pairs, seed, rows):
        source = [[*vocabulary.encode(english), END] for english, _ in chosen]
        texts = [[START, *vocabulary.encode(german), END] for _, german in chosen]
        tokens = pad([text[:-1] for text in texts])
        targets = pad([text[1:] for text in texts], NO_TARGET)
        yield Batch(tokens, targets, pad(source))


def _shuffled(pairs: Pairs, seed: int, rows: int) -> Iterator[Pairs]:
    rng = random.Random(seed)
    while True:
        # Without replacement inside a batch.
        yield rng.sample(pairs, rows)
