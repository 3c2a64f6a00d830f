"""The page: for people at a terminal, for people with a pipe, and as data."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from regard import size, spec
from regard.memory import amount
from regard.show.layers import Station, cache, letters, stations
from regard.show.resolve import Subject

WIDTH = 100
_SHAPE, _COUNT, _NAME = 17, 15, 23  # columns; the words take the rest
_WIRINGS = {
    "EncoderDecoder": "encoder–decoder",
    "SequenceToSequence": "encoder–decoder",
    "Encoder": "encoder",
    "Decoder": "decoder",
    "RecurrentDecoder": "decoder",
    "Pair": "two towers",
    "MemoryNetwork": "memory network",
}
_GUIDE = "│ "


def show(about: Subject) -> None:
    """Prints the page, coloured on a terminal and plain into a pipe."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for line in page(about, min(console.width, 120)):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def page(about: Subject, width: int = WIDTH) -> Iterator[Text]:
    """Line by line."""
    total, remembered = size.parameters(about.spec), cache(about.spec)
    yield Text(f"{about.name}: {_wiring(about.spec)}", style="bold")
    yield Text(_family(about), style="dim")
    yield Text()
    for station in stations(about.spec):
        yield from _lines(station, width, "")
    yield Text("─" * width, style="dim")
    yield _line("", "total", "", f"{total:,}", width, style="bold")
    yield Text(f"memory       {amount(4 * total)} in float32, {amount(2 * total)} in bfloat16")
    if remembered:
        yield Text(
            f"decoding     remembers {remembered:,} numbers a token: {amount(2 * remembered)} in bfloat16"
        )
    said = " · ".join(f"{letter} {meaning}" for letter, meaning in letters(about.spec).items())
    yield from (
        Text(line, style="dim")
        for line in textwrap.wrap(f"letters      {said}", width, subsequent_indent=" " * 13)
    )


def data(about: Subject) -> dict[str, Any]:
    """The same as JSON values."""
    total = size.parameters(about.spec)
    return {
        "name": about.name,
        "wiring": _wiring(about.spec),
        "family": about.family,
        "architecture": about.architecture,
        "parameters": total,
        "bytes": {"float32": 4 * total, "bfloat16": 2 * total},
        "remembered_per_token": cache(about.spec),
        "letters": letters(about.spec),
        "stations": [_plain(station) for station in stations(about.spec)],
        "spec": spec.to_dict(about.spec),
    }


def _plain(station: Station) -> dict[str, Any]:
    said: dict[str, Any] = {"name": station.name, "text": station.text, "shape": station.shape}
    said |= {"parameters": station.parameters, "times": station.times, "copies": station.copies}
    return said | (
        {"inside": [_plain(inner) for inner in station.inside]} if station.inside else {}
    )


def _wiring(model: spec.Model) -> str:
    return _WIRINGS[type(model).__name__]


def _family(about: Subject) -> str:
    if about.family == "regard":
        return "no family of Hugging Face's has all of these choices; stored in regard's own format"
    return f"Hugging Face: family {about.family}, {about.architecture}"


def _lines(station: Station, width: int, guides: str) -> Iterator[Text]:
    count = f"{station.parameters:,}" if station.parameters else ""
    if not station.inside:
        yield from _wrapped(station, guides, station.name, station.text, count, width)
        return
    many = f" × {station.times}" if station.times > 1 else ""
    each = f"{station.once:,} each" if station.copies > 1 else ""
    text = "; ".join(part for part in (station.text, each) if part)
    yield from _wrapped(station, guides, station.name + many, text, count, width, style="bold")
    for inner in station.inside:
        yield from _lines(inner, width, guides + _GUIDE)


def _wrapped(
    station: Station, guides: str, name: str, text: str, count: str, width: int, style: str = ""
) -> Iterator[Text]:
    room = width - _NAME - _SHAPE - _COUNT - 2
    first, *more = textwrap.wrap(text, room) or [""]
    yield _line(guides, name, first, count, width, station.shape, style)
    for line in more:
        yield _line(guides, "", line, "", width)


def _line(
    guides: str, name: str, text: str, count: str, width: int, shape: str = "", style: str = ""
) -> Text:
    room = width - _NAME - _SHAPE - _COUNT - 2
    line = Text.assemble(
        (guides, "dim"),
        (f"{name:<{_NAME - len(guides)}} ", style or "cyan"),
        (f"{text:<{room}} ", ""),
        (f"{shape:<{_SHAPE}}", "green"),
        (f"{count:>{_COUNT}}", style or "yellow"),
    )
    line.rstrip()
    return line
