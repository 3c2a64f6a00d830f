"""regard data"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

EXAMPLES = """\b
Examples:
  regard data builtin --split train --lines 20
  regard data builtin --split test --lines 1000 --pronouns > pronouns.tsv
  regard data listops --split test --lines 10000 > test.tsv
"""
_SETTINGS = {"max_content_width": 110}


def _common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options that all generators share."""
    # In reverse: decorators apply from the innermost outwards.
    for option in (
        click.option("--seed", type=int, default=0, show_default=True),
        click.option("--lines", type=click.IntRange(min=1), default=1000, show_default=True),
        click.option(
            "--split",
            type=click.Choice(["train", "valid", "test"]),
            default="train",
            show_default=True,
        ),
    ):
        function = option(function)
    return function


# ------------------------------------------------------------------ one command for each generator


@click.group(epilog=EXAMPLES, context_settings=_SETTINGS)
def command() -> None:
    """Data to train on or to read."""


@command.command(context_settings=_SETTINGS)
@_common_options
@click.option(
    "--least", type=click.IntRange(min=0), default=500, show_default=True, help="tokens, and more"
)
@click.option(
    "--most", type=click.IntRange(min=2), default=2000, show_default=True, help="tokens, and fewer"
)
@click.option(
    "--depth", type=click.IntRange(min=2), default=10, show_default=True, help="of nested lists"
)
@click.option(
    "--arguments",
    type=click.IntRange(min=2),
    default=10,
    show_default=True,
    help="of a list, at most",
)
def listops(split: str, lines: int, seed: int, **shape: int) -> None:
    """Write ListOps expressions of Long Range Arena as TSV: expression, tab, its value."""
    # Each generator is imported by its own command only.
    from regard.data.listops import Shape, write_tsv

    write_tsv(sys.stdout, split, lines, seed=seed, shape=Shape(**shape))


@command.command(context_settings=_SETTINGS)
@_common_options
def stories(split: str, lines: int, seed: int) -> None:
    """Write stories like bAbI's first two tasks as TSV: story and question, tab, answer."""
    from regard.data.babi_stories import write_tsv

    write_tsv(sys.stdout, split, lines, seed=seed)


@command.command(epilog=EXAMPLES, context_settings=_SETTINGS)
@_common_options
@click.option("--pronouns", is_flag=True, help="only sentences whose pronoun must be resolved")
def builtin(split: str, lines: int, seed: int, pronouns: bool) -> None:
    """Write the built-in English–German language as TSV: source, tab, target."""
    from regard.data.builtin import write_tsv

    write_tsv(sys.stdout, split, lines, seed=seed, pronouns=pronouns)
