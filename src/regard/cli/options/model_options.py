"""Options of verbs that open a model: the device, and whether a name on the hub may be fetched."""

from __future__ import annotations

import sys
from functools import partial

import click

device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N"
)
DOWNLOAD_HELP = "allow MODEL to be a name on the Hub (owner/name); downloaded once and cached"
download_option = click.option("--download", is_flag=True, help=DOWNLOAD_HELP)


def local_folder(model: str, download: bool) -> str:
    """The folder of MODEL; a name on the hub is fetched if `download` says so."""
    if not download:
        return model  # whoever opens it says what is wrong with it
    # Imported late: torch is not needed to report wrong flags.
    from regard.models.loading import find_folder

    return str(find_folder(model, download, partial(print, file=sys.stderr)))
