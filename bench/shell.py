"""What one sentence costs at a terminal: a command, and `import torch` alone.

python bench/shell.py [--rounds 7] [--other CHECKOUT]

Contenders take turns; each is a process at a pseudo-terminal, timed until it has ended. `--other`
is another checkout of this repository, with the packages of this environment (`git worktree add
FOLDER COMMIT`). Medians, with the fastest and the slowest round.
"""

from __future__ import annotations

import argparse
import os
import pty
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "src/regard/studio/demo"
SENTENCE = b"The dog sees a cat.\n"

TORCH = "import os, torch; os._exit(0)"
COMMAND = "from regard.cli import run; run()"


@dataclass
class Contender:
    """A program, the checkout that it is of, and the seconds of its rounds."""

    name: str
    program: str
    checkout: Path
    seconds: list[float] = field(default_factory=list)

    def run(self) -> float:
        """Seconds of one process whose output and errors go to a terminal."""
        command = [sys.executable, "-c", self.program, "translate", str(DEMO)]
        environment = {**os.environ, "PYTHONPATH": str(self.checkout / "src")}
        keyboard, terminal = pty.openpty()
        sentence, writer = os.pipe()
        os.write(writer, SENTENCE)
        os.close(writer)
        began = time.perf_counter()
        subprocess.run(
            command, stdin=sentence, stdout=terminal, stderr=terminal, env=environment, check=True
        )
        elapsed = time.perf_counter() - began
        for descriptor in (keyboard, terminal, sentence):
            os.close(descriptor)
        return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other", type=Path, help="another checkout of this repository")
    arguments = parser.parse_args()
    contenders = [
        Contender("import torch, and end at once", TORCH, ROOT),
        Contender("a command", COMMAND, ROOT),
    ]
    if arguments.other is not None:
        contenders.insert(0, Contender(str(arguments.other), COMMAND, arguments.other))
    # Once before it counts: files come from the disk.
    for contender in contenders:
        contender.run()
    for _ in range(arguments.rounds):
        for contender in contenders:
            contender.seconds.append(contender.run())
    first = statistics.median(contenders[0].seconds)
    for contender in contenders:
        median = statistics.median(contender.seconds)
        spread = f"({min(contender.seconds):.2f} to {max(contender.seconds):.2f})"
        print(f"{contender.name:32} {median:5.2f} s {spread:16} {median / first:.2f} of the first")


if __name__ == "__main__":
    main()
