"""regard convert"""

from __future__ import annotations

import json
import sys

import click

from regard.cli.verify import line

EXAMPLES = """\b
Examples:
  regard convert runs/builtin exported
  regard convert path/to/llama small-files --shard-size 2GB
  regard convert runs/builtin fast --to ctranslate2
  regard convert path/to/bert graph --to onnx --json
"""
FORMATS = ("huggingface", "regard", "ctranslate2", "onnx")


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT")
@click.option("--to", type=click.Choice(FORMATS), default="huggingface", show_default=True)
@click.option(
    "--shard-size",
    default="5GB",
    show_default=True,
    help="largest file of weights, as 500MB or 2GB",
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def command(source: str, out: str, to: str, shard_size: str, as_json: bool) -> None:
    """Write the model of folder IN to the new folder OUT, then compare both.

    huggingface: config, weights, tokenizer files and card, as transformers opens them. regard: our own format, for models that
    no family there can say. ctranslate2 and onnx: for those libraries, in float32. OUT appears whole or not at all and is
    never overwritten; weights keep the precision they have. The exit code is 1 if OUT computes something else.
    """
    from regard.errors import SettingError
    from regard.memory import amount

    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
    number, unit = shard_size[:-2], units.get(shard_size[-2:].upper())
    if unit is None or not number.isdigit() or int(number) < 1:
        raise SettingError(f"{shard_size!r} is no size of a file", "write it as 500MB or 5GB")
    from regard.convert.convert import convert

    done = convert(source, out, to, shard=int(number) * unit)
    failed = any(finding.verdict == "fails" for finding in done.findings)
    if as_json:
        click.echo(json.dumps(done.data()))
    else:
        for name, size in done.files.items():
            click.echo(f"{done.folder / name}  {amount(size)}")
        for finding in done.findings:
            click.echo(line(finding))
    sys.exit(1 if failed else 0)
