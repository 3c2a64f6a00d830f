"""Small runs of real data for the doctor: readers of a data root, and one recipe for each kind.

A recipe takes what spoils its examples and which settings are changed, so that a disease is a few
words in `doctor_blind_cases.py`. The data root is $REGARD_DATA.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from doctor_cases import Sick
from PIL import Image
from scipy.io import wavfile

import regard

Pair = tuple[str, str]
Tagged = tuple[list[str], list[str]]
Spoil = Callable[[list[Any], list[Any], random.Random], None]  # training, validation

COMMON: dict[str, Any] = {
    "steps": 60, "warmup_steps": 6, "batch_tokens": 1024, "samples": 0, "validate_every": 15,
    "save_every": 30, "log_every": 3, "threads": 1, "device": "cpu", "schedule": "cosine",
    "learning_rate": 1e-3, "d_model": 64, "d_ff": 128, "heads": 2, "layers": 2, "optimizer": "adamw",
    "dropout": 0.1, "max_grad_norm": 1.0,
}  # fmt: skip


def root() -> Path:
    return Path(os.environ["REGARD_DATA"])


@cache
def lines(path: str) -> tuple[str, ...]:
    with gzip.open(root() / path, "rt", encoding="utf-8") as file:
        return tuple(file.read().splitlines())


def start(folder: Path, settings: dict[str, Any], changes: dict[str, Any]) -> Sick:
    """Trains with the common settings, those of the data, and those of the case."""
    own = {"kinds", "objective_class"}
    parts = {"objective": changes["objective_class"]} if "objective_class" in changes else {}
    recipe = COMMON | settings | {name: value for name, value in changes.items() if name not in own}
    recipe = {name: value for name, value in recipe.items() if value is not None}
    if parts:
        recipe.pop("objective")
    regard.train(recipe, out=folder / "run", **parts)
    return Sick(folder / "run", parts)


# --- two texts ------------------------------------------------------------------------------------


def write(folder: Path, name: str, rows: Sequence[Sequence[str]]) -> str:
    path = folder / name
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def captions(source: str, target: str, train: int = 3000, valid: int = 300) -> list[list[Pair]]:
    return [
        list(zip(*(lines(f"multi30k/{split}.{side}.gz") for side in (source, target)), strict=True))
        [:count] for split, count in (("train", train), ("val", valid))
    ]  # fmt: skip


def words_to_sounds(rng: random.Random) -> list[list[Pair]]:
    entries = [line.split(" #")[0].split(" ", 1) for line in lines("cmudict/cmudict.dict.gz")]
    pairs = [(" ".join(word), sounds) for word, sounds in entries if word.isalpha()]
    rng.shuffle(pairs)
    return [pairs[:6000], pairs[6000:6300]]


def scan(rng: random.Random, kind: str = "simple") -> list[list[Pair]]:
    splits = []
    with tarfile.open(root() / "scan/scan.tar.gz") as archive:
        for split, count in (("train", 6000), ("test", 300)):
            file = archive.extractfile(f"tasks_{split}_{kind}.txt")
            assert file is not None
            rows = [line[4:].split(" OUT: ") for line in file.read().decode().splitlines()]
            rng.shuffle(rows)
            splits.append([(command, actions) for command, actions in rows][:count])
    return splits


def translate(
    folder: Path, splits: list[list[Pair]], rng: random.Random, spoil: Spoil | None, **changes: Any
) -> Sick:
    train, valid = splits
    if spoil is not None:
        spoil(train, valid, rng)
    settings = {
        "objective": "translate", "model": "transformer:tiny", "vocabulary": 2000, "beam": 1,
        "pairs": write(folder, "train.tsv", train),
        "valid_pairs": write(folder, "valid.tsv", valid),
    }  # fmt: skip
    return start(folder, settings, changes)


# --- texts ----------------------------------------------------------------------------------------


def shakespeare() -> str:
    with gzip.open(root() / "text/tinyshakespeare.txt.gz", "rt", encoding="utf-8") as file:
        return file.read()


def language(folder: Path, train: str, valid: str, **changes: Any) -> Sick:
    for name, text in (("train", train), ("valid", valid)):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    settings = {
        "objective": "causal", "model": "gpt2:tiny", "tokenizer": "characters", "context": 64,
        "text": str(folder / "train.txt"), "valid_text": str(folder / "valid.txt"),
    }  # fmt: skip
    return start(folder, settings, changes)


# --- a text and its label -------------------------------------------------------------------------


def reviews(train: int = 3000, valid: int = 400) -> list[list[Pair]]:
    files = (("train", train), ("dev", valid))
    splits = []
    for split, count in files:
        rows = [tuple(line.split("\t")) for line in lines(f"sst2/sst2-{split}.tsv.gz")]
        random.Random(1).shuffle(rows)
        splits.append([(text, label) for text, label in rows][:count])
    return splits


def classify(
    folder: Path, splits: list[list[Pair]], rng: random.Random, spoil: Spoil | None, **changes: Any
) -> Sick:
    train, valid = splits
    if spoil is not None:
        spoil(train, valid, rng)
    settings = {
        "objective": "classify", "model": "bert:tiny", "vocabulary": 3000, "context": 48,
        "text": write(folder, "train.tsv", train), "valid_text": write(folder, "valid.tsv", valid),
    }  # fmt: skip
    return start(folder, settings, changes)


def fitness(rng: random.Random) -> list[list[Pair]]:
    """Variants of an enzyme, one letter changed: letters of the protein, and its measured fitness."""
    records = list(lines("proteins/beta_lactamase.fasta.gz"))
    pairs = [
        (" ".join(letters[20:110]), head.split("|")[2])
        for head, letters in zip(records[::2], records[1::2], strict=True)
    ]
    rng.shuffle(pairs)
    return [pairs[:1500], pairs[1500:1700]]


@cache
def proteins() -> tuple[tuple[str, str], ...]:
    """Proteins of at most 100 residues, and the secondary structure of each residue (H, E, C)."""
    records = []
    with zipfile.ZipFile(root() / "proteins/secondary_structure.zip") as archive:
        for name in ("sequences", "sampled"):
            text = archive.read(f"splits/{name}.fasta").decode()
            records.append({
                record.split("\n")[0].split()[0]: "".join(record.split("\n")[1:])
                for record in text.split(">")[1:]
            })  # fmt: skip
    letters, states = records
    both = [(letters[name], states[name]) for name in sorted(letters) if name in states]
    return tuple((x, y) for x, y in both if len(x) == len(y) <= 100)


def tag(folder: Path, rng: random.Random, spoil: Spoil | None, **changes: Any) -> Sick:
    rows = [(list(letters), list(states)) for letters, states in proteins()]
    rng.shuffle(rows)
    train, valid = rows[150:], rows[:150]
    if spoil is not None:
        spoil(train, valid, rng)
    paths = []
    for name, split in (("train", train), ("valid", valid)):
        path = folder / f"{name}.jsonl"
        records = (json.dumps({"tokens": tokens, "tags": tags}) for tokens, tags in split)
        path.write_text("\n".join(records) + "\n", encoding="utf-8")
        paths.append(str(path))
    settings = {
        "objective": "tag", "model": "bert:tiny", "tokenizer": "characters", "context": 128,
        "text": paths[0], "valid_text": paths[1], "batch_tokens": 2048,
    }  # fmt: skip
    return start(folder, settings, changes)


# --- images, sounds, series, a graph --------------------------------------------------------------


def images(
    folder: Path,
    rng: random.Random,
    spoil: Callable[[np.ndarray, int], np.ndarray] | None = None,
    **changes: Any,
) -> Sick:
    """CIFAR-10, 800 images, each passed with its class through `spoil`."""
    with tarfile.open(root() / "cifar10/test.tar.gz") as archive:
        files = sorted((member.name, member) for member in archive.getmembers() if member.isfile())
        rng.shuffle(files)
        names = sorted({name.split("/")[0] for name, _ in files})
        for name, member in files[:800]:
            data = archive.extractfile(member)
            assert data is not None
            pixels = np.asarray(Image.open(io.BytesIO(data.read())).convert("RGB"))
            if spoil is not None:
                pixels = spoil(pixels, names.index(name.split("/")[0]))
            path = folder / "images" / f"{name.rsplit('.', 1)[0]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    settings = {
        "objective": "images", "model": "vit:tiny", "images": str(folder / "images"),
        "image_size": 32, "patch": 8, "init": "xavier", "batch_tokens": 544,
    }  # fmt: skip
    return start(folder, settings, changes)


def digits(
    folder: Path,
    rng: random.Random,
    spoil: Callable[[np.ndarray], np.ndarray] | None = None,
    **changes: Any,
) -> Sick:
    """300 spoken digits of six speakers, each recording passed through `spoil`."""
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    rows = []
    with tarfile.open(root() / "speech/spoken_digits.tar.gz") as archive:
        members = sorted(
            (member for member in archive.getmembers() if member.name.endswith(".wav")),
            key=lambda member: member.name,
        )
        for member in rng.sample(members, 300):
            data = archive.extractfile(member)
            assert data is not None
            rate, sound = wavfile.read(io.BytesIO(data.read()))
            if spoil is not None:
                sound = spoil(sound)
            name = Path(member.name).name
            wavfile.write(folder / name, rate, sound)
            rows.append((name, words[int(name[0])]))
    settings = {
        "objective": "sounds", "model": "whisper:tiny", "sounds": write(folder, "all.tsv", rows),
        "batch_tokens": 2400, "steps": 60, "validate_every": 15,
    }  # fmt: skip
    return start(folder, settings, changes)


def forecast(
    folder: Path,
    file: str,
    spoil: Callable[[list[list[str]], random.Random], None] | None,
    rng: random.Random,
    **changes: Any,
) -> Sick:
    """A year of an electricity transformer, hour by hour."""
    table = [list(row) for row in csv.reader(lines(f"ett/{file}.csv.gz"))][:8001]
    if spoil is not None:
        spoil(table, rng)
    path = folder / "series.csv"
    path.write_text("\n".join(",".join(row) for row in table) + "\n", encoding="utf-8")
    settings = {
        "objective": "forecast", "model": "patchtst:tiny", "series": str(path), "context": 96,
        "horizon": 24, "d_model": None, "d_ff": None, "heads": None, "layers": None,
        "batch_tokens": 4928,
    }  # fmt: skip
    return start(folder, settings, changes)


def graph(
    folder: Path,
    spoil: Callable[[list[list[str]], list[list[str]], random.Random], None] | None,
    rng: random.Random,
    **changes: Any,
) -> Sick:
    """Papers that cite each other: their topics."""
    nodes, edges = (
        [line.split("\t") for line in lines(f"cora/{name}.tsv.gz")] for name in ("nodes", "edges")
    )
    if spoil is not None:
        spoil(nodes, edges, rng)
    for name, table in (("nodes", nodes), ("edges", edges)):
        write(folder, f"{name}.tsv", table)
    settings = {
        "objective": "nodes", "model": "graph:tiny", "graph": str(folder), "d_model": None,
        "d_ff": None, "heads": None, "layers": None, "steps": 60, "validate_every": 10,
        "learning_rate": 2e-3, "weight_decay": 0.005, "optimizer": "adam", "dropout": 0.3,
        "input_dropout": 0.5, "batch_tokens": None, "schedule": "constant", "warmup_steps": 1,
        "metric": "accuracy", "log_every": 5, "save_every": 30,
    }  # fmt: skip
    return start(folder, settings, changes)
