"""regard translate"""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import Any

import click

from regard.cli.decoding_options import decoding_options, limit, strategy

CHUNK = 2000  # lines read at a time: enough to sort and batch well, few enough to stream

EXAMPLES = """\b
Examples:
  regard translate runs/builtin < in.txt > out.txt
  echo "The dog sees a cat." | regard translate runs/builtin --beam 8 --n-best 3 --json
  regard translate runs/builtin --sample --temperature 0.8 --top-p 0.9 --seed 7 < in.txt
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model")
@click.option(
    "--input", "path", default="-", help="a text file (.gz too) instead of standard input"
)
@click.option("--json", "as_json", is_flag=True, help="one JSON object a line, with scores")
@click.option(
    "--language",
    default=None,
    help="what to translate into, if the model knows several: de_DE, fra",
)
@decoding_options
def command(model: str, path: str, as_json: bool, language: str | None, **flags: Any) -> None:
    """Translate lines of text: one line out for each line in, an empty one for an empty one.

    MODEL is a run folder. Lines go from standard input to standard output; what else there is to say goes to standard
    error. With --n-best N, N lines come out for each line in.
    """
    chosen = strategy(
        flags["beam"], flags["penalty"], flags["n_best"], flags["sample"],
        {key: flags[key] for key in ("temperature", "top_k", "top_p", "min_p", "seed")},
    )  # fmt: skip
    from regard.data.text_files import lines
    from regard.decode.strategy import BeamSearch
    from regard.models import load_translator

    translator = load_translator(model, device=flags["device"])
    translator.freeze(flags["quantize"])
    settings = translator.settings(chosen, limit(flags["limit"]), flags["batch_tokens"])
    count = settings.strategy.n_best if isinstance(settings.strategy, BeamSearch) else 1
    cut = done = 0
    stream = lines(path)
    while chunk := list(islice(stream, CHUNK)):
        results = translator.hypotheses(chunk, settings, before=done, language=language)
        for line, found in zip(chunk, results, strict=True):
            cut += sum(not hypothesis.finished for hypothesis in found[:1])
            texts = [translator.text(hypothesis) for hypothesis in found]
            if as_json:
                candidates = [
                    {
                        "text": t,
                        "score": h.score,
                        "log_probability": h.log_probability,
                        "finished": h.finished,
                    }
                    for t, h in zip(texts, found, strict=True)
                ]
                click.echo(
                    json.dumps({"source": line, "translations": candidates}, ensure_ascii=False)
                )
            else:
                for text in texts + [""] * (count - len(texts)):
                    click.echo(text)
        sys.stdout.flush()
        done += len(chunk)
    if cut:
        print(
            f"{cut} translations reached the length limit and were cut there; raise --max-length",
            file=sys.stderr,
        )
