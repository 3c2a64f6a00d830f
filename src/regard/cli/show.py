"""regard show"""

from __future__ import annotations

import click

from regard.cli.shared_options import (
    PRESET_OR_FOLDER,
    download_option,
    flag,
    json_option,
    json_text,
    local_folder,
    print_result,
    refuse_flags,
)

EXAMPLES = """\b
Examples:
  regard show
  regard show transformer:base
  regard show gpt3:175b
  regard show runs/builtin
  regard show path/to/llama-70b --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=PRESET_OR_FOLDER, required=False)
@flag("--list as_list", "list all presets (the default without MODEL)")
@download_option
@json_option("print JSON (an array for the list)")
def command(model: str | None, as_list: bool, download: bool, as_json: bool) -> None:
    """Print a model's architecture from top to bottom: layers, shapes, parameters of each part.

    MODEL is a folder with a config.json, ours or Hugging Face's (no weights needed), or a preset
    such as transformer:base or gpt3:175b, whose published parameter count is also printed.
    Without a MODEL, all presets are listed.
    """
    from regard.lab.show import listing, page
    from regard.lab.show.resolve import resolve

    if as_list or model is None:
        refuse_flags(("model",), "--list lists all presets", "leave out one of the two")
        refuse_flags(("download",), "only used with a MODEL", "give a MODEL")
        print_result(as_json, listing.data(), listing.lines())
        return
    # Built on the meta device: no weights are read, and any size fits.
    named_model = resolve(local_folder(model, download))
    if as_json:
        click.echo(json_text(page.data(named_model)))
    else:
        page.show(named_model)
