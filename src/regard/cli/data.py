"""regard data"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from regard.cli.shared_options import COUNT, SEED, WholeNumber, flag, option, options
from regard.data.generated.algorithmic_tasks import (
    SEPARATOR,
    SPLITS,
    TASKS,
    GeneratedTask,
    write_examples,
)

EXAMPLES = """\b
Examples:
  regard data builtin --split train --lines 20
  regard data builtin --split test --lines 1000 --pronouns > pronouns.tsv
  regard data listops --split test --lines 10000 > test.tsv
  regard data sorting --max-length 30 --split longer > longer.tsv
  regard data addition --text > train.txt
  regard data scenes scenes --lines 4000
  regard data clips clips --lines 4000
  regard data episodes cartpole cartpole.npz
"""
LINES = WholeNumber(1, 10**12)


def _common_options(*splits: str) -> Callable[..., Any]:
    """Decorator: the options that all generators share."""
    return options(
        option("--split", "which part of the data", click.Choice(splits), default="train"),
        option("--lines", "number of examples", LINES, default=1000),
        option("--seed", "random seed", SEED, default=0),
    )


# ------------------------------------------------------------------ one command for each generator


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Generate data to train on or to read."""


@command.command()
@_common_options("train", "valid", "test")
def stories(split: str, lines: int, seed: int) -> None:
    """Write stories like bAbI's first two tasks as TSV: story and question, tab, answer."""
    # Each generator is imported by its own command only.
    from regard.data.generated import babi_stories

    write_examples(sys.stdout, babi_stories.stories(split, seed), lines)


@command.command(epilog=EXAMPLES)
@_common_options("train", "valid", "test")
@flag("--pronouns", "only sentences with a pronoun to resolve")
def builtin(split: str, lines: int, seed: int, pronouns: bool) -> None:
    """Write the built-in English–German language as TSV: source, tab, target."""
    from regard.data.generated.builtin import write_tsv

    write_tsv(sys.stdout, split, lines, seed=seed, pronouns=pronouns)


@command.command(epilog=EXAMPLES)
@click.argument("folder")
@options(
    option("--lines", "number of scenes to train on", LINES, default=2000),
    option("--held-out", "number to validate, and as many to test  [a tenth]", COUNT),
    option("--size", "side length in pixels", WholeNumber(16, 1024), default=64),
    option("--most", "maximum number of shapes in a scene", WholeNumber(1, 32), default=6),
    option("--seed", "random seed", SEED, default=0),
)
def scenes(folder: str, lines: int, held_out: int | None, size: int, most: int, seed: int) -> None:
    """Write images of coloured shapes to FOLDER/train, valid and test, each with boxes
    (annotations.json, as COCO's), masks, captions.tsv and questions.tsv."""
    from regard.data.generated.scenes import write_scenes

    others = held_out or max(1, lines // 10)
    counts = {"train": lines, "valid": others, "test": others}
    write_scenes(Path(folder), counts, seed, size, most)


@command.command(epilog=EXAMPLES)
@click.argument("folder")
@options(
    option("--lines", "number of clips to train on", LINES, default=2000),
    option("--held-out", "number to validate, and as many to test  [a tenth]", COUNT),
    option("--size", "side length in pixels", WholeNumber(16, 1024), default=24),
    option("--frames", "frames of a clip", WholeNumber(4, 256), default=6),
    option("--seed", "random seed", SEED, default=0),
)
def clips(folder: str, lines: int, held_out: int | None, size: int, frames: int, seed: int) -> None:
    """Write clips of moving shapes to FOLDER/train, valid and test: a folder for each class (which
    way a shape moves, which one follows which) with a folder of frames for each clip."""
    from regard.data.generated.clips import write_clips

    others = held_out or max(1, lines // 10)
    counts = {"train": lines, "valid": others, "test": others}
    write_clips(Path(folder), counts, seed, size, frames)


@command.command()
@click.argument("environment", type=click.Choice(("cartpole", "pendulum")))
@click.argument("file")
@options(
    option("--lines", "number of episodes", LINES, default=400),
    option("--seed", "random seed", SEED, default=0),
)
def episodes(environment: str, file: str, lines: int, seed: int) -> None:
    """Write episodes of ENVIRONMENT by policies of every grade to FILE.npz: obs, acts, rews, and
    the indices at which the actions of a new episode begin."""
    from regard.data.generated.environments import episodes
    from regard.data.trajectories import write_trajectories

    write_trajectories(Path(file), episodes(environment, lines, seed))


# ------------------------------------------------------------------ and for each generated task


def _task_command(name: str, task: type[GeneratedTask]) -> click.Command:
    """The command that writes a task, with an option for each of its fields (lengths, depth)."""

    @_common_options(*SPLITS)
    @flag("--text", "write `input = target`, one text per line, instead of TSV")
    def write(split: str, lines: int, seed: int, text: bool, **fields: int) -> None:
        separator = f" {SEPARATOR} " if text else "\t"
        write_examples(sys.stdout, task(**fields).examples(split, seed), lines, separator)

    for field in reversed(dataclasses.fields(task)):
        name_of_option = "--" + field.name.replace("_", "-")
        write = click.option(name_of_option, type=COUNT, default=field.default)(write)
    kinds = {"pairs": "TSV: input, tab, target", "classify": "TSV: text, tab, label"}
    beyond = "The split `longer` has lengths beyond the maximum, up to twice as long."
    help_text = f"{inspect.getdoc(task)}\n\nWritten as {kinds.get(task.kind, 'lines')}. {beyond}"
    return click.command(name, help=help_text)(write)


for _name, _task in TASKS.items():
    command.add_command(_task_command(_name, _task))
