"""The model card: README.md of a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import __version__
from regard.evaluation.metrics.texts import Bleu, Chrf
from regard.evaluation.scores import TITLES, Score
from regard.evaluation.tasks import TASKS
from regard.system import disk
from regard.training.recipe.schema import Recipe
from regard.training.result import Result
from regard.training.run_evaluation import task_name
from regard.training.run_folder import RunFolder

# Digits after the point; two of all others.
_DECIMALS = {"mse": 4, "mae": 4, "quantile_loss": 4, "loss": 4, "perplexity": 3}


def write(run_folder: RunFolder, recipe: Recipe, name: str, result: Result) -> None:
    """States data, settings, score and signature; everything in it comes from the run."""
    recipe = with_relative_paths(recipe)
    card = TASKS[task_name(recipe)].card
    assert card is not None, "what is trained has one"
    codes = (recipe.data.languages or "").split("-")
    languages = ""
    if len(codes) == 2:
        languages = "language:\n" + "".join(f"- {code}\n" for code in codes)
    summary = (
        f"{card.description}, {result.parameters:,} parameters, "
        f"trained with regard {__version__} on {_data_source(recipe)}: "
        f"{result.steps:,} steps in {result.seconds:,.0f} s."
    )
    table = "\n".join(_score_table(recipe, result.scores))
    settings = "\n".join(_settings(recipe))
    # The YAML header is what the Hugging Face hub reads.
    text = f"""---
library_name: regard
pipeline_tag: {card.pipeline_tag}
{languages}---

# {name}

{summary}

## Score

{table}

## Use

```
{card.usage}
```

## Settings

```toml
{settings}
```
"""
    disk.write_file(run_folder.folder / "README.md", text)


def with_relative_paths(recipe: Recipe) -> Recipe:
    """The recipe without the places of its files on this machine, which a card should not tell."""
    sections = {
        name: section.model_copy(update={key: _relative(value) for key, value in section})
        for name, section in recipe
    }
    return recipe.model_copy(update=sections)


def _relative(value: Any) -> Any:
    """An absolute path relative to the current folder, or its name alone; other values as is."""
    if isinstance(value, tuple):
        return tuple(_relative(one) for one in value)
    if not isinstance(value, str) or not Path(value).is_absolute():
        return value
    path = Path(value)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name


def _data_source(recipe: Recipe) -> str:
    data = recipe.data
    lines = f"{data.builtin_lines:,}"
    if recipe.files:
        names = [*recipe.files["train"], data.target or ""]
        files = " and ".join(f"`{name}`" for name in names if name)
        if recipe.is_finetuning:
            files += f", beginning with `{recipe.tune.base}`"
        return files
    if data.generated is not None:
        return f"{lines} examples of the generated task `{data.generated}`"
    if recipe.objective == "classify":
        return f"{lines} generated ListOps expressions"
    if recipe.objective == "stories":
        return f"{lines} generated stories"
    if recipe.objective_settings.data == "trajectories":
        return "generated episodes"
    return f"the built-in English–German language, {lines} generated sentences"


# --- scores ---------------------------------------------------------------------------------------


def _score_table(recipe: Recipe, scores: Mapping[str, Score]) -> list[str]:
    """A Markdown table; a score that a set does not have is empty."""
    if not scores:
        return ["No test set was given. `regard evaluate FOLDER --source F --target G` scores it."]
    # The texts of a generated task are scored otherwise than the validation text.
    first = {key: value for score in scores.values() for key, value in vars(score).items()}
    # How many examples or tokens there are comes last.
    keys = [key for key, value in first.items() if isinstance(value, float)]
    keys += [key for key, value in first.items() if isinstance(value, int)]
    titles = [TITLES.get(key, key).replace("_", " ") for key in keys]
    lines = [f"| set | {' | '.join(titles)} |", "|---" * (len(keys) + 1) + "|"]
    for name, score in scores.items():
        numbers = vars(score)
        values = [_cell(key, numbers[key]) if key in numbers else "" for key in keys]
        lines.append(f"| {name} | {' | '.join(values)} |")
    if "bleu" in first:
        # Without its signature, a BLEU score cannot be compared (Post 2018).
        lines += [
            "",
            f"Beam {recipe.decode.beam}, length penalty {recipe.decode.length_penalty}. "
            f"BLEU signature `{Bleu(recipe.decode.tokenize).signature()}`, "
            f"chrF signature `{Chrf().signature()}`.",
        ]
    return lines


def _cell(key: str, value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{_DECIMALS.get(key, 2)}f}"


# --- settings -------------------------------------------------------------------------------------


def _settings(recipe: Recipe) -> list[str]:
    """The recipe as TOML, to train the model again."""
    lines: list[str] = []
    # None is no value of TOML: such keys keep their defaults.
    for section, values in recipe.model_dump(exclude_none=True).items():
        if section != "tune" or recipe.is_finetuning:
            lines.append(f"[{section}]")
            lines += [f"{key} = {toml_value(value)}" for key, value in values.items()]
    return lines


def toml_value(value: object) -> str:
    """A setting as TOML writes it."""
    # Booleans, numbers, strings and lists are written as in JSON.
    return json.dumps(value, ensure_ascii=False)
