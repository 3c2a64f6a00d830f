"""More sick runs, written down before the checks that are to name them: for `python bench/doctor.py`.

Those marked AFTER were added when the checks were there, each with a disease that had no case yet.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from doctor_cases import (
    Case,
    Make,
    Pair,
    Sick,
    changed,
    family_settings,
    labelled_lines,
    own_objective,
    pairs_case,
    sentence_pairs,
    train,
    write_labelled,
)
from doctor_wider_cases import wider_settings, write_rated
from PIL import Image
from torch import Tensor

from regard.training.objectives.causal_lm import CausalLM
from regard.training.objectives.corrupted_text import MaskedLM
from regard.training.objectives.sequence_to_sequence import SequenceToSequence

Line = tuple[str, str]

# --- pairs ----------------------------------------------------------------------------------------


def lower_cased_valid(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    copies = rng.sample(train_pairs, len(valid))
    valid[:] = [(one.lower().rstrip("."), other.lower().rstrip(".")) for one, other in copies]


def other_targets(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    """Sources of the training data, with translations that a second person made."""
    copies = rng.sample(train_pairs, len(valid))
    valid[:] = [(one, other.rstrip(".") + " , ja .") for one, other in copies]


def untranslated(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    share = rng.uniform(0.15, 0.35)
    for i, (source, _) in enumerate(train_pairs):
        if rng.random() < share:
            train_pairs[i] = (source, source)


# --- classes --------------------------------------------------------------------------------------


def lines_case(
    spoil: Callable[[list[Line], list[Line], random.Random], None], **changes: Any
) -> Make:
    """A classifier whose training and validation lines are spoilt in place."""

    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings("classifier", folder, rng) | changes
        lines = labelled_lines(rng, 850)
        train_lines = lines[:700]
        valid = lines[700:]
        spoil(train_lines, valid, rng)
        settings["text"] = write_labelled(folder / "data", "train", train_lines)
        settings["valid_text"] = write_labelled(folder / "data", "valid", valid)
        return train(folder, settings)

    return make


def with_header(train_lines: list[Line], valid: list[Line], rng: random.Random) -> None:
    header = (
        "this message was sent to you by the editors of the list and may not be passed on . " * 3
    )
    for lines in (train_lines, valid):
        lines[:] = [(header + text, label) for text, label in lines]


def shuffled_valid(train_lines: list[Line], valid: list[Line], rng: random.Random) -> None:
    labels = [label for _, label in valid]
    rng.shuffle(labels)
    valid[:] = [(text, label) for (text, _), label in zip(valid, labels, strict=True)]


def inverted_valid(train_lines: list[Line], valid: list[Line], rng: random.Random) -> None:
    other = {"yes": "no", "no": "yes"}
    valid[:] = [(text, other[label]) for text, label in valid]


def one_class_valid(train_lines: list[Line], valid: list[Line], rng: random.Random) -> None:
    lines = sorted(train_lines + valid, key=lambda line: line[1])
    train_lines[:] = lines[: len(train_lines)]
    valid[:] = lines[len(train_lines) :]


def foreign_valid(train_lines: list[Line], valid: list[Line], rng: random.Random) -> None:
    """Validation texts of another domain: their words stand in training texts seldom or never."""
    valid[:] = [(" ".join(word[::-1] for word in text.split()), label) for text, label in valid]


def both_labels(train_lines: list[Line], valid: list[Line], rng: random.Random) -> None:
    other = {"yes": "no", "no": "yes"}
    train_lines[350:] = [(text, other[label]) for text, label in train_lines[:350]]
    rng.shuffle(train_lines)


def random_labels(train_lines: list[Line], valid: list[Line], rng: random.Random) -> None:
    for lines in (train_lines, valid):
        lines[:] = [(text, rng.choice(["yes", "no"])) for text, _ in lines]


def black_images(folder: Path, rng: random.Random) -> Sick:
    settings = family_settings("vit", folder, rng)
    for path in Path(settings["images"]).rglob("*.png"):
        Image.new("RGB", (12, 12)).save(path)
    return train(folder, settings)


def huge_ratings(folder: Path, rng: random.Random) -> Sick:
    """Numbers in the ten thousands, which a head that begins at zero does not reach."""
    settings = wider_settings("regress", folder, rng)
    path = Path(write_rated(folder / "data", "train", [s for s, _ in sentence_pairs(rng, 700)]))
    lines = [line.rsplit("\t", 1) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{text}\t{50_000 + float(score)}\n" for text, score in lines))
    return train(folder, settings | {"text": str(path)})


# --- losses and weights ---------------------------------------------------------------------------


class WrongSign(CausalLM):
    """log p instead of −log p."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, nll = super().loss(tensors)
        return -loss, nll


class WrongSignMasked(MaskedLM):
    """The same, and the log says so too."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, nll = super().loss(tensors)
        return -loss, -nll


class DetachedMemory(SequenceToSequence):
    """The encoder gets no gradient."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        for parameter in self.model.encoder.parameters():
            parameter.requires_grad_(False)
        loss, nll = super().loss(tensors)
        for parameter in self.model.encoder.parameters():
            parameter.requires_grad_(True)
        return loss, nll


def unmoved_average(folder: Path, rng: random.Random) -> Sick:
    """What is exported is what training began with."""
    settings = family_settings("gpt2", folder, rng)
    still = {"steps": 1, "warmup_steps": 1, "learning_rate": 1e-30}
    began = train(folder / "still", settings | still)
    sick = train(folder, settings)
    shutil.copyfile(began.run / "model.safetensors", sick.run / "model.safetensors")
    return sick


# --- diseases that were written down after the checks ---------------------------------------------


def misspelt_valid(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    """Training pairs again, each with another word at its end."""
    copies = rng.sample([pair for pair in train_pairs if len(pair[0].split()) > 7], len(valid))
    valid[:] = [(one.rsplit(" ", 1)[0] + " again .", other) for one, other in copies]


def one_source(train_pairs: list[Pair], valid: list[Pair], rng: random.Random) -> None:
    source = train_pairs[0][0]
    for pairs in (train_pairs, valid):
        pairs[:] = [(source, target) for _, target in pairs]


def missing_texts(train_lines: list[Line], valid: list[Line], rng: random.Random) -> None:
    train_lines[:] = [
        ("the text is not available" if rng.random() < 0.5 else text, label)
        for text, label in train_lines
    ]


def silent_sounds(folder: Path, rng: random.Random) -> Sick:
    settings = wider_settings("sounds", folder, rng)
    for path in Path(settings["sounds"]).rglob("*.wav"):
        content = path.read_bytes()
        path.write_bytes(content[:44] + bytes(len(content) - 44))
    return train(folder, settings)


def valid_text(change: Callable[[str], str], is_copy: bool) -> Make:
    """A validation text that is the training text, or another, changed by a function."""

    def make(folder: Path, rng: random.Random) -> Sick:
        settings = family_settings("gpt2", folder, rng) | {"tokenizer": "characters"}
        lines = [source + "\n" for source, _ in sentence_pairs(rng, 1500)]
        valid = lines[1000:1150] if is_copy else lines[1350:]
        for name, part in (("train", lines[:1350]), ("valid", [change(line) for line in valid])):
            (folder / "data" / f"{name}.txt").write_text("".join(part))
        data = folder / "data"
        settings |= {"text": str(data / "train.txt"), "valid_text": str(data / "valid.txt")}
        return train(folder, settings)

    return make


def reversed_line(line: str) -> str:
    return line.strip()[::-1] + "\n"


class FrozenDecoder(SequenceToSequence):
    """The decoder's blocks were frozen, and nobody has thawed them."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        for parameter in self.model.decoder.blocks.parameters():
            parameter.requires_grad_(False)
        return super().loss(tensors)


# --- the list -------------------------------------------------------------------------------------

SICK = [
    Case("validation in lower case", ("test_in_train",), pairs_case(lower_cased_valid)),
    Case("validation with other targets", ("test_in_train",), pairs_case(other_targets)),
    Case("lines left untranslated", ("untranslated_lines",), pairs_case(untranslated)),
    Case("a header fills the context", ("identical_inputs",), lines_case(with_header)),
    Case("labels of validation shuffled", ("labels_unrelated",), lines_case(shuffled_valid)),
    Case("labels of validation inverted", ("labels_unrelated",), lines_case(inverted_valid)),
    Case("validation of one class", ("split_mismatch",), lines_case(one_class_valid)),
    Case("validation of another domain", ("split_mismatch",), lines_case(foreign_valid)),
    Case("texts with both labels", ("conflicting_labels",), lines_case(both_labels)),
    Case("all labels at random", ("labels_unrelated",), lines_case(random_labels)),
    Case("images all black", ("identical_inputs",), black_images),
    Case("ratings in the ten thousands", ("label_scale", "rate_too_low"), huge_ratings),
    Case("attention dropout", ("dropout_too_high",), changed("gpt2", attention_dropout=0.97)),
    Case("label smoothing", ("setting_out_of_range",),
         changed("translator", label_smoothing=0.95)),
    Case("nearly all tokens masked", ("setting_out_of_range",), changed("bert", mask_ratio=0.97)),
    Case("Adam's epsilon", ("setting_out_of_range",), changed("gpt2", adam_eps=1.0)),
    Case("a loss of the wrong sign", ("wrong_sign",), own_objective("gpt2", WrongSign)),
    Case("a log of the wrong sign", ("wrong_sign",), own_objective("bert", WrongSignMasked)),
    Case("an encoder without gradient", ("no_gradient",), own_objective("translator", DetachedMemory)),
    Case("an average that never moved", ("unmoved_weights",), unmoved_average),
    Case("no positions", ("order_unseen",), changed("bert", position="none")),
]  # fmt: skip

AFTER = [
    Case("misspelt training pairs", ("test_in_train",), pairs_case(misspelt_valid)),
    Case("one source for all targets", ("identical_inputs", "duplicate_examples"),
         pairs_case(one_source)),
    Case("half of the texts missing", ("duplicate_examples", "conflicting_labels",
                                       "identical_inputs"), lines_case(missing_texts)),
    Case("silent recordings", ("identical_inputs",), silent_sounds),
    Case("validation text in capitals", ("test_in_train",), valid_text(str.upper, True)),
    Case("validation text backwards", ("split_mismatch",), valid_text(reversed_line, False)),
    Case("decoder frozen", ("no_gradient",), own_objective("translator", FrozenDecoder)),
    Case("warm-up longer than the run", ("setting_out_of_range", "rate_too_low"),
         changed("gpt2", warmup_steps=100_000)),
    Case("Adam's second beta", ("setting_out_of_range", "rate_too_high"),
         changed("translator", betas=(0.9, 0.0), learning_rate=0.03)),
    Case("attention dropout of a translator", ("dropout_too_high",),
         changed("translator", attention_dropout=0.95)),
]  # fmt: skip
