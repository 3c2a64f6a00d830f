"""regard translate"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from regard.cli import show_warnings_once
from regard.cli.batch_work import (
    INPUT_HELP,
    BatchWork,
    column_option,
    output_option,
    refuse_column,
)
from regard.cli.decoding_options import decoding_options, decoding_strategy, length_limit
from regard.cli.shared_options import (
    FILE,
    MODEL_FOLDER,
    download_option,
    json_option,
    json_text,
    option,
    refuse_flags,
)
from regard.cli.texts_and_files import check_is_text, piped

if TYPE_CHECKING:
    from regard.decode.strategy import Hypothesis

LINES_AT_ONCE = 2000  # enough to sort by length and batch well, few enough to stream

EXAMPLES = """\b
Examples:
  regard translate runs/builtin "The dog sees a cat."
  regard translate runs/builtin < in.txt > out.txt
  echo "The dog sees a cat." | regard translate runs/builtin --beam 8 --n-best 3 --json
  regard translate runs/builtin --input 'shards/*.txt.zst' --output out.txt     resumable
  regard translate runs/builtin --sample --temperature 0.8 --top-p 0.9 --seed 7 < in.txt
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=MODEL_FOLDER)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@option("--input path", f"instead of standard input: {INPUT_HELP}", FILE, default="-")
@output_option
@column_option
@json_option("one JSON object per line, with scores")
@option("--language", "target language, for multilingual models: de_DE, fra")
@download_option
@decoding_options
def command(
    model: str,
    texts: tuple[str, ...],
    path: str,
    as_json: bool,
    language: str | None,
    download: bool,
    **flags: Any,
) -> None:
    """Translate text line by line: one output line per input line; empty lines stay empty.

    MODEL is a run folder. Each TEXT is one line; without any, lines are read from standard input.
    Translations go to standard output, messages to standard error. With --n-best N, there are N
    output lines per input line. At a terminal, each line is translated as you type it; Ctrl-D
    quits. --input and --output handle files of any size: memory use is bounded, and after a crash
    the same command resumes where it stopped.
    """
    strategy = decoding_strategy(flags)  # wrong flags are reported before torch is loaded
    if texts == ("-",):
        texts = ()  # standard input, as for other commands
    if texts:
        refuse_flags(("path", "output"), "cannot be combined with TEXT", "use one or the other")
    if path == "-":
        refuse_column()
    for text in texts:
        as_text = piped(text, f"translate {quote(model)}")
        check_is_text(text, as_text, f"translate its lines: --input {quote(text)}")
    from regard.decode.strategy import BeamSearch
    from regard.models import Translator, load

    translator = load(model, Translator, device=flags["device"], download=download)
    # Nothing is trained here: pack the weights for speed.
    translator.prepare_for_inference(flags["quantize"])
    settings = translator.settings(strategy, length_limit(flags["limit"]), flags["batch_tokens"])
    # Greedy search and sampling give one translation a line.
    n_best = settings.strategy.n_best if isinstance(settings.strategy, BeamSearch) else 1
    unfinished = 0

    def answer(lines: list[str], first_index: int) -> str:
        nonlocal unfinished
        results = translator.hypotheses(lines, settings, first_index=first_index, language=language)
        output = []
        for line, hypotheses in zip(lines, results, strict=True):
            texts = [*map(translator.text, hypotheses)]
            if as_json:
                output.append(_json_line(line, texts, hypotheses))
            else:
                # An empty line has no hypothesis; it still takes its place in the output.
                output += texts + [""] * (n_best - len(texts))
            # No end token came before the length limit.
            unfinished += bool(hypotheses) and not hypotheses[0].finished
        return "".join(f"{line}\n" for line in output)

    if texts:
        BatchWork(len(texts), answer).run(iter(texts), None, {})
    elif path == "-" and flags["output"] is None and sys.stdin.isatty():
        BatchWork(1, answer).run(_typed_lines(), None, {})
    else:
        BatchWork(LINES_AT_ONCE, answer).run_files()
    if unfinished:
        count = "1 translation" if unfinished == 1 else f"{unfinished:,} translations"
        print(f"{count} cut off at the length limit; raise --max-length", file=sys.stderr)


def _typed_lines() -> Iterator[str]:
    print("Type a sentence; Ctrl-D quits.", file=sys.stderr)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        # Each line that is typed gets its own warnings.
        show_warnings_once()
        yield line


def _json_line(source: str, texts: list[str], hypotheses: list[Hypothesis]) -> str:
    """One line's translations with their scores, best first, as a JSON object."""
    translations = [
        {
            "text": text,
            # after the length penalty; log_probability is before it
            "score": hypothesis.score,
            "log_probability": hypothesis.log_probability,
            "finished": hypothesis.finished,
        }
        for text, hypothesis in zip(texts, hypotheses, strict=True)
    ]
    return json_text({"source": source, "translations": translations})
