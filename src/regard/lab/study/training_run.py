"""Short training runs of small models, for studies that need a model which has learned.

The loop here is the bare one (Adam, a schedule, clipping) without folders and checkpoints: a study
trains dozens of models for seconds each. Models come from `builder.build`, data from `data/`.
"""

from __future__ import annotations

import gzip
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib.resources import as_file, files
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context
from regard.core.probe import NO_PROBE, NullProbe
from regard.data.generated import builtin
from regard.data.generated.algorithmic_tasks import SEPARATOR, GeneratedTask
from regard.data.padding import pad_rows
from regard.evaluation.metrics.texts import Bleu
from regard.families.presets import preset
from regard.lab.study.study import Effort, Numbers
from regard.look.forward import evaluation_mode
from regard.models.loading import load
from regard.training.engine.optimizer import ConstantRate, Schedule
from regard.wirings.core_model import CoreModel

PADDING = 0
START = 1
END = 2
# The ids above; words follow them in the order of the vocabulary.
RESERVED = 3  # ids before the first word
NO_TARGET = -100  # positions without a loss, as cross_entropy has them


class Batch(NamedTuple):
    """Rows of token ids, padded on the right, and the token to be predicted at each position; or
    images, and the label of each."""

    tokens: Tensor  # [B, T], or images [B, channels, height, width]
    targets: Tensor  # [B, T], NO_TARGET where there is none; [B, 1] of labels
    source: Any = None  # [B, S] of encoder–decoders


# ------------------------------------------------------------------ models


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Chance that follows from the seed; the caller's random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def build_seeded(model: spec.Model, seed: int) -> CoreModel:
    """The model with weights that follow from the seed."""
    with seeded(seed):
        return build(model)


def as_after_training(model: nn.Module) -> None:
    """Random weights of the size of trained ones: those at the start make attention uniform."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=parameter[0].numel() ** -0.5)


def language_model(vocabulary: int, length: int = 64, **changes: Any) -> spec.Model:
    """A small causal language model: 2 pre-norm layers of width 64 with 4 heads, no dropout."""
    sizes = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 256, "position": "sinusoidal"}
    off = {"dropout": 0.0, "attention_dropout": 0.0}
    model: Any = preset("gpt2", vocabulary, length, **(sizes | off | changes))
    # Embeddings are multiplied by √d_model (Section 3.4), or sinusoids would drown them.
    return replace(model, tokens=replace(model.tokens, scale=True))


# Words of `families/preset_changes.parse_position`.
POSITIONS = {
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "relative": "relative:16",
    "T5 bias": "buckets:32:128",
    "ALiBi": "alibi",
    "rotary": "rope",
}


def translator(vocabulary: int, length: int = 64, **changes: Any) -> spec.Model:
    """A small encoder–decoder: 2 post-norm layers of width 64 with 4 heads, no dropout."""
    sizes = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 256}
    return preset("transformer", vocabulary, length, **(sizes | {"dropout": 0.0} | changes))


def with_block(model: spec.Model, **changes: Any) -> spec.Model:
    """The model with these changes in all of its blocks."""
    stacks = model.stacks.items()
    return model.with_stacks({name: stack.with_blocks(**changes) for name, stack in stacks})


def with_attention(model: spec.Model, **changes: Any) -> spec.Model:
    """The model with these changes in all of its attentions."""

    def changed(stack: spec.Stack) -> spec.Stack:
        attention = replace(stack.block.attention, **changes)
        cross = stack.block.cross and replace(stack.block.cross, **changes)
        return stack.with_blocks(attention=attention, cross=cross)

    return model.with_stacks({name: changed(stack) for name, stack in model.stacks.items()})


def logits(model: Any, batch: Batch, probe: NullProbe = NO_PROBE) -> Tensor:
    """Logits at each position [B, T, V], or of one label for each row [B, 1, C]."""
    if batch.source is not None:
        hidden, _ = model(batch.source, batch.tokens, batch.source != PADDING)
        return model.head(hidden)
    # A causal mask hides padding on the right; images have none.
    sees_padding = not model.writes and not batch.tokens.is_floating_point()
    mask = batch.tokens != PADDING if sees_padding else None
    hidden, _ = model(batch.tokens, mask, Context(probe))
    if model.lm_head is None:
        return model.classes(hidden, mask)[:, None]
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
    on_step: Callable[[int], None] = lambda step: None,
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
        loss = mean_loss(model, batch, smoothing)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
        on_step(step)
    return losses


def trained(
    model: spec.Model, seed: int, batches: Iterator[Batch], steps: int, **options: Any
) -> Any:
    """The model after training with the weights of a seed, in evaluation mode."""
    module = build_seeded(model, seed)
    train(module, batches, steps, **options)
    return module.eval()


def mean_loss(
    model: nn.Module, batch: Batch, smoothing: float = 0.0, probe: NullProbe = NO_PROBE
) -> Tensor:
    """Cross-entropy of a batch, as the mean over the positions with a target."""
    return functional.cross_entropy(
        logits(model, batch, probe).flatten(0, 1),
        batch.targets.flatten(),
        ignore_index=NO_TARGET,
        label_smoothing=smoothing,
    )


class Score(NamedTuple):
    """Quality on held-out batches, with the true tokens before each position."""

    loss: float  # nats, mean over tokens
    accuracy: float  # share of tokens, 0–100
    exact: float  # share of rows without a mistake, 0–100


def evaluate(model: CoreModel, batches: Sequence[Batch]) -> Score:
    """The score over all rows of the batches; the model stays in its mode."""
    parts = []
    for batch in batches:
        with evaluation_mode(model):
            output = logits(model, batch)
        has_target = batch.targets != NO_TARGET
        right = output.argmax(-1) == batch.targets
        # One loss for each token: batches have different numbers of them.
        losses = functional.cross_entropy(
            output[has_target], batch.targets[has_target], reduction="none"
        )
        # Padding and prompts have no target.
        parts.append((losses, 100.0 * right[has_target], 100.0 * (right | ~has_target).all(-1)))
    return Score(*(float(torch.cat(part).mean()) for part in zip(*parts, strict=True)))


# ------------------------------------------------------------------ greedy decoding


def packaged_translator() -> Any:
    """The translator of the built-in language that comes with the package."""
    with as_file(files("regard")) as package:
        return load(package / "studio" / "demo")


@torch.no_grad()
def translate(model: Any, batch: Batch, limit: int) -> list[list[int]]:
    """Greedy translations of an encoder–decoder, without start and end: ids for each row."""
    memory = model.encode(batch.source, batch.source != PADDING)
    state = model.start(memory, width=1, capacity=limit + 1)
    columns = [batch.tokens[:, :1]]  # [B, 1], the decoder's first input
    # Rows that have ended go on; what follows the end is cut off below.
    for _ in range(limit):
        columns.append(model.step(columns[-1], state)[:, -1:].argmax(-1))
    rows = torch.cat(columns[1:], dim=1).tolist()
    return [row[: [*row, END].index(END)] for row in rows]


def as_text(words: Vocabulary, row: Sequence[int]) -> str:
    """Words with spaces between them; special tokens are left out."""
    return " ".join(words.words[token - RESERVED] for token in row if token >= RESERVED)


def bleu(model: Any, batch: Batch, words: Vocabulary, limit: int = 40) -> float:
    """BLEU of greedy translations of a batch, whose words are tokens already."""
    rows = translate(model, batch, limit), batch.targets.tolist()
    return Bleu("none").compute(*([as_text(words, row) for row in side] for side in rows))


# ------------------------------------------------------------------ several models


class Task(NamedTuple):
    """What small models learn: the batches of a seed, without end, and those they are scored on."""

    vocabulary: int
    stream: Callable[[int], Iterator[Batch]]
    test: Sequence[Batch]

    def score(self, model: spec.Model, seed: int, steps: int, **options: Any) -> Score:
        """The score of a model that was trained on the batches of a seed."""
        return evaluate(trained(model, seed, self.stream(seed), steps, **options), self.test)


Variants = dict[str, spec.Model]


def compare(variants: Variants, task: Task, steps: int, effort: Effort) -> Numbers:
    """The scores of each variant with each seed, after so many steps."""
    runs = effort.each(
        variants, lambda name, seed: task.score(variants[name], seed, steps)._asdict()
    )
    return {"runs": runs, "parameters": parameter_counts(variants), "steps": steps}


def non_embedding_parameters(model: Any) -> int:
    """How many parameters a language model has besides its embeddings, which its head shares."""
    return parameter_count(model) - model.vocab_size * model.d_model


def parameter_counts(variants: Variants) -> dict[str, int]:
    """How many parameters each variant has."""
    return {name: parameter_count(model) for name, model in variants.items()}


# ------------------------------------------------------------------ data


Rows = Sequence[Sequence[int]]  # of ids


def data_file(*names: str) -> Path | None:
    """A file below $REGARD_DATA, if it is there."""
    root = os.environ.get("REGARD_DATA")
    file = Path(root, *names) if root else None
    return file if file and file.is_file() else None


def pad(rows: Rows, value: int = PADDING) -> Tensor:
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


def ended_batch(texts: Rows) -> Batch:
    """Texts between start and end, where each position predicts the token after it."""
    return shifted_batch([[START, *text, END] for text in texts])


def shifted_batch(rows: Rows) -> Batch:
    """Rows in which each position predicts the token after it."""
    return Batch(pad([row[:-1] for row in rows]), pad([row[1:] for row in rows], NO_TARGET))


def pair_batch(sources: Rows, targets: Rows) -> Batch:
    """The same with the sources of the texts, which end too."""
    return ended_batch(targets)._replace(source=pad([[*source, END] for source in sources]))


class TaskBatches:
    """Batches of a generated task of pairs, each as one text: input, separator, target.

    The loss is that of the target and of the end. The vocabulary has the words of longer texts
    than those of training: they have all words, and more of them.
    """

    def __init__(self, task: GeneratedTask) -> None:
        self.task = task
        pairs = islice(task.examples("longer"), 300)
        words = {word for pair in pairs for text in pair for word in text.split()}
        self.vocabulary = Vocabulary([*words, SEPARATOR])

    def stream(self, split: str, seed: int) -> Iterator[Batch]:
        examples = self.task.examples(split, seed)
        while True:
            yield self.batch(list(islice(examples, 32)))

    def batch(self, examples: Sequence[tuple[str, str]]) -> Batch:
        prompts = [self.vocabulary.encode([*source.split(), SEPARATOR]) for source, _ in examples]
        answers = [self.vocabulary.encode(target.split()) for _, target in examples]
        batch = ended_batch([*map(add, prompts, answers)])
        for targets, prompt in zip(batch.targets, prompts, strict=True):
            targets[: len(prompt)] = NO_TARGET
        return batch

    def held_out(self, batches: int, split: str = "test") -> list[Batch]:
        """Held-out batches, the same for all models and seeds."""
        return list(islice(self.stream(split, 0), batches))

    def learned(self, batches: int) -> Task:
        """The task, scored on so many batches."""
        return Task(len(self.vocabulary), partial(self.stream, "train"), self.held_out(batches))


# ------------------------------------------------------------------ the built-in language

Pairs = Sequence[tuple[list[str], list[str]]]


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
    encode = builtin_vocabulary().encode
    for chosen in _shuffled(builtin_sentences(split, count), seed, rows):
        yield ended_batch([encode(english) for english, _ in chosen])


def english(effort: Effort) -> Task:
    """Language modelling of the built-in English, with the same test sentences for all models."""
    test = islice(builtin_text("test", 500, 0, rows=64), effort.choose(2, 6))
    return builtin_task(builtin_text, list(test), 5000)


def builtin_task(
    batches: Callable[[str, int, int], Iterator[Batch]], test: Sequence[Batch], count: int = 20_000
) -> Task:
    """A task of so many sentences of the built-in language."""
    return Task(len(builtin_vocabulary()), partial(batches, "train", count), test)


def builtin_pairs(split: str, count: int, seed: int, rows: int = 16) -> Iterator[Batch]:
    """Endless batches of English and German sentences for an encoder–decoder."""
    return pair_batches(builtin_sentences(split, count), builtin_vocabulary(), seed, rows)


def pair_batches(
    pairs: Pairs, vocabulary: Vocabulary, seed: int, rows: int = 16
) -> Iterator[Batch]:
    """Endless batches of pairs of sentences, in an order of the seed."""
    encode = vocabulary.encode
    for chosen in _shuffled(pairs, seed, rows):
        yield pair_batch([encode(one) for one, _ in chosen], [encode(other) for _, other in chosen])


def _shuffled(pairs: Pairs, seed: int, rows: int) -> Iterator[Pairs]:
    rng = random.Random(seed)
    while True:
        # Without replacement inside a batch.
        yield rng.sample(pairs, rows)


# ------------------------------------------------------------------ characters

TRAINING_SENTENCES = 20_000
TEST_SENTENCES = 1000
ROW = 64  # characters


class CharacterText(NamedTuple):
    """A text with its characters as tokens, in a part for training and one held out."""

    name: str
    characters: tuple[str, ...]
    training: Tensor  # [N]
    test: Tensor

    def batches(
        self, seed: int, rows: int = 16, *, characters: int | None = None, length: int = ROW
    ) -> Iterator[Batch]:
        """Endless random windows of the training text, or of its first so many characters."""
        text = self.training[:characters]
        generator = torch.Generator().manual_seed(seed)
        while True:
            # Windows overlap and may begin anywhere, as in nanoGPT.
            starts = torch.randint(0, len(text) - length - 1, (rows,), generator=generator)
            yield self._windows(text, starts, length)

    def held_out(self, rows: int = 64, *, length: int = ROW) -> Batch:
        """Windows of the held-out text, next to each other."""
        rows = min(rows, (len(self.test) - 1) // length)
        return self._windows(self.test, torch.arange(rows) * length, length)

    def _windows(self, text: Tensor, starts: Tensor, length: int) -> Batch:
        # Each position predicts the character after it.
        windows = text[starts[:, None] + torch.arange(length + 1)]  # [rows, length + 1]
        return Batch(windows[:, :-1], windows[:, 1:])


@cache
def character_text() -> CharacterText:
    """The English of the built-in language; with $REGARD_DATA, Shakespeare from text/."""
    training, test = (
        "\n".join(sentence.source for sentence in islice(builtin.sentences(split), count))
        for split, count in (("train", TRAINING_SENTENCES), ("test", TEST_SENTENCES))
    )
    name = "the built-in language"
    if file := data_file("text", "tinyshakespeare.txt.gz"):
        text = gzip.decompress(file.read_bytes()).decode()
        name = "Shakespeare"
        training = text[: len(text) * 9 // 10]
        test = text[len(training) :]
    # Of both parts: a character that only the test has would have no id.
    characters = tuple(sorted(set(training + test)))
    ids = {character: number for number, character in enumerate(characters)}
    parts = (torch.tensor([ids[character] for character in text]) for text in (training, test))
    return CharacterText(name, characters, *parts)
