"""regard show"""

from __future__ import annotations

import json

import click

EXAMPLES = """\b
Examples:
  regard show vaswani:base
  regard show gpt:175b
  regard show palm:540b
  regard show runs/builtin
  regard show path/to/llama-70b --json
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="the same page as one JSON object")
def command(model: str, as_json: bool) -> None:
    """Print a model's architecture top to bottom: stations, shapes, parameters of each part.

    MODEL is a folder with a config.json, ours or Hugging Face's (weights are not needed), or a
    preset such as vaswani:base, or gpt:175b for a size of GPT-3.
    """
    from regard.show import page
    from regard.show.resolve import resolve

    # Built on the meta device: no weights are read, and any size fits.
    named_model = resolve(model)
    if as_json:
        click.echo(json.dumps(page.data(named_model), ensure_ascii=False))
    else:
        page.show(named_model)
