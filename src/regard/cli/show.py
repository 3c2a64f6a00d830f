"""regard show"""

from __future__ import annotations

import json

import click

from regard.cli.completion import PRESET_OR_FOLDER
from regard.cli.model_options import download_option, local_folder
from regard.cli.unread_flags import refuse_flags

EXAMPLES = """\b
Examples:
  regard show
  regard show transformer:base
  regard show gpt3:175b
  regard show runs/builtin
  regard show path/to/llama-70b --json
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model", type=PRESET_OR_FOLDER, required=False)
@click.option("--list", "as_list", is_flag=True, help="list all presets, as without a MODEL")
@download_option
@click.option("--json", "as_json", is_flag=True, help="the same as JSON; of the list, an array")
def command(model: str | None, as_list: bool, download: bool, as_json: bool) -> None:
    """Print a model's architecture top to bottom: stations, shapes, parameters of each part.

    MODEL is a folder with a config.json, ours or Hugging Face's (weights are not needed), or a
    preset such as transformer:base or gpt3:175b, whose published parameter count is printed too.
    Without a MODEL, all presets are listed.
    """
    from regard.show import listing, page
    from regard.show.resolve import resolve

    if as_list or model is None:
        refuse_flags(("model",), "--list is of all presets", "leave out one of both")
        refuse_flags(("download",), "all presets are listed", "give a MODEL")
        if as_json:
            click.echo(json.dumps(listing.data(), ensure_ascii=False))
        else:
            for line in listing.lines():
                click.echo(line)
        return
    # Built on the meta device: no weights are read, and any size fits.
    named_model = resolve(local_folder(model, download))
    if as_json:
        click.echo(json.dumps(page.data(named_model), ensure_ascii=False))
    else:
        page.show(named_model)
