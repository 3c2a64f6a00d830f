"""regard prune"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regard.cli.shared_options import (
    COUNT,
    FILE,
    MODEL_FOLDER,
    Flags,
    device_option,
    download_option,
    json_option,
    local_folder,
    option,
    print_result,
    refuse_flags,
)
from regard.system import disk
from regard.system.errors import ModelError, SettingError

if TYPE_CHECKING:
    from regard.data.text.tokenizer import Tokenizer

EXAMPLES = """\b
Examples:
  regard prune runs/builtin --heads 25%
  regard prune runs/builtin --heads 12 --pairs valid.tsv --out runs/fewer
  regard prune runs/shakespeare --heads 4 --lines 200
  regard finetune runs/fewer --task translate --data train.tsv          recover the lost quality
"""
# Gradients of whole contexts would take far more memory.
WINDOW = 128  # tokens of a text that are scored together


@click.command(epilog=EXAMPLES)
@click.argument("model", type=MODEL_FOLDER)
@option("--heads", "heads to remove: a number, or a percentage such as 25%", required=True)
@option("--out", "folder for the pruned model  [MODEL-pruned]", MODEL_FOLDER)
@option(
    "--source",
    "sentences to score heads on, one per line (may be .gz)  [the run's validation text]",
    FILE,
)
@option("--target", "their translations, line by line", FILE)
@option("--pairs", "one .tsv or .jsonl of pairs instead of two files", FILE)
@option(
    "--text", "for a language model: a text file (may be .gz)  [the run's validation text]", FILE
)
@option("--lines", "maximum number of sentences or text segments to read", COUNT, default=500)
@device_option
@download_option
@json_option()
def command(
    model: str,
    heads: str,
    out: str | None,
    lines: int,
    device: str,
    download: bool,
    as_json: bool,
    **files: Any,
) -> None:
    """Remove the least important attention heads from a translation or language model.

    MODEL is a run folder or a folder in Hugging Face format. The importance of a head is estimated
    from the gradient of the loss (Michel et al. 2019); each attention layer keeps at least one
    head. The result is an ordinary, smaller model; its score and speed are printed next to those of
    the original, on the same text.
    """
    import numpy as np

    from regard.evaluation.scores import report_table
    from regard.look.head_importance import importance
    from regard.models import load
    from regard.models.head_pruning import choose_heads, count_heads, prune_heads

    if files["pairs"]:
        refuse_flags(
            ("source", "target"),
            "--pairs contains both sides",
            "leave it out, or leave out --pairs",
        )
    # A trailing slash would put the new folder into the old one.
    folder = Path(out or f"{model.rstrip('/')}-pruned")
    # Before the model is loaded; it may be the model itself.
    disk.require_absent(folder, "choose another --out")
    model = local_folder(model, download)
    original = load(model, device=device)
    count_heads(original, heads)  # refused before the importance of all heads is computed
    pairs: list[tuple[str, str]] = []
    if "translate" in original.tasks:
        # Importance is that for translating with teacher forcing: sources and targets.
        pairs = _validation_pairs(model, files, lines)
        texts = [[source for source, _ in pairs], [target for _, target in pairs]]
    elif "generate" in original.tasks:
        width = min(WINDOW, original.spec.max_length or WINDOW)
        texts = [_validation_texts(model, original.input_tokenizer, width, files, lines)]
    else:
        # Other kinds have no loss here to rank heads by.
        raise ModelError(
            f"{model} neither translates nor generates text",
            "in Python, regard.models.head_pruning.prune_heads takes any model's heads",
        )
    # Heads are ranked by the loss on this text, and the least important ones removed.
    ranking = importance(original, *texts)
    heads_off = choose_heads(original, ranking, heads)
    prune_heads(original, heads_off).save(folder)
    # Both are opened from their folders: measuring packs the weights of a model.
    reports = {name: _measure(name, device, pairs, texts[0]) for name in (model, str(folder))}
    # Rows of the importance are padded with NaN where heads are fewer.
    values = {
        name: row[np.isfinite(row)].tolist()
        for name, row in zip(ranking.names, ranking.values, strict=True)
    }
    removed = ", ".join(f"{name} {head}" for name, head in heads_off)
    report = [*ranking.lines(), "", f"removed: {removed or 'none'}", "", *report_table(reports)]
    print_result(as_json, {"importance": values, "removed": heads_off, "models": reports}, report)


def _measure(
    folder: str, device: str, pairs: list[tuple[str, str]], texts: list[str]
) -> dict[str, Any]:
    """Score, size and speed of a model: of a translator on pairs, otherwise on texts."""
    from regard.evaluation.evaluation import evaluate
    from regard.evaluation.task import DecodingOptions, Settings
    from regard.lab.compare.size_and_speed import evaluate_language_model
    from regard.models import LanguageModel, load

    if pairs:
        packed = Settings(DecodingOptions(precision="float32"))
        model = load(folder, device=device)
        return evaluate(model, pairs, task="translate", settings=packed).report()
    return evaluate_language_model(load(folder, LanguageModel, device=device), texts)


# ------------------------------------------------------------------ texts to judge heads by


def _validation_pairs(model: str, files: Flags, lines: int) -> list[tuple[str, str]]:
    """Sentence pairs to score heads by: the files named, or the run's validation set."""
    from regard.data import text_files
    from regard.training.run_folder import RunFolder

    source = files["source"]
    target = files["target"]
    validation_set = RunFolder(Path(model)).data / "valid.jsonl"
    needed = "give --source and --target, or --pairs"
    refuse_flags(("text",), "a translation model is scored on pairs", needed)
    if bool(source) != bool(target):
        raise SettingError("a translation model is scored on pairs", needed)
    # Files that are named come first, then what training has kept.
    one_file = files["pairs"] or source or (validation_set.is_file() and str(validation_set))
    if not one_file:
        raise SettingError(f"{model} has no validation text", needed)
    first = list(islice(text_files.pairs(one_file, target), lines))
    if not first:
        raise SettingError("there are no pairs to score heads on", "give a non-empty --pairs file")
    return first


def _validation_texts(
    model: str, tokenizer: Tokenizer, width: int, files: Flags, lines: int
) -> list[str]:
    """Texts of up to `width` tokens to score heads by: a file, or the run's validation text."""
    from regard.data import text_files
    from regard.data.corpus import Corpus
    from regard.training.run_folder import RunFolder

    refuse_flags(
        ("source", "target", "pairs"),
        "a language model is scored on one text",
        "leave it out, and give --text",
    )
    validation_set = RunFolder(Path(model)).data / "valid"
    ids: list[int] = []
    if files["text"]:
        for block in text_files.text(files["text"]):
            ids += tokenizer.encode(block)
    elif (validation_set / "corpus.json").is_file():
        # Training has stored it as token ids.
        ids = Corpus.open(validation_set).columns["text"].tokens.tolist()
    else:
        raise SettingError(f"{model} has no validation text", "give --text")
    # Windows do not overlap; the last one may be shorter.
    starts = range(0, len(ids) - 1, width)
    texts = [tokenizer.decode(ids[i : i + width]) for i in islice(starts, lines)]
    if not texts:
        raise SettingError("there is no text to score heads on", "give a non-empty --text file")
    return texts
