"""Self-contained HTML pages around pictures.

Text is escaped where it is written; markup is never made from it.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from regard import disk

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


def write_page(path: str | Path, title: str, body: str) -> None:
    """Writes a self-contained HTML page."""
    disk.write_file(Path(path), PAGE.format(title=escape(title), body=body))
