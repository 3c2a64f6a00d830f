"""regard serve"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from regard.cli.shared_options import (
    MINUTES,
    MODEL_FOLDER,
    WholeNumber,
    device_option,
    download_option,
    local_folder,
    option,
)
from regard.system.errors import SettingError, did_you_mean

if TYPE_CHECKING:
    from regard.serve.api import HttpLimits
    from regard.serve.requests import Limits

EXAMPLES = """\b
Examples:
  regard serve                                  the small demo translation model
  regard serve runs/mine --languages mine=en-de
  regard serve translator=runs/mine reviews=runs/reviews --precision int8
  REGARD_API_KEY=$(openssl rand -hex 16) regard serve runs/mine --host 0.0.0.0
"""


@click.command(epilog=EXAMPLES)
@click.argument("models", type=MODEL_FOLDER, nargs=-1, metavar="[NAME=]MODEL...")
@option("--host", "address to bind; other than localhost needs a key", default="127.0.0.1")
@option("--port", "port; 0 picks a free one", WholeNumber(0, 65535), default=8000)
@option("--api-key", "the key that requests must have", envvar="REGARD_API_KEY", show_envvar=True)
@option("--allow-host", "another name of this server, as of a proxy before it", multiple=True)
@option("--allow-origin", "a web page that may ask: https://page.example", multiple=True)
@option("--languages", "of a translator, where its run does not say: NAME=en-de", multiple=True)
@option("--precision", "of the weights", click.Choice(["float32", "bf16", "int8"]))
@option("--idle-minutes", "a model that nobody asks for so long is put away", MINUTES, default=15)
@option("--limit", "a bound of requests, NAME=NUMBER; the guide lists them", multiple=True)
@option("--studio/--no-studio", "the studio on the same port, to look inside", default=True)
@device_option
@download_option
def command(models: tuple[str, ...], **options: Any) -> None:
    """Serve models over HTTP: the routes of OpenAI and LibreTranslate, and one for each task.

    Without a model, the small demo is served. SIGTERM answers the requests that are there, then
    ends.
    """
    from regard.system.web_server import is_loopback

    host = options["host"]
    key = options["api_key"] or None
    if key is None and not is_loopback(host):
        raise SettingError(
            f"everyone who reaches {host} could use these models",
            "set a key: REGARD_API_KEY=$(openssl rand -hex 16) regard serve …",
        )
    from regard.serve.models import Models
    from regard.serve.server import serve
    from regard.serve.service import Service

    folders = _folders(models, options["download"])
    pairs = _languages(folders, options["languages"])
    limits, http_limits = _limits(options["limit"])
    served = Models(
        folders,
        limits=limits,
        device=options["device"],
        precision=options["precision"],
        idle_seconds=60 * options["idle_minutes"],
    )
    serve(
        Service(served, http_limits, key, pairs),
        host,
        options["port"],
        hosts=options["allow_host"],
        origins=options["allow_origin"],
        studio=options["studio"],
    )


def _folders(models: tuple[str, ...], download: bool) -> dict[str, Any]:
    """The folders by the names that requests have for them."""
    from pathlib import Path

    from regard.studio.model_store import DEMO

    if not models:
        return {DEMO.name: DEMO}
    folders: dict[str, Path] = {}
    for text in models:
        name, is_named, folder = text.partition("=")
        path = Path(local_folder(folder if is_named else text, download))
        name = name if is_named else path.resolve().name
        if name in folders:
            raise SettingError(f"two models are called {name!r}", "name them: NAME=MODEL")
        folders[name] = path
    return folders


def _languages(folders: dict[str, Any], texts: tuple[str, ...]) -> dict[str, Any]:
    """The languages of translators: as given, or as their runs say."""
    from regard.studio.model_store import DEMO
    from regard.training.translation_languages import BUILTIN, Pair, pair_of, parse_pair

    pairs = {name: pair_of(folder) for name, folder in folders.items() if folder.is_dir()}
    if folders.get(DEMO.name) == DEMO:
        pairs[DEMO.name] = Pair(*BUILTIN)
    for text in texts:
        name, is_named, pair = text.partition("=")
        if not is_named and len(folders) == 1:
            name, pair = next(iter(folders)), text
        if name not in folders:
            raise SettingError(f"there is no model {name!r}", did_you_mean(name, folders))
        pairs[name] = parse_pair(pair)
    return {name: pair for name, pair in pairs.items() if pair is not None}


def _limits(texts: tuple[str, ...]) -> tuple[Limits, HttpLimits]:
    """The limits of an engine and of a request, with the changes that were typed."""
    from dataclasses import asdict

    from regard.cli.shared_options import Number
    from regard.serve.api import HttpLimits
    from regard.serve.requests import Limits

    engine: dict[str, Any] = asdict(Limits())
    http: dict[str, Any] = asdict(HttpLimits())
    for text in texts:
        name, _, value = text.partition("=")
        if name not in engine | http:
            raise SettingError(f"there is no limit {name!r}", did_you_mean(name, engine | http))
        values = engine if name in engine else http
        is_whole = isinstance(values[name], int)
        kind = WholeNumber(1) if is_whole else Number(0.001)
        values[name] = kind.convert(value, None, None)
    return Limits(**engine), HttpLimits(**http)
