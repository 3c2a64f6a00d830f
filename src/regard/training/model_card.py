"""README.md of a run folder: the model card."""

from __future__ import annotations

from dataclasses import dataclass

from regard import __version__, disk
from regard.metrics.classification import ClassificationScore
from regard.metrics.question_answering import AnswerScore
from regard.metrics.scores import AnyScore, NegativeLogLikelihood
from regard.metrics.translation import TranslationScore
from regard.training.recipe.schema import SECTIONS, Recipe
from regard.training.run_folder import RunFolder


@dataclass(frozen=True)
class Facts:
    parameters: int
    steps: int
    seconds: float
    scores: dict[str, AnyScore]


def write(place: RunFolder, recipe: Recipe, name: str, facts: Facts) -> None:
    """States data, settings, score and signature; everything in it comes from the run."""
    disk.write_file(place.folder / "README.md", text(recipe, name, facts))


# objective, or what it is tuned for → (Hugging Face's name of the task, what the model is, how it is used)
_KINDS = {
    "translate": (
        "translation",
        "A Transformer for translation",
        "regard translate FOLDER < source.txt > target.txt",
    ),
    "causal": ("text-generation", "A language model", 'regard generate FOLDER "Once upon a time"'),
    "masked": (
        "fill-mask",
        "An encoder that fills in hidden tokens",
        'model = regard.load("FOLDER")',
    ),
    "span": (
        "text2text-generation",
        "An encoder–decoder that fills in hidden spans",
        'model = regard.load("FOLDER")',
    ),
    "denoise": (
        "text2text-generation",
        "An encoder–decoder that restores texts",
        'model = regard.load("FOLDER")',
    ),
    "classify": (
        "text-classification",
        "A classifier of texts",
        'regard.load("FOLDER").classify("a text")',
    ),
    "stories": (
        "question-answering",
        "A memory network that answers questions about stories",
        'regard.load("FOLDER").answer("Where is Mary?", "Mary went to the garden.")',
    ),
    "tag": ("token-classification", "A tagger of words", 'regard.load("FOLDER").tag("a text")'),
    "answer": (
        "question-answering",
        "A finder of answers",
        'regard.load("FOLDER").answer("question?", "context")',
    ),
    "summarize": (
        "summarization",
        "An encoder–decoder that summarises",
        "regard translate FOLDER < texts > summaries",
    ),
    "lm": ("text-generation", "A language model", 'regard generate FOLDER "Once upon a time"'),
    "replaced": (
        "feature-extraction",
        "An encoder that finds replaced tokens",
        'model = regard.load("FOLDER")',
    ),
}


def text(recipe: Recipe, name: str, facts: Facts) -> str:
    languages = (recipe.data.languages or "").split("-")
    task, what, use = _KINDS[recipe.tune.task if recipe.tune else recipe.train.objective]
    header = ["---", "library_name: regard", f"pipeline_tag: {task}"]
    header += ["language:", *(f"- {code}" for code in languages)] if len(languages) == 2 else []
    body = [
        "---",
        "",
        f"# {name}",
        "",
        f"{what}, {facts.parameters:,} parameters, trained with regard {__version__} on {_origin(recipe)}: "
        f"{facts.steps:,} steps in {facts.seconds:,.0f} s.",
        "",
        "## Score",
        "",
        *_scores(recipe, facts.scores),
        "",
        "## Use",
        "",
        "```",
        use,
        "```",
        "",
        "## Settings",
        "",
        "```toml",
        *_settings(recipe),
        "```",
    ]
    return "\n".join(header + body) + "\n"


def _origin(recipe: Recipe) -> str:
    data = recipe.data
    if recipe.tune:
        return f"{', '.join(f'`{file}`' for file in recipe.tune.files)}, beginning with `{recipe.tune.base}`"
    if recipe.train.objective == "classify" and data.text is None:
        return f"{data.builtin_lines:,} generated ListOps expressions"
    if recipe.train.objective == "stories" and data.text is None:
        return f"{data.builtin_lines:,} generated stories"
    if recipe.train.objective != "translate":
        return f"`{data.text}`"
    if recipe.builtin:
        return f"the built-in English–German language, {data.builtin_lines:,} generated sentences"
    return f"`{data.pairs}`" if data.pairs else f"`{data.source}` and `{data.target}`"


def _scores(recipe: Recipe, scores: dict[str, AnyScore]) -> list[str]:
    rated = {
        name: s for name, s in scores.items() if isinstance(s, ClassificationScore | AnswerScore)
    }
    if rated:
        keys = [key for key in vars(next(iter(rated.values()))) if key != "examples"]
        told = [
            f"| {n} | {' | '.join(f'{vars(s)[k]:.2f}' for k in keys)} | {s.examples:,} |"
            for n, s in rated.items()
        ]
        return [
            f"| set | {' | '.join(keys)} | examples |".replace("_", " "),
            "|---" * (len(keys) + 2) + "|",
            *told,
        ]
    if not scores:
        return ["No test set was given. `regard evaluate FOLDER --source F --target G` scores it."]
    surprises = {name: s for name, s in scores.items() if isinstance(s, NegativeLogLikelihood)}
    if surprises:
        rows = [
            f"| {name} | {s.loss:.4f} | {s.perplexity:.3f} | {s.tokens:,} |"
            for name, s in surprises.items()
        ]
        return ["| set | loss | perplexity | tokens |", "|---|---|---|---|", *rows]
    translated = {name: s for name, s in scores.items() if isinstance(s, TranslationScore)}
    rows = ["| set | BLEU | chrF | exact match |", "|---|---|---|---|"]
    rows += [
        f"| {name} | {s.bleu:.2f} | {s.chrf:.2f} | {s.exact_match:.1f} % |"
        for name, s in translated.items()
    ]
    first = next(iter(translated.values()))
    return [
        *rows,
        "",
        f"Beam {recipe.decode.beam}, length penalty {recipe.decode.length_penalty}. "
        f"BLEU signature `{first.signature}`, chrF signature `{first.chrf_signature}`.",
    ]


def _settings(recipe: Recipe) -> list[str]:
    lines: list[str] = []
    for section in (*SECTIONS, *(["tune"] if recipe.tune else [])):
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
