"""One tiny model of every kind, trained for one step, with an input that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import regard
from looked import wav
from regard.data.generated.clips import write_clips
from regard.data.generated.environments import episodes
from regard.data.generated.scenes import write_scenes
from regard.data.trajectories import write_trajectories

SENTENCE = "The dog sees the cat."
PAIRS = "The dog sees the cat.\tDer Hund sieht die Katze.\nThe owl hears.\tDie Eule hört.\n"
LABELS = "The dog sees the cat.\tgood\nThe owl hears.\tbad\n"
TAGS = "The O\ndog B-ANIMAL\nsees O\n\nThe O\nowl B-ANIMAL\nhears O\n\n"
STORY = "Mary is in the garden. John is in the office. Where is Mary?"
STORIES = f"{STORY}\tgarden\nMary is in the office. Where is Mary?\toffice\n"
QUICK: dict[str, Any] = {
    "steps": 1, "warmup_steps": 1, "validate_every": 1, "save_every": 1, "schedule": "constant",
    "learning_rate": 1e-3, "threads": 1, "device": "cpu", "test_lines": 2, "samples": 0,
    "batch_tokens": 128,
}  # fmt: skip
SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 16, "heads": 2, "layers": 2}
TEXT: dict[str, Any] = {"text": "text.txt", "context": 16, "tokenizer": "bpe", "vocabulary": 400}
TRANSLATE: dict[str, Any] = {"pairs": "pairs.tsv", "tokenizer": "words", "vocabulary": 160}
IMAGES: dict[str, Any] = {"images": "images", "image_size": 16, "patch": 4}
SERIES: dict[str, Any] = {"series": "series.csv", "horizon": 5, "context": 24}

# Name → (what it reads, the settings that are its own).
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "translator": ("text", TRANSLATE | SIZES | {"model": "transformer:tiny"}),
    "universal": ("text", TRANSLATE | {"model": "universal:tiny", "d_model": 16, "heads": 2}),
    "t5": ("text", TEXT | SIZES | {"model": "t5:tiny"}),
    "lstm": ("text", TRANSLATE | {"model": "lstm:tiny"}),
    "bahdanau": ("text", TRANSLATE | {"model": "bahdanau:tiny"}),
    "luong": ("text", TRANSLATE | {"model": "luong:tiny"}),
    "convs2s": ("text", TRANSLATE | {"model": "convs2s:tiny"}),
    "bytenet": ("text", TRANSLATE | {"model": "bytenet:tiny"}),
    "gpt2": ("text", TEXT | SIZES | {"model": "gpt2:tiny"}),
    "reformer": ("text", TEXT | {"model": "reformer:tiny"}),
    "transformer-xl": ("text", TEXT | SIZES | {"model": "transformer-xl:tiny"}),
    "rnn-lm": ("text", TEXT | {"model": "rnn-lm:tiny"}),
    "bert": ("text", TEXT | SIZES | {"model": "bert:tiny"}),
    "electra": ("text", TEXT | SIZES | {"model": "electra:tiny"}),
    "longformer": ("text", TEXT | SIZES | {"model": "longformer:tiny"}),
    "classifier": (
        "text",
        TEXT | SIZES | {"model": "bert:tiny", "objective": "classify", "text": "labels.tsv"},
    ),
    "tagger": (
        "text",
        TEXT | SIZES | {"model": "bert:tiny", "objective": "tag", "text": "tags.txt"},
    ),
    "embedder": (
        "text",
        TEXT | SIZES | {"model": "bert:tiny", "objective": "contrastive", "text": "pairs.tsv"},
    ),
    "memory": ("story", {"model": "memory:tiny", "text": "stories.tsv"}),
    "vit": ("image", IMAGES | SIZES | {"model": "vit:tiny"}),
    "swin": ("image", IMAGES | {"model": "swin:tiny", "patch": 2}),
    "vit-mae": ("image", IMAGES | SIZES | {"model": "vit-mae:tiny"}),
    "detr": (
        "image",
        {"model": "detr:tiny", "images": "scenes/train", "image_size": 32, "d_model": 16,
         "d_ff": 16, "heads": 2, "layers": 2, "batch_tokens": 64},
    ),
    "vit-gpt2": (
        "image",
        IMAGES | SIZES | {"model": "vit-gpt2:tiny", "images": "images/captions.tsv"},
    ),
    "resnet": (
        "image",
        {"images": "images", "image_size": 16, "model": "resnet:tiny", "d_model": 8, "layers": 2},
    ),
    "timesformer": (
        "image",
        SIZES | {"model": "timesformer:tiny", "images": "clips/train", "image_size": 16, "patch": 8,
                 "frames": 4},
    ),
    "clip": (
        "image",
        IMAGES | SIZES | {"model": "clip:tiny", "images": "images/captions.tsv", "vocabulary": 300},
    ),
    "whisper": ("sound", SIZES | {"model": "whisper:tiny", "sounds": "sounds.tsv"}),
    "wav2vec2": ("sound", SIZES | {"model": "wav2vec2:tiny", "sounds": "sounds.tsv"}),
    "sounds": (
        "sound",
        SIZES | {"model": "wav2vec2:tiny", "objective": "sounds", "sounds": "sounds.tsv"},
    ),
    "patchtst": ("series", SERIES | SIZES | {"model": "patchtst:tiny", "patch": 6, "stride": 3}),
    "time-series-transformer": (
        "series",
        SERIES | SIZES | {"model": "time-series-transformer:tiny"},
    ),
    "dlinear": ("series", SERIES | {"model": "dlinear:tiny"}),
    "nlinear": ("series", SERIES | {"model": "nlinear:tiny"}),
    "policy": (
        "trajectories",
        SIZES | {"model": "decision-transformer:tiny", "trajectories": "episodes.npz",
                 "environment": "cartpole", "context": 8},
    ),
    "graph": ("graph", SIZES | {"model": "graph:tiny", "graph": "graph"}),
}  # fmt: skip
NAMES_OF_DATA = ("text", "valid_text", "pairs", "images", "valid_images", "sounds", "valid_sounds",
                 "series", "trajectories", "graph")  # fmt: skip


def write_data(folder: Path) -> dict[str, str]:
    """The data of all kinds; what each kind reads, by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {
        "text.txt": f"{SENTENCE}\nThe owl hears the woman.\n",
        "pairs.tsv": PAIRS,
        "labels.tsv": LABELS,
        "tags.txt": TAGS,
        "stories.tsv": STORIES,
        "sounds.tsv": "tone.wav\tlow\ntone.wav\thigh\n",
    }.items():
        (folder / name).write_text(content * 24)
    (folder / "tone.wav").write_bytes(wav())
    for name, grey in (("dark", 40), ("light", 200)):
        (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        for i in range(4):
            noise = np.random.default_rng(i).integers(-40, 40, (16, 20, 3))
            image = Image.fromarray((grey + noise).astype(np.uint8))
            image.save(folder / "images" / name / f"{i}.png")
    captions = [f"{name}/{i}.png\ta {name} image\n" for name in ("dark", "light") for i in range(4)]
    (folder / "images" / "captions.tsv").write_text("".join(captions))
    write_scenes(folder / "scenes", {"train": 6}, size=32)
    write_clips(folder / "clips", {"train": 6}, size=16, frames=4)
    write_trajectories(folder / "episodes.npz", episodes("cartpole", 6))
    rows = [f"{np.sin(i / 3):.4f},{np.cos(i / 3):.4f}\n" for i in range(120)]
    (folder / "series.csv").write_text("load,heat\n" + "".join(rows))
    graph = folder / "graph"
    graph.mkdir(exist_ok=True)
    splits = ("train", "train", "valid", "test")
    nodes = [f"{i}\t{'ab'[i % 2]}\t{splits[i % 4]}\t{i % 3}\n" for i in range(12)]
    (graph / "nodes.tsv").write_text("".join(nodes))
    (graph / "edges.tsv").write_text("".join(f"{i}\t{(i + 1) % 12}\n" for i in range(12)))
    return {
        "text": SENTENCE,
        "story": STORY,
        "image": str(folder / "images" / "dark" / "0.png"),
        "sound": str(folder / "tone.wav"),
        "series": str(folder / "series.csv"),
        "trajectories": f"{folder / 'episodes.npz'}:1",
        "graph": f"{graph}:3",
    }


def train(name: str, data: Path, out: Path) -> Path:
    """The run folder of a kind, trained for one step."""
    reads, own = KINDS[name]
    settings = QUICK | own
    if reads == "sound":
        settings["valid_sounds"] = settings["sounds"]
    if reads == "image":
        settings["valid_images"] = settings["images"]
    if reads == "story":
        settings["valid_text"] = settings["text"]
    for key in NAMES_OF_DATA:
        if key in settings:
            settings[key] = str(data / settings[key])
    return regard.train(settings, out=out).folder
