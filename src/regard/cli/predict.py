"""regard predict"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from os.path import isfile
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from regard.cli.batch_work import (
    INPUT_HELP,
    BatchWork,
    check_input,
    column_option,
    output_option,
    refuse_column,
)
from regard.cli.shared_options import (
    COUNT,
    FILE,
    MODEL_FOLDER,
    TEXT_OR_FILE,
    device_option,
    download_option,
    flag,
    json_option,
    json_text,
    option,
)
from regard.cli.texts_and_files import (
    check_is_text,
    check_not_blank,
    piped,
    with_space,
)
from regard.system.errors import SettingError

if TYPE_CHECKING:
    from regard.evaluation.prediction import Prediction

LINES_AT_ONCE = 256  # enough to batch by length, few enough to answer a pipe soon
# Of files that hold texts, one a line; other names are texts themselves.
TEXT_SUFFIXES = (".txt", ".tsv", ".csv", ".jsonl", ".gz", ".zst", ".parquet", ".arrow")
EXAMPLES = """\b
Examples:
  regard predict runs/mood "A fine film." "Too long."         class and its probability
  regard predict runs/mood reviews.txt --json                 one text per line
  regard predict bert/ "Paris is the [MASK] of France."       the masked word
  regard predict runs/qa "Who sat?" --context story.txt       extractive question answering
  regard predict vit/ cat.png dog.jpg                         the class of each image
  regard predict clip/ cat.png --label "a cat" --label "a dog"
  regard predict whisper/ speech.wav                          the transcript
  regard predict runs/etth1 series.csv                        the forecast, as CSV
  regard predict runs/etth1 series.csv --samples 100          quantiles of sampled trajectories
  regard predict runs/cora graph/ graph/:12                   the classes of all nodes, or of one
  regard predict bert/ "A text." --task embed                 its embedding
  regard predict bert/ --task embed --input 'shards/*.parquet' --output vectors.jsonl --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=MODEL_FOLDER)
@click.argument("inputs", type=TEXT_OR_FILE, nargs=-1, metavar="[TEXT | FILE | -]...")
@option("--task", "task, if the model supports several  [by its head]")
@option(
    "--label labels",
    "candidate class or caption, for zero-shot models (GPT, CLIP); repeatable",
    multiple=True,
)
@option("--context", "text or file that the questions are about", TEXT_OR_FILE)
@option("--top", "number of answers per input", COUNT, default=5)
@option(
    "--samples",
    "forecasts: quantiles over this many sampled trajectories (probabilistic models only)",
    COUNT,
)
@flag("--truncation", "truncate texts that are too long for MODEL")
@option("--input path", f"read texts from files: {INPUT_HELP}", FILE)
@output_option
@column_option
@json_option("one JSON object per line")
@device_option
@download_option
def command(model: str, inputs: tuple[str, ...], task: str | None, **flags: Any) -> None:
    """Run any model: classes, tags, answers, masked words, embeddings, transcripts, forecasts.

    An input is a text, a text file (.txt or .tsv, one text per line), an image, a recording, a time
    series (.csv), an episode (.npz:NUMBER), a graph folder, or - for standard input. Separate text
    pairs with a tab. The output is one line per input: the input, a tab, the prediction. A forecast
    is printed as a table, a graph folder as one line per node or graph. --input and --output handle
    files of any size: after a crash the same command resumes where it stopped.
    """
    run_task(model, inputs, task, **flags)


def run_task(model: str, inputs: tuple[str, ...], task: str | None, **flags: Any) -> None:
    """The predictions of a task, or of the model's own, for texts and for files."""
    # Imported late: help must not wait for torch.
    from regard.evaluation.prediction import (
        Prediction,
        PredictionOptions,
        chosen_task,
        predict,
        reads_files,
    )
    from regard.models import load

    path = flags["path"]
    check_input("inputs", path)
    check_not_blank(inputs)
    if path is None and not any(map(_holds_records, inputs)):
        refuse_column()
    if path is None and not inputs and sys.stdin.isatty():
        raise SettingError("there is no input", "give a text, a file, or - (see --help)")
    loaded = load(model, device=flags["device"], download=flags["download"])
    chosen = {key: flags[key] for key in ("labels", "top", "samples", "truncation")}
    options = PredictionOptions(context=_text_of(flags["context"]), **chosen)
    if task == "embed" and "embed_image" in loaded.tasks:
        # It embeds texts and images: files are images.
        are_files = set(map(isfile, inputs))
        if len(are_files) > 1:
            raise SettingError(
                "texts and images are embedded by separate calls", "give texts, or image files"
            )
        task = "embed_image" if True in are_files else "embed_text"
    task = chosen_task(loaded, task, options)
    several = path is not None or len(inputs) > 1
    given = iter(inputs)
    if not reads_files(loaded, task):
        as_command = f"predict --task {task} {quote(model)}"
        given = _texts(inputs or ("-",), as_command, flags["text_column"])
    elif path is not None or "-" in (inputs or ("-",)):
        # What is missing is said by who reads it.
        raise SettingError("this model reads files", "give their paths: regard predict MODEL FILE…")

    def answer(texts: list[str], before: int) -> str:
        # An empty line is no input: a model would invent an answer to it. It keeps its place.
        asked = [text for text in texts if text.strip()]
        # A folder of graphs has several predictions.
        predictions = predict(loaded, asked, task, **vars(options))
        for row, text in enumerate(texts):
            if not text.strip():
                predictions.insert(row, Prediction("", task, None, ""))
        lines = [_line(prediction, flags["as_json"], several) for prediction in predictions]
        return "".join(f"{line}\n" for line in lines)

    work = BatchWork(LINES_AT_ONCE, answer)
    if path is not None:
        work.run_files()
    else:
        work.run(given, None, {})


def _task_command(task: str, help_text: str, examples: str) -> click.Command:
    """`regard predict --task` as a command of its own."""
    return click.Command(
        task,
        callback=partial(run_task, task=task),
        params=[parameter for parameter in command.params if parameter.name != "task"],
        help=f"""{help_text}

    Same as `regard predict --task {task}`. --input and --output handle files of any size: after a
    crash the same command resumes where it stopped.
    """,
        epilog=examples,
    )


embed = _task_command(
    "embed",
    "Embed texts or images: one line per input: the input, a tab, its embedding.",
    """\b
Examples:
  regard embed bert/ "A text." "Another one." --json
  regard embed bert/ --input 'shards/*.parquet' --output vectors.jsonl --json     resumable
""",
)
classify = _task_command(
    "classify",
    "Classify texts, images or recordings: one line per input: the input, a tab, probabilities.",
    """\b
Examples:
  regard classify runs/mood "A fine film." "Too long."
  regard classify gpt2/ "Great fun." --label good --label bad
  regard classify runs/mood --input reviews.txt.gz --output classes.jsonl --json     resumable
""",
)


def _line(prediction: Prediction, as_json: bool, several: bool) -> str:
    if as_json:
        values = asdict(prediction)
        del values["text"]
        return json_text(values)
    if prediction.answer is None:
        return ""
    if prediction.task == "forecast":
        # A table as CSV; of several, each under a comment with the name of its file.
        return f"# {prediction.input}\n{prediction.text}" if several else prediction.text
    source = prediction.input.replace("\n", " ")  # one line for each input
    return f"{source}\t{prediction.text}"


def _texts(names: tuple[str, ...], command: str, column: str | None) -> Iterator[str]:
    """The texts, or those of the files, that are named."""
    from regard.data.text_files import texts

    sources: list[Iterable[str]] = []
    for name in names:
        if _holds_records(name):
            sources.append(texts(name, column))
        elif _holds_texts(name):
            sources.append(texts(name))
        else:
            check_is_text(name, piped(name, command), f"give its lines: --input {quote(name)}")
            sources.append([name])
    return chain.from_iterable(sources)


def _holds_texts(name: str) -> bool:
    return name == "-" or (name.endswith(TEXT_SUFFIXES) and isfile(name))


def _holds_records(name: str) -> bool:
    from regard.data.text_files import is_record_file

    return _holds_texts(name) and name != "-" and is_record_file(name)


def _text_of(context: str | None) -> str | None:
    """The text of --context, which may be a file."""
    from regard.data.text_files import text

    if context is not None and isfile(context):
        return "".join(text(context))
    if context is not None:
        check_is_text(context, with_space(context), "")
    return context
