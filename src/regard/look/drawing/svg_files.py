"""Pictures as SVG, and self-contained HTML pages.

Text is escaped where it is written; markup is never made from it.
"""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from regard import disk
from regard.look.drawing.marks import (
    FONT,
    Circle,
    Line,
    Mark,
    Pixels,
    Rect,
    Scene,
    Text,
)
from regard.look.drawing.png_files import image

if TYPE_CHECKING:
    pass

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} \
body {{ margin: 1rem; background: #fff; color: #15181e; \
font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }}
figcaption {{ max-width: 60rem; color: #5b6472; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #181b21; color: #eceff4; }} \
figcaption {{ color: #a0a9b8; }} }}\
</style></head>
<body>{body}</body></html>
"""


def svg(scene: Scene, title: str) -> str:
    """The scene as an SVG element; `ink` follows the text colour of the page around it."""
    width = max(1, round(scene.width))
    height = max(1, round(scene.height))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, Segoe UI, Roboto, sans-serif" font-size="{FONT:g}">'
        f"{''.join(map(element, scene.marks))}</svg>"
    )


def element(mark: Mark) -> str:
    """A mark as an SVG element."""
    match mark:
        case Rect():
            return (
                f'<rect x="{mark.x:.1f}" y="{mark.y:.1f}" '
                f'width="{mark.width:.1f}" height="{mark.height:.1f}" '
                f'fill="{mark.colour}"{_closed("rect", mark.title)}'
            )
        case Line():
            return (
                f'<line x1="{mark.x1:.1f}" y1="{mark.y1:.1f}" '
                f'x2="{mark.x2:.1f}" y2="{mark.y2:.1f}" '
                f'stroke="{_ink(mark.colour)}" stroke-width="{mark.width:g}" '
                f'stroke-opacity="{mark.opacity:.3f}"{_closed("line", mark.title)}'
            )
        case Text():
            # An SVG rotates clockwise: −90° reads from bottom to top.
            turn = f' transform="rotate(-90 {mark.x:.1f} {mark.y:.1f})"' if mark.upright else ""
            weight = ' font-weight="600"' if mark.strong else ""
            return (
                f'<text x="{mark.x:.1f}" y="{mark.y:.1f}" text-anchor="{mark.anchor}" '
                f'fill="{_ink(mark.colour)}"{weight}{turn}>{escape(mark.text)}</text>'
            )
        case Circle():
            return (
                f'<circle cx="{mark.x:.1f}" cy="{mark.y:.1f}" r="{mark.radius:.1f}" '
                f'fill="{_ink(mark.colour)}" '
                f'fill-opacity="{mark.opacity:.3f}"{_closed("circle", mark.title)}'
            )
        case Pixels():
            # Embedded, so that a page is one file; pixels stay squares when scaled.
            data = base64.b64encode(image(mark.colours)).decode()
            return (
                f'<image x="{mark.x:.1f}" y="{mark.y:.1f}" '
                f'width="{mark.width:.1f}" height="{mark.height:.1f}" '
                f'preserveAspectRatio="none" style="image-rendering:pixelated" '
                f'href="data:image/png;base64,{data}"/>'
            )


def _closed(tag: str, tooltip: str) -> str:
    """The end of an element, with its tooltip."""
    if not tooltip:
        return "/>"
    return f"><title>{escape(tooltip)}</title></{tag}>"


def _ink(colour: str) -> str:
    return "currentColor" if colour == "ink" else colour


def write_page(path: str | Path, title: str, body: str) -> None:
    """Writes a self-contained HTML page."""
    disk.write_file(Path(path), PAGE.format(title=escape(title), body=body))
