"""The decoding flags that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from regard.decode.strategy import BeamSearch, Greedy, Limit, Sampling, Strategy
from regard.errors import SettingError
from regard.training.recipe.options import parse_length_penalty

_OPTIONS = [
    click.option(
        "--beam",
        type=int,
        default=None,
        help="hypotheses kept at each step; 1 is greedy  [the folder's, or 4]",
    ),
    click.option(
        "--length-penalty",
        "penalty",
        default=None,
        help="gnmt:A divides log P by ((5+n)/6)^A, power:A by n^A, n the tokens with the end  [the folder's, or gnmt:0.6]",
    ),
    click.option("--n-best", type=int, default=None, help="translations a line  [1]"),
    click.option("--sample", is_flag=True, help="draw by chance instead of searching"),
    click.option(
        "--temperature", type=float, default=None, help="sampling: logits are divided by it  [1]"
    ),
    click.option(
        "--top-k", type=int, default=None, help="sampling: only the K likeliest tokens  [all]"
    ),
    click.option(
        "--top-p",
        type=float,
        default=None,
        help="sampling: the smallest set with this probability  [1]",
    ),
    click.option(
        "--min-p",
        type=float,
        default=None,
        help="sampling: at least this share of the likeliest  [0]",
    ),
    click.option(
        "--seed", type=int, default=None, help="sampling: the same seed, the same draws  [0]"
    ),
    click.option(
        "--max-length",
        "limit",
        default=None,
        help="longest output: FACTOR,EXTRA of the source length  [the folder's, or 1,50]",
    ),
    click.option(
        "--batch-tokens",
        type=int,
        default=4096,
        show_default=True,
        help="positions decoded at once",
    ),
    click.option(
        "--quantize",
        type=click.Choice(["int8", "bf16"]),
        default=None,
        help="on a CPU: smaller weights, faster and a little less exact  [float32]",
    ),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N"),
]


def decoding_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def strategy(
    beam: int | None, penalty: str | None, n_best: int | None, sample: bool, filters: dict[str, Any]
) -> Strategy | None:
    """One strategy from the flags, if there are any; flags of another one are an error, not ignored."""
    given = {key: value for key, value in filters.items() if value is not None}
    if sample:
        if beam or penalty or n_best:
            raise SettingError(
                "--sample does not search", "leave --beam, --length-penalty and --n-best out"
            )
        return Sampling(**given)
    if given:
        raise SettingError(
            f"--{next(iter(given)).replace('_', '-')} is a setting of sampling", "add --sample"
        )
    if beam == 1 and not n_best:
        return Greedy()
    if not (beam or penalty or n_best):
        return None
    return BeamSearch(beam or 4, parse_length_penalty(penalty or "gnmt:0.6"), n_best or 1)


def limit(text: str | None) -> Limit | None:
    if text is None:
        return None
    try:
        factor, extra = text.split(",")
        return Limit(float(factor), int(extra))
    except ValueError:
        raise SettingError(
            f"--max-length {text!r} is not FACTOR,EXTRA", "write it like 1,50"
        ) from None


def writing(greedy: bool, beam: int | None, filters: Mapping[str, Any]) -> Strategy | None:
    """How a language model goes on, if flags say it: by chance, unless told to search."""
    given = {key: value for key, value in filters.items() if value is not None}
    if not greedy and beam is None:
        return Sampling(**given) if given else None
    if given:
        flag = next(iter(given)).replace("_", "-")
        raise SettingError(
            f"--{flag} is a setting of sampling", "leave it out, or leave --greedy and --beam out"
        )
    if greedy and beam not in (None, 1):
        raise SettingError("--greedy and --beam are two ways to search", "give one of them")
    return Greedy() if greedy or beam == 1 else BeamSearch(beam or 4)
