"""Texts in lines and in HTML: cut into parts, and written one after the other again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.text.markup import parts_of_html, parts_of_lines


@given(st.text())
def test_lines_written_again_are_the_text(text: str) -> None:
    parts = parts_of_lines(text)
    assert "".join(one.write(one.text) for one in parts) == text
    assert all("\n" not in one.text for one in parts)


@pytest.mark.parametrize(
    "html",
    [
        '<?xml version="1.0"?><!doctype html><p class="a">A &lt; B</p>\n<br/> C <!-- d -->',
        "<script>if (a < b) x()</script><b>A</b><pre>  kept\n  so </pre>",
        "no tag",
        "",
    ],
)
def test_html_written_again_is_the_html(html: str) -> None:
    parts = parts_of_html(html)
    assert "".join(one.write(one.text) for one in parts) == html
    texts = [one.text for one in parts if one.text]
    assert not any("<b" in one or "kept" in one for one in texts)


def test_a_translation_is_no_markup() -> None:
    [part, rest] = parts_of_html("<p>A</p>")
    assert part.write("a < b & c") + rest.write("") == "<p>a &lt; b &amp; c</p>"
