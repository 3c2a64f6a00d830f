"""Texts inside other text: the lines of a plain one, and what stands between the tags of HTML.

Each part is translated by itself; written one after the other, the parts are the whole again.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from typing import Any

_SILENT_TAGS = ("script", "style", "code", "pre")


@dataclass(frozen=True)
class Part:
    """A stretch of text, and what stands before and behind it."""

    text: str
    before: str = ""
    after: str = ""
    is_markup: bool = False

    def write(self, text: str) -> str:
        """Another text in its place."""
        text = escape(text, quote=False) if self.is_markup else text
        return self.before + text + self.after


def parts_of_lines(text: str) -> list[Part]:
    """The lines of a plain text."""
    *lines, last = text.split("\n")
    return [*(Part(line, after="\n") for line in lines), Part(last)]


def parts_of_html(text: str) -> list[Part]:
    """The texts of HTML between two tags, each with the markup before it as it was written."""
    markup = _Markup()
    markup.feed(text)
    markup.close()
    return [*markup.parts, Part("", before=markup.rest)]


class _Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[Part] = []
        self.rest = ""
        self.silent = 0

    def handle_data(self, data: str) -> None:
        text = data.strip()
        if self.silent or not text:
            self.rest += data if self.silent else escape(data, quote=False)
            return
        begin = data.index(text)
        before = self.rest + data[:begin]
        self.parts.append(Part(" ".join(text.split()), before, is_markup=True))
        self.rest = data[begin + len(text) :]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.silent += tag in _SILENT_TAGS
        self.rest += self.get_starttag_text() or ""

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.rest += self.get_starttag_text() or ""

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in _SILENT_TAGS and self.silent > 0
        self.rest += f"</{tag}>"

    def handle_comment(self, data: str) -> None:
        self.rest += f"<!--{data}-->"

    def handle_decl(self, decl: str) -> None:
        self.rest += f"<!{decl}>"

    def handle_pi(self, data: str) -> None:
        self.rest += f"<?{data}>"
