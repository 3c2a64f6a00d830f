"""regard tune"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from regard.cli.recipe_options import (
    RecipeCommand,
    data_options,
    recipe_changes,
    recipe_option,
    resume_option,
)
from regard.cli.shared_options import (
    MODEL_FOLDER,
    RECIPE,
    budget_options,
    json_option,
    option,
    print_result,
    refuse_other_flags,
)
from regard.cli.train import FINETUNE_KEYS, exit_on_interruption
from regard.training.recipe import loading, schema

SET_BY_SEARCH = (*FINETUNE_KEYS, "steps", "minutes")
ORDER = "rate,warmup,batch,dropout,size"
EXAMPLES = """\b
Examples:
  regard tune --minutes 10                          the built-in language
  regard tune my.toml --flops 1e15 --out searches/mine
  regard tune --model gpt2:tiny --text notes.txt --minutes 30 --order rate,dropout
  regard tune --resume searches/mine                resume where it stopped
  regard train searches/mine/best.toml
"""


@click.command(cls=RecipeCommand, epilog=EXAMPLES)
@click.argument("recipe", type=RECIPE, required=False)
@option("--out", "folder for the search  [searches/NAME]", MODEL_FOLDER)
@resume_option
@data_options
@budget_options
@option("--order", "what to tune, in order", default=ORDER)
@json_option("print the result as one JSON object")
def command(
    recipe: str | None,
    out: str | None,
    resume: str | None,
    data_dir: str | None,
    order: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Tune the most important hyperparameters, one after the other, within a budget.

    Learning rate, warm-up, batch size, dropout, model size: several values of each are tried by
    successive halving, where the better half of the runs continues for twice as long. All runs
    together have the budget of --steps, --minutes or --flops. RECIPE and the other flags are those
    of `regard train`; the best recipe is written to best.toml.
    """
    say = partial(click.echo, err=True)
    if resume is not None:
        refuse_other_flags(
            ("resume", "as_json"),
            "--resume continues the search with its original settings",
            "leave it out, or start another search with --out",
        )
        from regard.lab.tune import tuning

        with exit_on_interruption():
            _print(tuning.resume(Path(resume), say), as_json)
        return
    # What is left in `flags` are keys of the recipe.
    from regard.lab.measure.budget import UNITS, Budget

    budget = Budget(**{unit: flags.pop(unit) for unit in UNITS})
    settings, name = loading.choose(recipe, recipe_changes(flags), data_dir)
    from regard.lab.tune import tuning

    folder = Path(out) if out else Path("searches") / name
    with exit_on_interruption():
        _print(tuning.tune(settings, name, folder, budget, order.split(","), say), as_json)


def _print(result: Any, as_json: bool) -> None:
    rows = result.table()
    # Signed in the search, so that less is always better; printed as measured.
    content = {
        "folder": str(result.folder),
        "recipe": str(result.recipe),
        "metric": result.metric,
        "best": result.best,
        "score": abs(result.score),
        "trials": [
            {"changes": trial.changes, "updates": updates, "score": abs(score)}
            for trial, updates, score in rows
        ],
    }
    lines = [f"{result.metric}\tupdates\tsettings"]
    for trial, updates, score in rows:
        words = "  ".join(f"{key} {value}" for key, value in trial.changes.items())
        lines.append(f"{abs(score):.4f}\t{updates}\t{words}")
    print_result(as_json, content, [*lines, f"best\t{result.recipe}"])


# Every other recipe key, as for `regard train`.
command.params += [recipe_option(key) for key in schema.KEYS if key not in SET_BY_SEARCH]
