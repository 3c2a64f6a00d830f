"""The page of a model: text for a terminal or a pipe, and the same as JSON values."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.families.presets import Preset
from regard.lab.show.modules import ModuleSummary, architecture, meanings, summarize
from regard.lab.show.resolve import NamedModel
from regard.system.memory import amount

WIDTH = 100
# The widths of the columns; the description takes what is left.
_NAME_COLUMN = 26
_SHAPE_COLUMN = 18
_COUNT_COLUMN = 15
_INDENT = "│ "
_LETTERS = "shapes       B rows · T positions of the input · U positions of a decoder's own input"


def show(model: NamedModel) -> None:
    """Prints the page, coloured on a terminal and plain into a pipe."""
    # Rich finds the width of a terminal by itself; a file has none.
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(highlight=False, width=width)
    for line in page(model, min(console.width, 120)):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def page(model: NamedModel, width: int = WIDTH) -> Iterator[Text]:
    """The lines of the page."""
    yield Text(f"{model.name}: {_architecture(model)}", style="bold")
    yield Text(_family(model), style="dim")
    yield Text()
    modules = summarize(model.spec, with_shapes=True)
    for module in modules:
        yield from _module_lines(module, width, "")
    yield Text("─" * width, style="dim")
    total = parameter_count(model.spec)
    yield _line("", "total", "", "", f"{total:,}", width, style="bold")
    if model.preset is not None and model.preset.published is not None:
        text = f"published    {published_count(model.preset.published)}"
        if model.preset.reason:
            text += f": {model.preset.reason}"
        for line in textwrap.wrap(text, width, subsequent_indent=" " * 13):
            yield Text(line)
    # Of the weights alone: training takes four times as much, and activations.
    yield Text(f"memory       {amount(4 * total)} in float32, {amount(2 * total)} in bfloat16")
    cached = model.spec.kv_cache_size
    if cached:  # neither None nor 0: the cache grows with the text
        size = amount(2 * cached)
        yield Text(f"KV cache     {cached:,} values per token: {size} in bfloat16")
    yield Text(_LETTERS, style="dim")
    yield Text()
    for kind, text in (architecture(model.spec), *meanings(modules).items()):
        for line in textwrap.wrap(f"{kind}: {text}", width, subsequent_indent="  "):
            yield Text(line, style="dim")


def published_count(millions: float) -> str:
    """A published number of parameters as one writes it: `110 M`, `6.7 B`."""
    if millions >= 1000:
        return f"{millions / 1000:,.4g} B"
    return f"{millions:g} M"


def data(model: NamedModel) -> dict[str, Any]:
    """The page as JSON values."""
    total = parameter_count(model.spec)
    modules = summarize(model.spec, with_shapes=True)
    # Programs read these keys: "stations" are the modules of the page, and stay so.
    return {
        "name": model.name,
        "wiring": _architecture(model),
        "family": model.family,
        "architecture": model.architecture,
        "parameters": total,
        "published": published_data(model.preset),
        "bytes": {"float32": 4 * total, "bfloat16": 2 * total},
        "remembered_per_token": model.spec.kv_cache_size,
        "letters": _LETTERS,
        "stations": [_module_data(module) for module in modules],
        "meanings": meanings(modules),
        "spec": spec.to_dict(model.spec),
    }


def published_data(preset: Preset | None) -> dict[str, Any] | None:
    """The published parameter count of a preset, and why ours differs; None if there is none."""
    if preset is None or preset.published is None:
        return None
    return {"parameters": round(preset.published * 1e6), "reason": preset.reason or None}


def _module_data(module: ModuleSummary) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": module.name,
        "kind": module.kind,
        "text": module.text,
        "shape": module.shape,
        "parameters": module.parameters,
        "times": module.times,
        "copies": module.copies,
    }
    if module.children:
        values["inside"] = [_module_data(child) for child in module.children]
    return values


def _architecture(model: NamedModel) -> str:
    """The class of the model in words."""
    kind, _ = architecture(model.spec)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower()
    return words.replace("encoder decoder", "encoder–decoder")


def _family(model: NamedModel) -> str:
    if model.family == "regard":
        return "no Hugging Face architecture supports this model; stored in regard's own format"
    return f"Hugging Face: family {model.family}, {model.architecture}"


# ------------------------------------------------------------------ lines


def _module_lines(module: ModuleSummary, width: int, indent: str) -> Iterator[Text]:
    """A module and, indented, its children; long descriptions go on in lines below."""
    count = f"{module.parameters:,}" if module.parameters else ""
    name = module.name
    text = f"{module.kind}({module.text})" if module.text else module.kind
    if module.times > 1:
        name += f" × {module.times}"
        if module.copies == 1:
            text += ", one for all"
        elif module.parameters:
            text += f", {module.parameters_per_copy:,} each"
    style = "bold" if module.children else ""
    first, *more = textwrap.wrap(text, _text_column(width))
    yield _line(indent, name, first, module.shape, count, width, style)
    for line in more:
        yield _line(indent, "", line, "", "", width)
    for child in module.children:
        yield from _module_lines(child, width, indent + _INDENT)


def _text_column(width: int) -> int:
    return width - _NAME_COLUMN - _SHAPE_COLUMN - _COUNT_COLUMN - 2


def _line(
    indent: str, name: str, text: str, shape: str, count: str, width: int, style: str = ""
) -> Text:
    line = Text.assemble(
        (indent, "dim"),
        (f"{name:<{_NAME_COLUMN - len(indent)}} ", style or "cyan"),
        (f"{text:<{_text_column(width)}} ", ""),
        (f"{shape:<{_SHAPE_COLUMN}}", "green"),
        (f"{count:>{_COUNT_COLUMN}}", style or "yellow"),
    )
    line.rstrip()  # no trailing blanks in files
    return line
