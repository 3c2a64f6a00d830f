"""regard train"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.recipe_options import (
    RecipeCommand,
    command_arguments,
    data_options,
    overwrite_option,
    recipe_changes,
    recipe_option,
    resume_option,
)
from regard.cli.shared_options import (
    MODEL_FOLDER,
    RECIPE,
    WholeNumber,
    flag,
    json_option,
    json_text,
    local_folder,
    option,
)
from regard.system.errors import SettingError, TrainingInterrupted
from regard.training.recipe import loading, schema

if TYPE_CHECKING:
    from regard.training.result import Result

EXAMPLES = """\b
Examples:
  regard train                                   the built-in language; writes runs/builtin
  regard train multi30k --data-dir ~/data            a built-in recipe, with its files in ~/data
  regard train shakespeare --data-dir ~/data         a character-level language model
  regard train --model llama:tiny --text notes.txt --minutes 20         as many steps as fit
  regard train --model bert:tiny --objective classify --data train.tsv --valid dev.tsv
  regard train --base bert/ --objective classify --data reviews.tsv     fine-tuning
  regard train --model vit:tiny --images flowers/ --image-size 64       one subfolder per class
  regard train --model patchtst --series load.csv --horizon 96         forecast a CSV file
  regard train --source a.en --target a.de --valid-source v.en --valid-target v.de \\
               --preset tiny --steps 2000 --save-every 500 --seed 1 --out runs/mine
  regard train my.toml --processes 4 --out runs/mine                    all GPUs of one machine
  torchrun --nproc-per-node 4 --max-restarts 3 -m regard train my.toml --out runs/mine
  regard train --resume runs/mine                continue exactly where it stopped
"""
FINETUNE_KEYS = ("task", "files", "prefixes")


# ------------------------------------------------------------------ the command


@click.command(cls=RecipeCommand, epilog=EXAMPLES)
@click.argument("recipe", type=RECIPE, required=False)
@option("--out", "run folder  [runs/NAME]", MODEL_FOLDER)
@overwrite_option
@resume_option
@option(
    "--processes",
    "train in N processes on this machine (torchrun)",
    WholeNumber(1, 4096),
    metavar="N",
)
@data_options
@json_option("print the result as one JSON object")
@flag("--download", "allow --base to be a model name on the Hub")
def command(
    recipe: str | None,
    out: str | None,
    overwrite: bool,
    resume: str | None,
    data_dir: str | None,
    processes: int | None,
    as_json: bool,
    download: bool = False,
    **flags: Any,
) -> None:
    """Train a model on text, images, speech, time series or graphs.

    RECIPE is a built-in recipe or a TOML file; flags override its settings. With neither a recipe
    nor files, the model is trained on the built-in English–German language. For translation, give
    --source and --target, or --pairs; for language models and encoders, --text; for other data,
    --images, --sounds, --series or --graph. --objective selects the training objective.
    """
    if processes is not None:
        start_processes(processes, out)
        return
    changes = recipe_changes(flags)
    if download:
        if "base" not in changes:
            raise SettingError("--download only applies to --base", "give --base owner/name")
        changes["base"] = local_folder(changes["base"], download)
    # A run that is resumed has its recipe in its folder.
    if resume is not None:
        if recipe or out or overwrite:
            changes |= {"out": out}
        resume_run(resume, changes, as_json)
        return
    settings, name = loading.choose(recipe, changes, data_dir)
    # Imported late: a wrong recipe is reported before torch is loaded.
    from regard.training.run import launch

    with exit_on_interruption():
        print_scores(launch(settings, out, name, overwrite=overwrite), as_json)


# ------------------------------------------------------------------ what finetune shares


def resume_run(folder: str, changes: dict[str, Any], as_json: bool) -> None:
    """--resume, of a finished run too if --steps asks for more."""
    steps = changes.pop("steps", None)
    if changes:
        raise SettingError(
            "--resume continues with the settings the run was started with",
            "remove the other flags; only --steps N is allowed, to train longer",
        )
    from regard.training.run import resume

    with exit_on_interruption():
        print_scores(resume(Path(folder), steps=steps), as_json)


def start_processes(processes: int, out: str | None) -> None:
    """--processes N: this very command in N processes, by PyTorch's own launcher."""
    from regard.training.parallel.ranks import start

    arguments = command_arguments(click.get_current_context())
    place = arguments.index("--processes") if "--processes" in arguments else -1
    if place >= 0:
        del arguments[place : place + 2]
    arguments = [each for each in arguments if not each.startswith("--processes=")]
    raise SystemExit(start(processes, ["train", *arguments]))


@contextmanager
def exit_on_interruption() -> Iterator[None]:
    """Ends the process with 128 + the signal's number, once the stopped run has been saved."""
    try:
        yield
    except TrainingInterrupted as interruption:
        raise SystemExit(interruption.exit_code) from None


def print_scores(result: Result, as_json: bool) -> None:
    """Prints the scores of a finished run to standard output, once for all ranks."""
    from regard.evaluation.scores import TITLES, formatted
    from regard.training.parallel.ranks import is_main_process

    if not is_main_process():
        return
    if as_json:
        # The scores of each split (valid, test) stand next to these keys.
        report = {
            "run": str(result.folder),
            "seconds": result.seconds,
            "compiling": result.compiling,
            "parameters": result.parameters,
            "steps": result.steps,
            **result.losses,
        }
        scores = {split: vars(score) for split, score in result.scores.items()}
        click.echo(json_text(report | scores))
        return
    for split, score in result.scores.items():
        # Signatures and counts are in the JSON only.
        columns = [
            f"{TITLES.get(name, name)} {formatted(name, value)}"
            for name, value in vars(score).items()
            if isinstance(value, float)
        ]
        # Tabs, so that `cut` and spreadsheets take the table as it is.
        click.echo("\t".join([split, *columns]))
    click.echo(f"run\t{result.folder}")


# every recipe key is a flag, but for those that `regard finetune` sets by its own options
command.params += [recipe_option(key) for key in schema.KEYS if key not in FINETUNE_KEYS]
