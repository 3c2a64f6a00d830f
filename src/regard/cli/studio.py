"""regard studio"""

from __future__ import annotations

from pathlib import Path

import click

from regard.cli.shared_options import FILE, MODEL_FOLDER, WholeNumber, device_option, flag, option

EXAMPLES = """\b
Examples:
  regard studio                         the small demo translation model
  regard studio runs/builtin            a run, during or after training
  regard studio runs                    all runs in a folder, to compare them
  regard studio runs/builtin --export lecture.html
                                        the studio with this model in one file, without a server
"""


@click.command(epilog=EXAMPLES)
@click.argument("folders", type=MODEL_FOLDER, nargs=-1, metavar="[RUN | MODEL | FOLDER OF RUNS]...")
@option("--port", "port; 0 picks a free one", WholeNumber(0, 65535), default=8420)
@option(
    "--host",
    "address to bind; other than localhost, access needs the printed key",
    default="127.0.0.1",
)
@device_option
@flag("--download", "allow opening models from the Hub by name")
@option("--browser/--no-browser", "open the page in a browser", default=True)
@option("--export", "write the studio with one small model as an HTML file, and stop", FILE)
def command(
    folders: tuple[str, ...],
    port: int,
    host: str,
    device: str,
    download: bool,
    browser: bool,
    export: str | None,
) -> None:
    """Look inside models and follow training runs in the browser.

    Without a folder, the studio opens two small models: a translator for the built-in language, and
    a language model of Shakespeare. You can open other folders on this machine from the page,
    unless the studio is open to the network.

    --export writes one file that needs neither a server nor an installation: the pages, the model,
    and a forward pass in JavaScript. It takes small models of the usual parts.
    """
    from regard.models.base import choose_device, to_standard_error
    from regard.studio.model_store import (
        DEMO,
        SHAKESPEARE,
        FolderOpener,
        ModelStore,
        recent_folders_file,
    )
    from regard.studio.server import serve
    from regard.system.web_server import is_loopback

    choose_device(device)  # for its error: models are opened by pages, later

    # Without a folder: the models that are part of the package; a page has the first one.
    paths = [*map(Path, folders)] or [DEMO, SHAKESPEARE]
    if export is not None:
        from regard.studio.offline.page import export as write

        write(ModelStore(paths, device="cpu", say=to_standard_error), Path(export))
        print(export)
        return
    opener = None
    # To others on the network, the folders of this machine are none of their business.
    if is_loopback(host):
        opener = FolderOpener(recent_folders_file(), download=download)
    # Messages go to standard error, as of all commands.
    store = ModelStore(paths, device=device, say=to_standard_error, opener=opener)
    serve(store, host, port, browser and is_loopback(host))
