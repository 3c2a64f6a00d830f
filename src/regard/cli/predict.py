"""regard predict"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from regard.cli.batch_work import (
    INPUT_HELP,
    BatchWork,
    check_column,
    column_option,
    output_option,
)
from regard.cli.completion import FILE, MODEL_FOLDER, TEXT_OR_FILE
from regard.cli.model_options import device_option, download_option
from regard.cli.number_types import COUNT
from regard.cli.text_arguments import check_is_text, check_not_blank, is_file, piped, with_space
from regard.errors import DataError, SettingError

if TYPE_CHECKING:
    from regard.models import Model
    from regard.models.prediction import Prediction

LINES_AT_ONCE = 256  # enough to batch by length, few enough to answer a pipe soon
# Of files that hold texts, one a line; other names are texts themselves.
TEXT_SUFFIXES = (".txt", ".tsv", ".jsonl", ".gz", ".zst", ".parquet", ".arrow")
EXAMPLES = """\b
Examples:
  regard predict runs/mood "A fine film." "Too long."         a class, with its probability
  regard predict runs/mood reviews.txt --json                 a text on each line
  regard predict bert/ "Paris is the [MASK] of France."       the missing word
  regard predict runs/qa "Who sat?" --context story.txt       the answer in a text
  regard predict vit/ cat.png dog.jpg                         the class of each image
  regard predict clip/ cat.png --label "a cat" --label "a dog"
  regard predict whisper/ speech.wav                          the transcript
  regard predict runs/etth1 series.csv                        what follows, as CSV
  regard predict runs/etth1 series.csv --samples 100          quantiles of sampled trajectories
  regard predict runs/cora graph/ graph/:12                   the classes of all nodes, or of one
  regard predict bert/ "A text." --task embed                 its vector
  regard predict bert/ --task embed --input 'shards/*.parquet' --output vectors.jsonl --json
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model", type=MODEL_FOLDER)
@click.argument("inputs", type=TEXT_OR_FILE, nargs=-1, metavar="[TEXT | FILE | -]...")
@click.option(
    "--task", default=None, help="what the model is asked for, if it can do several  [its head's]"
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    help="a class or caption to choose from, for models that have none (GPT, CLIP); several times",
)
@click.option(
    "--context", type=TEXT_OR_FILE, help="the text, or the file, that questions are about"
)
@click.option("--top", type=COUNT, default=5, show_default=True, help="answers each")
@click.option(
    "--samples",
    type=COUNT,
    default=None,
    help="forecasts: quantiles of so many sample trajectories, of models with distributions",
)
@click.option("--cut", is_flag=True, help="cut off the ends of texts that are too long for MODEL")
@click.option("--input", "path", type=FILE, help=f"texts of files: {INPUT_HELP}")
@output_option
@column_option
@click.option("--json", "as_json", is_flag=True, help="one JSON object a line")
@device_option
@download_option
def command(model: str, inputs: tuple[str, ...], task: str | None, **flags: Any) -> None:
    """Ask any model: classes, tags, answers, missing words, vectors, transcripts, forecasts.

    An INPUT is a text, a file of texts (.txt or .tsv, one a line), an image, a recording, a time
    series (.csv), a folder of graphs, or - for standard input. Two texts that belong together have
    a tab between them. One line comes out for each input: the input, a tab, the answer. A forecast
    is a table, and a folder has a line for each of its nodes or graphs. With --input and --output,
    files of any size: after a crash the same command goes on where it stopped.
    """
    run_task(model, inputs, task, flags)


def task_command(task: str, help_text: str, examples: str) -> click.Command:
    """`regard predict --task` as a command of its own."""

    def callback(model: str, inputs: tuple[str, ...], **flags: Any) -> None:
        run_task(model, inputs, task, flags)

    return click.Command(
        task,
        callback=callback,
        params=[parameter for parameter in command.params if parameter.name != "task"],
        help=help_text,
        epilog=examples,
        context_settings={"max_content_width": 110},
    )


def run_task(model: str, inputs: tuple[str, ...], task: str | None, flags: dict[str, Any]) -> None:
    """The predictions of a task, or of the model's own, for texts and for files."""
    # Imported late: help must not wait for torch.
    from regard.models import load
    from regard.models.dual_encoder import DualEncoderModel
    from regard.models.prediction import PredictionOptions, chosen_task, predict

    path = flags.pop("path")
    output = flags.pop("output")
    if path is not None and inputs:
        raise SettingError("texts and --input both say what to answer", "give one of them")
    if path is None and output is not None:
        raise SettingError("--output needs files to go on with", "give the texts as --input FILE")
    check_not_blank(inputs)
    check_column(flags["text_column"], path is not None or any(map(_holds_records, inputs)))
    if path is None and not inputs and sys.stdin.isatty():
        raise SettingError("there is nothing to answer", "give a text, a file, or - (see --help)")
    loaded = load(model, device=flags["device"], download=flags["download"])
    options = PredictionOptions(
        flags["labels"],
        _text_of(flags["context"]),
        flags["top"],
        samples=flags["samples"],
        cut=flags["cut"],
    )
    if task == "embed" and isinstance(loaded, DualEncoderModel):
        # It embeds texts and images: files are images.
        task = "embed_image" if inputs and all(map(is_file, inputs)) else "embed_text"
    task = chosen_task(loaded, task, options)
    several = path is not None or len(inputs) > 1

    def answer(texts: list[str], before: int) -> str:
        # An empty line is no input: a model would invent an answer to it. It keeps its place.
        blank = [not text.strip() for text in texts]
        predictions = predict(loaded, [text for text in texts if text.strip()], task, options)
        lines = [_line(prediction, flags["as_json"], several) for prediction in predictions]
        if any(blank):
            remaining = iter(lines)
            lines = ["" if is_blank else next(remaining) for is_blank in blank]
        return "".join(f"{line}\n" for line in lines)

    work = BatchWork(LINES_AT_ONCE, answer)
    if path is not None:
        flags |= {"command": "predict", "model": model, "task": task, "labels": [*flags["labels"]]}
        work.run_files(path, output, flags)
    else:
        names = inputs or ("-",)
        work.run(_inputs(loaded, model, names, task, flags["text_column"]), None, {})


def _line(prediction: Prediction, as_json: bool, several: bool) -> str:
    if as_json:
        values = {key: value for key, value in asdict(prediction).items() if key != "text"}
        # NaN is no JSON, although Python would write it.
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    if prediction.task == "forecast":
        # A table as CSV; of several, each under a comment with the name of its file.
        return f"# {prediction.input}\n{prediction.text}" if several else prediction.text
    return f"{prediction.input}\t{prediction.text}"


def _inputs(
    model: Model, folder: str, names: tuple[str, ...], task: str, column: str | None
) -> Iterator[str]:
    """The texts, or the paths of images, recordings, series and graphs, that are named."""
    from regard.models import GraphModel, SeriesModel
    from regard.models.prediction import MEDIA_TASKS

    if isinstance(model, GraphModel | SeriesModel):
        if "-" in names:
            raise SettingError("this model reads files", "give the path of one")
        return iter(names)  # what is missing is said by who reads it

    if model.medium is not None and task in MEDIA_TASKS:
        for name in names:
            if not Path(name).is_file():
                raise DataError(
                    f"{name!r} is no file, and this model reads {model.medium}s",
                    "give the path of one",
                )
        return iter(names)
    for name in names:
        if not _holds_texts(name):
            as_text = piped(name, f"predict --task {task} {quote(folder)}")
            check_is_text(name, as_text, f"give its lines: --input {quote(name)}")
    return _texts(names, column)


def _texts(names: tuple[str, ...], column: str | None) -> Iterator[str]:
    from regard.data.text_files import texts

    for name in names:
        if _holds_texts(name):
            yield from texts(name, column if _holds_records(name) else None)
        else:
            yield name


def _holds_texts(name: str) -> bool:
    return name == "-" or (name.endswith(TEXT_SUFFIXES) and Path(name).is_file())


def _holds_records(name: str) -> bool:
    from regard.data.text_files import is_record_file

    return _holds_texts(name) and name != "-" and is_record_file(name)


def _text_of(context: str | None) -> str | None:
    """The text of --context, which may be a file."""
    from regard.data.text_files import text

    if context is None:
        return None
    if Path(context).is_file():
        return "".join(text(context))
    check_is_text(context, with_space(context), "")
    return context
