"""More sick and healthy runs for `python bench/doctor.py`: other families, kinds of data, causes.

They were written after the checks, to see what these miss.
"""

from __future__ import annotations

import json
import math
import random
import wave
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from doctor_cases import (
    SETTINGS,
    SIZES,
    Case,
    Make,
    Pair,
    Sick,
    changed,
    edit_while_training,
    family_settings,
    labelled_lines,
    own_objective,
    pairs_case,
    sentence_pairs,
    train,
    with_mixer,
    write_images,
    write_labelled,
    write_pairs,
    write_text,
)
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.mixers.explicit_attention import ExplicitAttention
from regard.data.batching import Batch
from regard.data.padding import IGNORED
from regard.data.text.tokenizer_training import train_lossless_tokenizer
from regard.families import presets
from regard.training.data.plain_text import SPECIAL_TOKENS
from regard.training.objectives.causal_lm import CausalLM
from regard.training.objectives.corrupted_text import Denoising
from regard.training.objectives.head_objective import TokenClassification
from regard.training.objectives.sequence_to_sequence import SequenceToSequence

# --- data -----------------------------------------------------------------------------------------


def write_tagged(folder: Path, name: str, sentences: Sequence[str]) -> str:
    """CoNLL's columns: whether a word begins with a vowel, or is capitalized."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.conll"
    lines = []
    for sentence in sentences:
        for word in sentence.rstrip(".").split():
            tag = "O"
            if word[0].isupper():
                tag = "B-UP"
            elif word[0] in "aeiou":
                tag = "B-VOWEL"
            lines.append(f"{word} {tag}\n")
        lines.append("\n")
    path.write_text("".join(lines))
    return str(path)


def write_questions(folder: Path, name: str, sentences: Sequence[str]) -> str:
    """JSON Lines of questions for the word after the first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    rows = []
    for sentence in sentences:
        words = sentence.rstrip(".").split()
        answer = words[1]
        start = len(words[0]) + 1
        row = {"question": f"after {words[0]} ?", "context": sentence, "text": answer}
        rows.append(json.dumps(row | {"answer_start": start}) + "\n")
    path.write_text("".join(rows))
    return str(path)


def write_rated(folder: Path, name: str, sentences: Sequence[str]) -> str:
    """The score of a sentence is its number of words."""
    return write_labelled(folder, name, [(s, str(len(s.split()))) for s in sentences])


def write_series(folder: Path, rng: random.Random, steps: int = 900) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "series.csv"
    rows = ["a,b\n"]
    for i in range(steps):
        a = math.sin(i / 5) + 0.1 * rng.gauss(0, 1)
        b = math.cos(i / 9) + 0.1 * rng.gauss(0, 1)
        rows.append(f"{a:.4f},{b:.4f}\n")
    path.write_text("".join(rows))
    return str(path)


def write_graph(folder: Path, rng: random.Random, nodes: int = 160) -> str:
    """Two groups of nodes: features say a little, neighbours more."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = [i % 2 for i in range(nodes)]
    splits = ("train", "train", "valid", "test")
    rows = []
    for i, group in enumerate(classes):
        features = " ".join(f"{k}:{rng.gauss(group if k < 2 else 0, 1):.3f}" for k in range(6))
        rows.append(f"{i}\t{'ab'[group]}\t{rng.choice(splits)}\t{features}\n")
    edges = []
    for i, group in enumerate(classes):
        for _ in range(3):
            other = rng.randrange(nodes // 2) * 2 + group
            edges.append(f"{i}\t{other}\n")
    (folder / "nodes.tsv").write_text("".join(rows))
    (folder / "edges.tsv").write_text("".join(edges))
    return str(folder)


def write_sounds(folder: Path, rng: random.Random, count: int = 40) -> str:
    """Noisy tones, in a folder for each of two pitches."""
    generator = np.random.default_rng(rng.randrange(1 << 30))
    for name, pitch in (("low", 300), ("high", 1500)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            time = np.arange(3200) / 16000
            signal = np.sin(2 * np.pi * pitch * (0.8 + 0.4 * generator.random()) * time)
            signal = 0.5 * signal + 0.1 * generator.standard_normal(len(time))
            with wave.open(str(folder / name / f"{i:03}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16000)
                file.writeframes((20000 * signal.clip(-1, 1)).astype("<i2").tobytes())
    return str(folder)


def wider_settings(family: str, folder: Path, rng: random.Random) -> dict[str, Any]:
    """Settings under which these learn; those of `doctor_cases` for other names."""
    data = folder / "data"
    sentences = [source for source, _ in sentence_pairs(rng, 700)]
    seed = {"seed": rng.randrange(1000)}
    text_encoder = {"model": rng.choice(["bert:tiny", "roberta:tiny"]), **SIZES}
    match family:
        case "tagger":
            changes = {**text_encoder, "objective": "tag"}
            changes["text"] = write_tagged(data, "train", sentences)
        case "answer":
            changes = {**text_encoder, "objective": "answer", "steps": 200}
            changes["text"] = write_questions(data, "train", sentences)
        case "regress":
            changes = {**text_encoder, "objective": "regress"}
            changes["text"] = write_rated(data, "train", sentences)
        case "forecast":
            changes = {"model": "patchtst:tiny", "series": write_series(data, rng), "context": 48}
            changes |= {"horizon": 8, "patch": 8, "stride": 4}
        case "graph":
            changes = {"model": "graph:tiny", "graph": write_graph(data, rng), "steps": 60}
            changes |= {"validate_every": 10, "log_every": 2}
        case "sounds":
            changes = {"model": "wav2vec2:tiny", "sounds": write_sounds(data, rng)}
            changes |= {"objective": "sounds", "batch_tokens": 128, "steps": 60}
            changes |= {"learning_rate": 1e-3, "log_every": 2}
        case "ctc":
            sounds = Path(write_sounds(data, rng))
            files = [path.relative_to(sounds) for path in sorted(sounds.rglob("*.wav"))]
            table = sounds / "table.tsv"
            table.write_text("".join(f"{path}\t{path.parent.name}\n" for path in files))
            changes = {"model": "wav2vec2:tiny", "sounds": str(table), "objective": "ctc"}
            changes |= {"batch_tokens": 128, "steps": 80, "learning_rate": 1e-3, "log_every": 2}
        case "swin":
            changes = {"model": "swin:tiny", "images": write_images(data, rng)}
            changes |= {"image_size": 16, "patch": 2, "batch_tokens": 512, "steps": 60}
            changes |= {"d_model": 24, "learning_rate": 1e-3}
        case _:
            return {**text_settings(family, folder, rng), **seed}
    return {**SETTINGS, **changes, **seed}


def text_settings(family: str, folder: Path, rng: random.Random) -> dict[str, Any]:
    """The same for families that read plain text or pairs."""
    data = folder / "data"
    match family:
        case "electra":
            changes = {"model": "electra:tiny", **SIZES, "text": write_text(data, rng)}
            changes |= {"batch_tokens": 1024, "steps": 250}
        case "stories":
            changes = {"model": "memory:tiny", "objective": "stories", "builtin_lines": 1000}
            changes |= {"test_lines": 100, "learning_rate": 1e-2, "steps": 200}
        case "memory":
            changes = {"model": "gpt2:tiny", **SIZES, "text": write_text(data, rng)}
            changes |= {"memory": 16, "tokenizer": "characters", "batch_tokens": 256}
        case "deberta" | "albert" | "longformer" | "bigbird" | "distilbert" | "mpnet":
            changes = {"model": f"{family}:tiny", **SIZES, "text": write_text(data, rng)}
            changes |= {"objective": "masked", "batch_tokens": 1024, "steps": 200}
        case "universal" | "marian" | "pegasus":
            pairs = sentence_pairs(rng, 1350)
            changes = {"model": f"{family}:tiny", **SIZES}
            changes |= write_pairs(data, "train", pairs[:1200])
            changes |= write_pairs(data, "valid", pairs[1200:])
        case "mistral" | "qwen2" | "gemma" | "mixtral" | "gpt-neox" | "palm":
            changes = {"model": f"{family}:tiny", **SIZES, "text": write_text(data, rng)}
            changes["tokenizer"] = "characters"
        case _:
            return family_settings(family, folder, rng)
    return {**SETTINGS, **changes}


def wider(family: str, **changes: Any) -> Make:
    def make(folder: Path, rng: random.Random) -> Sick:
        return train(folder, {**wider_settings(family, folder, rng), **changes})

    return make


def healthy(family: str, name: str = "", **changes: Any) -> Case:
    return Case(f"healthy {family}{name}", (), wider(family, **changes))


def wider_rate(family: str, low: float, high: float) -> Make:
    """A learning rate between two, on a logarithmic scale."""

    def make(folder: Path, rng: random.Random) -> Sick:
        settings = wider_settings(family, folder, rng)
        settings["learning_rate"] = low * (high / low) ** rng.random()
        return train(folder, settings)

    return make


# --- data that is wrong ---------------------------------------------------------------------------


def split_leak(family: str) -> Make:
    """Half of the validation examples stand in the training file too."""
    writers = {"tagger": write_tagged, "answer": write_questions, "regress": write_rated}

    def make(folder: Path, rng: random.Random) -> Sick:
        settings = wider_settings(family, folder, rng)
        sentences = [source for source, _ in sentence_pairs(rng, 700)]
        valid = sentences[560:]
        write = writers[family]
        settings["text"] = write(folder / "data", "leak", sentences[:560] + valid[:70])
        settings["valid_text"] = write(folder / "data", "valid", valid)
        return train(folder, settings)

    return make


def doubled_line(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    """One target twice: what follows has slipped by a line."""
    place = rng.randrange(100, 500)
    targets = [target for _, target in train_pairs]
    targets.insert(place, targets[place])
    train_pairs[:] = [(pair[0], t) for pair, t in zip(train_pairs, targets, strict=False)]


def reversed_targets(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    """The target file from its end."""
    targets = [target for _, target in train_pairs][::-1]
    train_pairs[:] = [(pair[0], t) for pair, t in zip(train_pairs, targets, strict=True)]


def slipped_valid(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    targets = [target for _, target in valid]
    targets = targets[1:] + targets[:1]
    valid[:] = [(pair[0], t) for pair, t in zip(valid, targets, strict=True)]


def swap_block(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    """A second corpus, appended with its sides the other way round."""
    start = rng.randrange(800, 1000)
    train_pairs[start:] = [(target, source) for source, target in train_pairs[start:]]


def unrelated_labels(folder: Path, rng: random.Random) -> Sick:
    """Labels by the toss of a coin, and more examples than can be learnt by heart."""
    settings = family_settings("classifier", folder, rng)
    lines = [(text, rng.choice(["yes", "no"])) for text, _ in labelled_lines(rng, 4000)]
    settings["text"] = write_labelled(folder / "data", "random", lines)
    return train(folder, settings | {"steps": 160, "d_model": 32, "layers": 1})


def random_images(folder: Path, rng: random.Random) -> Sick:
    """A few images whose classes are at random, learnt by heart."""
    settings = family_settings("vit", folder, rng)
    images = Path(settings["images"])
    files = sorted(images.rglob("*.png"))
    names = [path.parent.name for path in files]
    rng.shuffle(names)
    target = folder / "random"
    for path, name in zip(files, names, strict=True):
        (target / name).mkdir(parents=True, exist_ok=True)
        (target / name / f"{path.parent.name}{path.name}").write_bytes(path.read_bytes())
    settings |= {"images": str(target), "steps": 400, "validate_every": 40, "d_model": 64}
    return train(folder, settings)


def small_vocabulary(folder: Path, rng: random.Random) -> Sick:
    settings = family_settings("classifier", folder, rng)
    return train(folder, settings | {"tokenizer": "words", "vocabulary": 16})


def exchanged_base(folder: Path, rng: random.Random) -> Sick:
    """Fine-tuning of a language model whose tokenizer file was exchanged."""
    settings = family_settings("gpt2", folder, rng) | {"tokenizer": "characters", "steps": 200}
    base = train(folder / "base", settings | {"model": "gpt2:tiny", "learning_rate": 1e-2})
    path = base.run / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    ids = list(vocabulary.values())
    rng.shuffle(ids)
    content["model"]["vocab"] = dict(zip(vocabulary, ids, strict=True))
    path.write_text(json.dumps(content))
    changes = {key: settings[key] for key in ("text", "context", "log_every", "samples", "device")}
    changes |= {"objective": "causal", "steps": 40, "validate_every": 20, "threads": 1}
    changes |= {"learning_rate": 1e-5, "batch_tokens": 512, "epochs": None}
    return train(folder, {**changes, "base": str(base.run)})


# --- weights and steps ----------------------------------------------------------------------------


def shake_weights(model: torch.nn.Module, rng: random.Random) -> None:
    """One update of random direction, as large as the weights are."""
    torch.manual_seed(rng.randrange(1000))
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.add_(torch.randn_like(parameter) * rng.choice([0.5, 1.0]))


def zero_keys(model: torch.nn.Module, rng: random.Random) -> None:
    """Keys, the second third of a fused matrix, become zero."""
    for name, parameter in model.named_parameters():
        if name.endswith("qkv.weight"):
            third = len(parameter) // 3
            parameter[third : 2 * third].mul_(1e-3)


def sharpen_cross(model: torch.nn.Module, rng: random.Random) -> None:
    for name, parameter in model.named_parameters():
        if "cross" in name and name.endswith("q.weight"):
            parameter.mul_(3000.0)


def drown_units(model: torch.nn.Module, rng: random.Random) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("feedforward.inner.bias"):
            parameter.fill_(-50.0)


# --- code from outside ----------------------------------------------------------------------------


class OneAhead(ExplicitAttention):
    """A causal mask that is off by one: each position sees the next token too."""

    def attention_weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        ahead = torch.zeros_like(allowed)
        ahead[..., 1:] = allowed[..., :-1]
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~(allowed | ahead), -math.inf), dim=-1)


@dataclass(frozen=True)
class Ahead:
    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> OneAhead:
        return OneAhead(self.dropout)


def ahead_attention(folder: Path, rng: random.Random) -> Sick:
    settings = family_settings("gpt2", folder, rng) | {"tokenizer": "characters"}
    for key in (*SIZES, "model"):
        settings.pop(key)
    settings["objective"] = "causal"
    text = Path(settings["text"]).read_text()
    tokenizer = train_lossless_tokenizer(
        iter([text[: int(0.9 * len(text))]]), "characters", 400, SPECIAL_TOKENS["causal"]
    )
    description = presets.preset("llama:tiny", len(tokenizer), 32, **SIZES)
    sick = train(folder, settings, model=with_mixer(description, Ahead()))
    sick.parts["kinds"] = [Ahead]
    return sick


class UnshiftedDecoder(SequenceToSequence):
    """The decoder reads its labels, without a start token before them."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for position, batch in super().batches(epoch, index):
            labels = batch.tensors["labels"]
            pad = self.trained_model.target_tokenizer.required_token_id("pad")
            target = labels.masked_fill(labels == IGNORED, pad)
            yield position, replace(batch, tensors={**batch.tensors, "target": target})


class DenoisingPadding(Denoising):
    """Padding is a label like any other."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for position, batch in super().batches(epoch, index):
            labels = batch.tensors["labels"]
            labels = labels.masked_fill(labels == IGNORED, self.frame.pad)
            yield position, replace(batch, tensors={**batch.tensors, "labels": labels})


class PaddedTags(TokenClassification):
    """Padding has the tag 0, and is counted."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits, _ = self.logits(tensors)
        labels = tensors["labels"].masked_fill(~tensors["padding_mask"], 0)
        loss = functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return loss, loss.detach()


class Unmasked(SequenceToSequence):
    """Forgets the padding mask of the source."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        mask = tensors.get("padding_mask")  # batches of one length have none
        if mask is None:
            return super().loss(tensors)
        return super().loss({**tensors, "padding_mask": torch.ones_like(mask)})


class LogOfZero(CausalLM):
    """A loss of one's own, whose logarithm has no ε."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, nll = super().loss(tensors)
        # Entropy as a regularizer: 0 · log 0 once a probability underflows.
        hidden, _ = self.model(tensors["tokens"])
        p = torch.softmax(self.model.head(hidden).float() * 60, dim=-1)
        return loss + 1e-3 * (p * p.log()).sum(), nll


class BrokenBatch(CausalLM):
    """Now and then a batch whose labels are another text's."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for number, (position, batch) in enumerate(super().batches(epoch, index)):
            tensors = dict(batch.tensors)
            if number in (80, 81, 82, 83):
                vocabulary = len(self.trained_model.tokenizer)
                tensors["labels"] = vocabulary - 1 - tensors["labels"]
            yield position, replace(batch, tensors=tensors)


def wider_objective(family: str, objective: Any, **changes: Any) -> Make:
    def make(folder: Path, rng: random.Random) -> Sick:
        settings = wider_settings(family, folder, rng) | changes
        settings.pop("objective", None)
        return train(folder, settings, objective=objective)

    return make


# --- the list -------------------------------------------------------------------------------------


def finetuned(folder: Path, rng: random.Random) -> Sick:
    """A classifier from a masked language model, as it is usually made."""
    settings = family_settings("bert", folder, rng)
    base = train(folder / "base", settings)
    lines = labelled_lines(rng, 700)
    changes: dict[str, Any] = {"objective": "classify"}
    changes["text"] = write_labelled(folder / "data", "train", lines)
    changes |= {"steps": 120, "learning_rate": 1e-3, "batch_tokens": 512, "validate_every": 30}
    changes |= {"log_every": 4, "samples": 0, "device": "cpu", "threads": 1, "epochs": None}
    return train(folder, {**changes, "base": str(base.run)})


def rare_class(folder: Path, rng: random.Random) -> Sick:
    """One class in ten, which the model learns to tell."""
    settings = family_settings("classifier", folder, rng)
    lines = [(f"{text} {rng.choice('abcdefghij')}", "") for text, _ in labelled_lines(rng, 900)]
    lines = [(text, "yes" if text.endswith(" a") else "no") for text, _ in lines]
    settings["text"] = write_labelled(folder / "data", "rare", lines)
    return train(folder, settings | {"steps": 80, "dropout": 0.1})


HEALTHY = [
    healthy("tagger"),
    healthy("answer"),
    healthy("regress"),
    healthy("forecast"),
    healthy("graph"),
    healthy("sounds"),
    healthy("ctc"),
    healthy("swin"),
    healthy("stories"),
    healthy("electra"),
    healthy("memory"),
    healthy("deberta"),
    healthy("albert"),
    healthy("longformer"),
    healthy("universal"),
    healthy("marian"),
    healthy("qwen2"),
    healthy("mixtral"),
    healthy(
        "gpt2", ", cosine", schedule="cosine", min_lr_ratio=0.1, optimizer="adamw", weight_decay=0.1
    ),
    healthy("gpt2", ", bf16", precision="bf16", accumulate=2, max_grad_norm=1.0),
    Case("healthy fine-tuning", (), finetuned),
    Case("healthy, a rare class", (), rare_class),
]

SICK = [
    # settings
    Case("llama, rate too high", ("rate_too_high",), wider_rate("llama", 0.1, 3)),
    Case("t5, rate too low", ("rate_too_low",), wider_rate("t5", 1e-7, 3e-6)),
    Case("deberta, rate too high", ("rate_too_high",), wider_rate("deberta", 0.1, 3)),
    Case("tagger, rate too low", ("rate_too_low",), wider_rate("tagger", 1e-8, 1e-6)),
    Case("forecast, rate too high", ("rate_too_high",), wider_rate("forecast", 0.3, 3)),
    Case("forecast, rate too low", ("rate_too_low",), wider_rate("forecast", 1e-8, 1e-6)),
    Case("regress, rate too high", ("rate_too_high",), wider_rate("regress", 0.3, 3)),
    Case("graph, rate too low", ("rate_too_low",), wider_rate("graph", 1e-8, 1e-6)),
    Case("sounds, rate too high", ("rate_too_high",), wider_rate("sounds", 0.1, 1)),
    Case("translator, dropout", ("dropout_too_high",), changed("translator", dropout=0.9)),
    Case("bert, weight decay", ("weight_decay_too_high",),
         changed("bert", weight_decay=50.0, optimizer="adamw")),
    Case("no residual connections", ("vanishing_gradients",),
         wider("gpt2", residual="none", layers=8, steps=160, tokenizer="characters")),
    Case("deep gpt, post-norm, no warm-up", ("vanishing_gradients", "no_warmup", "rate_too_high"),
         wider("gpt2", layers=16, residual="post", warmup_steps=1, steps=160, tokenizer="characters")),
    Case("recurrent, gradients explode", ("exploding_gradients", "no_clipping", "rate_too_high",
                                          "bad_initialization"),
         wider("lstm", model="rnn_relu", init="normal:0.6", max_grad_norm=0.0, learning_rate=3e-3)),
    Case("initial weights too small", ("bad_initialization",), changed("bert", init="normal:1e-6")),
    # data
    Case("tagged validation in training", ("test_in_train",), split_leak("tagger")),
    Case("questions of validation in training", ("test_in_train",), split_leak("answer")),
    Case("rated validation in training", ("test_in_train",), split_leak("regress")),
    Case("a target line twice", ("misaligned_sides",), pairs_case(doubled_line)),
    Case("targets from the end", ("misaligned_sides",), pairs_case(reversed_targets)),
    Case("validation slipped", ("misaligned_sides",), pairs_case(slipped_valid)),
    Case("a corpus swapped", ("swapped_sides",), pairs_case(swap_block)),
    Case("labels unrelated to texts", ("labels_unrelated", "plateau", "overfitting"), unrelated_labels),
    Case("classes of images at random", ("overfitting", "plateau"), random_images),
    Case("words unknown to a classifier", ("unknown_tokens",), small_vocabulary),
    Case("tokenizer of the base exchanged", ("tokenizer_mismatch",), exchanged_base),
    # weights and steps
    Case("keys erased", ("uniform_attention", "zero_weights"),
         edit_while_training("gpt2", zero_keys, before_end=1)),
    Case("cross-attention saturated", ("saturated_attention",),
         edit_while_training("translator", sharpen_cross, before_end=1)),
    Case("dead units of a ViT", ("dead_units",),
         edit_while_training("vit", drown_units, learning_rate=1e-3, activation="relu")),
    Case("one update too large", ("loss_spike",),
         edit_while_training("gpt2", shake_weights, before_end=60)),
    Case("broken batches", ("loss_spike",), own_objective("gpt2", BrokenBatch)),
    Case("logarithm of zero", ("nonfinite",), own_objective("gpt2", LogOfZero)),
    # code from outside
    Case("mask off by one", ("future_leak",), ahead_attention),
    Case("decoder reads its labels", ("targets_not_shifted",),
         own_objective("translator", UnshiftedDecoder)),
    Case("padding counted, denoising", ("padding_in_loss",),
         wider_objective("bart", DenoisingPadding, pad_to_multiple_of=8)),
    Case("padding counted, tags", ("padding_in_loss",), wider_objective("tagger", PaddedTags)),
    Case("padding of sources attended", ("padding_attended",),
         own_objective("translator", Unmasked)),
]  # fmt: skip
