"""regard train"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.errors import SettingError, TrainingInterrupted, did_you_mean
from regard.training import run_folder as places
from regard.training.recipe import schema as recipes

if TYPE_CHECKING:
    from regard.training.run import Result

EXAMPLES = """\b
Examples:
  regard train                                   the built-in language, into runs/builtin
  regard train multi30k --data ~/data            a recipe of the package, its files under a data root
  regard train shakespeare --data ~/data         a language model of characters
  regard train --text notes.txt --objective causal --preset tiny --schedule cosine --learning-rate 0.001
  regard train my.toml --steps 5000              your recipe, one setting changed
  regard train --source a.en --target a.de --valid-source v.en --valid-target v.de \\
               --preset tiny --steps 2000 --save-every 500 --seed 1 --out runs/mine
  regard train --resume runs/mine                goes on where it was, bit for bit
"""
_NAMES = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact match"}
_DIGITS = {"exact_match": 1, "loss": 4, "perplexity": 3}


class Flags(click.Command):
    """Flags follow from the recipe's keys; a wrong one is answered with the nearest right one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [
                name
                for parameter in self.params
                for name in parameter.opts
                if name.startswith("--")
            ]
            raise SettingError(
                f"there is no flag {error.option_name}", did_you_mean(error.option_name, known)
            ) from None


def flag(key: str) -> click.Option:
    section = recipes.KEYS[key]
    field = recipes.SECTIONS[section].model_fields[key]
    kind, name = recipes.value_type(key), key.replace("_", "-")
    default = "" if field.default is None else f"  [{_shown(field.default)}]"
    text = f"{field.description or ''}{default}".strip()
    if kind is bool:
        return click.Option([f"--{name}/--no-{name}", key], default=None, help=text)
    choice = click.Choice([str(option) for option in kind]) if isinstance(kind, tuple) else None
    return click.Option(
        [f"--{name}", key],
        type=choice or (kind if kind in (int, float) else str),
        default=None,
        help=text,
    )


def _shown(value: Any) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else ",".join(map(str, value))
        if isinstance(value, tuple)
        else str(value)
    )


def train(
    recipe: str | None,
    out: str | None,
    resume: str | None,
    data: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train a translator, a language model or an encoder from text.

    RECIPE is a recipe of the package or a TOML file; flags stand over it. Without a recipe or files, the built-in
    English–German language is learnt. --objective says what is learnt: all but translation learn from one --text.
    """
    changes = {key: value for key, value in flags.items() if value is not None}
    if "betas" in changes:
        changes["betas"] = tuple(float(part) for part in changes["betas"].split(","))
    if resume is not None:
        if recipe or changes or out:
            raise SettingError(
                "--resume goes on with the settings the run began with", "leave the other flags out"
            )
        place, parsed, name = places.resume(Path(resume))
    else:
        parsed, name = recipes.choose(recipe, changes, data)
        place = places.begin(parsed, Path(out) if out else None, name)
    from regard.training.run import run

    with exit_on_interruption():
        tell(run(place, parsed, name), as_json)


@contextmanager
def exit_on_interruption() -> Iterator[None]:
    """Ends the process with 128 + the signal's number, once the stopped run has been saved."""
    try:
        yield
    except TrainingInterrupted as interruption:
        raise SystemExit(interruption.exit_code) from None


def tell(result: Result, as_json: bool) -> None:
    """A finished run, on standard output."""
    if as_json:
        scores = {key: asdict(score) for key, score in result.scores.items()}
        click.echo(
            json.dumps(
                {
                    "run": str(result.folder),
                    "seconds": result.seconds,
                    "compiling": result.compiling,
                    "parameters": result.parameters,
                    **scores,
                }
            )
        )
    else:
        for key, score in result.scores.items():
            shown = {
                name: value for name, value in asdict(score).items() if isinstance(value, float)
            }
            told = [
                f"{_NAMES.get(name, name)} {value:.{_DIGITS.get(name, 2)}f}"
                for name, value in shown.items()
            ]
            click.echo("\t".join([key, *told]))
        click.echo(f"run\t{result.folder}")


command = Flags(
    "train",
    callback=train,
    help=train.__doc__,
    epilog=EXAMPLES,
    context_settings={"max_content_width": 110},
    params=[
        click.Argument(["recipe"], required=False),
        click.Option(["--out"], help="the run folder  [runs/NAME]"),
        click.Option(["--resume"], metavar="DIR", help="go on with the run in DIR"),
        click.Option(["--data"], metavar="DIR", help="where a recipe's files are  [$REGARD_DATA]"),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="print the result as one JSON object"
        ),
        *(flag(key) for key in recipes.KEYS),
    ],
)
