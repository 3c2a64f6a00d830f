"""CSV files of time series as people have them: gaps, quotes, and rows in the wrong order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regard.data.series import read_series
from regard.system.errors import DataError


def test_gaps_are_missing_values(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text(
        "\ufeffdate, a ,b\r\n2024-01-01,,1e3\r\n\r\n2024-01-02,NA,-2\r\n2024-01-05,3,nan\r\n"
    )
    series = read_series(file)
    assert series.columns == ("a", "b")
    expected = [[np.nan, 1000], [np.nan, -2], [3, np.nan]]
    np.testing.assert_array_equal(series.values, np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("date,a\n2024-01-01,inf\n", "'inf' is not a number"),
        ("date,a\n2024-01-01,1e39\n", "'1e39' is not a number"),  # larger than float32 has
        ("date,a\n2024-01-01,one\n", "'one' is not a number"),
        # Newest first, as many exports are: a forecast would be of the past.
        ("date,a\n2024-01-03,1\n2024-01-02,2\n2024-01-01,3\n", "sort them"),
        ('date,a\n2024-01-01,"1\n' + "2024-01-02,2\n" * 12_000, "quotation mark"),
        ("date;a\n2024-01-01;1,5\n", "cells"),
        ("", "has no rows"),
    ],
)
def test_what_is_no_series_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(DataError, match=problem):
        read_series(tmp_path / "s.csv")
