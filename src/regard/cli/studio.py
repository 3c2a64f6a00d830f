"""regard studio"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from regard.cli.completion import MODEL_FOLDER
from regard.cli.number_types import WholeNumber

EXAMPLES = """\b
Examples:
  regard studio                         a small translator that comes with the package
  regard studio runs/builtin            a run, while it trains or afterwards
  regard studio runs                    all runs of a folder, to compare them
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("folders", type=MODEL_FOLDER, nargs=-1, metavar="[RUN | MODEL | FOLDER OF RUNS]...")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=8420,
    show_default=True,
    help="0 takes a free one",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="another one opens the studio to your network: pages need the key that is printed",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N")
@click.option("--download", is_flag=True, help="pages may open models of the hub by their name")
def command(folders: tuple[str, ...], port: int, host: str, device: str, download: bool) -> None:
    """Look inside models and watch runs, in the browser.

    Without a folder, a small translator of the built-in language is shown. The page can open other
    folders of this machine, unless the studio is open to the network.
    """
    from regard.models import choose_device
    from regard.studio.model_store import DEMO, FolderOpener, ModelStore, recent_folders_file
    from regard.studio.server import is_loopback, serve

    choose_device(device)  # for its error: models are opened by pages, later

    # Messages go to standard error, as of all commands.
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    # Without a folder: the demo that is part of the package.
    paths = [Path(folder) for folder in folders] or [DEMO]
    opener = None
    # To others on the network, the folders of this machine are none of their business.
    if is_loopback(host):
        opener = FolderOpener(recent_folders_file(), download=download)
    serve(ModelStore(paths, device=device, say=say, opener=opener), host, port)
