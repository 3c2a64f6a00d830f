"""Self-contained HTML pages in light and dark, and the figures in them.

Text is escaped where it is written; markup is never made from it.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from regard.look.drawing.marks import Scene, svg
from regard.system import disk

# The colours and the typeface of the studio (studio/web/style.css).
LIGHT = """color-scheme: light; --page: #f5f6f8; --card: #ffffff; --ink: #15181e; --faint: #5b6472;
  --line: #d9dde4; --soft: #eef1f5; --accent: #1f5fbf; --good: #0b6e4f; --good-soft: #e0f3ec;
  --warm: #9a4a06; --warm-soft: #fdf0dc; --bad: #a61b1b; --bad-soft: #fdecec;"""
DARK = """color-scheme: dark; --page: #0f1115; --card: #181b21; --ink: #eceff4; --faint: #a0a9b8;
  --line: #2e343e; --soft: #20252d; --accent: #8ab8ff; --good: #6fd6ae; --good-soft: #14342a;
  --warm: #ffc46b; --warm-soft: #3a2b12; --bad: #ffa8a0; --bad-soft: #3a1d1d;"""
# `.regard` is the body of a page, or a part of another one. Its box #theme changes the colours.
STYLE = f"""
.regard {{ {LIGHT} }}
@media (prefers-color-scheme: dark) {{ .regard {{ {DARK} }} }}
:root:has(#theme:checked) .regard {{ {DARK} }}
@media (prefers-color-scheme: dark) {{ :root:has(#theme:checked) .regard {{ {LIGHT} }} }}
.regard {{ color: var(--ink); background: var(--page);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }}
.regard * {{ box-sizing: border-box; }}
.regard h1, .regard h2, .regard h3 {{ line-height: 1.25; margin: 0; font-weight: 650; }}
.regard a {{ color: var(--accent); }}
.regard figure {{ margin: 0; min-width: 0; }}
.regard figcaption, .regard .faint {{ color: var(--faint); max-width: 60rem; }}
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>body {{ margin: 0; padding: 1rem; overflow-wrap: anywhere; }}{style}</style></head>
<body class="regard">{body}</body></html>
"""


def page(title: str, body: str, style: str = "") -> str:
    """A self-contained HTML page, with a style of its own after that of all pages."""
    return _PAGE.format(title=escape(title), body=body, style=STYLE + style)


def write_page(path: str | Path, title: str, body: str) -> None:
    """Writes a self-contained HTML page."""
    disk.write_file(Path(path), page(title, body, ".regard { background: var(--card); }"))


def figure(scene: Scene, title: str, below: str = "") -> str:
    """A picture for a page or a notebook, scrolled where it is wide; `below` is HTML."""
    return f'<figure style="margin:0;overflow-x:auto">{svg(scene, title)}{below}</figure>'
