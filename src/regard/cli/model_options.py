"""Options of verbs that open a model: the device, and whether a name on the hub may be fetched."""

from __future__ import annotations

import click

device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N"
)
download_option = click.option(
    "--download",
    is_flag=True,
    help="MODEL may be a name on the hub (owner/name), which is fetched once and kept",
)
