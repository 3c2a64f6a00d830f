"""regard convert"""

from __future__ import annotations

import re
import sys

import click

from regard.cli.shared_options import (
    MODEL_FOLDER,
    download_option,
    json_option,
    local_folder,
    option,
    print_result,
    refuse_flags,
)
from regard.cli.verify import format_finding
from regard.system.errors import SettingError

EXAMPLES = """\b
Examples:
  regard convert runs/builtin exported
  regard convert path/to/llama small-files --shard-size 2GB
  regard convert runs/builtin fast --to ctranslate2
  regard convert path/to/bert graph --to onnx --json
"""
FORMATS = ("huggingface", "regard", "ctranslate2", "onnx")
SHARDED_FORMATS = ("huggingface", "regard")
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


@click.command(epilog=EXAMPLES)
@click.argument("source", type=MODEL_FOLDER, metavar="IN")
@click.argument("out", type=MODEL_FOLDER, metavar="OUT")
@option("--to", "format of OUT", click.Choice(FORMATS), default="huggingface")
@option("--shard-size", "maximum size of a weight file, e.g. 500MB or 2GB", default="5GB")
@download_option
@json_option()
def command(source: str, out: str, to: str, shard_size: str, download: bool, as_json: bool) -> None:
    """Convert the model in folder IN to the new folder OUT, then compare the two.

    huggingface: config, weights, tokenizer files and model card, ready for transformers. regard:
    our own format, for models that no transformers architecture can represent. ctranslate2 and
    onnx: for those libraries, in float32. OUT is written atomically and never overwritten; weights
    keep their precision. The exit code is 1 if the outputs of OUT differ.
    """
    if to not in SHARDED_FORMATS:
        refuse_flags(
            ("shard_size",),
            f"{to} writes one file",
            f"leave it out; it is for {' and '.join(SHARDED_FORMATS)}",
        )
    # A wrong size is an error before torch is loaded.
    shard_bytes = _parse_size(shard_size)
    from regard.lab.convert.convert import convert
    from regard.system.memory import amount

    result = convert(local_folder(source, download), out, to, shard=shard_bytes)
    # What was written, and how far it is from the original.
    lines = [f"{result.folder / name}  {amount(size)}" for name, size in result.files.items()]
    print_result(as_json, result.data(), [*lines, *map(format_finding, result.findings)])
    # The files stay where they are, to be looked at; the exit code tells.
    sys.exit(any(finding.verdict == "fails" for finding in result.findings))


def _parse_size(text: str) -> int:
    """A file size in decimal units, such as 500MB, in bytes."""
    size = re.fullmatch(r"(0*[1-9]\d*)([KMG]B)", text.upper())
    if size is None:
        raise SettingError(f"{text!r} is not a file size", "write it as 500MB or 5GB")
    return int(size[1]) * _UNITS[size[2]]
