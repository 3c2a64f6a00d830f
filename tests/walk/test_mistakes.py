"""Other mistakes of the first hour, each answered in one form: the problem, then the repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("finetune", "x", "--task", "clasify", "--data", "y"), "did you mean 'classify'"),
        (("translate", "x", "--quantize", "int4"), "did you mean 'int8'"),
        (("translate", "x", "--beem", "3"), "did you mean '--beam'"),
        (("translate",), "--help"),
        (("generate", "x", "--max-new-tokens", "0"), "--help"),
        (("translate", "godo"), "--download"),
    ],
)
def test_flags_and_names(arguments: tuple[str, ...], words: str, command: Command) -> None:
    command(*arguments).refused(words)


def test_latin_1_on_standard_input(
    command: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Stra\u00dfe\n".encode("latin-1"))
    done = command("translate", trained, "--input", latin)
    done.refused("byte 0xdf", f"iconv -f latin1 -t utf-8 {latin}")
