"""regard compare"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from regard.cli.recipe_options import (
    RecipeCommand,
    data_options,
    recipe_changes,
    recipe_option,
)
from regard.cli.shared_options import (
    MODEL_FOLDER,
    PARAMETERS,
    RECIPE,
    SEEDS,
    budget_options,
    json_option,
    option,
    print_result,
)
from regard.training.recipe import schema

EXAMPLES = """\b
Examples:
  regard compare --models transformer,bahdanau,rnn --steps 600
  regard compare --models transformer,transformer:performer,transformer:linformer:16+softmax
  regard compare --models transformer,transformer:performer --flops 5e13
  regard compare multi30k --data-dir ~/data --models transformer,bahdanau@max_grad_norm=1 --seeds 3
  regard compare shakespeare --data-dir ~/data --models gpt2,llama,lstm --minutes 5
  regard compare listops --models bert,bert:longformer:64,lstm
  regard compare etth1_96 --data-dir ~/data --models patchtst,dlinear --steps 400
  regard compare cora --data-dir ~/data --models graph,graph:softmax --steps 100
  regard compare copying --models transformer@position=learned,transformer@position=rope
"""
# Recipe keys that the comparison itself sets for each model, and which are no flags here.
SET_BY_COMPARISON = (
    "model", "attention", "decoder_attention", "d_model", "d_ff", "seed", "steps", "minutes",
    "epochs", "samples", "tensorboard",
)  # fmt: skip


@click.command(cls=RecipeCommand, epilog=EXAMPLES)
@click.argument("recipe", type=RECIPE, required=False)
@option(
    "--models",
    "models, separated by commas; repeatable",
    multiple=True,
    default=("transformer,bahdanau,rnn",),
)
@budget_options
@option("--seeds", "number of runs per model", SEEDS, default=1)
@option(
    "--parameters",
    "approximate parameter count of every model  [that of the recipe's model]",
    PARAMETERS,
)
@option("--out", "folder for the runs  [runs/compare-NAME]", MODEL_FOLDER)
@data_options
@json_option()
def command(
    recipe: str | None,
    models: tuple[str, ...],
    seeds: int,
    parameters: int | None,
    out: str | None,
    data_dir: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compare models with equal data, parameters and budget: one table and one figure.

    RECIPE is a built-in recipe or a TOML file; without one, models are trained on the built-in
    language. The recipe's objective determines what is compared and by which metric: translation
    models, language models, text, image or audio classifiers, forecasters, graph models. A model
    is NAME, NAME:SIZE or NAME:ATTENTION (for an encoder–decoder also ENCODER+DECODER) for any
    architecture in `regard show`, or a spec FILE.json; its own settings may follow after @. Each
    is trained for --steps, --minutes or --flops, by default 1,000 steps. Runs are kept under --out;
    repeating the command resumes where it stopped.
    """
    from regard.lab.compare.entry_point import compare
    from regard.lab.compare.report import lines

    # Progress goes to standard error, so that the table or JSON can be piped.
    result = compare(
        ",".join(models),
        recipe,
        seeds=seeds,
        parameters=parameters,
        out=out,
        data_dir=data_dir,
        say=partial(click.echo, err=True),
        **recipe_changes(flags),
    )
    print_result(as_json, result.data(), lines(result))


# every other recipe key, as for `regard train`
command.params += [recipe_option(key) for key in schema.KEYS if key not in SET_BY_COMPARISON]
