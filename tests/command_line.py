"""The command line in this process, one small trained run, and its files: fixtures of all tests."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import regard as package
from regard import cli
from regard.data.generated import builtin

SIZES: dict[str, Any] = {
    "preset": "tiny",
    "d_model": 32,
    "d_ff": 48,
    "heads": 2,
    "layers": 2,
    "threads": 1,
    "samples": 0,
    "device": "cpu",
}


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    def refused(self, *words: str) -> None:
        """A typed error with its repair, in a few lines, and nothing else."""
        assert self.code == 2, self.err
        assert "Traceback" not in self.err
        assert "unexpected" not in self.err
        message = self.err[self.err.index("error: ") :]
        assert "→" in message
        assert len(message.splitlines()) <= 5, message
        for word in words:
            assert word in message, message


Command = Callable[..., Outcome]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("translate", folder, text="…")`: what the shell would see, without a new process."""

    def run(*arguments: object, text: str = "", terminal: bool = False) -> Outcome:
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
        if terminal:
            monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with s.en and s.de, 300 pairs of the built-in language."""
    folder = tmp_path_factory.mktemp("files")
    pairs = list(itertools.islice(builtin.sentences("train"), 300))
    (folder / "s.en").write_text("".join(pair.source + "\n" for pair in pairs))
    (folder / "s.de").write_text("".join(pair.target + "\n" for pair in pairs))
    return folder


@pytest.fixture(scope="session")
def trained(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 8 steps, with the tokenizer of words."""
    out = tmp_path_factory.mktemp("runs") / "words"
    settings = {**SIZES, "steps": 8, "warmup_steps": 2, "batch_tokens": 512, "validate_every": 4}
    package.train(
        settings,
        source=str(files / "s.en"),
        target=str(files / "s.de"),
        tokenizer="words",
        vocabulary=4000,
        save_every=4,
        out=out,
    )
    return out


@pytest.fixture(scope="session")
def demo() -> Path:
    """The packaged translator, which has learnt the built-in language."""
    return Path(package.__file__).parent / "studio" / "demo"
