"""The reading list of docs/read-the-code.md: its files exist, and an hour is enough for them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "read-the-code.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| (\d+) \| `([^`]+)` \|", PAGE, flags=re.M)


def test_eleven_files_of_at_most_2050_lines() -> None:
    assert [int(number) for number, _ in LISTED] == list(range(1, 12))
    texts = [(ROOT / "src" / "regard" / file).read_text(encoding="utf-8") for _, file in LISTED]
    assert sum(text.count("\n") for text in texts) <= 2050
