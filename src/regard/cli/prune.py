"""regard prune"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from regard.models import LanguageModel

EXAMPLES = """\b
Examples:
  regard prune runs/builtin --heads 25%
  regard prune runs/builtin --heads 12 --pairs valid.tsv --out runs/fewer
  regard prune runs/shakespeare --heads 4 --lines 200
  regard finetune runs/fewer --task translate --data train.tsv          learns again what it lost
"""
WINDOW = 128  # tokens of a text that are looked at together


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model")
@click.option(
    "--heads",
    required=True,
    help="how many heads to take out: a number, or a share of all such as 25%",
)
@click.option("--out", help="the new model's folder  [MODEL-pruned]")
@click.option(
    "--source",
    help="sentences to judge heads by, one a line (.gz too)  [the run's validation text]",
)
@click.option("--target", help="their translations, line by line")
@click.option("--pairs", help="instead of two files: one .tsv or .jsonl of pairs")
@click.option(
    "--text", help="for a language model: a text file (.gz too)  [the run's validation text]"
)
@click.option(
    "--lines",
    default=500,
    show_default=True,
    help="sentences, or pieces of text, that are read at most",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def command(
    model: str, heads: str, out: str | None, lines: int, device: str, as_json: bool, **files: Any
) -> None:
    """Take the heads that matter least out of a translator or a language model.

    MODEL is a run folder. How much a head matters is estimated by the gradient of the loss (Michel et al. 2019), and of each
    attention one head stays. The new folder holds an ordinary, smaller model; its score and speed are printed beside those
    of the whole one, on the same text.
    """
    from pathlib import Path

    from regard.compare.size_and_speed import table, translating, writing
    from regard.errors import ModelError
    from regard.look.head_importance import importance
    from regard.models import LanguageModel, Translator, load
    from regard.models.head_pruning import chosen, pruned

    place = Path(out or f"{model.rstrip('/')}-pruned")
    held = load(model, device=device)
    if isinstance(held, Translator):
        pairs = _pairs(model, files, lines)
        texts = [[source for source, _ in pairs], [target for _, target in pairs]]
    elif isinstance(held, LanguageModel):
        texts = [_texts(model, held, files, lines)]
    else:
        raise ModelError(
            f"{model} neither translates nor writes",
            "in Python, regard.models.head_pruning.pruned takes any model's heads",
        )

    def measured(folder: str) -> dict[str, Any]:
        one = load(folder, device=device)
        if isinstance(one, Translator):
            return translating(one, pairs, one.settings())[0]
        assert isinstance(one, LanguageModel)
        return writing(one, texts[0])

    found = importance(held, *texts)
    gone = chosen(held, found, heads)
    pruned(held, gone).save(place)
    reports = {name: measured(name) for name in (model, str(place))}
    if as_json:
        said = {
            name: [float(v) for v in row if v == v]
            for name, row in zip(found.names, found.values, strict=True)
        }
        click.echo(json.dumps({"importance": said, "removed": gone, "models": reports}))
        return
    for line in [
        *found.lines(),
        "",
        f"taken out: {', '.join(f'{name} {head}' for name, head in gone) or 'none'}",
        "",
    ]:
        click.echo(line)
    for line in table(reports):
        click.echo(line)


def _pairs(model: str, files: dict[str, Any], lines: int) -> list[tuple[str, str]]:
    from itertools import islice
    from pathlib import Path

    from regard.data import text_files
    from regard.errors import SettingError
    from regard.training.run_folder import RunFolder

    source, target, pairs = files["source"], files["target"], files["pairs"]
    kept = RunFolder(Path(model)).data / "valid.jsonl"
    if files["text"] or bool(source) != bool(target):
        raise SettingError(
            "a translator is judged by pairs", "give --source and --target, or --pairs"
        )
    if not (source or pairs or kept.is_file()):
        raise SettingError(
            f"{model} holds no validation text", "give --source and --target, or --pairs"
        )
    return list(
        islice(text_files.pairs(pairs or source or str(kept), None if pairs else target), lines)
    )


def _texts(model: str, writer: LanguageModel, files: dict[str, Any], lines: int) -> list[str]:
    """Pieces of a text, each as long as can be seen at once."""
    from pathlib import Path

    from regard.data import text_files
    from regard.data.corpus import Corpus
    from regard.errors import SettingError
    from regard.training.run_folder import RunFolder

    kept = RunFolder(Path(model)).data / "valid"
    if files["source"] or files["target"] or files["pairs"]:
        raise SettingError("a language model is judged by one text", "give --text")
    if not (files["text"] or (kept / "corpus.json").is_file()):
        raise SettingError(f"{model} holds no validation text", "give --text")
    if files["text"]:
        ids = [i for block in text_files.text(files["text"]) for i in writer.words.encode(block)]
    else:
        ids = Corpus.open(kept).columns["text"].tokens.tolist()
    width = min(WINDOW, writer.positions or WINDOW)
    pieces = [writer.words.decode(ids[i : i + width]) for i in range(0, len(ids) - 1, width)][
        :lines
    ]
    if not pieces:
        raise SettingError("there is no text to judge heads by", "give --text with some in it")
    return pieces
