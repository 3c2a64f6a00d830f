"""`regard translate RUN` at a terminal answers line by line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from command_line import Command


def test_each_line_that_is_typed_is_answered(command: Command, trained: Path) -> None:
    done = command("translate", trained, text="Hello\nagain Hello\n", terminal=True)
    assert done.code == 0, done.err
    assert "Ctrl-D" in done.err
    # A prompt before each line, and one that Ctrl-D answers.
    assert done.out.count("> ") == 3
    # Each line has its own warning, where a pipe has one for all.
    assert done.err.count("does not know these words") == 2


def test_a_pipe_gets_no_prompt(command: Command, trained: Path) -> None:
    done = command("translate", trained, text="Hello\n")
    assert ">" not in done.out
    assert "Ctrl-D" not in done.err


def test_translating_imports_no_analyses_and_nothing_of_training() -> None:
    """Times are the machine's; what is imported is ours."""
    code = (
        "import sys, regard.models; "
        "print([name for name in sys.modules if name.startswith(('regard.look.', 'regard.data.'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("drawing", "circuits", "data.builtin", "data.lexicon", "beam_tree"):
        assert name not in done.stdout
