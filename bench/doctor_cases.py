"""Runs that are sick on purpose, and healthy ones, each small: for `python bench/doctor.py`.

A case trains a model in a folder and says which finding must come first; None for a healthy one.
Sizes, seeds and severities are drawn from the case's random generator.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

import regard
from regard import spec
from regard.core.mixers.explicit_attention import ExplicitAttention
from regard.data.batching import Batch
from regard.data.generated import builtin
from regard.data.padding import IGNORED
from regard.data.text.tokenizer_training import train_lossless_tokenizer, train_tokenizer
from regard.families import presets
from regard.lab.doctor import Report, examine
from regard.system.errors import DivergenceError
from regard.training.data.plain_text import SPECIAL_TOKENS
from regard.training.engine.loop import Loop
from regard.training.objectives.causal_lm import CausalLM
from regard.training.objectives.corrupted_text import MaskedLM
from regard.training.objectives.sequence_to_sequence import SequenceToSequence

Pair = tuple[str, str]

SETTINGS: dict[str, Any] = {
    "steps": 120, "warmup_steps": 12, "batch_tokens": 512, "context": 32, "vocabulary": 400,
    "samples": 0, "validate_every": 30, "save_every": 60, "log_every": 4, "threads": 1,
    "device": "cpu", "schedule": "constant", "learning_rate": 3e-3, "label_smoothing": 0.0,
}  # fmt: skip


@dataclass
class Sick:
    """The run of a case, and what has to be given again to examine it."""

    run: Path
    parts: dict[str, Any] = field(default_factory=dict)


Make = Callable[[Path, random.Random], Sick]


@dataclass(frozen=True)
class Case:
    name: str
    planted: tuple[str, ...]  # findings any of which names the cause; empty for a healthy run
    make: Make


# --- data -----------------------------------------------------------------------------------------


@cache
def _language() -> list[Pair]:
    """Different pairs of the built-in language, generated once."""
    sentences = islice(builtin.sentences("train"), 8000)
    return list(dict.fromkeys((sentence.source, sentence.target) for sentence in sentences))


def sentence_pairs(rng: random.Random, count: int) -> list[Pair]:
    """So many neighbouring pairs of the built-in language, from a random place on."""
    pairs = _language()
    start = rng.randrange(len(pairs) - count)
    return pairs[start : start + count]


def write_pairs(folder: Path, name: str, pairs: Sequence[Pair]) -> dict[str, str]:
    """The settings of two files with these pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "" if name == "train" else f"{name}_"
    settings = {}
    for side, column in (("source", 0), ("target", 1)):
        path = folder / f"{name}.{side}"
        path.write_text("".join(pair[column] + "\n" for pair in pairs))
        settings[f"{prefix}{side}"] = str(path)
    return settings


def pair_settings(folder: Path, rng: random.Random, count: int = 1200) -> dict[str, Any]:
    pairs = sentence_pairs(rng, count + 150)
    valid = pairs[count:]
    return {**write_pairs(folder, "train", pairs[:count]), **write_pairs(folder, "valid", valid)}


def write_text(folder: Path, rng: random.Random, lines: int = 1500) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "text.txt"
    path.write_text("".join(source + "\n" for source, _ in sentence_pairs(rng, lines)))
    return str(path)


def labelled_lines(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Sentences with whether they hold one of the more frequent words."""
    sources = [source for source, _ in sentence_pairs(rng, count)]
    words = [set(source.lower().rstrip(".").split()) for source in sources]
    frequent = {w: sum(w in each for each in words) / len(words) for each in words for w in each}
    half = min(frequent, key=lambda word: abs(frequent[word] - 0.5))
    return [(s, "yes" if half in each else "no") for s, each in zip(sources, words, strict=True)]


def write_labelled(folder: Path, name: str, lines: Sequence[tuple[str, str]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in lines))
    return str(path)


def write_images(folder: Path, rng: random.Random, count: int = 40) -> str:
    """Noise with more of one colour, in a folder for each colour."""
    generator = np.random.default_rng(rng.randrange(1 << 30))
    for channel, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = generator.integers(0, 120, (12, 12, 3), dtype=np.uint8)
            pixels[..., channel] += 80
            Image.fromarray(pixels).save(folder / name / f"{i:03}.png")
    return str(folder)


# --- families -------------------------------------------------------------------------------------

SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 64, "heads": 2, "layers": 2}


def family_settings(family: str, folder: Path, rng: random.Random) -> dict[str, Any]:
    """Settings under which a family learns."""
    data = folder / "data"
    sizes = SIZES | {"d_model": rng.choice([32, 48]), "layers": rng.choice([1, 2])}
    seed = {"seed": rng.randrange(1000)}
    match family:
        case "translator":
            changes = {"model": "transformer:tiny", **pair_settings(data, rng), "steps": 120}
        case "gpt2" | "llama":
            changes = {"model": f"{family}:tiny", "text": write_text(data, rng)}
            changes["tokenizer"] = rng.choice(["characters", "bpe"])
        case "bert":
            changes = {"model": "bert:tiny", "text": write_text(data, rng), "steps": 200}
            changes |= {"objective": "masked", "batch_tokens": 1024}
        case "t5":
            changes = {"model": "t5:tiny", "text": write_text(data, rng), "steps": 150}
            changes |= {"objective": "span"}
        case "bart":
            changes = {"model": "bart:tiny", "text": write_text(data, rng), "steps": 150}
            changes |= {"objective": "denoise"}
        case "classifier":
            lines = labelled_lines(rng, 700)
            changes = {"model": "bert:tiny", "objective": "classify"}
            changes |= {"text": write_labelled(data, "train", lines), "batch_tokens": 512}
        case "lstm" | "gru":
            changes = {"model": family, "text": write_text(data, rng), "objective": "causal"}
            changes |= {"tokenizer": "characters", "learning_rate": 1e-2, "max_grad_norm": 1.0}
            sizes = {"d_model": 32, "layers": 1}
        case "vit":
            changes = {"model": "vit:tiny", "images": write_images(data, rng)}
            changes |= {"image_size": 12, "patch": 4, "batch_tokens": 240, "steps": 80}
        case _:
            raise ValueError(family)
    return {**SETTINGS, **sizes, **changes, **seed}


_MOST_STEPS: list[int] = []  # set by `fewer_steps`


@contextlib.contextmanager
def fewer_steps(steps: int | None) -> Iterator[None]:
    """Runs inside the block make at most so many steps."""
    if steps is None:
        yield
        return
    _MOST_STEPS.append(steps)
    try:
        yield
    finally:
        _MOST_STEPS.pop()


def train(folder: Path, settings: Mapping[str, Any], **arguments: Any) -> Sick:
    """A run; one that diverges is left as it is."""
    values = dict(settings)
    values["steps"] = min([values["steps"], *_MOST_STEPS])
    with contextlib.suppress(DivergenceError):
        regard.train(values, out=folder / "run", **arguments)
    parts = {key: arguments[key] for key in ("objective",) if not isinstance(
        arguments.get(key, ""), str)}  # fmt: skip
    return Sick(folder / "run", parts)


def changed(family: str, **changes: Any) -> Make:
    """A run of a family with some settings changed."""

    def make(folder: Path, rng: random.Random) -> Sick:
        return train(folder, {**family_settings(family, folder, rng), **changes})

    return make


def healthy(family: str, **changes: Any) -> Case:
    return Case(f"healthy {family}", (), changed(family, **changes))


# --- settings -------------------------------------------------------------------------------------


def rate(family: str, low: float, high: float) -> Make:
    """A learning rate between two, on a logarithmic scale."""

    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings(family, folder, rng)
        settings["learning_rate"] = low * (high / low) ** rng.random()
        return train(folder, settings)

    return make


# --- data that is wrong ---------------------------------------------------------------------------


def pairs_case(spoil: Callable[[list[Pair], list[Pair], random.Random], None]) -> Make:
    """A translator whose training and validation pairs are spoilt in place."""

    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings("translator", folder, rng)
        pairs = sentence_pairs(rng, 1350)
        train_pairs = pairs[:1200]
        valid = pairs[1200:]
        spoil(train_pairs, valid, rng)
        settings |= write_pairs(folder / "data", "train", train_pairs)
        settings |= write_pairs(folder / "data", "valid", valid)
        return train(folder, settings)

    return make


def swap_valid(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    valid[:] = [(target, source) for source, target in valid]


def swap_some(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    share = rng.uniform(0.1, 0.4)
    for i, (source, target) in enumerate(train_pairs):
        if rng.random() < share:
            train_pairs[i] = (target, source)


def shift_targets(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    shift = rng.choice([1, 2, -1])
    targets = [target for _, target in train_pairs]
    targets = targets[-shift:] + targets[:-shift]
    train_pairs[:] = [(pair[0], t) for pair, t in zip(train_pairs, targets, strict=True)]


def lose_a_line(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    place = rng.randrange(200, 800)
    targets = [target for _, target in train_pairs]
    del targets[place]
    train_pairs[:] = [(pair[0], t) for pair, t in zip(train_pairs, targets, strict=False)]


def shuffle_targets(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    for pairs in (train_pairs, valid):
        targets = [target for _, target in pairs]
        rng.shuffle(targets)
        pairs[:] = [(pair[0], t) for pair, t in zip(pairs, targets, strict=True)]


def leak_valid(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    train_pairs += rng.sample(valid, int(rng.uniform(0.3, 1.0) * len(valid)))
    rng.shuffle(train_pairs)


def test_leak(folder: Path, rng: random.Random) -> Sick:
    settings = family_settings("translator", folder, rng)
    pairs = sentence_pairs(rng, 1300)
    test = pairs[1200:]
    settings |= write_pairs(folder / "data", "train", pairs[:1200] + test[:60])
    settings |= write_pairs(folder / "data", "test", test)
    return train(folder, settings | {"steps": 60})


def text_leak(family: str) -> Make:
    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings(family, folder, rng)
        lines = [source + "\n" for source, _ in sentence_pairs(rng, 1500)]
        valid = lines[1350:]
        train_lines = lines[:1350]
        place = rng.randrange(1000)
        train_lines[place:place] = valid[: rng.randrange(60, 150)]
        data = folder / "data"
        (data / "train.txt").write_text("".join(train_lines))
        (data / "valid.txt").write_text("".join(valid))
        settings |= {"text": str(data / "train.txt"), "valid_text": str(data / "valid.txt")}
        return train(folder, settings)

    return make


def labelled_case(spoil: str) -> Make:
    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings("classifier", folder, rng)
        lines = labelled_lines(rng, 800)
        train_lines = lines[:650]
        valid = lines[650:]
        data = folder / "data"
        if spoil == "leak":
            train_lines += valid[:80]
        elif spoil == "copies":
            settings["text"] = write_labelled(data, "train", lines[:203] * 4)
            return train(folder, settings)
        settings["text"] = write_labelled(data, "train", train_lines)
        settings["valid_text"] = write_labelled(data, "valid", valid)
        return train(folder, settings)

    return make


def image_leak(folder: Path, rng: random.Random) -> Sick:
    settings = family_settings("vit", folder, rng)
    valid = Path(write_images(folder / "valid", rng, 12))
    for path in valid.rglob("*.png"):
        target = Path(settings["images"]) / path.parent.name / f"copy_{path.name}"
        target.write_bytes(path.read_bytes())
    return train(folder, settings | {"valid_images": str(valid)})


def random_letters(folder: Path, rng: random.Random) -> Sick:
    """Text without any order: nothing but frequencies can be learnt."""
    settings = family_settings("gpt2", folder, rng)
    letters = "".join(rng.choices("abcdefghij", weights=range(1, 11), k=40_000))
    path = folder / "data" / "letters.txt"
    path.write_text(letters)
    return train(folder, settings | {"text": str(path), "tokenizer": "characters"})


def tiny_data(family: str) -> Make:
    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings(family, folder, rng)
        data = folder / "data"
        settings |= {"steps": 400, "validate_every": 50, "d_model": 64, "d_ff": 128}
        if family == "translator":
            pairs = sentence_pairs(rng, 160)
            settings |= write_pairs(data, "train", pairs[:40])
            settings |= write_pairs(data, "valid", pairs[40:])
        elif family == "classifier":
            lines = labelled_lines(rng, 160)
            texts = [text for text, _ in lines]
            labels = [rng.choice(["yes", "no"]) for _ in texts]
            lines = list(zip(texts, labels, strict=True))
            settings["text"] = write_labelled(data, "train", lines[:60])
            settings["valid_text"] = write_labelled(data, "valid", lines[60:])
        else:
            lines_of_text = [source + "\n" for source, _ in sentence_pairs(rng, 300)]
            (data / "train.txt").write_text("".join(lines_of_text[:30]))
            (data / "valid.txt").write_text("".join(lines_of_text[30:]))
            settings |= {"text": str(data / "train.txt"), "valid_text": str(data / "valid.txt")}
            settings["tokenizer"] = "characters"
        return train(folder, settings)

    return make


# --- tokenizers -----------------------------------------------------------------------------------


def wrong_tokenizer(family: str, kind: str) -> Make:
    """A tokenizer that was learnt from other text."""

    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings(family, folder, rng)
        path = folder / "other.json"
        alphabet = "xqzvwjkypf"
        words = ["".join(rng.choices(alphabet, k=rng.randrange(3, 8))) for _ in range(400)]
        lines = [" ".join(rng.choices(words, k=8)) for _ in range(2000)]
        if family == "translator":
            tokenizer = train_tokenizer(iter(lines), kind, 300)
        else:
            template = SPECIAL_TOKENS["causal"]
            tokenizer = train_lossless_tokenizer(iter(lines), kind, 600, template)
        path.write_text(tokenizer.to_json())
        return train(folder, settings | {"tokenizer": str(path)})

    return make


def exchanged_tokenizer(folder: Path, rng: random.Random) -> Sick:
    """A tokenizer.json that is put into the run folder after training."""
    settings = family_settings("gpt2", folder, rng) | {"tokenizer": "characters"}
    sick = train(folder, settings)
    path = sick.run / "tokenizer.json"
    backend = path.read_text()
    content = json.loads(backend)
    vocabulary = content["model"]["vocab"]
    ids = list(vocabulary.values())
    rng.shuffle(ids)
    content["model"]["vocab"] = dict(zip(vocabulary, ids, strict=True))
    path.write_text(json.dumps(content))
    return sick


# --- weights --------------------------------------------------------------------------------------


def edit_exported(family: str, edit: Callable[[dict[str, Tensor], random.Random], None]) -> Make:
    """Weights that are changed in the finished run's file."""

    def make(folder: Path, rng: random.Random) -> Sick:
        sick = train(folder, family_settings(family, folder, rng))
        path = sick.run / "model.safetensors"
        tensors = load_file(path)
        edit(tensors, rng)
        save_file(tensors, path, {"format": "pt"})
        return sick

    return make


def some_matrix(tensors: Mapping[str, Tensor], rng: random.Random) -> str:
    return rng.choice([n for n, t in sorted(tensors.items()) if t.ndim == 2 and t.numel() > 500])


def put_nan(tensors: dict[str, Tensor], rng: random.Random) -> None:
    tensor = tensors[some_matrix(tensors, rng)]
    tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice([torch.nan, torch.inf])


def erase(tensors: dict[str, Tensor], rng: random.Random) -> None:
    tensors[some_matrix(tensors, rng)].zero_()


def edit_while_training(
    family: str,
    edit: Callable[[torch.nn.Module, random.Random], None],
    before_end: int = 20,
    **changes: Any,
) -> Make:
    """Weights that a callback changes so many steps before the end of training."""

    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings(family, folder, rng) | changes

        def on_step(loop: Loop) -> None:
            if loop.progress.step == settings["steps"] - before_end:
                with torch.no_grad():
                    edit(loop.model, rng)

        return train(folder, settings | {"final_weights": "last"}, on_step=on_step)

    return make


def nan_in_model(model: torch.nn.Module, rng: random.Random) -> None:
    parameters = dict(model.named_parameters())
    parameters[some_matrix(parameters, rng)].view(-1)[3] = torch.nan


def kill_units(model: torch.nn.Module, rng: random.Random) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("feedforward.inner.bias"):
            parameter.fill_(-rng.choice([20.0, 100.0]))


def scale_queries(factor: float) -> Callable[[torch.nn.Module, random.Random], None]:
    def edit(model: torch.nn.Module, rng: random.Random) -> None:
        for name, parameter in model.named_parameters():
            if name.endswith(("qkv.weight", ".q.weight")):
                parameter[: parameter.shape[1]].mul_(factor)

    return edit


def half_precision(folder: Path, rng: random.Random) -> Sick:
    """A base model whose units grow beyond fp16 and are scaled back: the same in float32."""
    settings = family_settings("gpt2", folder, rng) | {"tokenizer": "bpe"}
    base = train(folder / "base", settings | {"model": "gpt2:tiny", "activation": "relu"})
    model = regard.load(base.run)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "feedforward.inner" in name:
                parameter.mul_(1e5)
            elif name.endswith("feedforward.outer.weight"):
                parameter.div_(1e5)
    model.save(folder / "scaled")
    changes = {"text": settings["text"], "objective": "causal", "context": 32, "steps": 40}
    changes |= {"precision": "fp16", "log_every": 4, "validate_every": 20, "samples": 0}
    changes |= {"device": "cpu", "threads": 1, "epochs": None}
    return train(folder, {**changes, "base": str(folder / "scaled")})


# --- code from outside ----------------------------------------------------------------------------


class PeekingAttention(ExplicitAttention):
    """Softmax over all keys, then the mask: the sum has seen the future."""

    def attention_weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)


class OpenAttention(PeekingAttention):
    """No mask at all."""

    def weights(self, q, k, mask, rows, heads=None, bias=None):  # type: ignore[no-untyped-def]
        return self.attention_weights(q[:, :, rows], k, mask.for_rows(rows), None)


@dataclass(frozen=True)
class Peeking:
    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> PeekingAttention:
        return PeekingAttention(self.dropout)


@dataclass(frozen=True)
class Open:
    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> OpenAttention:
        return OpenAttention(self.dropout)


def with_mixer(description: Any, mixer: Any) -> Any:
    """A spec of a decoder with another attention kernel."""
    attention = replace(description.stack.block.attention, mixer=mixer)
    return replace(description, stack=description.stack.with_blocks(attention=attention))


def own_attention(mixer: Any, family: str = "gpt2") -> Make:
    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings("gpt2", folder, rng) | {"tokenizer": "characters"}
        for key in (*SIZES, "model"):
            settings.pop(key)
        settings["objective"] = "causal"
        # As the run will learn it: the vocabulary of a spec must be that of its tokenizer.
        text = Path(settings["text"]).read_text()
        tokenizer = train_lossless_tokenizer(
            iter([text[: int(0.9 * len(text))]]), "characters", 400, SPECIAL_TOKENS["causal"]
        )
        description = presets.preset(f"{family}:tiny", len(tokenizer), 32, **SIZES)
        sick = train(folder, settings, model=with_mixer(description, mixer))
        sick.parts["kinds"] = [type(mixer)]
        return sick

    return make


class Unshifted(CausalLM):
    """Forgets that the label of a position is the next token."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, _ = self.model(tensors["tokens"])
        logits = self.model.head(hidden).float().flatten(0, 1)
        loss = functional.cross_entropy(logits, tensors["tokens"].flatten(), reduction="sum")
        return loss, loss.detach()


class UnshiftedBatches(CausalLM):
    """The same in the batches."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for position, batch in super().batches(epoch, index):
            tokens = batch.tensors["tokens"]
            yield position, replace(batch, tensors={"tokens": tokens, "labels": tokens})


class ShiftedTwice(CausalLM):
    """Shifts labels that have been shifted before, as in the habit of other libraries."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, _ = self.model(tensors["tokens"])
        logits = self.model.head(hidden).float()[:, :-1].flatten(0, 1)
        labels = tensors["labels"][:, 1:].flatten()
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        return loss, loss.detach()


class PaddingCounts(SequenceToSequence):
    """Learns to predict padding."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, _ = self.model(tensors["source"], tensors["target"], tensors.get("padding_mask"))
        pad = self.trained_model.target_tokenizer.required_token_id("pad")
        labels = tensors["labels"].masked_fill(tensors["labels"] == IGNORED, pad)
        logits = self.model.head(hidden).float().flatten(0, 1)
        loss = functional.cross_entropy(logits, labels.flatten(), reduction="sum")
        return loss, loss.detach()


class Unmasked(MaskedLM):
    """Forgets to hide the tokens that are to be predicted."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for position, batch in super().batches(epoch, index):
            tensors = dict(batch.tensors)
            labels = tensors["labels"]
            tensors["tokens"] = torch.where(labels == IGNORED, tensors["tokens"], labels)
            yield position, replace(batch, tensors=tensors)


class MaskedPaddingCounts(MaskedLM):
    """Counts all positions that are padded besides the masked ones."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        hidden, _ = self.model(tensors["tokens"], tensors["padding_mask"])
        assert self.model.head is not None
        logits = self.model.head(hidden)
        labels = tensors["labels"].masked_fill(~tensors["padding_mask"], self.pad_id)
        loss = functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), reduction="sum"
        )
        return loss, loss.detach()


def own_objective(family: str, objective: Any) -> Make:
    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings(family, folder, rng)
        settings.pop("objective", None)
        return train(folder, settings, objective=objective)

    return make


# --- the list -------------------------------------------------------------------------------------

HEALTHY = [
    healthy("translator"),
    healthy("gpt2"),
    healthy("llama"),
    healthy("bert"),
    healthy("t5"),
    healthy("bart"),
    healthy("classifier"),
    healthy("lstm"),
    healthy("gru"),
    healthy("vit"),
    healthy("gpt2", attention="window:8"),
    healthy("translator", generated="copying:4:8", source=None, target=None,
            valid_source=None, valid_target=None, tokenizer="words", steps=200),
    healthy("translator", dropout=0.1, label_smoothing=0.1, position="rope"),
]  # fmt: skip

SICK = [
    # settings
    Case("gpt, rate too high", ("rate_too_high",), rate("gpt2", 0.1, 10)),
    Case("translator, rate too high", ("rate_too_high",), rate("translator", 0.1, 3)),
    Case("bert, rate too high", ("rate_too_high",), rate("bert", 0.1, 3)),
    Case("lstm, rate too high", ("rate_too_high",), rate("lstm", 1, 10)),
    Case("classifier, rate too high", ("rate_too_high",), rate("classifier", 0.1, 3)),
    Case("gpt, rate too low", ("rate_too_low",), rate("gpt2", 1e-7, 3e-6)),
    Case("translator, rate too low", ("rate_too_low",), rate("translator", 1e-7, 3e-6)),
    Case("vit, rate too low", ("rate_too_low",), rate("vit", 1e-8, 1e-6)),
    Case("gpt, rate ten times too high", ("rate_too_high",), rate("gpt2", 0.03, 0.06)),
    Case("bert, rate fifty times too low", ("rate_too_low",), rate("bert", 4e-5, 8e-5)),
    Case("translator, no warm-up", ("no_warmup", "rate_too_high"),
         changed("translator", warmup_steps=1, learning_rate=0.02, layers=4)),
    Case("gpt, initial weights too large", ("bad_initialization",),
         changed("gpt2", init="normal:2")),
    Case("translator, initial weights too large", ("bad_initialization",),
         changed("translator", init="normal:1")),
    Case("deep post-norm", ("vanishing_gradients",),
         changed("translator", layers=1, decoder_layers=24, residual="post", steps=25,
                 d_model=16, d_ff=32, validate_every=25, batch_tokens=256, log_every=2)),
    Case("huge batch", ("batch_too_large",),
         changed("gpt2", batch_tokens=40_000, steps=8, log_every=1, warmup_steps=1, tokenizer="bpe")),
    Case("weight decay", ("weight_decay_too_high",),
         changed("gpt2", weight_decay=100.0, optimizer="adamw")),
    Case("dropout", ("dropout_too_high",), changed("gpt2", dropout=0.95)),
    Case("fp16 overflow", ("half_precision_overflow",), half_precision),
    # data
    Case("validation sides swapped", ("swapped_sides",), pairs_case(swap_valid)),
    Case("some pairs swapped", ("swapped_sides",), pairs_case(swap_some)),
    Case("targets slipped", ("misaligned_sides",), pairs_case(shift_targets)),
    Case("a line lost", ("misaligned_sides",), pairs_case(lose_a_line)),
    Case("targets shuffled", ("misaligned_sides",), pairs_case(shuffle_targets)),
    Case("validation pairs in training", ("test_in_train",), pairs_case(leak_valid)),
    Case("test pairs in training", ("test_in_train",), test_leak),
    Case("validation text in training", ("test_in_train",), text_leak("gpt2")),
    Case("validation text in training, masked", ("test_in_train",), text_leak("bert")),
    Case("labelled validation in training", ("test_in_train",), labelled_case("leak")),
    Case("images of validation in training", ("test_in_train",), image_leak),
    Case("copies of examples", ("duplicate_examples",), labelled_case("copies")),
    Case("text without order", ("plateau",), random_letters),
    Case("too little data, gpt", ("overfitting",), tiny_data("gpt2")),
    Case("too little data, translator", ("overfitting",), tiny_data("translator")),
    Case("labels at random", ("labels_unrelated", "overfitting"), tiny_data("classifier")),
    # tokenizers
    Case("words of another language", ("tokenizer_mismatch",), wrong_tokenizer("translator", "words")),
    Case("pieces of another language", ("tokenizer_mismatch",), wrong_tokenizer("gpt2", "bpe")),
    Case("tokenizer exchanged", ("tokenizer_mismatch",), exchanged_tokenizer),
    Case("vocabulary too small", ("unknown_tokens",),
         changed("translator", tokenizer="words", vocabulary=20)),
    # weights
    Case("NaN in the weights", ("nonfinite_weights",), edit_exported("translator", put_nan)),
    Case("NaN by a callback", ("nonfinite_weights",), edit_while_training("gpt2", nan_in_model)),
    Case("weights erased", ("zero_weights",), edit_exported("bert", erase)),
    Case("dead units", ("dead_units",),
         edit_while_training("translator", kill_units, learning_rate=1e-3)),
    Case("saturated attention", ("saturated_attention",),
         edit_while_training("bert", scale_queries(1000.0))),
    Case("uniform attention", ("uniform_attention", "zero_weights"),
         edit_while_training("bert", scale_queries(0.0), before_end=1)),
    # code from outside
    Case("attention normalized over the future", ("future_leak",), own_attention(Peeking())),
    Case("attention without a mask", ("future_leak",), own_attention(Open())),
    Case("targets not shifted", ("targets_not_shifted",), own_objective("gpt2", Unshifted)),
    Case("batches not shifted", ("targets_not_shifted",), own_objective("gpt2", UnshiftedBatches)),
    Case("targets shifted twice", ("targets_not_shifted",), own_objective("gpt2", ShiftedTwice)),
    Case("padding counted", ("padding_in_loss",), own_objective("translator", PaddingCounts)),
    Case("padding counted, masked", ("padding_in_loss",), own_objective("bert", MaskedPaddingCounts)),
    Case("answers not masked", ("answers_in_input",), own_objective("bert", Unmasked)),
]  # fmt: skip


# --- their examination -----------------------------------------------------------------------------


def examine_case(
    case: Case, folder: Path, seed: int, steps: int | None = None, **how: Any
) -> Report:
    """Makes the run of a case, perhaps with fewer steps, and examines it."""
    # A string seeds alike in every process.
    rng = random.Random(f"{case.name}/{seed}")
    with contextlib.redirect_stderr(io.StringIO()), fewer_steps(steps):
        sick = case.make(folder, rng)
    return examine(sick.run, **sick.parts, **how)


def is_right(case: Case, report: Report) -> bool:
    """Whether the first finding is the planted cause; a healthy run has none."""
    if not case.planted:
        return report.is_healthy
    return bool(report.findings) and report.findings[0].check in case.planted
