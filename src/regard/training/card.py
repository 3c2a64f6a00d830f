"""README.md of a run folder: the model card."""

from __future__ import annotations

from dataclasses import dataclass

from regard import __version__, disk
from regard.text.score import Score
from regard.training.place import Place
from regard.training.recipe import SECTIONS, Recipe


@dataclass(frozen=True)
class Facts:
    parameters: int
    steps: int
    seconds: float
    scores: dict[str, Score]


def write(place: Place, recipe: Recipe, name: str, facts: Facts) -> None:
    """States data, settings, score and signature; everything in it comes from the run."""
    disk.write_file(place.folder / "README.md", text(recipe, name, facts))


def text(recipe: Recipe, name: str, facts: Facts) -> str:
    data = recipe.data
    languages = (data.languages or "").split("-")
    header = ["---", "library_name: regard", "pipeline_tag: translation"]
    header += ["language:", *(f"- {code}" for code in languages)] if len(languages) == 2 else []
    origin = (
        f"the built-in English–German language, {data.builtin_lines:,} generated sentences"
        if recipe.builtin
        else f"`{data.pairs}`"
        if data.pairs
        else f"`{data.source}` and `{data.target}`"
    )
    body = [
        "---",
        "",
        f"# {name}",
        "",
        f"A Transformer for translation, {facts.parameters:,} parameters, trained with regard {__version__} on {origin}: "
        f"{facts.steps:,} steps in {facts.seconds:,.0f} s.",
        "",
        "## Score",
        "",
        *_scores(recipe, facts.scores),
        "",
        "## Use",
        "",
        "```",
        "regard translate FOLDER < source.txt > target.txt",
        "```",
        "",
        "## Settings",
        "",
        "```toml",
        *_settings(recipe),
        "```",
    ]
    return "\n".join(header + body) + "\n"


def _scores(recipe: Recipe, scores: dict[str, Score]) -> list[str]:
    if not scores:
        return ["No test set was given. `regard evaluate FOLDER --source F --target G` scores it."]
    rows = ["| set | BLEU | chrF | exact match |", "|---|---|---|---|"]
    rows += [f"| {name} | {s.bleu:.2f} | {s.chrf:.2f} | {s.exact_match:.1f} % |" for name, s in scores.items()]
    first = next(iter(scores.values()))
    return [
        *rows,
        "",
        f"Beam {recipe.decode.beam}, length penalty {recipe.decode.length_penalty}. "
        f"BLEU signature `{first.signature}`, chrF signature `{first.chrf_signature}`.",
    ]


def _settings(recipe: Recipe) -> list[str]:
    lines: list[str] = []
    for section in SECTIONS:
        values = getattr(recipe, section).model_dump(exclude_none=True)
        lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return lines


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)
