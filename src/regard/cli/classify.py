"""regard classify"""

from __future__ import annotations

from regard.cli.predict import task_command

EXAMPLES = """\b
Examples:
  regard classify runs/mood "A fine film." "Too long."
  regard classify gpt2/ "Great fun." --label good --label bad
  regard classify runs/mood --input reviews.txt.gz --output classes.jsonl --json     resumable
"""

command = task_command(
    "classify",
    """Classes of texts, images or recordings: one line for each, the input, a tab, probabilities.

    The same as `regard predict --task classify`. With --input and --output, files of any size:
    after a crash the same command goes on where it stopped.
    """,
    EXAMPLES,
)
