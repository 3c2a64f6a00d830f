"""What one sentence costs at a terminal: the first command, those that follow, `import torch` alone.

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
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "src/regard/studio/demo"
SENTENCE = b"The dog sees a cat.\n"

TORCH = "import os, torch; os._exit(0)"
COMMAND = "from regard.cli import run; run()"
FORMER_COMMAND = "from regard.cli import main; main()"  # of checkouts without a daemon


@dataclass
class Contender:
    """A program, the checkout that it is of, and the seconds of its rounds."""

    name: str
    program: str
    checkout: Path
    environment: dict[str, str]
    seconds: list[float] = field(default_factory=list)

    def run(self) -> float:
        """Seconds of one process whose output and errors go to a terminal."""
        command = [sys.executable, "-c", self.program, "translate", str(DEMO)]
        environment = {**self.environment, "PYTHONPATH": str(self.checkout / "src")}
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


def contenders_of(other: Path | None, folder: str) -> list[Contender]:
    # Sockets in a folder of this measurement: the user's own daemon has no part in it.
    shared = {**os.environ, "XDG_RUNTIME_DIR": folder, "REGARD_CACHE": folder}
    alone = {**shared, "XDG_RUNTIME_DIR": f"{folder}/alone", "REGARD_DAEMON": "off"}
    contenders = []
    if other is not None:
        has_daemon = (other / "src/regard/cli/fork_server.py").exists()
        program = COMMAND if has_daemon else FORMER_COMMAND
        contenders.append(Contender(str(other), program, other, alone))
    contenders.append(Contender("import torch, and end at once", TORCH, ROOT, alone))
    contenders.append(Contender("a command by itself", COMMAND, ROOT, alone))
    contenders.append(Contender("a command that follows another", COMMAND, ROOT, shared))
    return contenders


def daemon(action: str, environment: dict[str, str]) -> int:
    command = [sys.executable, "-m", "regard", "daemon", action]
    return subprocess.run(command, env=environment, capture_output=True).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other", type=Path, help="another checkout of this repository")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        contenders = contenders_of(arguments.other, folder)
        # Once before it counts: files come from the disk, and the last one leaves its daemon.
        for contender in contenders:
            contender.run()
        environment = {**contenders[-1].environment, "PYTHONPATH": str(ROOT / "src")}
        while daemon("status", environment) != 0:
            time.sleep(0.2)
        for _ in range(arguments.rounds):
            for contender in contenders:
                contender.seconds.append(contender.run())
        daemon("stop", environment)
    first = statistics.median(contenders[0].seconds)
    for contender in contenders:
        median = statistics.median(contender.seconds)
        spread = f"({min(contender.seconds):.2f} to {max(contender.seconds):.2f})"
        print(f"{contender.name:32} {median:5.2f} s {spread:16} {median / first:.2f} of the first")


if __name__ == "__main__":
    main()
